"""The claims as a poster: how many hold, some that one can quote, and all of them as a table.

It is one piece of HTML with its own style and script, and asks no other host for anything. Without
the script every claim is there; with it a choice of verdict and section is part of the address. On
a narrow page each claim is a card.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from lab.experiments.claims import CLAIM, CLAIM_KINDS, TRAINED, Claim
from lab.experiments.comparisons import (
    CANNOT_TELL,
    DOES_NOT,
    HOLDS,
    NOT_AT_THIS_LENGTH,
    Comparison,
)

VERDICTS = {HOLDS: "+", DOES_NOT: "−", CANNOT_TELL: "?", NOT_AT_THIS_LENGTH: "…"}
"""Each verdict with a sign, so that colour alone says nothing."""
CLASSES = dict(zip(VERDICTS, ("yes", "no", "maybe", "not"), strict=True))
QUOTED = {
    "Without the factor 1/sqrt(d_k)": "perplexity without the division by sqrt(d_k), at one head "
    "of width 128",
    "Training is better with the warm-up": "perplexity without the warm-up of the learning rate",
    "Without positions": "perplexity without any positions",
    "The big model is better": "perplexity for the big model, at base's learning rate",
    "A beam of 4 is better": "without the beam",
    "Sixteen heads do as well": "perplexity with sixteen heads instead of eight",
}
"""How claims begin that are quoted, and what their number is of."""
TICKS = {
    "ppl": ((-20, "−20"), (0, "0"), (50, "+50"), (100, "+100"), (300, "+300%")),
    "bleu": ((-2, "−2"), (-1, "−1"), (0, "0"), (1, "+1 BLEU")),
}
WIDTH = 260
"""Of an interval's picture, in pixels."""
FORMULA = re.compile(r"O\((?:[^()]|\([^()]*\))*\)|1/sqrt\(d_k\)|sqrt\(d_k\)|\bd_k\b")
HERE = Path(__file__).with_suffix("")


@dataclass(frozen=True, repr=False)
class ClaimsTable:
    """These claims for a notebook, which shows them as HTML."""

    claims: Sequence[Claim]

    def __repr__(self) -> str:
        return f"ClaimsTable({len(self.claims)} claims)"

    def _repr_html_(self) -> str:
        groups = (
            [claim for claim in self.claims if claim.kind == kind]
            for kind in (TRAINED, *(kind for kind in CLAIM_KINDS if kind != TRAINED))
        )
        style, script = (HERE.with_suffix(end).read_text("utf-8") for end in (".css", ".js"))
        return (
            f'<div class="at-claims"><style>{style}</style>{_tally(self.claims)}'
            f"{_quotes(self.claims)}<form hidden>{_choices(self.claims)}</form>"
            f"<table><caption>{len(self.claims)} claims, each with its rule and verdict</caption>"
            f"{''.join(_group(claims) for claims in groups if claims)}</table>"
            f"<script>{script}</script></div>"
        )


def tallies(claims: Sequence[Claim]) -> dict[str, Counter[str]]:
    """How many claims and choices of each kind have which verdict; theorems are counted."""
    return {kind: Counter(c.verdict for c in claims if c.kind == kind) for kind in CLAIM_KINDS}


def timed_tally(claims: Sequence[Claim]) -> Counter[str]:
    """How many of the theorems that were timed as well have which verdict on their times."""
    return Counter(claim.timed for claim in claims if claim.timed)


def in_words(text: str) -> str:
    """A text as HTML, with its formulas as MathJax reads them: O(n^2 d), 1/sqrt(d_k)."""

    def typeset(match: re.Match[str]) -> str:
        tex = match[0].replace("1/sqrt(d_k)", r"1/\sqrt{d_k}").replace("sqrt(d_k)", r"\sqrt{d_k}")
        tex = tex.replace("log_k", r"\log_k ")
        return f'<span class="math notranslate nohighlight">\\({tex}\\)</span>'

    return FORMULA.sub(typeset, escape(text))


def _judged(verdict: str) -> str:
    """A verdict with its sign. It is one on what was done here, and says so."""
    return f"<i>{VERDICTS[verdict]}</i> {verdict.replace(' at this length', '')} here"


