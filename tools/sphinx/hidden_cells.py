"""A Sphinx extension: fewer and better named bars over hidden code.

The code of a solution goes into its solution. Hidden cells that follow one another share a bar,
which says what is inside. The code of a figure, with the hidden cells before it, is behind a small
word at the figure.
"""

from __future__ import annotations

import ast
from typing import Any

from docutils import nodes
from myst_nb.sphinx_ import HideInputCells
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx_exercise.nodes import solution_node

SHOWN = 3
"""Names on a bar."""


class HiddenCells(SphinxPostTransform):
    """Before myst-nb wraps what is hidden."""

    default_priority = HideInputCells.default_priority - 1
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        for parent in list(self.document.findall(nodes.Element)):
            if any(map(is_cell, parent.children)):
                self.arrange(parent)

    def arrange(self, parent: nodes.Element) -> None:
        """Move the cells among the children of a section together."""
        before: Any = None
        for child in list(parent.children):
            if not is_cell(child):
                before = child if isinstance(child, nodes.Element) else before
                continue
            if "tag_solution" in child["classes"] and isinstance(before, solution_node):
                child.attributes.pop("hide_mode", None)
                parent.remove(child)
                before.append(child)
                continue
            if is_bar(before) and is_bar(child):
                parent.remove(child)
                before.extend(child.children)
                child = before
            elif is_of_figure(child):
                if is_bar(before) and not outputs_of(before):
                    parent.remove(before)
                    child[0].insert(0, [block for part in before for block in part])
                child["classes"].append("code-of-figure")
            before = child
            if child.get("hide_mode"):
                name = names_in(child)
                if is_of_figure(child):
                    is_picture = any(True for _ in child.findall(nodes.image))
                    name = "the figure" if is_picture else "the table"
                child["prompt_show"] = child["prompt_hide"] = f"Code: {name}"


def is_cell(node: Any) -> bool:
    return isinstance(node, nodes.container) and node.get("nb_element") == "cell_code"


def is_bar(node: Any) -> bool:
    """Whether all of a cell is hidden."""
    return is_cell(node) and node.get("hide_mode") == "all"


def is_of_figure(node: Any) -> bool:
    """Whether a cell shows a picture, or HTML of its own, and its code is hidden."""
    return (
        is_cell(node)
        and node.get("hide_mode") == "input"
        and any(isinstance(part, nodes.image | nodes.raw) for part in node.findall())
    )


def outputs_of(cell: Any) -> list[Any]:
    return [part for part in cell if part.get("nb_element") == "cell_code_output"]


def names_in(cell: Any) -> str:
    """What a bar has inside: names that its code defines first, or "output" where there is some."""
    code = "\n".join(
        block.astext()
        for part in cell
        if part.get("nb_element") == "cell_code_source"
        for block in part.findall(nodes.literal_block)
    )
    defined: dict[str, None] = {}
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            defined[statement.name] = None
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                defined |= {n.id: None for n in ast.walk(target) if isinstance(n, ast.Name)}
    defined.pop("_", None)
    names = [*defined][:SHOWN]
    more = ", ..." if len(defined) > SHOWN else ""
    return ", ".join(names) + more or ("what it prints" if outputs_of(cell) else "checks")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_post_transform(HiddenCells)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
