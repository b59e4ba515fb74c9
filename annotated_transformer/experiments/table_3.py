"""Table 3 in miniature and the claims without a row: `annotated-transformer variations run all`, then `table`.

With --small: two rows, two seeds, five steps of the corpus that reverses letters.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from annotated_transformer.experiments.miniature import STEPS, VOCAB_SIZE, Task, find_variations
from annotated_transformer.experiments.miniature_table import collect, run_tasks, summarize, write_table

COMMAND = "python -m annotated_transformer.experiments.table_3"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing and write table_3.json."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Table 3 in miniature.")
    parser.add_argument("--small", action="store_true", help="toy size, in seconds")
    parser.add_argument("--out", type=Path, help="folder of table_3.json (default: book/results, or a temporary one)")
    parser.add_argument("--runs", type=Path, help="folder of the runs (default: runs/variations, or a temporary one)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        runs = args.runs or Path(scratch if args.small else "runs/variations")
        out = args.out or Path(tempfile.mkdtemp() if args.small else "book/results")
        names = ["base", "A1"] if args.small else [variation.id for variation in find_variations(["all"])]
        full = ("tatoeba-en-de", 3, STEPS, VOCAB_SIZE, None)
        name, n_seeds, steps, vocab_size, n_sentences = ("reverse", 2, 5, 300, 20) if args.small else full
        tasks = [Task(row, seed, name, runs, steps, vocab_size, n_sentences=n_sentences)
                 for seed in range(1, n_seeds + 1) for row in names]
        for number, path in enumerate(run_tasks(tasks, args.jobs), 1):
            print(f"{number} of {len(tasks)}: {path}", flush=True)
        records = collect(runs, name)
        write_table(out / "table_3.json", name, records, summarize(records))
    print(out / "table_3.json")


if __name__ == "__main__":
    main()
