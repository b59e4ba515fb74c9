"""The results of Table 3 in miniature: intervals and paired tests, beside the paper's numbers."""

from __future__ import annotations

import json
import math
import multiprocessing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from annotated_transformer.errors import require
from lab.experiments.result_file import write_result
from lab.experiments.significance import bleu_of_sums, ppl_of_sums
from lab.experiments.table_3.miniature import SCORES, VARIATIONS, Task, read_scores, run_task
from lab.experiments.table_3.miniature_summary import Records

SIGNS = {1: "above", -1: "below", 0: "?"}


def run_tasks(tasks: Iterable[Task], jobs: int = 1) -> Iterator[Path]:
    """Run what is not finished, `jobs` at a time, each in a process of its own.

    Their files come in the order in which they are ready.
    """
    tasks = list(tasks)
    if jobs == 1:
        yield from map(run_task, tasks)
        return
    require(jobs >= 1, f"jobs must be at least 1, got {jobs}")
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_task, tasks)


def write_table(
    path: str | Path, command: str, records: Records, rows: list[dict[str, Any]]
) -> None:
    """The result file of these runs and their summary, with the command that made them."""
    write_result(path, command, result_records(records), summary=rows)


def collect(out: Path, name: str) -> Records:
    """Every finished run of a corpus: scores by variation and seed, in the table's order."""
    found: Records = {variation: {} for variation in VARIATIONS}
    for path in sorted((out / name).glob(f"*/{SCORES}")):
        record = json.loads(path.read_text(encoding="utf-8"))
        found[record["id"]][record["seed"]] = record
    require(any(found.values()), f"there is no finished run in {out / name}")
    return {variation: dict(sorted(seeds.items())) for variation, seeds in found.items() if seeds}


def as_text(rows: Iterable[dict[str, Any]]) -> str:
    """The summary for a terminal: ours on the left of the bar, the paper's on the right.

    BLEU is never below 0.
    """
    lines = [
        f"{'':20}{'seeds':>6}{'parameters':>12} {'PPL (95 %)':>22}{'difference (95 %)':>28}"
        f"{'BLEU (95 %)':>20}{'BLEU difference':>16}  | in the paper: PPL, BLEU"
    ]
    for row in rows:
        parameters = f"{row['parameters']:,}" if "parameters" in row else ""
        line = f"{row['id']:20}{row['n_seeds']:6}{parameters:>12} "
        bleu = {**row["bleu"], "low": max(0.0, row["bleu"]["low"])}
        line += f"{_interval(row['ppl']):>22}{_percent(row.get('log_ppl_difference')):>28}"
        line += f"{_interval(bleu):>20}"
        if difference := row.get("bleu_difference"):
            line += f"{difference['mean']:+10.2f} {SIGNS[difference['sign']]:5}"
        else:
            line += " " * 16
        if paper := row.get("paper"):
            line += f"  | {paper['ppl']:.2f}, {paper['bleu']:.1f}  {paper['name']}"
        else:
            to = f" (to {row['against']})" if row["against"] != "base" else ""
            line += f"  | {row['about']}{to}"
        lines.append(line)
    return "\n".join(lines)


def _interval(estimate: dict[str, Any]) -> str:
    return f"{estimate['mean']:.1f} ({estimate['low']:.1f} to {estimate['high']:.1f})"


def _percent(estimate: dict[str, Any] | None) -> str:
    """A difference of logarithms in percent of the perplexity; nothing where there is none."""
    if not estimate:
        return ""
    mean, low, high = (100 * math.expm1(estimate[key]) for key in ("mean", "low", "high"))
    return f"{mean:+.1f} % ({low:+.1f} to {high:+.1f})"


def result_records(records: Records) -> list[dict[str, Any]]:
    """A record for each run, as result files keep them."""
    return [
        {
            "row": name,
            "seed": seed,
            "ppl": ppl_of_sums(read_scores(record).nll.sum(0)),
            "bleu": bleu_of_sums(read_scores(record).bleu.sum(0)),
            "signature": record["scores"][""]["signature"],
            "corpus": record["corpus"],
            "split": "valid",
            "steps": record["steps"],
            "epochs": record.get("epochs"),
            "commit": record["commit"],
            "train_loss": record["train_loss"],
            "seconds": record["seconds_of_this_call"],
        }
        for name, seeds in records.items()
        for seed, record in seeds.items()
    ]
