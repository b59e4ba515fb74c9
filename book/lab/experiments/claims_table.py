"""The claims as a table for a page: read without a script, filtered with one.

It is one piece of HTML with its own style and script, and asks no other host for anything. Without
the script every claim is there; with it three menus above the table choose section, kind and
verdict. The menus are the browser's own, so that the keyboard works them, and what is left is
announced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from lab.experiments.claims import CLAIM, CLAIM_KINDS, Claim
from lab.experiments.comparisons import CANNOT_TELL, DOES_NOT, HOLDS, NOT_AT_THIS_LENGTH

VERDICTS = {HOLDS: "+", DOES_NOT: "−", CANNOT_TELL: "?", NOT_AT_THIS_LENGTH: "…"}
"""Each verdict with a sign, so that colour alone says nothing."""
MENUS = ("section", "kind", "verdict")
STYLE = """
.at-claims table { border-collapse: collapse; width: 100%; font-size: 0.85rem; }
.at-claims caption { color: inherit; text-align: left; padding: 0.4em 0; }
.at-claims th, .at-claims td { border-bottom: 1px solid #8886; padding: 0.4em;
  text-align: left; vertical-align: top; }
.at-claims .at-scroll { overflow-x: auto; }
.at-claims .at-verdict { white-space: nowrap; font-weight: bold; }
.at-claims label { margin-right: 1em; }
.at-claims select { font: inherit; max-width: 12em; }
"""
SCRIPT = """
(() => {
  const box = document.currentScript.closest(".at-claims");
  const rows = [...box.querySelectorAll("tbody tr")];
  const menus = [...box.querySelectorAll("select")];
  const said = box.querySelector("output");
  const choose = () => {
    for (const row of rows)
      row.hidden = !menus.every(m => !m.value || row.dataset[m.name].split(", ").includes(m.value));
    const left = rows.filter(row => !row.hidden).length;
    said.textContent = left + " of " + rows.length + " claims";
  };
  menus.forEach(menu => menu.addEventListener("change", choose));
  box.querySelector("form").hidden = false;
  choose();
})();
"""


@dataclass(frozen=True, repr=False)
class ClaimsTable:
    """These claims for a notebook, which shows it as HTML: a row each, and menus to filter them."""

    claims: Sequence[Claim]

    def __repr__(self) -> str:
        return f"ClaimsTable({len(self.claims)} claims)"

    def _repr_html_(self) -> str:
        rows = "".join(map(_row, self.claims))
        names = ("section", "the paper's claim, in our words", "kind", "rule", "verdict", "timed")
        header = "".join(f'<th scope="col">{name}</th>' for name in (*names, "numbers"))
        menus = " ".join(_menu(name, self.claims) for name in MENUS)
        return (
            f'<div class="at-claims"><style>{STYLE}</style>'
            f'<form hidden onsubmit="return false">{menus} <output></output></form>'
            '<div class="at-scroll" tabindex="0" role="region" aria-label="the claims">'
            f"<table><caption>{len(self.claims)} claims, each with its rule and verdict</caption>"
            f"<thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table></div>"
            f"<script>{SCRIPT}</script></div>"
        )


def tallies(claims: Sequence[Claim]) -> dict[str, Counter[str]]:
    """How many claims and choices of each kind have which verdict; theorems are counted."""
    return {kind: Counter(c.verdict for c in claims if c.kind == kind) for kind in CLAIM_KINDS}


def timed_tally(claims: Sequence[Claim]) -> Counter[str]:
    """How many of the theorems that were timed as well have which verdict on their times."""
    return Counter(claim.timed for claim in claims if claim.timed)


def _menu(name: str, claims: Sequence[Claim]) -> str:
    values = {value for claim in claims for value in getattr(claim, name).split(", ")}
    options = "".join(f"<option>{escape(value)}</option>" for value in sorted(values))
    every = f'<option value="">every {name}</option>'
    return f'<label>{name} <select name="{name}">{every}{options}</select></label>'


def _row(claim: Claim) -> str:
    data = " ".join(f'data-{name}="{escape(getattr(claim, name))}"' for name in MENUS)
    kind = claim.kind + (f" ({claim.role})" if claim.role != CLAIM else "")
    cells = [kind, claim.rule]
    middle = "".join(f"<td>{escape(text)}</td>" for text in cells)
    verdicts = (f"{VERDICTS[one]} {one}" if one else "" for one in (claim.verdict, claim.timed))
    judged = "".join(f'<td class="at-verdict">{verdict}</td>' for verdict in verdicts)
    return (
        f"<tr {data}><td>{escape(claim.section)}</td>"
        f'<th scope="row">{escape(claim.statement)}</th>{middle}'
        f"{judged}<td>{escape(claim.evidence)}</td></tr>"
    )
