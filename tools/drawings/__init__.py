"""The book's drawings: python -m tools.drawings writes book/figures/*.svg and static/card.png.

Those of single chapters are in this folder, the others, shapes and colours in tools/figures.py.
"""

from __future__ import annotations


def files() -> dict[str, str]:
    """The text of every drawing by the name of its file."""
    from tools.drawings import one_hour
    from tools.figures import DRAWINGS

    return {f"{name}.svg": draw().svg() for name, draw in (DRAWINGS | one_hour.DRAWINGS).items()}
