"""No assertion of a test can pass for two reasons."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("tests", "book") for path in (ROOT / folder).rglob("*.py"))


def alternatives(text: str) -> list[int]:
    """The lines of assertions whose test is an `or`: each passes for what its other side allows."""
    asserts = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert))
    return [
        node.lineno
        for node in asserts
        if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or)
    ]


def test_an_assertion_with_an_alternative_is_noticed() -> None:
    assert alternatives("assert a == b or c\nassert (a or b) == c\nassert a and (b or c)") == [1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_assertion_has_an_alternative(path: Path) -> None:
    assert alternatives(path.read_text(encoding="utf-8")) == []
