"""Table 3 in miniature and the claims without a row, all run.

It is `annotated-transformer variations run all`, and then `table`. With --small: two rows, two
seeds, five steps of the corpus that reverses letters.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from annotated_transformer.experiments.table_3.miniature import find_variations, tasks_of
from annotated_transformer.experiments.table_3.miniature_table import (
    collect,
    run_tasks,
    summarize,
    write_table,
)

COMMAND = "python -m annotated_transformer.experiments.table_3"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing and write table_3.json."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Table 3 in miniature.")
    parser.add_argument("--small", action="store_true", help="toy size, in seconds")
    for name, what, default in (
        ("--out", "table_3.json", "book/results"),
        ("--runs", "the runs", "runs/variations"),
    ):
        where = f"folder of {what} (default: {default}, or a temporary one)"
        parser.add_argument(name, type=Path, help=where)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        runs = args.runs or Path(scratch if args.small else "runs/variations")
        out = args.out or Path(tempfile.mkdtemp() if args.small else "book/results")
        variations = find_variations(["base", "A1"] if args.small else ["all"])
        names = [variation.id for variation in variations]
        name, n_seeds = ("reverse", 2) if args.small else ("tatoeba-en-de", 3)
        sizes = {"steps": 5, "vocab_size": 300, "n_sentences": 20} if args.small else {}
        tasks = tasks_of(names, n_seeds, name, runs, **sizes)
        for number, path in enumerate(run_tasks(tasks, args.jobs), 1):
            print(f"{number} of {len(tasks)}: {path}", flush=True)
        records = collect(runs, name)
        command = COMMAND + " --small" * args.small
        write_table(out / "table_3.json", command, records, summarize(records))
    print(out / "table_3.json")


if __name__ == "__main__":
    main()
