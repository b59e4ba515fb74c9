"""Rows of Table 3 at learning rates of their own: the plan, the search, and three new seeds.

    python -m lab.experiments.table_3.own_rates

Every row of the table has base's rate, a factor of 0.3, which was chosen for base. A verdict on a
row is therefore also one on that rate. `big` differs from base in its dropout of 0.3 as well. This
is the plan for three rows whose verdicts may rest on that; it was committed before any of its runs
had begun.

**Search.** The runs of `SEARCH` take 12,500 steps each with seed 7, which appears in no table:
no-warm-up and unscaled at factors 0.15 and 0.6, big at 0.15, and big with base's dropout of 0.1 at
0.15 and 0.3. Today's setting of each row is not run again; its value is the mean of its three
stored seeds.

**Choice.** The best setting of a row has the lowest perplexity of the last checkpoint on the
validation split. Today's setting stays unless the best is more than 5% below it (`NEARLY_AS_GOOD`),
since a seed moves the perplexity of a run by about 2%. Base keeps 0.3, the best of its three
factors on seed 0. The test split is not read before this choice is made.

**Test.** Base and the three chosen settings are trained with seeds 8, 9 and 10, which no table has
either. All twelve runs are scored on the validation split and on test 2016, which no decision about
the miniature has seen; their weights are kept until both are stored. Every difference to base is
paired by seed and by sentence. Validation decides, as it does for the other rows, and test 2016
stands next to it. Where the two splits disagree, in sign or in whether the difference counts, the
verdict on the row is "cannot tell".

These verdicts replace those at base's rate on the same claims, whatever they say. Older runs cannot
be scored on test 2016, because their weights are gone.

A run that was stopped goes on from its last checkpoint when the command is given again, and a
finished run is not repeated. When all are finished, the table is written.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from annotated_transformer.data import corpus
from lab.experiments.comparisons import AT_THE_END, OWN_RATES
from lab.experiments.result_file import RESULTS, RUNS, read_result, write_result
from lab.experiments.significance import ppl_of_sums
from lab.experiments.table_3 import miniature
from lab.experiments.table_3.miniature import ON_TEST
from lab.experiments.table_3.miniature_run import KEPT, keep, take
from lab.experiments.table_3.miniature_summary import (
    Records,
    as_text,
    collect,
    priors,
    result_records,
    summarize,
)

COMMAND = "python -m lab.experiments.table_3.own_rates"
TABLE = f"{miniature.CORPUS}-own-rates"
SEARCH_SEED, SEEDS = 7, (8, 9, 10)
SETTINGS = {
    "no-warm-up": ("no-warm-up-at-0.15", "no-warm-up-at-0.6"),
    "unscaled": ("unscaled-at-0.15", "unscaled-at-0.6"),
    "big": ("big-p-0.1-at-0.3", "big-p-0.1-at-0.15", "big-at-0.15"),
}
"""The settings that are searched, by row. The row's own id is today's setting."""
SEARCH = [name for settings in SETTINGS.values() for name in settings]
NEARLY_AS_GOOD = 0.05


def choose(today: float, searched: dict[str, float], row: str) -> str:
    """The setting with the lowest perplexity; today's if that is at most 5% higher."""
    best = min(searched, key=searched.__getitem__)
    return best if searched[best] < (1 - NEARLY_AS_GOOD) * today else row


def chosen(scores: dict[str, Path]) -> dict[str, str]:
    """The best setting of each row, from the scores of the search and today's stored table."""
    records = read_result(RESULTS / f"{AT_THE_END}.json")["records"]
    ppl = {name: validation_perplexity(scores[name]) for name in SEARCH}
    found = {}
    for row, settings in SETTINGS.items():
        today = statistics.fmean(record["ppl"] for record in records if record["row"] == row)
        searched = {name: ppl[name] for name in settings}
        found[row] = choose(today, searched, row)
        values = ", ".join(f"{name} {value:.2f}" for name, value in searched.items())
        print(f"{row} {today:.2f} (three seeds), {values}: {found[row]}", flush=True)
    return found


def validation_perplexity(scores: Path) -> float:
    """Of the last checkpoint, from the scores of a run."""
    record = json.loads(scores.read_text(encoding="utf-8"))
    return ppl_of_sums(miniature.read_scores(record).nll.sum(0))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing: the search, then the three seeds of base and the chosen settings."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Rows at rates of their own.")
    add = parser.add_argument
    add("--runs", type=Path, default=RUNS / "own_rates", help="folder of the runs")
    add("--scores", type=Path, default=KEPT / TABLE, help="folder of the finished runs' scores")
    add("--out", type=Path, default=RESULTS, help="folder of the table's file")
    add("--steps", type=int, default=miniature.STEPS_TO_THE_END, help="steps of a run")
    args = parser.parse_args(arguments)
    runs = args.runs / miniature.table_name(miniature.CORPUS, to_the_end=True)
    take(args.scores, runs)
    corpus.prepare(miniature.CORPUS)

    def run(name: str, seed: int, test: bool) -> Path:
        sizes = {"steps": args.steps, "to_the_end": True, "test": test}
        task = miniature.Task(name, seed, miniature.CORPUS, args.runs, **sizes)
        scores = miniature.run_task(task)
        keep(scores, args.scores)
        print(f"{scores.parent.name}: {validation_perplexity(scores):.2f}", flush=True)
        return scores

    best = chosen({name: run(name, SEARCH_SEED, test=False) for name in SEARCH})
    for seed, name in itertools.product(SEEDS, ("base", *best.values())):
        run(name, seed, test=True)
    write_table(collect(args.runs, runs.name), best, args.out)


def write_table(records: Records, best: dict[str, str], out: Path) -> None:
    """Write the result file: each row at its best setting, under the row's own name.

    The noise of seeds is moderated by that of the table to the end.
    """
    trained = {name: {seed: records[name][seed] for seed in SEEDS} for name in best.values()}
    trained["base"] = {seed: records["base"][seed] for seed in SEEDS}
    with tempfile.TemporaryDirectory() as scratch:
        take(KEPT / miniature.table_name(miniature.CORPUS, True), Path(scratch) / AT_THE_END)
        noise = priors(collect(Path(scratch), AT_THE_END))
    rows = {"base": "base", **{setting: row for row, setting in best.items()}}
    summary = [
        {**row, "id": rows[row["id"]], "setting": row["id"]}
        for row in summarize(trained, noise=noise)
        if row["id"] in rows
    ]
    write_result(out / f"{OWN_RATES}.json", COMMAND, result_records(records), summary=summary)
    on_test = [{**row, **row[ON_TEST]} for row in summary]
    print("validation:", as_text(summary), "test 2016:", as_text(on_test), sep="\n")


if __name__ == "__main__":
    main()
