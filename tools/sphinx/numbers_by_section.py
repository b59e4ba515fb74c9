"""A Sphinx extension: figures, tables, exercises and equations have numbers by section.

Sphinx counts them through the whole book. `tools.numbering` says what a page's numbers begin with.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from tools.numbering import PAPER_EQUATIONS, section_of

PAPER = {f"equation-{label}": number for label, number in PAPER_EQUATIONS.items()}


def renumber(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Replace the numbers that Sphinx has given, in the order of the table of contents."""
    counts: Counter[tuple[str, str]] = Counter()
    for page, of_kind in env.toc_fignumbers.items():
        section = section_of(page.rpartition("/")[2])
        for kind, numbers in of_kind.items():
            for label in numbers:
                if label in PAPER:
                    numbers[label] = (PAPER[label],)
                    continue
                counts[kind, section] += 1
                number = counts[kind, section]
                numbers[label] = (section, number) if section else (number,)  # type: ignore[assignment]
    return []


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("env-get-updated", renumber, priority=900)  # after Sphinx has counted
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
