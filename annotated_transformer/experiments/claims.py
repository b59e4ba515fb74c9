"""What the paper claims, and what the results in book/results say about it: holds, does not hold, cannot tell.

A verdict is computed from numbers by a rule. Those on Table 3 were written before its runs had finished, those on Table
1 and on heads when their results were at hand. A difference between two trained
models counts only when its 95 % interval leaves 0 out and every seed points the same way (`Estimate.sign`). What this
scale cannot show, or what has not been measured, is "cannot tell".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from annotated_transformer.cost import training_cost
from annotated_transformer.result_file import read_result
from annotated_transformer.variations import TABLE_3, vocabulary_interval

HOLDS, DOES_NOT, CANNOT_TELL = "holds", "does not hold", "cannot tell"
NEARLY = {"bleu": 1.0, "ppl": 0.05}
"""Nearly the same: the interval of the difference lies within 1 BLEU, or 5 % of the other model's perplexity."""
Results = dict[str, dict[str, Any]]
Finding = tuple[str, str]  # verdict, evidence


class Claim(NamedTuple):
    """A claim in our words, where the paper makes it, the rule that judges it, and what came out."""

    section: str
    statement: str
    rule: str
    verdict: str
    evidence: str


def load_results(folder: str | Path) -> Results:
    """Every result file of `folder` by its name without .json."""
    return {path.stem: read_result(path) for path in sorted(Path(folder).glob("*.json"))}


def _row(results: Results, name: str) -> dict[str, Any]:
    rows = results.get("table_3", {}).get("summary", [])
    return next((row for row in rows if row["id"] == name), {})


def _difference(results: Results, name: str, measure: str) -> dict[str, Any] | None:
    return _row(results, name).get(f"{measure}_difference")


def _said(name: str, measure: str, difference: dict[str, Any], n_digits: int = 2) -> str:
    low, mean, high = (f"{difference[key]:+.{n_digits}f}" for key in ("low", "mean", "high"))
    label = {"bleu": "BLEU", "ppl": "perplexity"}.get(measure, measure.replace("_", " ").replace("ppl", "perplexity"))
    return f"{name}: {label} {mean} ({low} to {high}, {len(difference['seeds'])} seeds)"


def worse(*names: str, measure: str = "bleu") -> Callable[[Results], Finding]:
    """Each of these variations is worse than what it is compared with, in this measure."""
    return lambda results: _all_differ(results, names, measure, -1 if measure == "bleu" else 1)


def better(*names: str, measure: str = "bleu") -> Callable[[Results], Finding]:
    """Each of these variations is better than what it is compared with, in this measure."""
    return lambda results: _all_differ(results, names, measure, 1 if measure == "bleu" else -1)


def _all_differ(results: Results, names: tuple[str, ...], measure: str, sign: int) -> Finding:
    found = {name: _difference(results, name, measure) for name in names}
    if not all(found.values()):
        return CANNOT_TELL, "not measured"
    signs = [difference["sign"] for difference in found.values() if difference]
    verdict = HOLDS if all(s == sign for s in signs) else DOES_NOT if -sign in signs else CANNOT_TELL
    return verdict, "; ".join(_said(name, measure, difference) for name, difference in found.items() if difference)


def nearly_the_same(name: str, measure: str) -> Callable[[Results], Finding]:
    """The variation differs by no more than `NEARLY` from what it is compared with."""

    def judge(results: Results) -> Finding:
        difference = _difference(results, name, measure)
        if not difference:
            return CANNOT_TELL, "not measured"
        margin = NEARLY[measure]
        if measure == "ppl":
            margin *= _row(results, _row(results, name)["against"])["ppl"]["mean"]
        within = max(abs(difference["low"]), abs(difference["high"])) <= margin
        beyond = difference["sign"] != 0 and min(abs(difference["low"]), abs(difference["high"])) > margin
        return HOLDS if within else DOES_NOT if beyond else CANNOT_TELL, _said(name, measure, difference)

    return judge


