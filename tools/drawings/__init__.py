"""Drawings of single chapters: a module for each, whose `DRAWINGS` names what it draws.

    python -m tools.drawings            write them all to book/figures
    python -m tools.drawings --check    change nothing; exit 1 if a file differs

The shapes, colours and letters are those of tools/figures.py.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module


def files() -> dict[str, str]:
    """The text of every drawing of this folder's modules by the name of its file."""
    modules = [
        import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
        if found.name != "__main__"
    ]
    return {
        f"{name}.svg": draw().svg()
        for module in modules
        for name, draw in sorted(module.DRAWINGS.items())
    }
