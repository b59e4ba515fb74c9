"""Table 3 in miniature, summarized: intervals and paired tests, beside the paper's numbers."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from annotated_transformer.config import ModelConfig, count_parameters
from annotated_transformer.errors import require
from lab.experiments.significance import (
    N_SAMPLES,
    Metric,
    Prior,
    SentenceScores,
    bleu_of_sums,
    contrast,
    estimate,
    fit_prior,
    ppl_of_sums,
    ratio_of_sums,
)
from lab.experiments.table_3.miniature import (
    CLAIMS,
    CONTROLS,
    DECODINGS,
    OF_GPU,
    ON_TEST,
    OWN_RATES,
    RATES,
    SCORES,
    SHORT,
    SINCE,
    VARIATIONS,
    read_scores,
)
from lab.tables.table_3 import TABLE_3

Seeds = dict[int, dict[str, Any]]
Records = dict[str, Seeds]
PRINTED = {row.id: row for row in TABLE_3}
SIGNS = {1: "above", -1: "below", 0: "?"}


class Measure(NamedTuple):
    """What is estimated of one configuration, and of a difference: of which sums over sentences.

    `by_length`: only the variations of `OF_LENGTHS` have it, as they were trained.
    """

    metric: Metric
    difference: str
    metric_of_difference: Metric
    sums: Callable[[SentenceScores], Tensor]
    by_length: bool = False


def _perplexity(
    name: str, sums: Callable[[SentenceScores], Tensor], by_length: bool = False
) -> Measure:
    """Its differences are those of its logarithm, so that they are ratios of perplexities."""
    return Measure(ppl_of_sums, f"log_{name}_difference", ratio_of_sums, sums, by_length)


MEASURES = {
    "ppl": _perplexity("ppl", lambda scores: scores.nll),
    "bleu": Measure(bleu_of_sums, "bleu_difference", bleu_of_sums, lambda scores: scores.bleu),
    "ppl_within": _perplexity("ppl_within", lambda one: one.nll[one.nll[:, 1] <= SHORT], True),
    "ppl_beyond": _perplexity("ppl_beyond", lambda one: one.nll[one.nll[:, 1] > SHORT], True),
}
OF_LENGTHS = ("base", "short", "short-learned")
"""The variations whose perplexity is divided by length."""
Priors = Mapping[str, Prior]


def collect(out: Path, name: str) -> Records:
    """Every finished run of a corpus: scores by variation and seed, in the table's order."""
    found: Records = {variation: {} for variation in VARIATIONS}
    for path in sorted((out / name).glob(f"*/{SCORES}")):
        record = json.loads(path.read_text(encoding="utf-8"))
        found[record["id"]][record["seed"]] = record
    require(any(found.values()), f"there is no finished run in {out / name}")
    return {variation: dict(sorted(seeds.items())) for variation, seeds in found.items() if seeds}


def summarize(
    records: Records, n_samples: int = N_SAMPLES, noise: Mapping[str, Priors] | None = None
) -> list[dict[str, Any]]:
    """A row for each variation, each way to search with base, and each of base's controls.

    Each row has estimates, differences, and the paper's numbers. `ppl` and `bleu` are estimates
    (`significance.Estimate`), `log_ppl_difference` (nats per token: the logarithm of a ratio of
    perplexities) and `bleu_difference` those of the paired differences to `against`, over the seeds
    that both have. The noise of seeds is a row's own, moderated by `noise`, or else by that of all
    rows (`priors`); a control's is its own alone. Those that were trained on short sentences, and
    base, have `ppl_within` and `ppl_beyond` as well: perplexity of the targets of at most `SHORT`
    tokens, whatever their source, and of the longer ones. Runs to the end add their `curve`, a mean
    over seeds, `difference_curve`, the mean of the paired differences in validation nll by step,
    and under `averaged` the same estimates of the average of their last checkpoints, against the
    average of the other's. Runs that were scored on the test split have the same estimates `on
    test`.
    """
    rows, shared = [], noise or priors(records)
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
        if name in PRINTED:
            columns = ("name", "ppl", "bleu", "parameters")
            row["paper"] = {key: getattr(PRINTED[name], key) for key in columns}
        against = variation.against
        row |= _estimates(records, (name, ""), (against, ""), n_samples, shared["trained"])
        if first.get("curve"):
            curves = [record["curve"] for record in seeds.values()]
            row["curve"] = torch.tensor(curves, dtype=torch.float64).mean(0).tolist()
            if difference := _difference_curve(seeds, records.get(against, {})):
                row["difference_curve"] = difference
            names = (name, "averaged"), (against, "averaged")
            row["averaged"] = _estimates(records, *names, n_samples, shared["averaged"])
        if ON_TEST in first["scores"]:
            names = (name, ON_TEST), (against, ON_TEST)
            row[ON_TEST] = _estimates(records, *names, n_samples, shared["trained"])
        rows.append(row)
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
                **_estimates(
                    records, ("base", name), ("base", ""), n_samples, shared.get(group, {})
                ),
            }
        )
    return rows