def costs_as_printed(_: Results) -> Finding:
    """Hours times GPUs times sustained rate give the two costs of Table 2, to the digits printed."""
    base = training_cost(12.0, 8)
    big = training_cost(3.5 * 24, 8)
    right = [f"{cost:.1e}" for cost in (base, big)] == ["3.3e+18", "2.3e+19"]
    return HOLDS if right else DOES_NOT, f"12 h x 8 x 9.5e12 = {base:.2e}; 3.5 days x 8 x 9.5e12 = {big:.2e}"


def parameters_with(vocab_size: int | None) -> Callable[[Results], Finding]:
    """The printed parameters of base to (C) come out with this vocabulary (None: with any at all)."""

    def judge(_: Results) -> Finding:
        low, high = vocabulary_interval(TABLE_3[:-1])
        fits = low <= high if vocab_size is None else low <= vocab_size <= high
        return HOLDS if fits else DOES_NOT, f"all ten printed numbers need {low:,} to {high:,} tokens"

    return judge


def one_head_costs_the_same(_: Results) -> Finding:
    """Base and the rows of group A have equally many parameters."""
    counts = {row.count() for row in TABLE_3 if row.letter == "A" or row.id == "base"}
    return HOLDS if len(counts) == 1 else DOES_NOT, f"{counts.pop():,} parameters with 1, 4, 8, 16 and 32 heads"


def _table_1(results: Results, measure: str, layer: str) -> list[dict[str, Any]]:
    """The records of Table 1 that the claims are judged by; those with a `reason` show where a formula breaks down."""
    records = results.get("table_1", {}).get("records", [])
    return [r for r in records if (r["measure"], r.get("layer", "")) == (measure, layer)
            and not r.get("reason")]


def grows_as(layer: str) -> Callable[[Results], Finding]:
    """The fitted exponents of time in n and d are within 0.15 of the formula's, and those of operations within 0.01."""

    def judge(results: Results) -> Finding:
        fits = _table_1(results, "time", layer)
        if {fit["over"] for fit in fits} != {"n", "d"}:
            return CANNOT_TELL, "not measured"
        close = all(abs(fit["time"]["exponent"] - fit["theory"]) <= 0.15
                    and abs(fit["counted"]["exponent"] - fit["theory"]) <= 0.01 for fit in fits)
        said = (f"time ~ {fit['over']}^{fit['time']['exponent']:.2f} ({fit['time']['low']:.2f} to "
                f"{fit['time']['high']:.2f}; formula: {fit['theory']})" for fit in fits)
        return HOLDS if close else DOES_NOT, "; ".join(said)

    return judge


def counted_as(measure: str, key: str, *layers: str) -> Callable[[Results], Finding]:
    """What was counted (chains of operations, or layers until the ends meet) is the formula's number at every size."""

    def judge(results: Results) -> Finding:
        records = [record for layer in layers for record in _table_1(results, measure, layer)]
        if len(records) != len(layers):
            return CANNOT_TELL, "not measured"
        right = all(record[key] == record["theory"] for record in records)
        said = (f"{r['layer']}: {', '.join(map(str, r[key]))} for n = {', '.join(map(str, r['n']))}" for r in records)
        return HOLDS if right else DOES_NOT, "; ".join(said)

    return judge


def faster_while_n_is_below_d(results: Results) -> Finding:
    """Self-attention takes less time than a recurrent layer at every measured n below d."""
    crossings = _table_1(results, "crossover", "recurrent")
    if not crossings or any(crossing["n_time"] is None for crossing in crossings):
        return CANNOT_TELL, "not measured"
    said = "; ".join(f"d = {c['d']}: equal time at n = {c['n_time']:.0f}, equal operations at n = "
                     f"{c['n_operations']:.0f}" for c in crossings)
    return HOLDS if all(c["n_time"] >= c["d"] for c in crossings) else DOES_NOT, said


def _seeds(results: Results) -> list[dict[str, Any]]:
    return [record for record in results.get("figures_3_to_5", {}).get("records", []) if "ablation" in record]