def _tally(claims: Sequence[Claim]) -> str:
    counted = Counter(claim.verdict for claim in claims)
    return '<div class="at-tally">{}</div>'.format(
        "".join(
            f'<a class="{CLASSES[verdict]}" href="#verdict={CLASSES[verdict]}"><b>{n}</b> '
            f"{sign} {verdict.replace(' at this length', '')} here"
            f'<span aria-hidden="true">{f"<i>{sign}</i>" * n}</span></a>'
            for verdict, sign in VERDICTS.items()
            if (n := counted[verdict])
        )
    )


def _quotes(claims: Sequence[Claim]) -> str:
    quotes = []
    for beginning, what in QUOTED.items():
        for claim in claims:
            if claim.statement.startswith(beginning) and (one := claim.compared):
                mean, low, high = map(one.scaled, one.found[:3])
                number = f"{abs(mean):.0f}%" if one.unit else f"{abs(mean):.2f} BLEU"
                more = "more" if mean > 0 else "less"
                quotes.append(
                    f'<div class="{CLASSES[claim.verdict]}"><b>{number} {more}</b> '
                    f"<p>{in_words(what)}</p><small>{_judged(claim.verdict)}; "
                    f"{_signed(low, one.digits)} to {_signed(high, one.digits)}, "
                    f"{len(one.found.seeds)} seeds</small></div>"
                )
    return f'<div class="at-quotes">{"".join(quotes)}</div>'


def _signed(value: float, digits: int) -> str:
    """A number with a sign, and a minus as long as a plus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def _choices(claims: Sequence[Claim]) -> str:
    counted = Counter(claim.verdict for claim in claims)
    buttons = "".join(
        f'<button type="button" value="{CLASSES[verdict]}">{sign} {verdict} {counted[verdict]}'
        "</button>"
        for verdict, sign in VERDICTS.items()
        if counted[verdict]
    )
    sections = sorted({part for claim in claims for part in claim.section.split(", ")})
    options = "".join(f"<option>{escape(section)}</option>" for section in sections)
    return (
        f'<button type="button" value="">all {len(claims)}</button>{buttons}'
        f'<label>section <select><option value="">every section</option>{options}</select>'
        "</label> <output></output>"
    )


def _group(claims: Sequence[Claim]) -> str:
    kind = claims[0].kind
    header = "".join(
        f'<th scope="col">{name}</th>' for name in (kind, "verdict", "interval", "numbers, rule")
    )
    rows = "".join(map(_row, claims))
    return f"<thead><tr>{header}</tr></thead><tbody>{rows}</tbody>"


def _row(claim: Claim) -> str:
    role = "" if claim.role == CLAIM else f", {claim.role}"
    timed = f"<br/>{_judged(claim.timed)}, timed" if claim.timed else ""
    picture = _interval(claim.compared) if claim.compared else ""
    return (
        f'<tr class="{CLASSES[claim.verdict]}" data-verdict="{CLASSES[claim.verdict]}" '
        f'data-section="{escape(claim.section)}"><th scope="row">{in_words(claim.statement)} '
        f"<small>{escape(claim.section)}{role}</small></th>"
        f'<td class="at-verdict">{_judged(claim.verdict)}{timed}</td><td>{picture}</td>'
        f"<td><small>{in_words(claim.evidence)}<br/>Rule: {in_words(claim.rule)}</small></td></tr>"
    )


def _interval(one: Comparison) -> str:
    """The interval on an axis that all claims of its measure share; percents by their logarithm."""
    is_percent = bool(one.unit)
    ticks = TICKS["ppl" if is_percent else "bleu"]
    ends = (-30, 380) if is_percent else (-2.5, 1.6)

    def place(value: float) -> float:
        scale = (lambda x: math.log1p(x / 100)) if is_percent else float
        share = (scale(value) - scale(ends[0])) / (scale(ends[1]) - scale(ends[0]))
        return round(8 + (WIDTH - 16) * min(1, max(0, share)), 1)

    mean, low, high = (place(one.scaled(value)) for value in one.found[:3])
    marks = "".join(
        f'<line x1="{place(x)}" x2="{place(x)}" y1="0" y2="22"/><text x="{place(x)}" y="36">{text}'
        "</text>"
        for x, text in ticks
    )
    seeds = "".join(
        f'<circle class="at-seed" cx="{place(one.scaled(seed))}" cy="11" r="2"/>'
        for seed in one.found.seeds
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} 40" width="{WIDTH}" height="40" role="img" '
        f'aria-label="{escape(str(one))}">{marks}<line class="at-range" x1="{low}" x2="{high}" '
        f'y1="11" y2="11"/><circle cx="{mean}" cy="11" r="5"/>{seeds}</svg>'
    )
