"""What real news and parliament sentences look like to the model; book/results/wmt_slice.json.

    python benchmarks/wmt_slice.py train.en train.de        a slice of the WMT training data, plain
                                                            or gzip, one sentence a line
    python benchmarks/wmt_slice.py a.en a.de --vocab-size 500 --out /tmp/w.json

The book's file was made from the 10,000 English-German pairs that are distributed with OpenNMT-py
as data/src-train.txt and data/tgt-train.txt (Europarl, Common Crawl, News Commentary). A vocabulary
is learned from the slice, and batches are made of at most 25,000 tokens a side, as in the paper,
and of an eighth of that, the share of one of its eight GPUs. The record of each has the share of
padding, in random order and grouped by length; the second also has the lengths of all rows, source
and target, of the first eight batches of an epoch.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import html
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from annotated_transformer.data.batching import Batch, TokenPair, encode_pairs, token_batches
from annotated_transformer.data.parallel_text import Pair, load_files, pairs_sha256
from annotated_transformer.data.tokenizer import Tokenizer
from benchmarks.timing import random_batches
from lab.experiments.result_file import RESULTS, write_result
from tools.arguments import parser_of, run_main

MAX_TOKENS = (25_000, 25_000 // 8)  # a step of the paper's eight GPUs, and the share of one


def read_slice(source: Path, target: Path) -> list[Pair]:
    """Its pairs, without Moses' &quot;"""
    return [(html.unescape(one), html.unescape(other)) for one, other in load_files(source, target)]


def waste(batches: Iterable[Batch]) -> float:
    """The share of padding in the sources and the targets together."""
    sides = [side for batch in batches for side in (batch.source, batch.target_out)]
    return 1 - sum(int((side != 0).sum()) for side in sides) / sum(side.numel() for side in sides)


def record(ids: list[TokenPair], max_tokens: int) -> dict[str, Any]:
    batches = list(token_batches(ids, max_tokens, seed=1))
    shuffled = random.Random(1).sample(ids, len(ids))
    return {
        "max_tokens": max_tokens,
        "batches": len(batches),
        "sentences": sorted(len(batch.source) for batch in batches),
        "waste": waste(batches),
        "waste_in_random_order": waste(random_batches(shuffled, max_tokens)),
        "first_eight": [
            [(side != 0).sum(1).tolist() for side in (batch.source, batch.target_out)]
            for batch in batches[: 8 if max_tokens == min(MAX_TOKENS) else 0]
        ],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--out", type=Path, default=RESULTS / "wmt_slice.json")
    args = parser.parse_args(arguments)
    pairs = read_slice(args.source, args.target)
    tokenizer = Tokenizer.train([text for pair in pairs for text in pair], args.vocab_size)
    ids = encode_pairs(tokenizer, pairs, max_length=10_000)
    command = f"python benchmarks/wmt_slice.py {args.source.name} {args.target.name}"
    write_result(
        args.out,
        command + (f" --vocab-size {args.vocab_size}" if args.vocab_size != 32_000 else ""),
        [record(ids, max_tokens) for max_tokens in MAX_TOKENS],
        pairs=len(pairs),
        fingerprint=pairs_sha256(pairs),
        vocab_size=args.vocab_size,
        words=[sum(len(pair[side].split()) for pair in pairs) / len(pairs) for side in (0, 1)],
        tokens=[sum(len(pair[side]) for pair in ids) / len(ids) for side in (0, 1)],
    )


if __name__ == "__main__":
    run_main(main)
