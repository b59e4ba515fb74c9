"""What Jupyter shows of models, batches, configurations and beams: a table, a tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from os.path import commonprefix
from typing import Any


def html_table(title: str, rows: Iterable[Sequence[object]], columns: Sequence[str] = ()) -> str:
    """A table in a page or a notebook; each row begins with its name."""
    parts = [f"<caption>{escape(title)}</caption>"] if title else []
    if columns:
        cells = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
        parts.append(f"<thead><tr>{cells}</tr></thead>")
    for name, *values in rows:
        cells = "".join(f"<td>{escape(str(value))}</td>" for value in values)
        parts.append(f'<tr><th scope="row">{escape(str(name))}</th>{cells}</tr>')
    return f"<table>{''.join(parts)}</table>"


def html_tree(paths: Iterable[Sequence[str]]) -> str:
    """Words as nested lists: paths with a common beginning share it, and fork behind it."""
    branches: dict[str, list[Sequence[str]]] = {}
    for path in filter(None, paths):
        branches.setdefault(path[0], []).append(path)
    items = []
    for some in branches.values():
        shared = commonprefix([tuple(path) for path in some])
        fork = html_tree(path[len(shared) :] for path in some)
        items.append(f"<li>{escape(' '.join(shared))}{fork}</li>")
    return f"<ul>{''.join(items)}</ul>" if items else ""


class ListAsTree(list[Any]):
    """Texts or tokens, each with its score, best first: a list, which Jupyter shows as a tree.

    Its paths share their beginnings, and each ends in its score.
    """

    def _repr_html_(self) -> str:
        paths = []
        for what, score, *_ in self:
            words = what.split() if isinstance(what, str) else map(str, what)
            paths.append((*words, f"({score:.3f})"))
        return html_tree(paths)