def a_head_looks_there(link: str) -> Callable[[Results], Finding]:
    """In every seed the best head, chosen on other sentences, puts at least three times an even share there."""

    def judge(results: Results) -> Finding:
        shares = [seed["shares"][link] for seed in _seeds(results)]
        if not shares:
            return CANNOT_TELL, "not measured"
        said = ", ".join(f"{share['weight']:.0%} ({share['low']:.0%} to {share['high']:.0%})" for share in shares)
        there = [share["low"] >= 3 * share["even"] for share in shares]
        verdict = HOLDS if all(there) else CANNOT_TELL if any(there) else DOES_NOT
        return verdict, f"share of the weight in each seed: {said}; even: {shares[0]['even']:.0%}"

    return judge


def without_it_words_go_wrong(link: str) -> Callable[[Results], Finding]:
    """Without the best head these words are right less often, in every seed (McNemar's exact test, p < 0.01)."""

    def judge(results: Results) -> Finding:
        tests = [seed["ablation"][f"best: {link}"] for seed in _seeds(results)]
        if not tests:
            return CANNOT_TELL, "not measured"
        falls = [test["after"] < test["before"] and test["p"] < 0.01 for test in tests]
        said = ", ".join(f"{test['before']:.1%} to {test['after']:.1%}" for test in tests)
        verdict = HOLDS if all(falls) else CANNOT_TELL if any(falls) else DOES_NOT
        return verdict, f"right in each seed, before to after: {said}"

    return judge


