"""The results of Table 3 in miniature: intervals and paired tests, beside the paper's numbers."""

from __future__ import annotations

import json
import multiprocessing
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from annotated_transformer.config import ModelConfig, require
from annotated_transformer.experiments.result_file import write_result
from annotated_transformer.experiments.significance import (
    Metric,
    SentenceScores,
    bleu_of_sums,
    estimate,
    ppl_of_sums,
)
from annotated_transformer.experiments.table_3.miniature import (
    CLAIMS,
    CONTROLS,
    DECODINGS,
    SCORES,
    SHORT,
    STEPS,
    VARIATIONS,
    VOCAB_SIZE,
    Task,
    find_variations,
    read_scores,
    run_task,
    tasks_of,
)
from annotated_transformer.tables.cost import count_parameters
from annotated_transformer.tables.variations import TABLE_3

Records = dict[str, dict[int, dict[str, Any]]]
PAPER = {row.id: row for row in TABLE_3}
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


def run_verb(args: Namespace, say: Callable[[str], None]) -> None:
    """`annotated-transformer variations run ROW ...`: what is missing, seed 1 of each row first."""
    require(bool(args.rows), "name the rows to run: base, A1, ... or ten, table, claims, all")
    require(args.seeds >= 1, f"seeds must be at least 1, got {args.seeds}")
    require(args.steps is None or args.steps >= 1, f"steps must be at least 1, got {args.steps}")
    require(args.jobs >= 1, f"jobs must be at least 1, got {args.jobs}")
    names = [variation.id for variation in find_variations(args.rows)]
    sizes = {"steps": args.steps or STEPS, "vocab_size": args.vocab_size or VOCAB_SIZE}
    out = Path(args.out)
    tasks = tasks_of(names, args.seeds, args.corpus, out, **sizes, data_dir=args.data_dir)
    for number, path in enumerate(run_tasks(tasks, args.jobs), 1):
        say(f"{number} of {len(tasks)}: {path}")
    found = collect(out, args.corpus)
    chosen = {name: seeds for name, seeds in found.items() if name in names}
    print(as_text(summarize(chosen, n_samples=200)))


def table_verb(args: Namespace, say: Callable[[str], None]) -> None:
    """`annotated-transformer variations table`: every finished run, summarized.

    With --result it makes a result file.
    """
    require(not args.rows, "table takes no rows: it shows every finished run")
    records = collect(Path(args.out), args.corpus)
    rows = summarize(records)
    print(as_text(rows))
    if args.result:
        most = max(len(seeds) for seeds in records.values())
        rows_run = "all" if any(row["group"] == "claims" for row in rows) else "ten"
        where = f"--corpus {args.corpus} --out {args.out}"
        command = (
            f"annotated-transformer variations run {rows_run} --seeds {most} {where} && "
            f"annotated-transformer variations table {where} --result {args.result}"
        )
        write_table(args.result, command, records, rows)
        say(f"wrote {args.result}")


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


def summarize(records: Records, n_samples: int = 1000) -> list[dict[str, Any]]:
    """A row for each variation, each way to search with base, and each of base's controls.

    Each row has estimates, differences, and the paper's numbers. `ppl` and `bleu` are estimates
    (mean over seeds, low, high, seeds), `ppl_difference` and `bleu_difference` those of the paired
    differences to `against`, over the seeds that both have. Those that were trained on short
    sentences, and base, have `ppl_within` and `ppl_beyond` as well: perplexity of the targets of at
    most `SHORT` tokens, whatever their source, and of the longer ones.
    """
    rows = []
    for name, seeds in records.items():
        variation = VARIATIONS[name]
        first = next(iter(seeds.values()))
        row = {
            "id": name,
            "about": variation.about,
            "against": variation.against,
            "group": _group(name),
            "parameters": count_parameters(ModelConfig.from_dict(first["model"])),
            "n_seeds": len(seeds),
            "steps": first["steps"],
            "train_loss": sum(r["train_loss"] for r in seeds.values()) / len(seeds),
        }
        if name in PAPER:
            printed = ("name", "ppl", "bleu", "parameters")
            row["paper"] = {key: getattr(PAPER[name], key) for key in printed}
        rows.append({**row, **_estimates(records, name, "", variation.against, n_samples)})
    others = {name: ("search", f"base, {name.replace('-', ' ')}") for name in DECODINGS}
    others |= {name: ("controls", f"base {about}") for name, about in CONTROLS.items()}
    for name, (group, about) in others.items() if "base" in records else ():
        rows.append(
            {
                "id": name,
                "about": about,
                "against": "base",
                "group": group,
                "n_seeds": len(records["base"]),
                **_estimates(records, "base", name, "base", n_samples),
            }
        )
    return rows


def _group(name: str) -> str:
    return "claims" if name in {claim.id for claim in CLAIMS} else "table"


def _estimates(
    records: Records, name: str, decoding: str, against: str, n_samples: int
) -> dict[str, Any]:
    seeds = records[name]
    common = [seed for seed in seeds if seed in records.get(against, {})]
    compared = bool(common) and (name, decoding) != (against, "")

    def both(metric: Metric, rows: Callable[[SentenceScores], Tensor]) -> Iterator[dict[str, Any]]:
        ours = {seed: rows(read_scores(record, decoding)) for seed, record in seeds.items()}
        yield estimate(metric, list(ours.values()), n_samples=n_samples)._asdict()
        if compared:
            theirs = [rows(read_scores(records[against][seed])) for seed in common]
            difference = estimate(metric, [ours[seed] for seed in common], theirs, n_samples)
            yield {**difference._asdict(), "sign": difference.sign}

    measures: dict[str, tuple[Metric, Callable[[SentenceScores], Tensor]]] = {
        "ppl": (ppl_of_sums, lambda scores: scores.nll),
        "bleu": (bleu_of_sums, lambda scores: scores.bleu),
    }
    if name in ("base", "short", "short-learned") and not decoding:
        measures["ppl_within"] = ppl_of_sums, lambda scores: scores.nll[scores.nll[:, 1] <= SHORT]
        measures["ppl_beyond"] = ppl_of_sums, lambda scores: scores.nll[scores.nll[:, 1] > SHORT]
    return {
        label + suffix: value
        for label, (metric, rows) in measures.items()
        for suffix, value in zip(("", "_difference"), both(metric, rows), strict=False)
    }


def as_text(rows: Iterable[dict[str, Any]]) -> str:
    """The summary for a terminal: ours on the left of the bar, the paper's on the right.

    BLEU is never below 0.
    """
    lines = [
        f"{'':20}{'seeds':>6}{'parameters':>12} {'PPL (95 %)':>22}{'BLEU (95 %)':>20}"
        f"{'BLEU difference':>16}  | in the paper: PPL, BLEU"
    ]
    for row in rows:
        parameters = f"{row['parameters']:,}" if "parameters" in row else ""
        line = f"{row['id']:20}{row['n_seeds']:6}{parameters:>12} "
        bleu = {**row["bleu"], "low": max(0.0, row["bleu"]["low"])}
        line += f"{_interval(row['ppl']):>22}{_interval(bleu):>20}"
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
            "commit": record["commit"],
            "train_loss": record["train_loss"],
            "seconds": record["seconds_of_this_call"],
        }
        for name, seeds in records.items()
        for seed, record in seeds.items()
    ]
