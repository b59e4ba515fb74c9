"""Comparisons of trained models: what each p-value says, corrected for all of them.

A difference counts only when its p-value, corrected for all comparisons of the miniature's models
(Holm 1979), is below 0.05 and every seed points the same way. Perplexity is the measure, unless a
claim is about BLEU. What this scale cannot show, or what has not been measured, is "cannot tell",
with the difference that the test could have seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from lab.experiments.significance import Estimate, half_width, holm, p_value

HOLDS, DOES_NOT, CANNOT_TELL = "holds", "does not hold", "cannot tell"
NEARLY = {"bleu": 1.0, "ppl": math.log(1.05)}
"""Nearly the same: within 1 BLEU, or a factor of 1.05 in perplexity."""
ONE_SEED = "one seed: the noise of seeds is not known"
Results = dict[str, dict[str, Any]]
Finding = tuple[str, str]  # verdict, evidence
Corrected = dict[tuple[str, str, bool], float]  # by a comparison's key
MINIATURES = "table_3"
"""The result file of the miniature's models."""
LEVEL = 0.05


class Comparison(NamedTuple):
    """Two trained models; is their difference other than 0, or than `margin`.

    A difference in perplexity is that of its logarithm, in nats per token.
    """

    row: str
    measure: str
    margin: float
    found: Estimate

    @property
    def key(self) -> tuple[str, str, bool]:
        """Row and measure, and whether it is a margin that is asked for."""
        return self.row, self.measure, self.margin > 0

    @property
    def p(self) -> float:
        """The chance of a mean so far from 0, or from the nearer margin, were that the truth."""
        return p_value(self.found, math.copysign(self.margin, self.found.mean))

    def __str__(self) -> str:
        label = self.measure.replace("_", " ").replace("ppl", "perplexity").replace("bleu", "BLEU")
        mean, *ends = (self.scaled(x) for x in (self.found.mean, self.found.low, self.found.high))
        low, high = (f"{x:+.{self.digits}f}" for x in ends)
        n_seeds = len(self.found.seeds)
        middle = f"{mean:+.{self.digits}f}{self.unit}"
        return f"{self.row}: {label} {middle} ({low} to {high}, {n_seeds} seeds)"

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


@dataclass(frozen=True)
class Compared:
    """A rule on trained models: each row is worse, better, or nearly the same.

    Worse and better (`sign` says which sign the difference must have): the p-value, corrected for
    all comparisons, is below 0.05, and every seed points that way. Nearly the same (`sign` 0): the
    difference is within the margin, with such a p-value for the margin. One comparison that says
    the opposite, and the claim does not hold; one that says neither, and we cannot tell.
    """

    rows: tuple[str, ...]
    measure: str
    sign: int

    def comparisons(self, results: Results) -> list[Comparison]:
        """What the rule reads, where there are two seeds at least."""
        return comparisons(results, self.rows, self.measure, margin=self.sign == 0)

    def __call__(self, results: Results, corrected: Corrected | None = None) -> Finding:
        """The verdict; without `corrected`, only the rule's own comparisons are corrected for."""
        read = self.comparisons(results)
        compared = {one.row for one in read}
        for row in self.rows:
            if row not in compared:
                known = bool(_difference(results, row, self.measure))
                return CANNOT_TELL, ONE_SEED if known else "not measured"
        p_of = correct(read) if corrected is None else corrected
        verdicts = {self.verdict(one, p_of) for one in read}
        worst = (DOES_NOT, CANNOT_TELL, HOLDS)
        verdict = next(verdict for verdict in worst if verdict in verdicts)
        return verdict, "; ".join(self.said(one, p_of) for one in read)

    def verdict(self, one: Comparison, p_of: Corrected) -> str:
        """What one of its comparisons says."""
        if p_of[one.key] >= LEVEL:
            return CANNOT_TELL
        within = self.sign == 0 and abs(one.found.mean) < one.margin
        if within or one.found.sign == self.sign != 0:
            return HOLDS
        return DOES_NOT if one.found.sign else CANNOT_TELL

    def said(self, one: Comparison, p_of: Corrected) -> str:
        """The numbers of one of its comparisons, and what it could have seen if it cannot tell."""
        p = p_of[one.key]
        text = f"{one}, p {'below 0.0001' if p < 1e-4 else f'{p:.2g}'}"
        if self.verdict(one, p_of) != CANNOT_TELL:
            return text
        seen = abs(one.scaled(math.copysign(could_have_seen(one, p_of), self.sign or 1)))
        if self.sign:
            return f"{text}, could have seen {seen:.{one.digits}f}{one.unit}"
        room = one.margin - half_width(one.found, LEVEL / len(p_of))
        if room <= 0:
            return f"{text}, could not have held"
        return f"{text}, would have held within {one.scaled(room):.{one.digits}f}{one.unit}"


def counts(one: Comparison, p_of: Corrected) -> bool:
    """Whether a difference counts: its corrected p-value is below 0.05, and all seeds agree."""
    return p_of[one.key] < LEVEL and one.found.sign != 0


def could_have_seen(one: Comparison, p_of: Corrected) -> float:
    """A true difference of this size counts in four of five such experiments.

    It is half of the interval at 5 % divided by the number of comparisons, which the difference
    found must exceed, and the part of the noise that four of five stay above.
    """
    return half_width(one.found, LEVEL / len(p_of)) + half_width(one.found, 0.4)


def _difference(results: Results, name: str, measure: str) -> dict[str, Any] | None:
    rows = results.get(MINIATURES, {}).get("summary", [])
    row: dict[str, Any] = next((row for row in rows if row["id"] == name), {})
    return row.get(f"{'log_' * measure.startswith('ppl')}{measure}_difference")


def comparisons(
    results: Results, rows: Iterable[str], measure: str, margin: bool = False
) -> list[Comparison]:
    """The differences of these rows to what each is compared with, where they were measured."""
    found = []
    for row in rows:
        difference = _difference(results, row, measure)
        if difference and len(difference["seeds"]) > 1:
            at = NEARLY[measure] if margin else 0.0
            fields = (field for field in Estimate._fields if field in difference)
            numbers = Estimate(**{field: difference[field] for field in fields})
            found.append(Comparison(row, measure, at, numbers))
    return found


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
