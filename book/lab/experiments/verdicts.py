"""The rules that judge what lies in book/results: each gives a verdict with its evidence.

Those on trained models, with the verdicts, are in `comparisons`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab.experiments.comparisons import CANNOT_TELL, DOES_NOT, HOLDS, Finding, Results
from lab.tables.table_2 import training_cost
from lab.tables.table_3 import TABLE_3, vocabulary_interval


def costs_as_printed(_: Results) -> Finding:
    """Hours times GPUs times sustained rate give Table 2's two costs, to the digits printed."""
    base = training_cost(12.0, 8)
    big = training_cost(3.5 * 24, 8)
    right = [f"{cost:.1e}" for cost in (base, big)] == ["3.3e+18", "2.3e+19"]
    said = f"12 h x 8 x 9.5e12 = {base:.2e}; 3.5 days x 8 x 9.5e12 = {big:.2e}"
    return HOLDS if right else DOES_NOT, said


def parameters_with(vocab_size: int | None) -> Callable[[Results], Finding]:
    """The printed parameters of base to (C) come out with so many rows of width d_model.

    None: with any number of rows.
    """

    def judge(_: Results) -> Finding:
        low, high = vocabulary_interval(TABLE_3[:-1])
        fits = low <= high if vocab_size is None else low <= vocab_size <= high
        said = f"all ten printed numbers need {low:,} to {high:,} rows of width d_model"
        return HOLDS if fits else DOES_NOT, said

    return judge


def big_has_the_same_vocabulary(_: Results) -> Finding:
    """Some number of rows gives big's printed parameters and those of the other ten."""
    low, high = vocabulary_interval(TABLE_3[:-1])
    low_big, high_big = vocabulary_interval(TABLE_3[-1:])
    overlap = max(low, low_big) <= min(high, high_big)
    said = f"the ten need {low:,} to {high:,} rows, big {low_big:,} to {high_big:,}"
    return HOLDS if overlap else DOES_NOT, said


def one_head_costs_the_same(_: Results) -> Finding:
    """Base's attention and those of group A take equally many operations within 5 percent.

    That is 8 n D^2 for the projections, 4 n^2 D for scores and means, and some 5 h n^2 for the
    softmax, which alone depends on h.
    """
    n, D = 50, 512
    heads = sorted(row.model_config().h for row in TABLE_3 if row.letter == "A" or row.id == "base")
    counts = [8 * n * D**2 + 4 * n**2 * D + 5 * h * n**2 for h in heads]
    said = ", ".join(f"{h}: {count:,}" for h, count in zip(heads, counts, strict=True))
    verdict = HOLDS if max(counts) <= 1.05 * min(counts) else DOES_NOT
    return verdict, f"operations by the number of heads: {said}"


def _table_1(results: Results, measure: str, layer: str) -> list[dict[str, Any]]:
    """The records of Table 1 that the claims are judged by.

    The others, with a `reason`, show where a formula breaks down.
    """
    records = results.get("table_1", {}).get("records", [])
    wanted = [r for r in records if (r["measure"], r.get("layer", "")) == (measure, layer)]
    return [r for r in wanted if not r.get("reason")]


def grows_as(layer: str) -> Callable[[Results], Finding]:
    """The exponents of n and d that were fitted to counted operations are within 0.01 of it."""

    def judge(results: Results) -> Finding:
        fits = _table_1(results, "time", layer)
        if {fit["over"] for fit in fits} != {"n", "d"}:
            return CANNOT_TELL, "not measured"
        exact = all(abs(fit["counted"]["exponent"] - fit["theory"]) <= 0.01 for fit in fits)
        said = ", ".join(f"{fit['over']}^{fit['counted']['exponent']:.2f}" for fit in fits)
        return HOLDS if exact else DOES_NOT, f"operations ~ {said}"

    return judge


def times_grow_as(layer: str) -> Callable[[Results], Finding]:
    """The exponents of measured times have the formula's in their intervals.

    Those reach no further than 0.15 to either side. Else we cannot tell, since it is the processor
    that a time departs for.
    """

    def judge(results: Results) -> Finding:
        fits = _table_1(results, "time", layer)
        if {fit["over"] for fit in fits} != {"n", "d"}:
            return CANNOT_TELL, "not measured"
        agree, said = [], []
        for fit in fits:
            low, high, formula = fit["time"]["low"], fit["time"]["high"], fit["theory"]
            narrow = high - low <= 0.3
            agree.append(low <= formula <= high and narrow)
            exponent = f"{fit['over']}^{fit['time']['exponent']:.2f}"
            outside = "" if agree[-1] else ", not in it" if narrow else ", too wide"
            said.append(f"time ~ {exponent} ({low:.2f} to {high:.2f}; formula: {formula}{outside})")
        return HOLDS if all(agree) else CANNOT_TELL, "; ".join(said)

    return judge


def counted_as(measure: str, key: str, *layers: str) -> Callable[[Results], Finding]:
    """What was counted is the formula's number at every size.

    Counted are chains of operations, or layers until the ends meet.
    """

    def judge(results: Results) -> Finding:
        records = [record for layer in layers for record in _table_1(results, measure, layer)]
        if len(records) != len(layers):
            return CANNOT_TELL, "not measured"
        right = all(record[key] == record["theory"] for record in records)
        said = (
            f"{r['layer']}: {', '.join(map(str, r[key]))} for n = {', '.join(map(str, r['n']))}"
            for r in records
        )
        return HOLDS if right else DOES_NOT, "; ".join(said)

    return judge


