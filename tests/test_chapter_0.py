"""Chapter 0 keeps its promises: one hour, ten figures, and the whole model in 80 lines of code."""

import ast
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch
from docutils import nodes
from docutils.utils import new_document

from annotated_transformer import ModelConfig, Transformer as Package
from lab import listing
from lab.same import with_weights
from tools.drawings import files
from tools.drawings.one_hour import BOXES
from tools.prose import count

BOOK = Path(__file__).parents[1] / "book"
CHAPTER = BOOK / "0_one_hour.py"
CELLS = nbformat.read(CHAPTER.with_suffix(".ipynb"), as_version=4).cells
MAX_LINES, MAX_WORDS, MIN_FIGURES = 80, 3500, 10


PROGRAM = Path(listing.__file__).read_text(encoding="utf-8")


def test_it_can_be_read_in_an_hour():
    found = count(CHAPTER)
    assert found.words <= MAX_WORDS
    assert found.figures >= MIN_FIGURES
    assert found.silent == 0


def test_the_listing_has_80_lines_and_imports_pytorch_alone():
    code = ast.parse(PROGRAM)
    imports = [node for node in ast.walk(code) if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert {ast.unparse(node) for node in imports} == {"import torch", "from torch import nn"}
    lines = [line for line in PROGRAM.splitlines() if line]
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= 80


def shown(cell):
    """The sources that a cell shows, as Markdown."""
    return "".join(out.get("data", {}).get("text/markdown", "") for out in cell.get("outputs", ()))


def test_the_chapter_shows_the_listing_whole():
    assert sum(PROGRAM.strip() in shown(cell) for cell in CELLS) == 1


@pytest.mark.parametrize("chapter", sorted(BOOK.glob("3_*.ipynb")), ids=lambda path: path.stem)
def test_the_chapters_on_the_model_show_that_listing_and_no_other(chapter):
    """A class of the package stands behind a link: a reader learns one program."""
    sources = "".join(map(shown, nbformat.read(chapter, as_version=4).cells))
    assert set(re.findall(r"^\[`(.*?)`\]", sources, flags=re.M)) == {"book/lab/listing.py"}


@pytest.mark.parametrize("training", [False, True])
def test_the_listing_is_the_packages_model(training):
    """With the same weights, the same scores and gradients: of two sentences, one padded."""
    torch.manual_seed(0)
    config = ModelConfig.tiny(vocab_size=23, N=2, d_model=16, d_ff=24, h=4, p_drop=0.0)
    theirs = Package(config).train(training)
    ours = with_weights(listing.Transformer(23, N=2, d_model=16, d_ff=24, h=4, p_drop=0.0), theirs)
    source = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])
    target = torch.tensor([[1, 9, 10, 11, 12], [1, 13, 14, 0, 0]])
    torch.testing.assert_close(ours(source, target), theirs(source, target))
    for model in (ours, theirs):
        model(source, target)[0].logsumexp(-1).sum().backward()
    torch.testing.assert_close(ours.E.grad, theirs.embedding.weight.grad, rtol=1e-4, atol=1e-5)


def drawings():
    drawn = re.compile(r'SVG\(filename="figures/([\w.]+)"\)')
    found = [(cell, drawn.search(cell.source)) for cell in CELLS if cell.cell_type == "code"]
    return [(cell, match[1]) for cell, match in found if match]


def test_the_stored_drawings_are_those_of_the_folder():
    assert len(drawings()) >= 8
    for cell, name in drawings():
        [output] = cell.outputs
        assert output.data["image/svg+xml"].strip() == files()[name].strip(), "run: make refresh"


def test_each_drawing_has_its_own_words_for_those_who_cannot_see_it():
    for cell, name in drawings():
        assert cell.metadata.mystnb.image.alt in files()[name]


def test_each_box_of_the_map_leads_to_a_chapter_and_stands_in_the_table():
    pages = {page for _, page, _ in BOXES.values()}
    assert [page for page in pages if not (BOOK / f"{page}.ipynb").exists()] == []
    drawing = files()["architecture_map.svg"]
    assert set(re.findall(r'href="([^"]+)"', drawing)) == {f"{page}.html" for page in pages}
    text = CHAPTER.read_text(encoding="utf-8")
    rows = re.findall(r"^# \| ([\d, ]+) \| .*\| \[.*\]\((\w+)\.ipynb\) \|$", text, flags=re.M)
    table = {(int(n), page) for numbers, page in rows for n in numbers.split(",")}
    assert table == {(n, page) for n, page, _ in BOXES.values()}


def test_in_html_the_map_becomes_part_of_the_page(monkeypatch):
    """And other pictures, and other kinds of output, stay as they are."""
    monkeypatch.syspath_prepend(str(BOOK.parent / "tools" / "sphinx"))
    inline_drawings = import_module("inline_drawings")

    def pictures(kind):
        page = new_document("page")
        for name in ("architecture_map", "heads"):
            page += nodes.image(uri=f"book/figures/{name}.svg")
        app = SimpleNamespace(builder=SimpleNamespace(format=kind), srcdir=BOOK.parent)
        inline_drawings.put_in_place(app, page, "page")
        return [node.tagname for node in page.children]

    assert pictures("html") == ["raw", "image"]
    assert pictures("latex") == ["image", "image"]
