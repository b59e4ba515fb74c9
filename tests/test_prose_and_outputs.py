"""Where a chapter's text tells a number that a cell printed, text and output agree.

nbval compares outputs with a fresh run; nothing compared the words with either. A decimal number in
the text of a section must be found where it cannot vary: in code of the chapter, in a stored output
that is compared, or in a result file's number of those. Else it is one of an output that may vary
(nbval-ignore-output), and then the text has a range, "0.2 to 1.3", or no number.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import colab, notebooks

ROOT = Path(__file__).parents[1]
SECOND_HALF = (
    "5_2_training", "5_3_optimizer", "5_4_regularization", "6_1_translation", "6_1_results",
    "6_2_variations", "6_2_since_2017", "6_3_parsing", "claims", "7_attention_visualizations",
    "7_controlled_corpus", "on_a_gpu", "after_the_paper", "common_mistakes", "errata",
)  # fmt: skip
NUMBER = re.compile(r"(?<![\w.^{/=-])\d[\d,]*\.\d+(?!\w|\.\d| [mb]illion)")
RANGE = re.compile(r"(?:(\d[\d,.]*\d|\d)(?: %| nats)? to|between (\d[\d,.]*) and) (\d[\d,.]*\d|\d)")


TABLES = ROOT / "book" / "lab" / "tables"
"""Of the paper: what it prints is no output of ours."""
SOURCES = set(re.findall(r"\d+\.\d+", "".join(p.read_text("utf-8") for p in TABLES.glob("*.py"))))
CHAPTERS = [path for path in notebooks.chapters() if path.stem in SECOND_HALF]


def numbers(text):
    return set(NUMBER.findall(text.replace("\\", "")))


def ends_of_ranges(text):
    return {end for ends in RANGE.findall(text) for end in ends}


def prose_of(cell):
    """Without formulas, links, code, tables, citations and headings."""
    text = re.sub(r"^\$\$.*?\$\$.*?$", " ", cell, flags=re.S | re.M)
    text = re.sub(r"^```.*?^```", " ", text, flags=re.S | re.M)
    text = re.sub(r"\[[^]]*\]\([^)]*\)|\{[\w:]+\}`[^`]*`|`[^`]*`|\$[^$]*\$", " ", text)
    lines = (line for line in text.splitlines() if not line.startswith(("#", "|")))
    return " ".join(" ".join(lines).split())


def output_text(cell):
    parts = [output.get("text", "") for output in cell.outputs]
    parts += [output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "\n".join(parts)


def traced(chapter):
    """The numbers of the chapter that cannot vary, and those of its outputs that may."""
    fixed, varying = set[str](), set[str]()
    for cell in cells_of(chapter):
        if cell.cell_type == "code":
            may_vary = "nbval-ignore-output" in cell.metadata.get("tags", [])
            fixed |= set(re.findall(r"\d[\d,]*\.?\d*", cell.source.replace("_", ",")))
            (varying if may_vary else fixed).update(numbers(output_text(cell)))
    return fixed, varying


def cells_of(chapter):
    cells = nbformat.read(chapter.with_suffix(".ipynb"), as_version=4).cells
    return [cell for cell in cells if not colab.is_made_here(cell)]


def told_of_what_may_vary(chapter):
    """Numbers of the text that only an output which may vary has, outside of a range."""
    fixed, varying = traced(chapter)
    found = []
    for cell in cells_of(chapter):
        if cell.cell_type == "markdown":
            text = prose_of(cell.source)
            found += sorted(numbers(text) & varying - fixed - ends_of_ranges(text))
    return found


def told_of_nothing(chapter):
    """Numbers in a section with an output that may vary, after it, that nothing computes."""
    fixed, varying = traced(chapter)
    found, after_what_varies = [], False
    for cell in cells_of(chapter):
        if cell.cell_type == "code":
            after_what_varies |= "nbval-ignore-output" in cell.metadata.get("tags", [])
            continue
        text, heading, _ = re.split(r"^(#+ )", cell.source + "\n# ", maxsplit=1, flags=re.M)
        if after_what_varies:
            prose = prose_of(text)
            found += sorted(numbers(prose) - fixed - varying - ends_of_ranges(prose) - SOURCES)
        after_what_varies &= heading not in cell.source
    return found


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_number_that_may_vary_is_a_range_in_the_text(chapter):
    assert told_of_what_may_vary(chapter) == []


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_number_after_a_run_is_one_that_something_computed(chapter):
    """5.4 once told 94 % and 3.4 nats of a run whose outputs had been renewed."""
    assert told_of_nothing(chapter) == []


def test_both_kinds_of_number_are_found(tmp_path):
    cells = [
        new_code_cell("print(x)", outputs=[new_output("stream", text="0.97, 2.29 and 7.1")]),
        new_markdown_cell("We got 0.97 and 3.4 nats, 2.2 to 2.5 after it; the bound is 0.82."),
        new_code_cell("assert 0.82 < x"),
        new_markdown_cell("## Another section\n\nWith 6.1 of something else."),
    ]
    cells[0].metadata.tags = ["nbval-ignore-output"]
    nbformat.write(new_notebook(cells=cells), tmp_path / "x.ipynb")
    assert told_of_what_may_vary(tmp_path / "x.py") == ["0.97"]
    assert told_of_nothing(tmp_path / "x.py") == ["3.4"]
