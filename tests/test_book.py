"""The stored notebooks are what their sources say, were run from top to bottom,
and keep the chapter's form.

nbval compares what the cells print with a fresh run; it cannot see that a notebook was never run,
or that a picture is older than its code. These tests can.
"""

import ast
import asyncio
import base64
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
import yaml
from nbformat import NotebookNode

from tools import colab, notebooks
from tools.printed import Printed
from tools.prose import HIDDEN

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "book"
CHAPTERS = notebooks.chapters()
MAX_CELL_LINES = 15
MAX_COLUMNS = 80
MAX_FIGURE_BYTES = 62_000  # about 60 kB

# One test says which are missing.
NOTEBOOKS = [path for path in CHAPTERS if path.with_suffix(".ipynb").exists()]
in_notebooks = pytest.mark.parametrize("chapter", NOTEBOOKS, ids=lambda path: path.stem)


def stored(chapter):
    return nbformat.read(chapter.with_suffix(".ipynb"), as_version=4)


def code_cells(chapter):
    return [cell for cell in stored(chapter).cells if cell.cell_type == "code"]


def tags(cell):
    return cell.metadata.get("tags", [])


def toc_files(node):
    if isinstance(node, list):
        return [name for child in node for name in toc_files(child)]
    if isinstance(node, dict):
        own = [node[key] for key in ("root", "file") if key in node]
        return own + [name for child in node.values() for name in toc_files(child)]
    return []


def test_the_table_of_contents_has_every_page_once():
    """But for the map of the paper, which is for those who work on the book."""
    listed = toc_files(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))
    pages = [f"book/{path.stem}" for path in BOOK.iterdir() if path.suffix in (".md", ".ipynb")]
    pages.remove("book/paper_map")
    assert sorted(listed) == sorted(pages)


def test_every_chapter_is_text_and_notebook():
    assert {path.stem for path in CHAPTERS} == {path.stem for path in BOOK.glob("*.ipynb")}


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_outputs_are_not_stale(chapter):
    assert not notebooks.is_stale(chapter), f"run: make refresh CHAPTER=book/{chapter.name}"


@in_notebooks
def test_cells_were_run_from_top_to_bottom(chapter):
    cells = code_cells(chapter)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


@in_notebooks
def test_what_may_vary_is_bounded_by_an_assertion(chapter):
    """A cell whose output is not compared asserts something about it,
    there or in the next code cell."""
    cells = code_cells(chapter)
    loose = [
        number
        for number, cell in enumerate(cells)
        if ("nbval-ignore-output" in tags(cell) or "NBVAL_IGNORE_OUTPUT" in cell.source)
        and not any("assert" in near.source for near in cells[number : number + 2])
    ]
    assert [cells[number].source for number in loose] == []


def may_show_nothing(cell):
    """The lines of each `try` that shows an error,
    and passes all the same if the error does not occur.

    It is well if its `else` raises, or if its handlers return and what follows it raises.
    """
    lines = []
    for parent in ast.walk(ast.parse(cell)):
        for body in (getattr(parent, name, None) for name in ("body", "orelse")):
            for node, after in zip(body, [*body[1:], None]) if isinstance(body, list) else []:
                if isinstance(node, ast.Try) and node.handlers:
                    raises = any(isinstance(end, ast.Raise) for end in node.orelse)
                    returns = all(
                        isinstance(handler.body[-1], ast.Return) for handler in node.handlers
                    )
                    if not raises and not (returns and isinstance(after, ast.Raise)):
                        lines.append(node.lineno)
    return lines


def test_a_try_without_else_is_found():
    shown = "try:\n    f()\nexcept ValueError as error:\n    print(error)\n"
    assert may_show_nothing(shown) == [1]
    assert may_show_nothing(f"for x in y:\n{textwrap.indent(shown, '    ')}") == [2]
    assert may_show_nothing(shown + "else:\n    print('no error')\n") == [1]
    assert may_show_nothing(shown + "else:\n    raise AssertionError('no error')\n") == []
    returns = f"{textwrap.indent(shown, '    ')}        return\n    raise RuntimeError"
    assert may_show_nothing(f"def g():\n{returns}") == []


def kinds(cell):
    """Of its outputs, and in what form each can be shown."""
    forms = [form for out in cell.outputs for form in out.get("data", {})]
    return [out.get("name", out.output_type) for out in cell.outputs] + forms


