"""Every interval of the stored tables, computed again from the sentences' scores by NumPy and
SciPy alone: nothing here comes from the lab."""

import gzip
import json
import math
from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, special, stats

ROOT = Path(__file__).parents[3]
LENGTHS = {
    "table_3": "multi30k-en-de",
    "table_3_to_the_end": "multi30k-en-de-to-the-end",
    "table_3_since": "multi30k-en-de-to-the-end",
}
SEARCHES = {"beam-1", "beam-2", "beam-8", "beam-16", "alpha-0", "alpha-1", "averaged"}
CONTROLS = {"without-encoder", "without-decoder", "without-cross", "without-positions"}
pytestmark = pytest.mark.slow


@cache
def runs(folder):
    """Sentences' nats, tokens and BLEU counts by row, seed and way to decode."""
    found = defaultdict(dict)
    for path in (ROOT / "benchmarks" / "table_3_scores" / folder).glob("*.json.gz"):
        run = json.loads(gzip.decompress(path.read_bytes()))
        found[run["id"]][run["seed"]] = {
            name: (np.array(scores["nll"]), np.array(scores["bleu_counts"], float))
            for name, scores in run["scores"].items()
        }
    return dict(found)


@cache
def against(folder):
    """What each trained row is compared with, as the tables say."""
    tables = [name for name, of in LENGTHS.items() if of == folder]
    rows = (row for table in tables for row in stored(table)["summary"])
    return {row["id"]: row["against"] for row in rows if row["id"] not in SEARCHES | CONTROLS}


@cache
def stored(table):
    return json.loads((ROOT / "book" / "results" / f"{table}.json").read_text())


def log_perplexity(run, keep=slice(None)):
    """The value, and each sentence's share of its error (the delta method)."""
    nats, tokens = run[0][keep].T
    value = nats.sum() / tokens.sum()
    return value, (nats - value * tokens) / tokens.sum()


def perplexity(run, keep=slice(None)):
    value, error = log_perplexity(run, keep)
    return math.exp(value), math.exp(value) * error


def bleu(run):
    """Papineni's formula on summed counts; its derivative gives each sentence's error."""
    counts = run[1]
    length, reference, *n_grams = counts.sum(0)
    matched, total = np.array(n_grams[:4]), np.array(n_grams[4:])
    value = 100 * math.exp(min(0, 1 - reference / length) + np.log(matched / total).mean())
    error = (counts[:, 2:6] / matched - counts[:, 6:] / total).sum(1) / 4
    if length < reference:
        error = error + counts[:, 0] * reference / length**2 - counts[:, 1] / length
    return value, value * error


MEASURES = {"ppl": (perplexity, log_perplexity), "bleu": (bleu, bleu)}


def prior(folder, difference, decoding):
    """Smyth's (2004) hyperparameters, from the variances of all paired differences."""
    scored, variances, degrees = runs(folder), [], []
    if decoding == "search":
        pairs = [("base", name, "base", "") for name in SEARCHES]
    else:
        pairs = [(a, decoding, b, decoding) for a, b in against(folder).items() if a != b]
    for row, how, other, other_how in pairs:
        seeds = [seed for seed in scored[row] if seed in scored[other]]
        if all(how in scored[row][seed] and other_how in scored[other][seed] for seed in seeds):
            apart = [
                difference(scored[row][seed][how])[0]
                - difference(scored[other][seed][other_how])[0]
                for seed in seeds
            ]
            if len(seeds) > 1 and np.ptp(apart) > 0:
                variances.append(np.var(apart, ddof=1))
                degrees.append(len(seeds) - 1)
    if len(variances) < 5:
        return 0.0, 0.0
    half = np.array(degrees) / 2
    e = np.log(variances) - special.digamma(half) + np.log(half)
    target = np.var(e, ddof=1) - special.polygamma(1, half).mean()
    most = sum(degrees) / 2
    found = most
    if target > special.polygamma(1, most):
        found = optimize.bisect(lambda x: special.polygamma(1, x) - target, 1e-2, most, xtol=1e-10)
    return math.exp(e.mean() + special.digamma(found) - math.log(found)), 2 * found


def interval(terms, noise=(0.0, 0.0)):
    """Mean, half width, standard error of the seeds, degrees: of weights and values by seed."""
    weights = [weight for weight, _ in terms]
    by_seed = list(zip(*(values for _, values in terms), strict=True))
    seeds = [sum(w * v[0] for w, v in zip(weights, one, strict=True)) for one in by_seed]
    errors = [sum(w * v[1] for w, v in zip(weights, one, strict=True)) for one in by_seed]
    half, k, standard, total = 1.96 * np.linalg.norm(np.mean(errors, axis=0)), len(seeds), 0.0, 0.0
    if k > 1:
        variance, degrees = noise[0] * sum(w**2 for w in weights) / 2, noise[1]
        total = degrees + k - 1
        s2 = (degrees * variance + (k - 1) * np.var(seeds, ddof=1)) / total
        standard = math.sqrt(s2 / k)
        half = math.hypot(half, stats.t.isf(0.025, total) * standard)
    return np.mean(seeds), half, standard, total