RULES: list[tuple[str, str, str, Callable[[Results], Finding]]] = [
    ("3.2.1", "Without the factor 1/sqrt(d_k), attention with large keys learns worse.",
     "h=1 (here d_k = 64): perplexity without the factor is higher", worse("unscaled-A1", measure="ppl")),
    ("3.2.1", "With small keys the factor hardly matters.",
     "h=8 (here d_k = 8): perplexity without it within 5 %", nearly_the_same("unscaled", "ppl")),
    ("3.2.2", "Many narrow heads cost as much as one wide head.", "equal parameters at full size",
     one_head_costs_the_same),
    ("4", "A self-attention layer costs O(n^2 d).", "fitted exponents of time within 0.15 of 2 and 1",
     grows_as("self-attention")),
    ("4", "A recurrent layer costs O(n d^2).", "fitted exponents of time within 0.15 of 1 and 2",
     grows_as("recurrent")),
    ("4", "A convolution costs O(k n d^2).", "fitted exponents of time within 0.15 of 1 and 2",
     grows_as("convolutional")),
    ("4", "Self-attention restricted to r neighbours costs O(r n d).",
     "fitted exponents of time within 0.15 of 1 and 1", grows_as("restricted self-attention")),
    ("4", "A separable convolution costs O(k n d + n d^2).", "for large d: exponents within 0.15 of 1 and 2",
     grows_as("separable convolutional")),
    ("4", "Self-attention needs a constant number of sequential operations, recurrence O(n).",
     "the longest chain of products has the formula's length",
     counted_as("sequential", "chains", "self-attention", "recurrent")),
    ("4", "Any two positions are one self-attention layer apart, and O(n) steps of a recurrence.",
     "gradients reach the other end after the formula's number of steps",
     counted_as("path", "steps", "self-attention", "recurrent")),
    ("4", "Convolutions need O(n/k) layers, dilated ones O(log_k n), restricted attention O(n/r).",
     "gradients reach the other end after the formula's number of layers",
     counted_as("path", "steps", "convolutional", "convolutional, dilated", "restricted self-attention")),
    ("4", "Self-attention is faster than recurrence while n is smaller than d.",
     "time is equal only at some n above d (one thread of a processor)", faster_while_n_is_below_d),
    ("3.5", "Without positions the model cannot use the order of the words.",
     "no positions at all: BLEU is lower", worse("no-positions")),
    ("3.5, 6.2", "Learned positions give nearly the same result as sinusoids.",
     "row E: BLEU within 1 of base's", nearly_the_same("E1", "bleu")),
    ("3.5", "Sinusoids may extend to sentences longer than those seen in training.",
     "trained on short sentences: perplexity on longer ones is higher with learned positions",
     worse("short-learned", measure="ppl_beyond")),
    ("5.3", "Training needs the warm-up of the rate.", "at the peak rate from step 1: BLEU is lower",
     worse("no-warm-up")),
    ("3.1", "Post-norm, the paper's choice, is at least as good as pre-norm.",
     "pre-norm has lower BLEU under the same schedule", worse("pre-norm")),
    ("5.4", "Label smoothing hurts perplexity.", "eps_ls = 0: perplexity is lower", better("D3", measure="ppl")),
    ("5.4", "Label smoothing improves BLEU.", "eps_ls = 0: BLEU is lower", worse("D3")),
    ("6.1", "Averaging the last checkpoints helps.", "base with its last 5 averaged: BLEU is higher",
     better("averaged")),
    ("6.1", "Beam search with beam 4 is used in place of greedy search.", "beam 1: BLEU is lower", worse("beam-1")),
    ("6.1", "A length penalty of alpha 0.6 is used.", "alpha 0: BLEU is lower", worse("alpha-0")),
    ("6.1", "Training cost 3.3e18 (base) and 2.3e19 (big) floating-point operations.", "hours x GPUs x rate",
     costs_as_printed),
    ("6.2 A", "A single head is worse than eight.", "h=1: BLEU is lower", worse("A1")),
    ("6.2 A", "Quality also drops with too many heads.", "h=32: BLEU is lower", worse("A4")),
    ("6.2 B", "Narrower keys hurt.", "d_k=16 (here 2): BLEU is lower", worse("B1")),
    ("6.2 B", "Narrower keys hurt, in perplexity too.", "d_k=16 and 32 (here 2 and 4): perplexity is higher",
     worse("B1", "B2", measure="ppl")),
    ("6.2 C", "Fewer layers are worse.", "N=2 (here 1): BLEU is lower", worse("C1")),
    ("6.2 C", "More layers lower the perplexity.", "N=8 (here 4): perplexity is lower", better("C3", measure="ppl")),
    ("6.2 C", "A narrower model is worse.", "d_model=256 (here 32): BLEU is lower", worse("C4")),
    ("6.2 C", "A wider model is better.", "d_model=1024 (here 128): BLEU is higher", better("C5")),
    ("6.2 C", "A narrower feed-forward network is worse.", "d_ff=1024 (here 128): BLEU is lower", worse("C6")),
    ("6.2 C", "A wider feed-forward network is better.", "d_ff=4096 (here 512): BLEU is higher", better("C7")),
    ("6.2 D", "Dropout is very helpful against overfitting.", "p_drop=0: BLEU is lower", worse("D1")),
    ("6.2 D", "More dropout than 0.1 does not help base.", "p_drop=0.2: BLEU is lower", worse("D2")),
    ("6.2", "The big model is the best of all.", "big: BLEU is higher than base's", better("big")),
    ("figure 4", "Some head finds what a pronoun refers to.",
     "controlled corpus: the best encoder head gives the antecedent three times an even share",
     a_head_looks_there("pronoun to antecedent, encoder")),
    ("figure 4", "That head is what the translation of the pronoun rests on.",
     "controlled corpus: without it pronouns go wrong", without_it_words_go_wrong("pronoun to antecedent, encoder")),
    ("figure 3", "Some head links the distant parts of one verb.",
     "controlled corpus: the best encoder head gives the particle three times an even share",
     a_head_looks_there("verb to particle, encoder")),
    ("figure 5", "Some head follows the structure of the sentence.",
     "controlled corpus: the best encoder head gives an article's noun three times an even share",
     a_head_looks_there("article to noun two on, encoder")),
    ("6.2", "Table 3's parameters were counted with one vocabulary.", "some vocabulary gives all of base to C",
     parameters_with(None)),
    ("5.1", "That vocabulary has about 37,000 tokens.", "37,000 gives all of base to C", parameters_with(37_000)),
]
"""Section, claim in our words, rule in words, rule in code."""


def judge_claims(results: Results) -> list[Claim]:
    """Every claim with its verdict and the numbers behind it."""
    return list(_judged(results))


def _judged(results: Results) -> Iterator[Claim]:
    for section, statement, rule, judge in RULES:
        verdict, evidence = judge(results)
        yield Claim(section, statement, rule, verdict, evidence)
