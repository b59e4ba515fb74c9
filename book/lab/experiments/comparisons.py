"""Comparisons of trained models: what each p-value says, corrected for all of them.

A difference counts only when its p-value, corrected for all comparisons of the miniature's models
(Holm 1979), is below 0.05 and every seed points the same way. Perplexity is the measure, unless a
claim is about BLEU. A row is read where it was trained longest. What this scale cannot show, or
what has not been measured, is "cannot tell", with the difference that the test could have seen.

A difference that is still disappearing decides nothing. The rule on length follows the difference
between the two validation curves (`Drift`): where it moved towards zero, over the last fifth of the
run, by half of what is left or more, every verdict becomes "not tested at this length". Where it
moved away from zero by as much, it is "still growing", which is reported and changes no verdict. A
row that kept no curve is judged by that of the row which it varies; if that was trained for longer,
what followed decides in place of the last fifth. A schedule whose learning rate ends at zero is
judged at its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lab.experiments.significance import Estimate, half_width, holm, p_value
from lab.experiments.table_3.miniature import VARIATIONS

HOLDS, DOES_NOT, CANNOT_TELL = "holds", "does not hold", "cannot tell"
NOT_AT_THIS_LENGTH = "not tested at this length"
NEARLY = {"bleu": 1.0, "ppl": math.log(1.05)}
"""Nearly the same: within 1 BLEU, or a factor of 1.05 in perplexity."""
ONE_SEED = "one seed: the noise of seeds is not known"
Results = dict[str, dict[str, Any]]
Finding = tuple[str, str]  # verdict, evidence
Corrected = dict[tuple[str, str, bool], float]  # by a comparison's key
OWN_RATES, AT_THE_END, TWO_EPOCHS = "table_3_own_rates", "table_3_to_the_end", "table_3"
"""The result files of the miniature's models, in the order in which a row is looked for."""
LEVEL = 0.05


def _label(measure: str) -> str:
    return measure.replace("_", " ").replace("ppl", "perplexity").replace("bleu", "BLEU")


class Drift(NamedTuple):
    """A difference between two validation curves, in nats per token, at two steps."""

    steps: tuple[int, int]
    before: float
    after: float

    def towards(self, value: float) -> float:
        """How far it moved towards `value`, as a share of what is left; negative if away."""
        left = self.after - value
        return (self.before - self.after) / left if left else math.inf

    def __str__(self) -> str:
        before, after = (f"{100 * math.expm1(nats):+.1f} %" for nats in self[1:])
        return f"from {before} at {self.steps[0]:,} steps to {after} at {self.steps[1]:,}"


LARGE = 0.5
"""A share of the remaining difference that is a large movement in the last fifth of a run."""


class Comparison(NamedTuple):
    """Two trained models; is their difference other than 0, or than `margin`.

    A difference in perplexity is that of its logarithm, in nats per token. `steps` is the length of
    the row's runs, and `drift` how the difference moved in their last fifth, where that is known.
    `on_test` is the same difference on a test split, where that was scored.
    """

    row: str
    measure: str
    margin: float
    found: Estimate
    steps: int | None = None
    drift: Drift | None = None
    on_test: Estimate | None = None

    @property
    def key(self) -> tuple[str, str, bool]:
        """Row and measure, and whether it is a margin that is asked for."""
        return self.row, self.measure, self.margin > 0

    @property
    def p(self) -> float:
        """The chance of a mean so far from 0, or from the nearer margin, were that the truth."""
        return p_value(self.found, math.copysign(self.margin, self.found.mean))

    @property
    def movement(self) -> float:
        """How far it moved, in the last fifth, towards 0 or the nearer margin (`Drift.towards`)."""
        if self.drift is None:
            return 0.0
        # A curve is in nats, so a margin in BLEU cannot be compared with it.
        margin = self.margin if self.measure.startswith("ppl") else 0.0
        return self.drift.towards(math.copysign(margin, self.drift.after))

    def __str__(self) -> str:
        mean, *ends = (self.scaled(x) for x in (self.found.mean, self.found.low, self.found.high))
        low, high = (f"{x:+.{self.digits}f}" for x in ends)
        middle = f"{mean:+.{self.digits}f}{self.unit}"
        runs = f"{len(self.found.seeds)} seeds" + (f", {self.steps:,} steps" if self.steps else "")
        return f"{self.row}: {_label(self.measure)} {middle} ({low} to {high}, {runs})"

    def scaled(self, difference: float) -> float:
        """A difference as it is told: in percent, if it is one in perplexity."""
        return 100 * math.expm1(difference) if self.unit else difference

    @property
    def direction(self) -> int:
        """The sign of its difference."""
        return -1 if self.found.mean < 0 else 1

    @property
    def unit(self) -> str:
        """What stands behind a number: a percent sign, or nothing for BLEU."""
        return " %" if self.measure.startswith("ppl") else ""

    @property
    def digits(self) -> int:
        """Decimals of a difference as it is told."""
        return 1 if self.unit else 2


TooShort = Callable[[Comparison], bool]