def _group(name: str) -> str:
    groups = {"claims": CLAIMS, "since": SINCE, "rates": RATES, "own-rates": OWN_RATES}
    of = {one.id: group for group, variations in groups.items() for one in variations}
    return of.get(name, "table")


def _difference_curve(ours: Seeds, theirs: Seeds) -> list[list[float]]:
    """Steps and the mean difference in validation nll, over the seeds that both have."""
    common = [seed for seed in ours if seed in theirs and ours is not theirs]
    if not common:
        return []
    curves = [[record["curve"] for record in (ours[seed], theirs[seed])] for seed in common]
    mine, other = torch.tensor(curves, dtype=torch.float64).mean(0)
    means = (mine - other)[:, -1].tolist()
    steps = map(int, mine[:, 0].tolist())
    return [[step, round(mean, 5)] for step, mean in zip(steps, means, strict=True)]


def priors(records: Records) -> Mapping[str, Priors]:
    """The noise of a difference between seeds, by group of comparisons and measure (`fit_prior`).

    "trained" is that of every row against the one that it is compared with, and "averaged" that of
    their averages. "search" is that of the other ways to search with base's weights. A comparison
    takes part if it has two seeds at least and they differ.
    """
    pairs: dict[str, list[tuple[Seeds, str, Seeds, str]]] = {
        "trained": [],
        "averaged": [],
        "search": [],
    }
    for name, seeds in records.items():
        against = records.get(VARIATIONS[name].against, {})
        if against and against is not seeds:
            pairs["trained"].append((seeds, "", against, ""))
            pairs["averaged"].append((seeds, "averaged", against, "averaged"))
    base = records.get("base", {})
    pairs["search"] = [(base, name, base, "") for name in DECODINGS]
    found: dict[str, dict[str, Prior]] = {group: {} for group in pairs}
    for group, of_group in pairs.items():
        for label, measure in MEASURES.items():
            variances, degrees = [], []
            for pair in of_group if not measure.by_length else ():
                values = _differences(measure, *pair)
                if len(set(values)) > 1:
                    variances.append(statistics.variance(values))
                    degrees.append(len(values) - 1)
            if prior := fit_prior(variances, degrees):
                found[group][label] = prior
    return found


def _differences(
    measure: Measure, ours: Seeds, decoding: str, theirs: Seeds, other: str
) -> list[float]:
    """The measure's difference for each seed that both have, in these ways to decode."""
    return [
        _value(measure, record, decoding) - _value(measure, theirs[seed], other)
        for seed, record in ours.items()
        if seed in theirs and decoding in record["scores"] and other in theirs[seed]["scores"]
    ]


def _value(measure: Measure, record: dict[str, Any], decoding: str = "") -> float:
    return measure.metric_of_difference(measure.sums(read_scores(record, decoding)).sum(0))


