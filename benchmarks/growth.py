"""What grows with the data, and what must not: time a token, and memory while translating;
book/results/growth.json.

    OMP_NUM_THREADS=1 python benchmarks/growth.py           1,000 to 1,000,000 pairs, 1,000 to
                                                            100,000 lines
    python benchmarks/growth.py --small --out /tmp/g.json   a rehearsal that measures nothing of
                                                            worth

Training: all pairs are encoded once, and in each round grouped by length for another epoch and cut
into batches, of which the first twelve of the shuffled epoch, or all, are trained on (preset tiny,
vocabulary 8,000, 2,048 tokens). The time a token is that of an epoch: seconds of encoding and
grouping over all target tokens, plus seconds of making the batches and of the steps over theirs.
Grouping and steps of all sizes take turns.

Translating: lines go through `translate_stream`, each number of them in a process of its own, at a
model so small that it is the lines that count.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from annotated_transformer import ModelConfig, TrainConfig, Transformer, Translator
from annotated_transformer.data.batching import encode_pairs, token_batches
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.training.run import TrainingRun
from benchmarks.timing import as_text, in_own_process, out_path, peak_megabytes, toy, write
from lab.experiments.table_1.memory import keep_freed_memory
from tools.arguments import parser_of, run_main

SIZES, LINES = (1_000, 10_000, 100_000, 1_000_000), (1_000, 10_000, 100_000)
SMALL_SIZES, SMALL_LINES = (100, 1_000), (10, 100)
WORDS = [f"{a}{b}{c}" for a in "bdfgklmn" for b in "aeiou" for c in ("", "r", "st", "nk")]


def texts(n: int, seed: int) -> Iterator[str]:
    """n sentences of made-up words, as long as sentences are."""
    rng = random.Random(seed)
    for _ in range(n):
        yield " ".join(
            rng.choices(WORDS, k=max(1, min(60, round(10 * rng.lognormvariate(0, 0.5)))))
        )


class Training:
    """One size: its encoded pairs, the bytes that they take a target token,
    and a run to take steps with."""

    def __init__(
        self, n_pairs: int, tokenizer: Tokenizer, config: ModelConfig, max_tokens: int
    ) -> None:
        pairs = list(zip(texts(n_pairs, 1), texts(n_pairs, 2), strict=True))
        began = time.perf_counter()
        self.pairs = encode_pairs(tokenizer, pairs, TrainConfig().max_length)
        self.encoding = time.perf_counter() - began
        self.n_tokens = sum(len(target) + 1 for _, target in self.pairs)
        self.bytes_a_token = (
            sum(sys.getsizeof(side) for pair in self.pairs for side in pair) / self.n_tokens
        )
        self.max_tokens = max_tokens
        self.run = TrainingRun(config, TrainConfig(precision="fp32", lr_factor=0.1))

    def round(self, n_steps: int, epoch: int) -> dict[str, float]:
        """Microseconds a target token of each part."""
        began = time.perf_counter()
        batches = token_batches(self.pairs, self.max_tokens, epoch=epoch)
        first = next(batches)
        grouping = time.perf_counter() - began
        began = time.perf_counter()
        others = list(islice(batches, n_steps - 1))
        batching = (time.perf_counter() - began) / max(1, sum(batch.n_tokens for batch in others))
        began = time.perf_counter()
        n_tokens = sum(self.run.step([batch])[2] for batch in [first, *others])
        steps = time.perf_counter() - began
        parts = {
            "encoding": self.encoding / self.n_tokens,
            "grouping": grouping / self.n_tokens,
            "batching": batching,
            "steps": steps / n_tokens,
        }
        return {name: 1e6 * seconds for name, seconds in parts.items()}


def measure_training(small: bool, rounds: int) -> list[dict[str, Any]]:
    """One record a size; `over_smallest` is the median over rounds of its time a token
    over the smallest size's."""
    torch.manual_seed(0)
    keep_freed_memory()
    tokenizer = Tokenizer.train(texts(500 if small else 20_000, 3), 300 if small else 480)
    config = toy(tokenizer.vocab_size) if small else ModelConfig.tiny(8000)
    runs = {
        n: Training(n, tokenizer, config, 300 if small else 2048)
        for n in (SMALL_SIZES if small else SIZES)
    }
    n_steps = 3 if small else 12
    found: dict[int, list[dict[str, float]]] = {n: [] for n in runs}
    for epoch in range(rounds):
        for n, run in runs.items():
            found[n].append(run.round(n_steps, epoch))
    totals = {n: [sum(one.values()) for one in rows] for n, rows in found.items()}
    least = totals[min(totals)]
    return [
        {
            "measure": "training",
            "pairs": n,
            "tokens": runs[n].n_tokens,
            "rounds": rounds,
            **{
                f"{part}_us_a_token": statistics.median(row[part] for row in rows)
                for part in rows[0]
            },
            "us_a_token": statistics.median(totals[n]),
            "bytes_a_token": runs[n].bytes_a_token,
            "over_smallest": statistics.median(
                a / b for a, b in zip(totals[n], least, strict=True)
            ),
        }
        for n, rows in found.items()
    ]


def translate_lines(n_lines: int) -> dict[str, Any]:
    """Run in a process of its own: translate n lines as they come; megabytes at their highest,
    and at the start."""
    tokenizer = Tokenizer.train(texts(500, 3), 300)
    torch.manual_seed(0)
    translator = Translator(
        Transformer(ModelConfig(tokenizer.vocab_size, N=1, d_model=8, d_ff=8, h=1)), tokenizer
    )
    # What the first windows take.
    list(translator.translate_stream(texts(1024, 4), beam_size=1, max_extra=0))
    before = peak_megabytes()
    n_out = sum(1 for _ in translator.translate_stream(texts(n_lines, 5), beam_size=1, max_extra=0))
    return {
        "measure": "translating",
        "lines": n_lines,
        "lines_out": n_out,
        "megabytes_before": before,
        "peak_megabytes": peak_megabytes(),
    }


def measure_translating(small: bool) -> list[dict[str, Any]]:
    """One record a number of lines."""
    return [in_own_process("growth", "--lines", n) for n in (SMALL_LINES if small else LINES)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, small=True, out=True)
    parser.add_argument("--rounds", type=int, help="default 9")
    parser.add_argument("--lines", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if args.lines:
        print(json.dumps(translate_lines(args.lines)))
        return
    records = measure_training(args.small, args.rounds or (2 if args.small else 9))
    records += measure_translating(args.small)
    print(*map(as_text, records), sep="\n", flush=True)
    write(out_path(args, "growth"), "growth", arguments, records, seed=0)


if __name__ == "__main__":
    run_main(main)
