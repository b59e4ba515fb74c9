"""Training steps on a CPU: ours and what else there is, in turns, on the same batches;
book/results/training_cpu.json.

    OMP_NUM_THREADS=1 python benchmarks/training.py           base and tiny, every peer that is
                                                              installed
    python benchmarks/training.py --size tiny --rounds 5      one size, less often, nothing written
    python benchmarks/training.py --size base --precision auto --no-memory       in bfloat16 where
                                                              the package takes that, all alike
    python benchmarks/training.py --small --out /tmp/t.json   a rehearsal that measures nothing of
                                                              worth

`pip install transformers x-transformers joeynmt` installs the optional peers. A round gives every
implementation the same batches once, and a product of two large matrices its turn, so that a ratio
is of neighbours in time. Speed counts real target tokens; the share of the machine's rate counts
operations on real tokens, padding none. Glibc's allocator keeps freed memory for all of them alike
(`keep_freed_memory`). The share of the time in products, by a profile of three more turns, leaves
out what fused attention does inside.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import argparse
import json
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch

from annotated_transformer import ModelConfig, TrainConfig, Transformer
from annotated_transformer.data import corpus
from annotated_transformer.data.batching import Batch, TokenPair, encode_pairs, token_batches
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import require
from annotated_transformer.training.run import TrainingRun
from benchmarks.peers import PEERS, build, installed, on_batches, unlike
from benchmarks.timing import (
    Bench,
    as_text,
    in_own_process,
    out_path,
    peak_megabytes,
    product,
    real_lengths as lengths,
    sentences,
    share_in_products,
    step_operations,
    summary,
    times_faster,
    toy,
    write,
)
from lab.experiments.table_1.memory import keep_freed_memory
from tools.arguments import parser_of, run_main

OURS = "annotated_transformer"
SIZES = {
    "base": ModelConfig.base(8000),
    "tiny": ModelConfig(8000, N=3, d_model=128, d_ff=512, h=4),
    "toy": toy(500),
}
MAX_TOKENS = {"base": 2048, "tiny": 2048, "toy": 200}
MEMORY = (37_000, 4096)  # vocabulary, padded tokens a side


def data(name: str, config: ModelConfig) -> list[TokenPair]:
    """Random ids in sentences of realistic length, or the default corpus's own."""
    if name == "random ids":
        return list(sentences(4000, config.vocab_size))
    pairs = list(corpus.load("tatoeba-en-de", "train"))
    tokenizer = Tokenizer.train((side for pair in pairs for side in pair), config.vocab_size)
    return encode_pairs(tokenizer, pairs, TrainConfig().max_length)


def some_batches(pairs: list[TokenPair], max_tokens: int, n: int) -> list[Batch]:
    """n batches spread evenly over the lengths."""
    batches = list(token_batches(pairs, max_tokens, shuffle=False))
    return [batches[round((i + 0.5) * len(batches) / n - 0.5)] for i in range(n)]


def our_run(config: ModelConfig, precision: str = "fp32") -> TrainingRun:
    return TrainingRun(config, TrainConfig(lr_factor=0.1).replace(precision=precision))


def measure(
    bench: Bench, size: str, data_name: str, names: list[str], n_batches: int, precision: str
) -> list[dict[str, Any]]:
    """One record an implementation, with its speed and ours over it."""
    config = SIZES[size]
    batches = some_batches(data(data_name, config), MAX_TOKENS[size], n_batches)
    run = our_run(config, precision)
    precision = run.config.precision  # what "auto" is here
    peers = [build(name, run.model) for name in names]
    difference = {
        peer.name: unlike(peer, run.model, batches[0]) for peer in peers if peer.is_same_function
    }
    run.model.train()
    n = 256 if bench.small else 2048
    works = {
        OURS: on_batches(lambda batch: run.step([batch]), batches),
        **{peer.name: on_batches(peer.trainer(precision), batches) for peer in peers},
        "product": product("cpu", precision, n, times=1 if n < 2048 else 3),
    }
    times = bench.rounds(works)
    in_products = {name: share_in_products(work) for name, work in works.items()}
    for name, gap in difference.items():
        require(gap < 1e-3, f"{name} computes another function: its logits differ by {gap}")
    real, count = lengths(batches), step_operations(config, lengths(batches))
    rate = (1 if n < 2048 else 3) * 2.0 * n**3 / summary(times["product"])["seconds"]
    tokens = sum(t for _, t in real)
    padding = 1 - tokens / sum(batch.target_out.numel() for batch in batches)
    return [
        {
            "measure": "training step",
            "model": size,
            "data": data_name,
            "implementation": name,
            "precision": precision,
            "target_tokens_per_s": tokens / summary(t)["seconds"],
            "ours_is_faster": times_faster(times[OURS], t),
            "share_of_product": count / summary(t)["seconds"] / rate,
            "product_gflops": rate / 1e9,
            "share_in_products": in_products[name],
            "padding": padding,
            "logits_differ_by": difference.get(name),
            "batches": n_batches,
            **summary(t),
        }
        for name, t in times.items()
        if name != "product"
    ]