def _estimates(
    records: Records,
    of: tuple[str, str],
    against: tuple[str, str],
    n_samples: int,
    shared: Priors,
) -> dict[str, Any]:
    """The estimates of a row and a way to decode, and their differences to those of another."""
    (name, decoding), (other, other_decoding) = of, against
    seeds = records[name]
    common = [seed for seed in seeds if seed in records.get(other, {})]
    compared = bool(common) and of != against
    found: dict[str, Any] = {}
    for label, measure in MEASURES.items():
        if measure.by_length and (name not in OF_LENGTHS or decoding):
            continue
        ours = {seed: measure.sums(read_scores(record, decoding)) for seed, record in seeds.items()}
        if not all(map(len, ours.values())):
            continue  # no sentence is so long
        found[label] = estimate(measure.metric, list(ours.values()), n_samples=n_samples)._asdict()
        if compared:
            theirs = [
                measure.sums(read_scores(records[other][seed], other_decoding)) for seed in common
            ]
            mine = [ours[seed] for seed in common]
            alike = all(one.equal(other) for one, other in zip(mine, theirs, strict=True))
            prior = None if alike else shared.get(label)
            difference = estimate(measure.metric_of_difference, mine, theirs, n_samples, prior)
            found[measure.difference] = {**difference._asdict(), "sign": difference.sign}
    return found


CONTRASTS = {
    "muon against adamw": {"muon": 1.0, "adamw": -1.0},
    "sum over product": {
        "sum": 1.0,
        "rotary": -1.0,
        "swiglu": -1.0,
        "qk-norm": -1.0,
        "adamw": -1.0,
        OF_GPU.id: 3.0,
    },
}
"""Comparisons that are no row's own, by name: the weight of each row's logarithm of perplexity."""


def contrasts(records: Records, n_samples: int = N_SAMPLES) -> dict[str, dict[str, Any]]:
    """The estimate of each of `CONTRASTS` whose rows were run, over the seeds that all have."""
    found = {}
    measure = MEASURES["ppl"]
    prior = priors(records)["trained"].get("ppl")
    for name, weights in CONTRASTS.items():
        if weights.keys() <= records.keys():
            common = sorted(set.intersection(*(set(records[row]) for row in weights)))
            terms = [
                (weight, [measure.sums(read_scores(records[row][seed])) for seed in common])
                for row, weight in weights.items()
            ]
            found[name] = contrast(measure.metric_of_difference, terms, n_samples, prior)._asdict()
    return found


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
        line += f"{_interval(row['ppl']):>22}{percents(row.get('log_ppl_difference')):>28}"
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


def percents(estimate: dict[str, Any] | None) -> str:
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
            "train_loss": record["train_loss"],
            **_cost(record),
            **_scores_on_test(record),
        }
        for name, seeds in records.items()
        for seed, record in seeds.items()
    ]


def _cost(record: dict[str, Any]) -> dict[str, Any]:
    """The seconds of all parts of a run, with the commit, hardware and versions of the last one.

    Runs before 2026-11-28 stored the seconds of their last part alone, and before 2026-11-27 no
    hardware either.
    """
    if "parts" not in record:
        cost = {"commit": record["commit"], "seconds_of_last_part": record["seconds_of_this_call"]}
        return cost | {key: record[key] for key in ("hardware",) if key in record}
    parts = record["parts"]
    return {
        "commit": ", ".join(dict.fromkeys(part["commit"] for part in parts)),
        "hardware": parts[-1]["hardware"],
        "versions": parts[-1]["versions"],
        "parts": len(parts),
        "seconds": round(sum(part["seconds"] for part in parts), 1),
        "cpu_seconds": round(sum(part["cpu_seconds"] for part in parts), 1),
    }


def _scores_on_test(record: dict[str, Any]) -> dict[str, float]:
    if ON_TEST not in record["scores"]:
        return {}
    nll, bleu = (sums.sum(0) for sums in read_scores(record, ON_TEST))
    return {"ppl on test": ppl_of_sums(nll), "bleu on test": bleu_of_sums(bleu)}