def is_shrinking(one: Comparison) -> bool:
    """Whether a difference is still disappearing: it is not tested at this length."""
    return one.movement >= LARGE


def is_growing(one: Comparison) -> bool:
    """Whether a difference is still growing, which is reported and changes no verdict."""
    return one.movement <= -LARGE


@dataclass(frozen=True)
class Compared:
    """A rule on trained models: each row is worse, better, or nearly the same.

    Worse and better (`sign` says which sign the difference must have): the p-value, corrected for
    all comparisons, is below 0.05, and every seed points that way. Nearly the same (`sign` 0): the
    difference is within the margin, with such a p-value for the margin, so that an interval at that
    level lies within it. One comparison that says the opposite, and the claim does not hold; one
    that says neither, and we cannot tell; a difference that is still disappearing is no test.
    """

    rows: tuple[str, ...]
    measure: str
    sign: int

    def __str__(self) -> str:
        if self.sign:
            return f"{_label(self.measure)} is {'higher' if self.sign > 0 else 'lower'}"
        near = "a factor of 1.05" if self.measure.startswith("ppl") else "1"
        return f"{_label(self.measure)} within {near} of what it is compared with"

    def comparisons(self, results: Results) -> list[Comparison]:
        """What the rule reads, where there are two seeds at least."""
        return compare(results, self.rows, self.measure, margin=self.sign == 0)

    def __call__(
        self,
        results: Results,
        corrected: Corrected | None = None,
        too_short: TooShort = is_shrinking,
    ) -> Finding:
        """The verdict; without `corrected`, only the rule's own comparisons are corrected for.

        `too_short` is the rule on length.
        """
        read = self.comparisons(results)
        compared = {one.row for one in read}
        for row in self.rows:
            if row not in compared:
                known = any(_key(self.measure) in one for one in rows_of(results, row))
                return CANNOT_TELL, ONE_SEED if known else "not measured"
        p_of = correct(read) if corrected is None else corrected
        verdicts = {self.verdict(one, p_of, too_short) for one in read}
        worst = (DOES_NOT, NOT_AT_THIS_LENGTH, CANNOT_TELL, HOLDS)
        verdict = next(verdict for verdict in worst if verdict in verdicts)
        return verdict, "; ".join(self.said(one, p_of) for one in read)

    def verdict(self, one: Comparison, p_of: Corrected, too_short: TooShort = is_shrinking) -> str:
        """What one of its comparisons says, by its numbers and its length."""
        return NOT_AT_THIS_LENGTH if too_short(one) else self.verdict_at_its_length(one, p_of)

    def verdict_at_its_length(self, one: Comparison, p_of: Corrected) -> str:
        """What one of its comparisons says, whether it is still disappearing or not."""
        if p_of[one.key] >= LEVEL or (one.on_test and one.on_test.sign != one.found.sign):
            return CANNOT_TELL
        within = self.sign == 0 and abs(one.found.mean) < one.margin
        if within or one.found.sign == self.sign != 0:
            return HOLDS
        return DOES_NOT if one.found.sign else CANNOT_TELL

    def said(self, one: Comparison, p_of: Corrected) -> str:
        """The numbers of one of its comparisons, and what it could have seen if it cannot tell."""
        p = p_of[one.key]
        text = f"{one}, p {'below 0.0001' if p < 1e-4 else f'{p:.2g}'}"
        if is_shrinking(one) or is_growing(one):
            text += f", {one.drift}" + ", still growing" * is_growing(one)
        if self.verdict_at_its_length(one, p_of) != CANNOT_TELL:
            return text
        if self.sign:
            seen = one.scaled(could_have_seen(one, p_of))
            return f"{text}, could have seen {seen:.{one.digits}f}{one.unit}"
        room = one.margin - half_width(one.found, LEVEL / len(p_of))
        if room <= 0:
            return f"{text}, could not have held"
        return f"{text}, would have held within {one.scaled(room):.{one.digits}f}{one.unit}"


def counts(one: Comparison, p_of: Corrected) -> bool:
    """Whether a difference counts: its corrected p-value is below 0.05, and all seeds agree."""
    return p_of[one.key] < LEVEL and one.found.sign != 0


def could_have_seen(one: Comparison, p_of: Corrected) -> float:
    """A true difference of this size, or its negative, counts in four of five such experiments.

    It is half of the interval at 5 % divided by the number of comparisons, which the difference
    found must exceed, and the part of the noise that four of five stay above.
    """
    return half_width(one.found, LEVEL / len(p_of)) + half_width(one.found, 0.4)


def lead_over_time(row: dict[str, Any], other: dict[str, Any]) -> dict[int, float]:
    """By the step, a row's perplexity on the validation split, in percent more than another's."""
    then = {step: nll for step, _, nll in other["curve"]}
    return {step: 100 * math.expm1(nll - then[step]) for step, _, nll in row["curve"]}


def _key(measure: str) -> str:
    """Where a row of a summary has its difference."""
    return ("log_" if measure.startswith("ppl") else "") + f"{measure}_difference"