def fewer_operations_while_n_is_below_d(results: Results) -> Finding:
    """Self-attention and a recurrent layer take equally many operations where n is d."""
    crossings = _table_1(results, "crossover", "recurrent")
    if not crossings:
        return CANNOT_TELL, "not measured"
    exact = all(abs(one["n_operations"] / one["d"] - 1) <= 0.01 for one in crossings)
    said = ", ".join(f"n = {one['n_operations']:.0f} for d = {one['d']}" for one in crossings)
    return HOLDS if exact else DOES_NOT, f"equally many operations at {said}"


def faster_while_n_is_below_d(results: Results) -> Finding:
    """Self-attention takes less time than a recurrent layer at every measured n below d."""
    crossings = _table_1(results, "crossover", "recurrent")
    ratios, said = [], []
    for crossing in crossings:
        times = crossing["n"], crossing["seconds_self_attention"], crossing["seconds"]
        for n, attention, recurrent in zip(*times, strict=True):
            if n < (d := crossing["d"]):
                ratios.append(attention / recurrent)
                said.append(f"d = {d}, n = {n}: {ratios[-1]:.2f} of the recurrence's time")
    if not ratios:
        return CANNOT_TELL, "not measured"
    return HOLDS if max(ratios) < 1 else DOES_NOT, "; ".join(said)


def _seeds(results: Results) -> list[dict[str, Any]]:
    records = results.get("figures_3_to_5", {}).get("records", [])
    return [record for record in records if "ablation" in record]


def a_head_looks_there(link: str) -> Callable[[Results], Finding]:
    """In every seed the best head gives this three times what an untrained model's does.

    The best head is chosen on other sentences.
    """

    def judge(results: Results) -> Finding:
        shares = [seed["shares"][link] for seed in _seeds(results)]
        if not shares:
            return CANNOT_TELL, "not measured"
        said = ", ".join(
            f"{share['weight']:.0%} ({share['low']:.0%} to {share['high']:.0%})" for share in shares
        )
        there = [share["low"] >= 3 * share["untrained"] for share in shares]
        untrained = ", ".join(f"{share['untrained']:.0%}" for share in shares)
        verdict = HOLDS if all(there) else CANNOT_TELL if any(there) else DOES_NOT
        return verdict, f"share of the weight in each seed: {said}; untrained: {untrained}"

    return judge


def a_head_tells_the_antecedent(results: Results) -> Finding:
    """In every seed the best head gives the antecedent more than the rival beside it.

    It does so for either place of the antecedent, and by an interval over sentences that leaves 0
    out.
    """
    seeds = [seed["places"] for seed in _seeds(results)]
    if not seeds:
        return CANNOT_TELL, "not measured"
    tells, said = [], []
    for seed in seeds:
        tells.append(all(place["more than the rival"]["low"] > 0 for place in seed.values()))
        places = (
            f"{place['weight beside a rival']:.0%} against {place['rival']:.0%} ({name})"
            for name, place in seed.items()
        )
        said.append(" and ".join(places))
    verdict = HOLDS if all(tells) else CANNOT_TELL if any(tells) else DOES_NOT
    return verdict, f"in each seed: {', '.join(said)}"


def learns_to_parse(results: Results) -> Finding:
    """F1's interval is above both baselines, and most outputs are trees.

    This is so for each treebank, after its longest training.
    """
    records = results.get("parsing", {}).get("records", [])
    whole = [record for record in records if record["share"] == 1]
    whole.sort(key=lambda record: record["train"]["train_steps"])
    runs = {record["corpus"]: record for record in whole}
    if not runs:
        return CANNOT_TELL, "not measured"
    above, well_formed, said = [], [], []
    for corpus, record in runs.items():
        test = record["test"][0]
        floor = max(record["baselines"][name]["f1"] for name in ("flat", "right-branching"))
        above.append(test["F1 interval"][0] > floor)
        well_formed.append(test["well_formed"] > 50)
        low, high = test["F1 interval"]
        said.append(
            f"{corpus}: F1 {test['f1']:.1f} ({low:.1f} to {high:.1f}), "
            f"baselines up to {floor:.1f}, {test['well_formed']:.0f} % trees as written"
        )
    learns = all(above) and all(well_formed)
    return HOLDS if learns else CANNOT_TELL if any(above) else DOES_NOT, "; ".join(said)


def without_it_words_go_wrong(link: str) -> Callable[[Results], Finding]:
    """Without the best head these words are right less often, in every seed.

    The test is McNemar's exact one, with p < 0.01.
    """

    def judge(results: Results) -> Finding:
        tests = [seed["ablation"][f"best: {link}"] for seed in _seeds(results)]
        if not tests:
            return CANNOT_TELL, "not measured"
        falls = [test["after"] < test["before"] and test["p"] < 0.01 for test in tests]
        said = ", ".join(f"{test['before']:.1%} to {test['after']:.1%}" for test in tests)
        verdict = HOLDS if all(falls) else CANNOT_TELL if any(falls) else DOES_NOT
        return verdict, f"right in each seed, before to after: {said}"

    return judge
