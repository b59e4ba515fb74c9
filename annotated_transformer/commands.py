"""What each verb of the command line does: prepare, train, average, translate, evaluate, variations, export.

A verb takes the parsed arguments, prints its result on standard output and the rest on standard error. It imports what
it needs when it runs, so that `--help` needs no torch.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from annotated_transformer.config import DecodeConfig, ModelConfig, TrainConfig
from annotated_transformer.errors import PROGRAM, require, say

if TYPE_CHECKING:
    from annotated_transformer.translation import Translator

FIXED = ("pad_id", "bos_id", "eos_id")  # the tokenizer's, which no flag can change
Pairs = list[tuple[str, str]]


def prepare(args: Namespace) -> None:
    from annotated_transformer import corpus

    if args.list:
        print("\n".join(corpus.names()))
        return
    summary = corpus.prepare(args.corpus, args.data_dir)
    print(corpus.card(args.corpus))
    print(json.dumps(summary))


def train(args: Namespace) -> None:
    model_changes, train_changes = _settings(args.set)
    if args.seed is not None:
        train_changes["seed"] = args.seed
    vocab_size = model_changes.pop("vocab_size", args.vocab_size)
    out = Path(args.out)
    require(not (args.resume and args.init), "--resume goes on with a run and --init begins one: give one of them")
    if args.resume:
        model_config, train_config, name = _resumed(args, out, vocab_size, model_changes, train_changes)
    else:
        require(not _holds(out, "training.safetensors", "model.safetensors"),
                f"{out} already holds a model: add --resume to go on with it, or name another directory")
        model_config, train_config = _new_model(args, vocab_size, model_changes), TrainConfig(**train_changes)
        name = args.corpus or ""
    device = _device(args.device)
    train_pairs, valid_pairs, name = _training_pairs(args, name)

    from annotated_transformer.tokenizer import Tokenizer
    from annotated_transformer.training import train as run

    if args.resume or args.init:
        tokenizer = Tokenizer.load(Path(args.init or out) / "tokenizer.model")
    else:
        say(f"learning a vocabulary of {model_config.vocab_size:,} from {len(train_pairs):,} training pairs")
        sentences = (sentence for pair in train_pairs for sentence in pair)
        tokenizer = Tokenizer.train(sentences, model_config.vocab_size, model_type=args.model_type)
    began = time.perf_counter()
    try:
        model = run(model_config, train_config, tokenizer, train_pairs, valid_pairs, out, device=device,
                    resume=args.resume, init=args.init, progress=not args.quiet, tensorboard=args.tensorboard,
                    corpus=name)
    except KeyboardInterrupt:
        if _holds(out, "training.safetensors"):
            say(f"interrupted; {out} is saved, and --resume goes on from there")
        raise
    measured: dict[str, Any] = {}
    for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines():
        measured.update(json.loads(line))
    measured.update(out=str(out), parameters=sum(p.numel() for p in model.parameters()),
                    seconds=round(time.perf_counter() - began, 1))
    print(json.dumps(measured))


def _new_model(args: Namespace, vocab_size: int | None, changes: dict[str, Any]) -> ModelConfig:
    """The configuration of a run that begins: that of a preset, or of the model that --init names, with changes."""
    if not args.init:
        return getattr(ModelConfig, args.preset or "tiny")(vocab_size or 8000, **changes)

    from annotated_transformer.checkpoint import read_config

    require(not (args.preset or vocab_size), "--init brings its vocabulary and model: no --vocab-size, no --preset")
    return ModelConfig.from_dict(read_config(args.init)["model"]).replace(**changes)


def _settings(assignments: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`--set name=value` as settings of the model and of the training."""
    model_names, train_names = ({field.name for field in fields(kind)} for kind in (ModelConfig, TrainConfig))
    model: dict[str, Any] = {}
    training: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        require(bool(equals), f"--set takes name=value, got {assignment}")
        require(name in (model_names | train_names) - {*FIXED},
                f"there is no setting {name}; there are {', '.join(sorted((model_names | train_names) - {*FIXED}))}")
        if name in model_names:
            model[name] = ModelConfig.parse(name, value)
        else:
            training[name] = TrainConfig.parse(name, value)
    return model, training


