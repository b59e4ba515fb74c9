"""The map of the paper leads somewhere: every chapter, symbol and test that it names exists,
and no part is missing."""

import ast
import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "book"
TEXT = (BOOK / "paper_map.md").read_text(encoding="utf-8")


def rows():
    """The cells of every table row, without heads and rules."""
    tables = re.findall(r"^\|---.*\n((?:\|.*\n)*)", TEXT, flags=re.M)
    lines = "".join(tables).splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def links(cell):
    return re.findall(r"\]\(([^)]+)\)", cell)


# Section, equation, table or figure | chapter | symbol | test.
MAPPED = [row for row in rows() if len(row) == 4]
SHOWN = {row[0]: row for row in rows() if len(row) == 5}  # id | what | chapter | symbol | test
# Equations and definitions, parts of the system, settings, worked examples, questions, figures,
# tables and experiments, and listings in wide use, corrected: a cell of some chapter asserts each.
LAST = {"E": 17, "S": 23, "H": 8, "W": 8, "Q": 3, "F": 13, "T": 4, "X": 17}
REQUIRED = {f"{letter}{n + 1}" for letter in LAST for n in range(LAST[letter])} | {"L0", "L4"}
# Called: an error, or what raises one if need be.
CHECKS = {"AssertionError", "assert_close", "catches", "check", "refusal"}
NAMES = [re.findall(r"`([^`]+)`", cell) for row in rows() for cell in row[-2:]]
SYMBOLS, TESTS = ({name for cell in cells for name in cell} for cells in (NAMES[0::2], NAMES[1::2]))


@cache
def functions_in(name):
    tree = ast.parse((ROOT / "tests" / name).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("symbol", sorted(SYMBOLS))
def test_symbols_exist(symbol):
    module, *names = symbol.split(".")
    if module != "lab":
        module = "annotated_transformer"
        names = symbol.split(".")
    found: Any = import_module(module)
    for name in names:
        module = f"{module}.{name}"
        is_module = hasattr(found, "__path__") and find_spec(module)
        found = import_module(module) if is_module else getattr(found, name)


@pytest.mark.parametrize("test", sorted(TESTS))
def test_tests_exist(test):
    file, _, name = test.partition("::")
    assert name in functions_in(file)


@pytest.mark.parametrize("row", MAPPED, ids=lambda row: row[0])
def test_chapters_exist_or_are_said_to_be_missing(row):
    assert bool(links(row[1])) != (row[1] == "not yet written")
    assert [link for link in links(row[1]) if not (BOOK / link).exists()] == []


@pytest.mark.parametrize("row", MAPPED, ids=lambda row: row[0])
def test_code_without_a_test_is_not_listed(row):
    assert (row[2] == "none") == (row[3] == "none")


def test_a_written_chapter_is_on_the_map():
    linked = set(re.findall(r"\]\((\d\w*\.ipynb)\)", TEXT))
    assert {path.name for path in BOOK.glob("[0-9]*.ipynb")} <= linked


def test_a_chapter_that_exists_is_not_called_missing():
    stems = [re.match(r"\d+(?:_\d+)*", path.stem) for path in BOOK.glob("[0-9]*.ipynb")]
    written = {stem[0].replace("_", ".") for stem in stems if stem}
    called_missing = {row[0].split()[0] for row in MAPPED if row[1].startswith("not yet written")}
    assert not written & called_missing


def test_every_part_of_the_paper_has_a_row():
    first_words = [row[0].split(",")[0] for row in MAPPED]
    numbers = [word.split()[0] for word in first_words]
    sections = [
        "1", "2", "3", "3.1", "3.2", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5", "4", "5.1",
        "5.2", "5.3", "5.4", "6.1", "6.2", "6.3", "7",
    ]  # fmt: skip
    assert [section for section in sections if section not in numbers] == []
    assert [f"({n})" for n in (1, 2, 3) if f"({n})" not in numbers] == []
    shown = [f"Table {n}" for n in (1, 2, 3, 4)] + [f"Figure {n}" for n in (1, 2, 3, 4, 5)]
    assert [name for name in shown if name not in first_words] == []


def asserts(code):
    """Whether the code can fail on what it computes: the word in a comment,
    or the assertion of a constant, cannot."""
    nodes = list(ast.walk(ast.parse(code)))
    of_values = (node.test for node in nodes if isinstance(node, ast.Assert))
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    names = {function.id for function in calls if isinstance(function, ast.Name)}
    return any(not isinstance(value, ast.Constant) for value in of_values) or bool(names & CHECKS)


def test_the_word_assert_asserts_nothing():
    assert asserts("assert x == 1") and asserts("if x:\n    check(f)")
    assert not asserts("print(x)  # assert that x is 1") and not asserts("assert True")


@cache
def asserted_in(chapter):
    """The ids in the tags `row-ID` of a chapter's cells; such a cell asserts something."""
    found = set()
    for cell in nbformat.read(BOOK / chapter, as_version=4).cells:
        tags = cell.metadata.get("tags", [])
        ids = {tag.removeprefix("row-") for tag in tags if tag.startswith("row-")}
        if ids and cell.cell_type == "code":
            assert asserts(cell.source), cell.source
            found |= ids
    return frozenset(found)


def test_everything_promised_has_a_row():
    assert set(SHOWN) == REQUIRED


@pytest.mark.parametrize("row", SHOWN.values(), ids=SHOWN.keys())
def test_a_cell_of_the_chapter_asserts_it(row):
    assert links(row[2])
    assert [link for link in links(row[2]) if row[0] not in asserted_in(link)] == []


def test_a_tagged_cell_is_on_the_map():
    tagged = {(i, path.name) for path in BOOK.glob("*.ipynb") for i in asserted_in(path.name)}
    listed = {(i, link) for i, row in SHOWN.items() for link in links(row[2])}
    assert tagged == listed


IDEAS = [row for row in rows() if len(row) == 3 and "](" in row[2]]  # idea | words | chapter


@pytest.mark.parametrize("row", IDEAS, ids=lambda row: row[0])
def test_an_idea_is_told_where_the_map_says(row):
    [page] = links(row[2])
    text = (BOOK / page.replace(".ipynb", ".py")).read_text(encoding="utf-8").lower()
    words = [word.strip().lower() for word in row[1].split(",")]
    assert [word for word in words if word not in text] == []


def test_every_mistake_of_the_walkthroughs_is_told_or_left_out_with_a_reason():
    last = {"T0": 20, "T1": 7, "T2": 15, "T3": 7, "T4": 14}  # how many each of the texts has
    all_of_them = {f"{text}-{n}" for text, most in last.items() for n in range(1, most + 1)}
    told = {row[0].split()[0] for row in IDEAS} & all_of_them
    [(reason, numbers)] = re.findall(r"^Left out, since (.+): (T\d.+)\.$", TEXT, re.M)
    left_out = set(numbers.split(", "))
    assert told | left_out == all_of_them and not told & left_out
    assert len(left_out) == 4 and "not about the model" in reason
