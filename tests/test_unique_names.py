"""One name, one thing: no public name is defined in two modules of the package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import annotated_transformer

PACKAGE = Path(annotated_transformer.__file__).parent
PROTOCOL = {"export_checkpoint"}
"""The verbs of a protocol: what every module of a kind defines for whoever calls them alike."""


def public_names(path: Path) -> Iterator[str]:
    """The functions, classes and constants that a module defines at its top level."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        for name in (name for target in targets for name in ast.walk(target)):
            if isinstance(name, ast.Name):
                yield name.id


def test_a_public_name_is_defined_in_one_module() -> None:
    homes: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for name in public_names(path):
            if not name.startswith("_"):
                homes.setdefault(name, set()).add(path.relative_to(PACKAGE).as_posix())
    doubled = {name: sorted(places) for name, places in homes.items() if len(places) > 1}
    assert doubled.keys() <= PROTOCOL, doubled