def _resumed(args: Namespace, out: Path, vocab_size: int | None, model_changes: dict[str, Any],
             train_changes: dict[str, Any]) -> tuple[ModelConfig, TrainConfig, str]:
    """The settings of the run in `out`, with those changed that may change. Raises ConfigError for any other."""
    from annotated_transformer.checkpoint import read_config

    stored = read_config(out)
    require({"model", "train"} <= stored.keys() and _holds(out, "training.safetensors"),
            f"nothing to resume in {out}: it has no training.safetensors")
    before = ModelConfig.from_dict(stored["model"])
    if args.preset:
        after = getattr(ModelConfig, args.preset)(vocab_size or before.vocab_size, **model_changes)
    else:
        after = before.replace(**model_changes, vocab_size=vocab_size or before.vocab_size)
    changed = [name for name, value in before.to_dict().items() if after.to_dict()[name] != value]
    require(not changed, f"{out} has another {', '.join(changed)}: it cannot be resumed with these settings")
    name = stored.get("corpus", "")
    require(args.corpus in (None, name), f"{out} was trained on {name}, it cannot be resumed on {args.corpus}")
    return before, TrainConfig.from_dict(stored["train"]).replace(**train_changes), name


def _training_pairs(args: Namespace, name: str) -> tuple[Pairs, Pairs, str]:
    """Training and validation pairs, and what to call them."""
    from annotated_transformer import corpus

    if args.train or args.valid:
        require(bool(args.train and args.valid), "--train and --valid go together: two files each, source and target")
        require(not args.corpus, "give --corpus, or --train and --valid, not both")
        return corpus.load_files(*args.train), corpus.load_files(*args.valid), " ".join(args.train)
    require(bool(name), "there is nothing to train on: give --corpus NAME, or --train S T and --valid S T")
    return list(corpus.load(name, "train", args.data_dir)), list(corpus.load(name, "valid", args.data_dir)), name


def average(args: Namespace) -> None:
    from annotated_transformer.checkpoint import average_checkpoints

    _refuse_to_overwrite_a_run(args.out)
    print(average_checkpoints(args.directory, args.last, args.out, args.others))


def translate(args: Namespace) -> None:
    search = _search(args)
    require(args.window is None or args.window >= 1, f"--window must be at least 1, got {args.window}")
    require(not (args.input and args.output and Path(args.output).exists() and
                 Path(args.input).samefile(args.output)), f"--output would overwrite the input {args.input}")
    with ExitStack() as files:
        source = files.enter_context(open(args.input, "rb")) if args.input else sys.stdin.buffer
        translator = _translator(args, args.max_source)
        target = files.enter_context(open(args.output, "wb")) if args.output else sys.stdout.buffer
        window = args.window or (1 if source.isatty() else 512)
        n_best = search.pop("n_best")
        for number, found in enumerate(translator.n_best_stream(_lines(source), n_best, window, **search), 1):
            texts = [found[0].text] if n_best == 1 else [f"{number}\t{t.score:.4f}\t{t.text}" for t in found]
            target.write("".join(f"{text}\n" for text in texts).encode())
            target.flush()


def _lines(file: BinaryIO) -> Iterator[str]:
    """Lines as LF alone ends them, so that as many go out as `wc -l` counts, whatever the bytes between."""
    for line in file:
        yield line.removesuffix(b"\n").decode("utf-8", errors="replace")


