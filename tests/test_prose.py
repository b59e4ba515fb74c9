"""The counts of `tools.prose` are of what a reader sees: on small pages, counted by hand."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools.prose import BOOK, Counts, count, named_but_folded, pages, prose, sentences

TEXT = """# A heading of five words

We look at $x^2$ and `code` once. It is not so. Nothing [is linked](somewhere.md) here; we're done.

$$
a = b
$$ (label)

| a | table |
|---|---|

```python
we = "not prose"
```
"""


def test_sentences_are_counted_without_tables_formulas_and_code(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(TEXT)
    found = count(page)
    assert sentences(prose(TEXT))[1] == "It is not so."
    assert (found.we, found.negations, found.sentences, found.short) == (2, 2, 3, 2)
    assert found.words == len(TEXT.split())
    assert found.prose == 17


def test_cells_are_silent_if_they_are_seen_and_show_nothing_or_folded(tmp_path: Path) -> None:
    shown = new_output("stream", text="1")
    cells = [
        new_markdown_cell("One two."),
        new_code_cell("x = 1"),
        new_code_cell("assert x == 1\nprint(x)", outputs=[shown]),
        new_code_cell("assert x\n\nassert x > 0", metadata={"tags": ["hide-cell"]}),
        new_markdown_cell("## Exercises"),
        new_markdown_cell("Three four five."),
        new_code_cell("plot(x)", outputs=[shown], metadata={"mystnb": {"image": {"alt": "words"}}}),
        new_code_cell("draw(x)", outputs=[shown], metadata={"tags": ["hide-input"]}),
    ]
    nbformat.write(new_notebook(cells=cells), tmp_path / "x.ipynb")
    found = count(tmp_path / "x.py")
    assert (found.silent, found.asserts, found.figures) == (1, 1, 1)
    assert found.folded == 3
    assert (found.words, found.reading) == (7, 2)


@pytest.fixture(scope="module")
def book() -> dict[str, Counts]:
    return {path.stem: count(path) for path in pages()}


def test_the_book_can_be_read_to_its_end(book: dict[str, Counts]) -> None:
    whole = sum(book.values(), Counts())
    longest = max(book, key=lambda name: book[name].reading)
    assert whole.words <= 76_000
    assert book[longest].reading <= 5_000, longest
    assert 1000 * whole.figures / whole.words >= 2.5


def test_the_book_talks_as_a_teacher_does(book: dict[str, Counts]) -> None:
    whole = sum(book.values(), Counts())
    assert 1000 * whole.we / whole.prose >= 10
    assert 1000 * whole.negations / whole.prose <= 9
    assert whole.short / whole.sentences <= 0.12


def test_every_cell_that_is_seen_shows_something(book: dict[str, Counts]) -> None:
    assert {name: found.silent for name, found in book.items() if found.silent} == {}
    assert sum(found.asserts for found in book.values()) <= 150


SECOND_HALF = (
    "5_2_training", "5_3_optimizer", "5_4_regularization", "6_1_translation", "6_1_results",
    "6_2_variations", "6_2_since_2017", "6_3_parsing", "claims", "7_attention_visualizations",
    "7_controlled_corpus", "on_a_gpu", "after_the_paper", "common_mistakes", "errata",
)  # fmt: skip


def test_little_is_folded_from_training_on(book: dict[str, Counts]) -> None:
    """It was 3,165 lines: plumbing belongs in the lab, and a method on the page."""
    assert sum(book[name].folded for name in SECOND_HALF) <= 1_700


def test_a_method_that_is_named_and_folded_is_found(tmp_path: Path) -> None:
    folded = {"tags": ["hide-cell"]}
    cells = [
        new_markdown_cell("We call `fit(x)` and `shown`, and `torch`."),
        new_code_cell("def fit(): ...", metadata=folded),
        new_code_cell("def shown(): ..."),
        new_markdown_cell("## Exercises\n\n`mine`"),
        new_code_cell("def mine(): ...", metadata=folded),
    ]
    nbformat.write(new_notebook(cells=cells), tmp_path / "x.ipynb")
    assert named_but_folded(tmp_path / "x.py") == {"fit"}


@pytest.mark.parametrize("chapter", SECOND_HALF)
def test_a_method_that_the_text_names_is_on_the_page(chapter: str) -> None:
    assert named_but_folded(BOOK / f"{chapter}.py") == set()
