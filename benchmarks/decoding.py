"""Decoding: ours and what else there is, in turns, with the same weights;
book/results/decoding_cpu.json.

    OMP_NUM_THREADS=1 python benchmarks/decoding.py           base and book/model, batch 1 and 64,
                                                              greedy and beam 4
    python benchmarks/decoding.py --device cuda               the same on a GPU: decoding_gpu.json
    python benchmarks/decoding.py --model tiny --peer "CTranslate2 float32"
                                                              a small model against one other
    python benchmarks/decoding.py --small --out /tmp/d.json   a rehearsal that measures nothing of
                                                              worth

`pip install transformers ctranslate2 joeynmt` installs the optional peers. **base** has the paper's
size, **tiny** 3 layers that are 128 wide; both have a vocabulary of 8,000 and random weights,
rounded to float16 for all, as in a checkpoint of that type; eos is forbidden, so that each
implementation writes exactly as many tokens, 24, from sources of 24. **book/model** is trained, has
weights of float16 too, translates sentences of the default corpus's test split, and stops where it
likes; the share of outputs that are equal to ours is part of the record. Ours computes in float32
and reads W in 16 bits where rows are few, "no copy" in 32 bits always. One thread each; a round
gives every implementation its turn, the slow ones that keep no keys and values two turns in all.
The searches are each library's own, but for `torch.nn.Transformer`, which has none: ours drives it.
No length penalty (alpha = 0), since its form is another in each library. Ours stops a sentence at
its own limit, the others at that of its batch, and an ended hypothesis frees its place in their
beams, but not in ours. In float32 more than nine outputs of ten are ours, or the script stops. On a
GPU ours takes part in float32 and in float16, and Hugging Face in float32. Freed memory is kept in
the process for all of them alike; storing weights column by column is ours alone, though it would
help any model in PyTorch.

Before anything is warm, book/model translates 1,000 lines once and then once more: the first time
is what a user waits. The file is written after each measure, and a measure for which the memory
does not suffice is recorded as such.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import importlib.util
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import torch

from annotated_transformer import ModelConfig, Transformer, Translator, bleu
from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.data import corpus
from annotated_transformer.errors import require
from benchmarks.decoders import (
    DECODERS,
    ON_GPU,
    OURS,
    OURS_16,
    OURS_INT8,
    WITHOUT_CACHE,
    Decoder,
    Ids,
)
from benchmarks.timing import (
    ROOT,
    Bench,
    as_text,
    or_out_of_memory,
    out_path,
    summary,
    times_faster,
    toy,
    write,
)
from lab.experiments.table_1.memory import keep_freed_memory
from tools.arguments import parser_of, run_main


def test_sources(n: int) -> list[str]:
    return [source for source, _ in corpus.load("tatoeba-en-de", "test")[:n]]


def material(name: str, small: bool) -> tuple[Transformer, Ids, int]:
    """The model, 64 sources of ids, and the length that outputs are forced to (0: their own)."""
    if name != "book/model":
        torch.manual_seed(0)
        config = toy(300) if small else getattr(ModelConfig, name)(8000)
        length = 6 if small else 24
        sources = torch.randint(4, config.vocab_size, (64, length)).tolist()
        model = Transformer(config).eval()
        with torch.no_grad():
            # Pad, bos and eos are never among the best: JoeyNMT forbids them.
            model.embedding.weight[:3] *= 0.01
            # With random signs an output is not its input again.
            last = list(model.decoder.layers)[-1].add_norm_3.norm.weight
            last.copy_(torch.randint(0, 2, last.shape) * 2 - 1)
            for layer in model.decoder.layers:
                layer.cross_attention.W_O.weight *= 4  # so that outputs depend on their sources
            for parameter in model.parameters():
                parameter.copy_(parameter.half())
        return model, sources, length
    model, tokenizer = load_model(ROOT / "book" / "model")
    texts = test_sources(4 if small else 64)
    return model.eval(), tokenizer.encode_batch(texts), 0


def decode_all(decode: Decoder, batches: list[Ids], beam_size: int) -> Ids:
    """Every batch, one after the other."""
    return [row for batch in batches for row in decode(batch, beam_size)]


def measure(
    bench: Bench, name: str, beam_size: int, batch_size: int, peers: Sequence[str] | None
) -> list[dict[str, Any]]:
    """One record an implementation: ours and these peers, or all."""
    model, sources, forced = material(name, bench.small)
    model = model.to(bench.device)
    n = len(sources) if batch_size > 1 else min(len(sources), 4 if name == "base" else 16)
    batches = [sources[i : i + batch_size] for i in range(0, n, batch_size)]
    decoders = {
        label: build(model, forced)
        for label, (package, build) in (DECODERS if bench.device == "cpu" else ON_GPU).items()
        if importlib.util.find_spec(package) and (not peers or label in (OURS, *peers))
    }
    outputs = {label: decode_all(decode, batches, beam_size) for label, decode in decoders.items()}
    equal = {
        label: sum(a == b for a, b in zip(outputs[OURS], found, strict=True)) / n
        for label, found in outputs.items()
    }
    require(len(set(map(tuple, outputs[OURS]))) > n / 2, "outputs do not depend on their sources")
    for label, share in equal.items():
        is_exact = not label.endswith(("int8", "float16"))
        require(share > 0.9 or not is_exact, f"only {share:.0%} of the outputs of {label} are ours")
    works = {
        label: partial(decode_all, decode, batches, beam_size) for label, decode in decoders.items()
    }
    times = bench.rounds(works, rarely=WITHOUT_CACHE)
    tokens = {label: sum(map(len, rows)) for label, rows in outputs.items()}
    return [
        {
            "measure": "decoding",
            "model": name,
            "beam_size": beam_size,
            "batch_size": batch_size,
            "implementation": label,
            "sentences": n,
            "sentences_per_s": n / summary(t)["seconds"],
            "tokens_per_s": tokens[label] / summary(t)["seconds"],
            "ours_is_faster": times_faster(times[OURS], t),
            "our_int8_is_faster": times_faster(times[OURS_INT8], t) if OURS_INT8 in times else None,
            "same_outputs": equal[label],
            **summary(t),
        }
        for label, t in times.items()
    ]


def measure_first_file(bench: Bench) -> Iterator[dict[str, Any]]:
    """`Translator.translate` of a file of 1,000 lines, beam 4: the first time, and the second"""
    texts = test_sources(8 if bench.small else 1000)
    kinds: dict[str, dict[str, Any]] = {OURS: {"dtype": "float32"}, OURS_INT8: {"int8": True}}
    if bench.device == "cuda":
        kinds = {OURS: {"dtype": "float32"}, OURS_16: {}}
    for label, settings in kinds.items():
        translator = Translator.from_checkpoint(ROOT / "book" / "model", bench.device, **settings)
        first, again = (bench.seconds(partial(translator.translate, texts)) for _ in range(2))
        yield {
            "measure": "first file",
            "model": "book/model",
            "implementation": label,
            "lines": len(texts),
            "first_s": first,
            "again_s": again,
            "first_over_again": first / again,
        }


def measure_bleu(small: bool) -> Iterator[dict[str, Any]]:
    """What 8 bits cost: book/model's BLEU with beam 4 on the whole test split,
    in float32 and in int8."""
    pairs = list(corpus.load("tatoeba-en-de", "test"))[: 8 if small else None]
    for label, int8 in ((OURS, False), (OURS_INT8, True)):
        translator = Translator.from_checkpoint(ROOT / "book" / "model", int8=int8)
        translations = translator.translate([source for source, _ in pairs])
        found = bleu(translations, [target for _, target in pairs])
        yield {
            "measure": "BLEU",
            "model": "book/model",
            "implementation": label,
            "sentences": len(pairs),
            "bleu": found.score,
            "signature": found.signature,
        }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, small=True, out=True)
    parser.add_argument(
        "--model",
        choices=("base", "tiny", "book/model"),
        help="this one only, nothing written without --out",
    )
    parser.add_argument("--peer", choices=DECODERS, action="append", help="these only, and ours")
    parser.add_argument("--batch", type=int, help="this batch size only")
    parser.add_argument("--rounds", type=int, help="default 7")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args(arguments)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU")
    warnings.filterwarnings("ignore", category=UserWarning)
    torch.set_num_threads(1)
    keep_freed_memory()
    bench = Bench(args.device, args.rounds or (2 if args.small else 7), args.small)
    name = "decoding_gpu" if args.device == "cuda" else "decoding_cpu"
    out = out_path(args, name, not (args.model or args.peer or args.batch))
    packages = {
        package: version(package)
        for package in ("transformers", "ctranslate2", "joeynmt")
        if importlib.util.find_spec(package) and (package == "transformers" or args.device == "cpu")
    }
    measures: list[Callable[[], Iterable[dict[str, Any]]]] = (
        [] if args.model else [partial(measure_first_file, bench)]
    )
    for name in [args.model] if args.model else ["base", "book/model"]:
        for batch_size in [args.batch] if args.batch else [64, 1]:
            measures += [
                partial(measure, bench, name, beam_size, batch_size, args.peer)
                for beam_size in (1, 4)
            ]
    if args.device == "cpu" and not args.model:
        measures.append(partial(measure_bleu, args.small))
    records: list[dict[str, Any]] = []
    for each in measures:
        found = or_out_of_memory(each)
        print(*map(as_text, found), sep="\n", flush=True)
        records += found
        more = {"device": args.device, "seed": 0, "peers": packages}
        write(out, "decoding", arguments, records, **more)


if __name__ == "__main__":
    run_main(main)