def peak_of(name: str, vocab_size: int, max_tokens: int, small: bool) -> dict[str, float]:
    """Run in a process of its own: memory at its highest in two training steps,
    and what there was before them.

    The pages of code that importing reads count on both sides.
    """
    config = toy(vocab_size) if small else ModelConfig.base(vocab_size)
    batch = some_batches(sentences(1000, vocab_size), max_tokens, 3)[1]
    if name == OURS:
        run = our_run(config)
        step = on_batches(lambda b: run.step([b]), [batch])
    else:
        step = on_batches(build(name, Transformer(config)).trainer(), [batch])
    before = peak_megabytes()
    step()
    step()
    return {"peak_megabytes": peak_megabytes(), "before_megabytes": before}


def measure_memory(names: list[str], small: bool) -> list[dict[str, Any]]:
    """Peak memory of a step, each implementation in a new process."""
    vocab_size, max_tokens = (500, 200) if small else MEMORY
    records = [
        {
            "measure": "peak memory",
            "model": "toy" if small else "base",
            "implementation": name,
            "vocab_size": vocab_size,
            "max_tokens": max_tokens,
            **in_own_process("training", "--peak", name, *["--small"] * small),
        }
        for name in names
    ]
    for record in records:
        record["ours_over_it"] = records[0]["peak_megabytes"] / record["peak_megabytes"]
    return records


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, small=True, out=True)
    parser.add_argument(
        "--size", choices=SIZES, help="this size only; nothing is written without --out"
    )
    parser.add_argument("--peer", choices=PEERS, action="append", help="these peers only")
    parser.add_argument("--precision", choices=("fp32", "bf16", "auto"), default="fp32")
    parser.add_argument("--rounds", type=int, help="default 5 (base) and 15 (tiny)")
    parser.add_argument("--no-memory", action="store_true", help="leave the peak memory out")
    parser.add_argument("--peak", choices=(OURS, *PEERS), help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", category=UserWarning)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if args.peak:  # with the allocator as a user's own script would have it
        print(json.dumps(peak_of(args.peak, *((500, 200) if args.small else MEMORY), args.small)))
        return
    keep_freed_memory()
    names = [name for name in installed() if not args.peer or name in args.peer]
    records: list[dict[str, Any]] = []
    for size in [args.size] if args.size else (["toy"] if args.small else ["base", "tiny"]):
        for data_name in ("random ids", "tatoeba-en-de") if size != "toy" else ("random ids",):
            default = {"base": 5, "tiny": 15, "toy": 2}[size]
            bench = Bench("cpu", args.rounds or default, size == "toy")
            n_batches = 8 if size == "tiny" else 2
            found = measure(bench, size, data_name, names, n_batches, args.precision)
            print(*map(as_text, found), sep="\n", flush=True)
            records += found
    if not args.no_memory:
        found = measure_memory([OURS, *names], args.small)
        print(*map(as_text, found), sep="\n", flush=True)
        records += found
    packages = [PEERS[name][0].replace("_", "-") for name in names]
    versions = {package: version(package) for package in packages}
    out = out_path(args, "training_cpu", not args.size and args.precision == "fp32")
    write(out, "training", arguments, records, seed=0, peers=versions)


if __name__ == "__main__":
    run_main(main)