def compare(estimate, expected, what):
    mean, half, standard, degrees = expected
    width = 2 * half
    assert estimate["mean"] == pytest.approx(mean, rel=1e-6, abs=1e-9), what
    for end, value in (("low", mean - half), ("high", mean + half)):
        assert estimate[end] == pytest.approx(value, abs=0.05 * width + 1e-9), (what, end)
    assert estimate["seed_error"] == pytest.approx(standard, rel=1e-3, abs=1e-9), what
    assert estimate["degrees"] == pytest.approx(degrees, rel=1e-3), what


def of(row, decoding=""):
    """Where a row's scores lie: the trained row and the way to decode."""
    return ("base", row) if row in SEARCHES | CONTROLS else (row, decoding)


@pytest.mark.parametrize("table", LENGTHS)
@pytest.mark.parametrize("measure", MEASURES)
def test_every_interval_is_that_of_the_stored_scores(table, measure):
    folder, (plain, difference) = LENGTHS[table], MEASURES[measure]
    scored, n = runs(folder), 0
    key = {"ppl": "log_ppl_difference", "bleu": "bleu_difference"}[measure]
    for row in stored(table)["summary"]:
        for decoding, part in (("", row), ("averaged", row.get("averaged"))):
            if part is None:
                continue
            name, how = of(row["id"], decoding)
            values = [scored[name][seed][how] for seed in sorted(scored[name])]
            if measure == "bleu" and not all(run[1].sum(0).all() for run in values):
                assert row["id"] == "without-cross"  # smoothed: no sentence has four words right
                continue
            compare(part[measure], interval([(1, [plain(run) for run in values])]), row["id"])
            if key in part:
                other, other_how = of(row["against"], decoding)
                seeds = [seed for seed in sorted(scored[name]) if seed in scored[other]]
                mine, theirs = (
                    [difference(scored[one][seed][how_of]) for seed in seeds]
                    for one, how_of in ((name, how), (other, other_how))
                )
                kind = "search" if row["id"] in SEARCHES else decoding
                alike = all(np.array_equal(a[1], b[1]) for a, b in zip(mine, theirs, strict=True))
                known = row["id"] not in CONTROLS and not alike
                noise = prior(folder, difference, kind) if known else (0.0, 0.0)
                compare(part[key], interval([(1, mine), (-1, theirs)], noise), row["id"])
                values = [part[key][end] for end in ("low", "high")] + part[key]["seeds"]
                assert part[key]["sign"] == (min(values) > 0) - (max(values) < 0)
                n += 1
    assert n >= 7


def test_perplexity_within_and_beyond_a_length_has_the_intervals_of_the_stored_scores():
    scored = runs("multi30k-en-de")
    rows = {row["id"]: row for row in stored("table_3")["summary"]}
    for side in ("within", "beyond"):
        parts = {}
        for name in ("base", "short", "short-learned"):
            tokens = scored[name][1][""][0][:, 1]
            keep = tokens <= 20 if side == "within" else tokens > 20
            some = [scored[name][seed][""] for seed in sorted(scored[name])]
            compare(
                rows[name][f"ppl_{side}"],
                interval([(1, [perplexity(run, keep) for run in some])]),
                name,
            )
            parts[name] = [log_perplexity(run, keep) for run in some]
        apart = interval([(1, parts["short-learned"]), (-1, parts["short"])])
        compare(rows["short-learned"][f"log_ppl_{side}_difference"], apart, side)


def test_comparisons_of_several_rows_have_the_intervals_of_the_stored_scores():
    scored, noise = (
        runs(LENGTHS["table_3_since"]),
        prior(LENGTHS["table_3_since"], log_perplexity, ""),
    )
    rows = {
        "muon against adamw": {"muon": 1, "adamw": -1},
        "sum over product": {
            "sum": 1, "rotary": -1, "swiglu": -1, "qk-norm": -1, "adamw": -1, "base-in-8s": 3
        },
    }  # fmt: skip
    found = stored("table_3_since")["contrasts"]
    assert found.keys() == rows.keys()
    for name, weights in rows.items():
        terms = [
            (weight, [log_perplexity(scored[row][seed][""]) for seed in (1, 2, 3)])
            for row, weight in weights.items()
        ]
        compare(found[name], interval(terms, noise), name)