def evaluate(args: Namespace) -> None:
    from tqdm import tqdm

    from annotated_transformer import corpus
    from annotated_transformer.checkpoint import read_config
    from annotated_transformer.evaluation import bleu, chrf, perplexity

    search = _search(args)
    name = args.corpus or read_config(args.directory).get("corpus", "")
    if args.source or args.reference:
        require(bool(args.source and args.reference), "--source and --reference go together")
        require(not args.corpus, "give --corpus, or --source and --reference, not both")
        pairs = corpus.load_files(args.source, args.reference)
    else:
        require(bool(args.corpus) or name in corpus.names(), "there is nothing to translate: give --corpus NAME, "
                "or --source and --reference")
        pairs = list(corpus.load(name, args.split, args.data_dir))
    translator = _translator(args)
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    stream = translator.translate_stream(sources, **search)
    hypotheses = list(tqdm(stream, total=len(pairs), unit="line", file=sys.stderr, disable=args.quiet))
    if args.output:
        Path(args.output).write_text("".join(f"{line}\n" for line in hypotheses), encoding="utf-8", newline="\n")
    tokenizer = translator.tokenizer
    encoded = list(zip(tokenizer.encode_batch(sources), tokenizer.encode_batch(references), strict=True))
    scores = {"BLEU": bleu(hypotheses, references), "chrF2": chrf(hypotheses, references)}
    ppl = perplexity(translator.model, encoded)
    if args.json:
        named = {name: score._asdict() for name, score in scores.items()}
        print(json.dumps({**named, "perplexity": ppl, "sentences": len(pairs), "int8": args.int8, **search}))
        return
    for label, score in scores.items():
        print(f"{label:10} {score.score:6.2f}  {score.signature}")
    print(f"perplexity {ppl:6.2f}  per token of this vocabulary of {tokenizer.vocab_size:,}, {len(pairs):,} sentences")


def variations(args: Namespace) -> None:
    """Table 3 as printed; with `run`, its miniature trained and scored; with `table`, what came out."""
    from annotated_transformer.variations import TABLE_3, table, vocabulary_interval

    if args.action:
        from annotated_transformer.experiments import miniature_table

        action = miniature_table.run_verb if args.action == "run" else miniature_table.table_verb
        action(args, say)
        return
    print(table(vocab_size=args.vocab_size))
    for rows, label in ((TABLE_3[:-1], "base to (E)"), (TABLE_3[-1:], "big")):
        low, high = vocabulary_interval(rows)
        print(f"{label}: the printed parameters mean a vocabulary of {low:,} to {high:,} tokens")


def export(args: Namespace) -> None:
    import torch

    from annotated_transformer import corpus
    from annotated_transformer.checkpoint import load_model, read_config, save_weights, write_directory

    out = Path(args.out)
    _refuse_to_overwrite_a_run(out)
    require(not (out.exists() and out.samefile(args.directory)), f"the export needs a directory of its own, got {out}")
    config = read_config(args.directory)
    model, tokenizer = load_model(args.directory)
    extra = {name: value for name, value in config.items() if name != "model"}
    write_directory(out, model.config, tokenizer, {**extra, "dtype": args.dtype})
    save_weights(out / "model.safetensors", model, getattr(torch, args.dtype))
    name = config.get("corpus", "")
    n_parameters = sum(p.numel() for p in model.parameters())
    parts = [f"# {out.name}", args.notes, f"{n_parameters:,} parameters in {args.dtype}. To translate: "
             f"`{PROGRAM} translate {out.name} < input > output`.", "## Trained on",
             _block(corpus.card(name)) if name in corpus.names() else name or "Not recorded.",
             "## Settings", _block(json.dumps(config, indent=2))]
    (out / "README.md").write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")
    print(out)


def _block(text: str) -> str:
    return f"```\n{text}\n```"


def _holds(directory: str | Path, *names: str) -> bool:
    return any((Path(directory) / name).exists() for name in names)


def _refuse_to_overwrite_a_run(out: str | Path | None) -> None:
    require(not (out and _holds(out, "training.safetensors")), f"{out} holds a training run: name another directory")


def _device(name: str) -> str:
    """The device to use. Raises ConfigError when a GPU is asked for and there is none."""
    import torch

    available = torch.cuda.is_available()
    require(name != "cuda" or available, "--device cuda was asked for, but PyTorch sees no GPU here")
    return ("cuda" if available else "cpu") if name == "auto" else name


def _search(args: Namespace) -> dict[str, Any]:
    names = [field.name for field in fields(DecodeConfig) if hasattr(args, field.name)]
    search = {name: getattr(args, name) for name in names}
    DecodeConfig(**search)
    return search


def _translator(args: Namespace, max_source: int = 1024) -> Translator:
    from annotated_transformer.translation import Translator

    logging.basicConfig(format=f"{PROGRAM}: warning: %(message)s", level=logging.WARNING)
    device = "cpu" if args.int8 and args.device == "auto" else _device(args.device)
    return Translator.from_checkpoint(args.directory, device, max_source, args.int8)