FAULTS: dict[str, Callable[[NotebookNode], object]] = {
    "it failed": lambda cell: "error" in kinds(cell) and "raises-exception" not in tags(cell),
    "it is exempt from being run": lambda cell: "nbval-skip" in f"{cell.source} {tags(cell)}",
    "it is exempt, by a comment": lambda cell: "NBVAL_SKIP" in f"{cell.source} {tags(cell)}",
    "an error that it shows need not occur": lambda cell: may_show_nothing(cell.source),
    "progress is stored": lambda cell: "stderr" in kinds(cell),
    "times are stored": lambda cell: "execution" in cell.metadata,
    "it is long": lambda cell: len(cell.source.splitlines()) > MAX_CELL_LINES,
    # A backend without a display (MPLBACKEND=agg) stores a chapter without figures.
    "it promises a picture and has none": lambda cell: (
        cell.metadata.get("mystnb", {}).get("image")
        and not any(kind.startswith("image/") for kind in kinds(cell))
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@in_notebooks
def test_of_no_cell_this_is_true(chapter, fault):
    assert [cell.source for cell in code_cells(chapter) if FAULTS[fault](cell)] == []


@pytest.mark.parametrize(
    "chapter", [path for path in NOTEBOOKS if path.stem >= "2"], ids=lambda path: path.stem
)
def test_a_listing_fits_its_column(chapter):
    """A longer line scrolls: at 1,280 pixels the column holds 81. Folded code may be wider."""
    seen = [
        line
        for cell in code_cells(chapter)
        if not (set(tags(cell)) & HIDDEN or colab.is_made_here(cell))
        for line in cell.source.splitlines()
    ]
    assert [line for line in seen if len(line) > MAX_COLUMNS] == []


@in_notebooks
def test_figures_are_light_and_have_words(chapter):
    for cell in code_cells(chapter):
        for output in cell.outputs:
            for kind, data in output.get("data", {}).items():
                if not kind.startswith("image/"):
                    continue
                is_text = kind == "image/svg+xml"
                size = len(data.encode() if is_text else base64.b64decode(data))
                assert size <= MAX_FIGURE_BYTES, f"{size} bytes: {cell.source}"
                alternative = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
                assert len(alternative.split()) >= 5, f"no alternative text: {cell.source}"
        if cell.cell_type == "markdown":
            assert "![](" not in cell.source


@in_notebooks
def test_a_chapter_has_one_title_and_it_comes_first(chapter):
    prose = [
        re.sub(r"```.*?```", "", cell.source, flags=re.S)
        for cell in stored(chapter).cells
        if cell.cell_type == "markdown"
    ]
    levels = re.findall(r"^(#+) ", "\n".join(prose), flags=re.M)
    assert levels.count("#") == 1 and levels[0] == "#"


def test_every_work_in_the_references_has_a_key_of_its_own():
    works = (BOOK / "references.bib").read_text(encoding="utf-8")
    keys = re.findall(r"^@\w+\{([^,]+),", works, flags=re.M)
    assert len(keys) == len(set(keys)) > 0


# The tools that make the notebooks

SMALL = """# %% [markdown]
# # A small chapter

# %%
import sys

print("progress", file=sys.stderr)
print("result", 1 + 1)
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_refresh_run_twice_gives_the_same_bytes(source):
    target = source.with_suffix(".ipynb")
    assert notebooks.is_stale(source)
    assert asyncio.run(notebooks.run(source, target))
    first = target.read_bytes()
    assert not notebooks.is_stale(source)
    assert asyncio.run(notebooks.run(source, target))
    assert target.read_bytes() == first
    outputs = stored(source).cells[-1].outputs
    assert [(out.name, out.text) for out in outputs] == [("stdout", "result 2\n")]
    for edited in (SMALL.replace("1 + 1", "1 + 2"), SMALL.replace("A small", "A tiny")):
        source.write_text(edited, encoding="utf-8")
        assert notebooks.is_stale(source)


@pytest.mark.slow
def test_changed_words_are_taken_over_and_changed_code_is_not(source):
    target = source.with_suffix(".ipynb")
    assert not notebooks.take_over_words(source)  # nothing is stored yet
    assert asyncio.run(notebooks.run(source, target))
    before = stored(source).cells[-1]
    tagged = SMALL.replace("A small", "A tiny")
    tagged = tagged.replace("# %%\nimport", '# %% tags=["hide-cell"]\nimport')
    source.write_text(tagged, encoding="utf-8")
    assert notebooks.take_over_words(source) and not notebooks.is_stale(source)
    _, words, _, code = stored(source).cells
    assert words.source == "# A tiny chapter" and code.metadata.tags == ["hide-cell"]
    assert (code.outputs, code.execution_count) == (before.outputs, before.execution_count)
    source.write_text(tagged.replace("1 + 1", "1 + 2"), encoding="utf-8")
    stored_before = target.read_bytes()
    assert not notebooks.take_over_words(source) and target.read_bytes() == stored_before


@pytest.mark.slow
def test_a_failing_chapter_is_not_stored(source, capsys):
    target = source.with_suffix(".ipynb")
    source.write_text(SMALL.replace("1 + 1", "1 / 0"), encoding="utf-8")
    assert not asyncio.run(notebooks.run(source, target))
    assert not target.exists()
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ("loss 1.70952", "loss  1.70953", True),  # one unit of the last digit
        ("rate 1234.5", "rate 1235.6", True),  # 0.1 percent
        ("loss 1.7095", "loss 1.7195", False),
        ("at 1.2e-05", "at 1.3e-05", True),
        ("at 1.2e-05", "at 1.5e-05", False),
        ("100 parameters", "101 parameters", False),
        ("cat 0.5", "dog 0.5", False),
        ("[0.1, 0.2]", "[0.1, 0.2, 0.3]", False),
        # Digests are words, however they look.
        ("SHA-256 95a6e575286ab 6e575286", "SHA-256 95a6e575286ab 6e575286", True),
        ("SHA-256 95a6e575286ab", "SHA-256 95a6e575287ab", False),
    ],
)
def test_decimals_are_compared_closely_and_the_rest_exactly(one, two, same):
    assert (Printed(one) == Printed(two)) is same
    assert (Printed(one) != Printed(two)) is not same
