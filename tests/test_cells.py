"""What cells are for: exercises and solutions apart, and nothing off the site but checks."""

from __future__ import annotations

import ast
import builtins
import re

import pytest

from test_book import CHAPTERS
from tools import notebooks

each = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
SETTING = re.compile(r"use_style|set_|manual_seed|filterwarnings|rcParams")


def cells_of(chapter):
    """The chapter's own cells, each with its tags."""
    own = notebooks.read_source(chapter).cells
    return [(cell, cell.metadata.get("tags", [])) for cell in own]


def flow(source):
    """The names that code reads before it binds them, and those that it binds."""
    read, bound = set(), set()
    for statement in ast.parse(source).body:
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        inner = {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
        for node in ast.walk(statement):
            if isinstance(node, ast.comprehension):
                inner |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        read |= {n.id for n in names if isinstance(n.ctx, ast.Load)} - bound - inner
        bound |= {n.id for n in names if isinstance(n.ctx, ast.Store)} - inner
        for node in ast.walk(statement):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                bound.add(node.name)
            elif isinstance(node, ast.alias):
                bound.add((node.asname or node.name).partition(".")[0])
    return read - vars(builtins).keys(), bound


def test_names_flow_from_cell_to_cell():
    source = "import math\nx = [y for y in z]\ndef f(a):\n    return a + b\nf(x)"
    read, bound = flow(source)
    assert (read, bound) == ({"z", "b"}, {"math", "x", "f"})


@each
def test_exercises_and_solutions_are_cells_of_their_own(chapter):
    in_solution = False
    for cell, tags in cells_of(chapter):
        directives = re.findall(r"^`{3,}\{(exercise|solution)\}", cell.source, re.MULTILINE)
        if cell.cell_type == "markdown":
            assert directives == [tag for tag in tags if tag in ("exercise", "solution")]
            if directives:
                assert cell.source.startswith("`")
            in_solution = "solution" in tags
        elif "solution" in tags:
            assert in_solution, f"a solution without words: {cell.source}"


@each
def test_an_exercise_that_check_judges_says_so_in_its_title(chapter):
    for cell, tags in cells_of(chapter):
        if "exercise" in tags:
            asked = re.findall(r'check\("([^"]+)"', cell.source)
            title = cell.source.partition("\n")[0]
            assert re.findall(r"\(check ([^)]+)\)", title) == asked[:1]


@each
def test_nothing_needs_a_solution(chapter):
    """So that a reader's notebook without them runs from top to bottom."""
    available, by_solution = set(), set()
    for cell, tags in cells_of(chapter):
        if cell.cell_type != "code":
            continue
        read, bound = flow(cell.source)
        if "solution" in tags:
            by_solution |= bound
        else:
            assert not (read & by_solution) - available, cell.source
            available |= bound


def is_setting(call):
    return isinstance(call, ast.Call) and SETTING.search(ast.unparse(call.func)) is not None


def is_check(source, needed):
    """Whether code has only imports, settings, and assertions with what only they need."""
    tree = ast.parse(source)
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    rest = [s for s in tree.body if not isinstance(s, ast.Import | ast.ImportFrom)]
    if all(isinstance(s, ast.Expr) and is_setting(s.value) for s in rest):
        return True
    asserts = any(isinstance(node, ast.Assert) for node in ast.walk(tree))
    asserts |= any(name.startswith("assert_") for name in calls)
    shows = any(name in ("print", "show", "display") for name in calls)
    return asserts and not shows and not flow("\n".join(map(ast.unparse, rest)))[1] & needed


def test_a_check_is_recognised():
    assert is_check("import math\nuse_style()", set())
    assert is_check("y = f(x)\nassert y == 2", set()) and not is_check(
        "y = f(x)\nassert y == 2", {"y"}
    )
    assert not is_check("train(model.set_x)", set())
    assert not is_check("y = f(x)", set()) and not is_check("print(x)\nassert x == 2", set())


@each
def test_what_is_not_on_the_site_only_checks(chapter):
    """Cells with the tag remove-cell: no output, and no name that a reader sees used."""
    cells = [pair for pair in cells_of(chapter) if pair[0].cell_type == "code"]
    for place, (cell, tags) in enumerate(cells):
        if "remove-cell" not in tags or "colab-install" in tags:
            continue
        needed, bound_again = set(), set()
        for later, later_tags in cells[place + 1 :]:
            read, bound = flow(later.source)
            if not {"remove-cell", "hide-cell"} & {*later_tags}:
                needed |= read - bound_again
            bound_again |= bound
        assert is_check(cell.source, needed), cell.source