def rows_of(results: Results, name: str) -> list[dict[str, Any]]:
    """What the summaries say of a row: at a rate of its own first, then the longer runs."""
    files = (OWN_RATES, AT_THE_END, TWO_EPOCHS)
    tables = (results.get(file, {}).get("summary", []) for file in files)
    return [row for table in tables for row in table if row["id"] == name]


def drift_of(points: Iterable[Sequence[float]], n_steps: int) -> Drift | None:
    """The movement of a curve of steps and values in the last fifth of `n_steps`, or after them.

    Between the points of the curve it is taken to be linear. None if the curve is shorter.
    """
    steps, *_, values = zip(*points, strict=True)
    if not steps[0] <= 0.8 * n_steps < n_steps <= steps[-1]:
        return None
    ends = (n_steps, int(steps[-1])) if steps[-1] > n_steps else (round(0.8 * n_steps), n_steps)
    before, after = np.interp(ends, steps, values)
    return Drift(ends, float(before), float(after))


def _drift(rows: list[dict[str, Any]], steps: int | None) -> Drift | None:
    """How the first of these rows with a curve so long moved; None for a rate that ends at zero."""
    if not steps or any(_ends_at_zero(row["id"]) for row in rows):
        return None
    curves = (row["difference_curve"] for row in rows if row.get("difference_curve"))
    return next(filter(None, (drift_of(curve, steps) for curve in curves)), None)


def _ends_at_zero(name: str) -> bool:
    return name in VARIATIONS and VARIATIONS[name].train.get("schedule") == "wsd"


def compare(
    results: Results, rows: Iterable[str], measure: str, margin: bool = False
) -> list[Comparison]:
    """The differences of these rows to what each is compared with, where they were measured.

    Each is that of the longest runs with two seeds or more. A curve that goes on beyond a run shows
    what the run's own last steps changed, since the same row has the same schedule.
    """
    found = []
    for name in rows:
        of_name = rows_of(results, name)
        several = (r for r in of_name if len(r.get(_key(measure), {}).get("seeds", ())) > 1)
        if row := next(several, None):
            difference: dict[str, Any] = row[_key(measure)]
            steps: int | None = row.get("steps")
            numbers = _read(difference)
            varied = VARIATIONS[name].of if name in VARIATIONS else name
            drift = _drift(of_name + rows_of(results, varied), steps)
            at = NEARLY[measure] if margin else 0.0
            on_test = row.get("on test", {}).get(_key(measure))
            test = _read(on_test) if on_test else None
            found.append(Comparison(name, measure, at, numbers, steps, drift, test))
    return found


def _read(difference: dict[str, Any]) -> Estimate:
    return Estimate(**{key: difference[key] for key in Estimate._fields if key in difference})


def at_both_lengths(results: Results, rows: Iterable[str]) -> list[tuple[str, str]]:
    """Each row's difference in perplexity after two epochs and at the end, and what became of it.

    `change` says so, from the 95 % intervals alone.
    """
    found = []
    for name in rows:
        early, late = (
            compare({file: results.get(file, {})}, [name], "ppl")
            for file in (TWO_EPOCHS, AT_THE_END)
        )
        if early and late:
            became = change(early[0].found, late[0].found)
            found.append((became, f"{early[0]}; {late[0]}"))
    return found


def at_each_length(results: Results, *rows: str) -> list[str]:
    """A line for each row and length at which it was trained: its difference in perplexity."""
    tables = ({file: results.get(file, {})} for file in (TWO_EPOCHS, AT_THE_END))
    return [str(one) for table in tables for one in compare(table, rows, "ppl")]


def change(early: Estimate, late: Estimate) -> str:
    """What became of a difference, by its two intervals.

    It "turns" where they lie on two sides of 0, and is on the "same side" where they overlap on
    one. Where they do not overlap it "grows" or "shrinks" on one side, "appears" if only the later
    one leaves 0 out, and "fades" if only the earlier one does. Else it is "unclear".
    """
    before, after = ((one.low > 0) - (one.high < 0) for one in (early, late))
    if before * after < 0:
        return "turns"
    if early.low <= late.high and late.low <= early.high:
        return "same side" if before and after else "unclear"
    if not (before and after):
        return "appears" if after else "fades" if before else "unclear"
    return "grows" if abs(late.mean) > abs(early.mean) else "shrinks"


def correct(some: Iterable[Comparison]) -> Corrected:
    """The p-value of each comparison by its key, corrected for all of them (`holm`)."""
    p_of = {one.key: one.p for one in some}
    return dict(zip(p_of, holm(list(p_of.values())), strict=True))


def worse(*rows: str, measure: str = "ppl") -> Compared:
    """Each of these rows is worse than what it is compared with: higher, for a perplexity."""
    return Compared(rows, measure, -1 if measure == "bleu" else 1)


def better(*rows: str, measure: str = "ppl") -> Compared:
    """Each of these rows is better than what it is compared with: lower, for a perplexity."""
    return Compared(rows, measure, 1 if measure == "bleu" else -1)


def nearly_the_same(row: str, measure: str = "ppl") -> Compared:
    """The row differs by less than `NEARLY` from what it is compared with."""
    return Compared((row,), measure, 0)
