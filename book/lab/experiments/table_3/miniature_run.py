"""Table 3 in miniature and the claims without a row: what is missing is run, and the table written.

    python -m lab.experiments.table_3
    python -m lab.experiments.table_3 --rows ten
    python -m lab.experiments.table_3 --to-the-end

The runs lie in a folder of their own and take hours. What a finished run was scored with, a number
or ten for each sentence, goes into a small file beside the program, benchmarks/table_3_scores: a
run that is found there is not trained again, so that a checkout with all of them computes the
table, its intervals and its tests in a minute. `--scores` names another folder, to begin from
nothing. With --small: two rows, two seeds, five steps of the corpus that reverses letters.
"""

from __future__ import annotations

import argparse
import gzip
import multiprocessing
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from annotated_transformer.errors import require
from annotated_transformer.files import write_bytes
from lab.experiments.comparisons import AT_THE_END, TWO_EPOCHS, at_both_lengths
from lab.experiments.result_file import (
    CHECKOUT,
    RESULTS,
    RUNS,
    folder_of,
    read_result,
    write_result,
)
from lab.experiments.table_3 import miniature
from lab.experiments.table_3.miniature_summary import (
    as_text,
    collect,
    contrasts,
    priors,
    result_records,
    summarize,
)

COMMAND = "python -m lab.experiments.table_3"
KEPT = CHECKOUT / "benchmarks" / "table_3_scores"
GROUPS = {
    "table_3_since": {one.id for one in miniature.SINCE},
    "table_3_rates": {one.id for one in miniature.RATES},
}
"""The result files of the groups that have one of their own, so that no page reads them by chance.
"""


def run_tasks(tasks: Iterable[miniature.Task], jobs: int = 1) -> Iterator[Path]:
    """Run what is not finished, `jobs` at a time, each in a process of its own.

    Their files come in the order in which they are ready.
    """
    tasks = list(tasks)
    if jobs == 1:
        yield from map(miniature.run_task, tasks)
        return
    require(jobs >= 1, f"jobs must be at least 1, got {jobs}")
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(miniature.run_task, tasks)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing and write table_3.json."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Table 3 in miniature.")
    parser.add_argument("--small", action="store_true", help="toy size, in seconds")
    to_the_end = f"{miniature.STEPS_TO_THE_END:,} steps a run, with a table of its own"
    parser.add_argument("--to-the-end", action="store_true", help=to_the_end)
    parser.add_argument("--steps", type=int, help="another number of steps")
    parser.add_argument("--seeds", type=int, help="seeds of each row (default: 6, or 3 to the end)")
    rows = "rows, or groups of rows: ten, claims, all (default), end (default with --to-the-end)"
    parser.add_argument("--rows", nargs="+", help=rows)
    for name, what, default in (
        ("--out", "the table's file", "book/results"),
        ("--runs", "the runs", "runs/variations"),
        ("--scores", "the scores of finished runs", "benchmarks/table_3_scores"),
    ):
        where = f"folder of {what} (default: {default}, or a temporary one)"
        parser.add_argument(name, type=Path, help=where)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--device", default="cpu", help="where runs train and are scored")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        runs = args.runs or (Path(scratch) if args.small else RUNS / "variations")
        kept = args.scores or (Path(scratch) / "kept" if args.small else KEPT)
        out = folder_of(args.out, args.small)
        usual = ["base", "A1"] if args.small else ["end" if args.to_the_end else "all"]
        variations = miniature.find_variations(args.rows or usual)
        names = [variation.id for variation in variations]
        name = "reverse" if args.small else miniature.CORPUS
        n_seeds = args.seeds or (2 if args.small else 3 if args.to_the_end else miniature.N_SEEDS)
        steps = miniature.STEPS_TO_THE_END if args.to_the_end else miniature.STEPS
        sizes: dict[str, Any] = {"to_the_end": args.to_the_end, "device": args.device}
        sizes["steps"] = args.steps or (5 if args.small else steps)
        if args.small:
            sizes |= {"vocab_size": 300, "n_sentences": 20}
        table = miniature.table_name(name, args.to_the_end)
        take(kept / table, runs / table)
        tasks = miniature.tasks_of(names, n_seeds, name, runs, **sizes)
        for number, path in enumerate(run_tasks(tasks, args.jobs), 1):
            keep(path, kept / table)
            print(f"{number} of {len(tasks)}: {path.parent.name}", flush=True)
        records = collect(runs, table)
        command = COMMAND + " --small" * args.small + " --to-the-end" * args.to_the_end
        if args.rows:
            command += f" --rows {' '.join(args.rows)}"
        if args.seeds:
            command += f" --seeds {args.seeds}"
        if args.steps:
            command += f" --steps {args.steps}"
        if args.device != "cpu":
            command += f" --device {args.device}"
        table = AT_THE_END if args.to_the_end else TWO_EPOCHS
        summary = summarize(records)
        noise = {
            group: {measure: prior._asdict() for measure, prior in of_group.items()}
            for group, of_group in priors(records).items()
        }
        for file in (table, *GROUPS):
            of_file = [row for row in summary if file_of(row["id"], table) == file]
            runs_of = {name: one for name, one in records.items() if file_of(name, table) == file}
            if of_file:
                path, measured = out / f"{file}.json", result_records(runs_of)
                more: dict[str, Any] = {"summary": of_file, "priors": noise}
                if file == "table_3_since":
                    more["contrasts"] = contrasts(records)
                write_result(path, command, measured, args.device, **more)
                print(as_text(of_file), path, sep="\n")
    if args.to_the_end and not args.small:
        early = read_result(RESULTS / f"{TWO_EPOCHS}.json")
        both = at_both_lengths({TWO_EPOCHS: early, AT_THE_END: {"summary": summary}}, miniature.END)
        print(*(f"{became:12}{said}" for became, said in both), sep="\n")


def file_of(name: str, table: str) -> str:
    """The result file of a row: `table`, unless its group has one of its own."""
    in_groups = (file for file, group in GROUPS.items() if name in group)
    return next(in_groups, table)


def keep(scores: Path, folder: Path) -> None:
    """Pack the scores of a finished run into `folder`, as ROW-SEED.json.gz."""
    packed = gzip.compress(scores.read_bytes(), mtime=0)
    folder.mkdir(parents=True, exist_ok=True)
    to = folder / f"{scores.parent.name}.json.gz"
    write_bytes(to, packed)


def take(folder: Path, runs: Path) -> None:
    """Unpack what `keep` packed for runs that are not finished in `runs`."""
    for path in sorted(folder.glob("*.json.gz")):
        scores = runs / path.name.removesuffix(".json.gz") / miniature.SCORES
        if not scores.exists():
            scores.parent.mkdir(parents=True, exist_ok=True)
            content = gzip.decompress(path.read_bytes())
            write_bytes(scores, content)


if __name__ == "__main__":
    main()
