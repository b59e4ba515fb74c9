"""The chapters in notebooks/, for Colab and Jupyter: what every renderer of Markdown can read."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from test_book import CHAPTERS
from tools import colab, notebooks, plain

ROOT = Path(__file__).parents[1]
RAW = re.compile(
    r"\{[a-z:-]+\}`|^(?:`{3,}|:{3,})\{|^\([\w-]+\)=$|\$\$ \([\w-]+\)|^:(?:label|class|name|text):",
    re.MULTILINE,
)
each = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)


def stored(chapter):
    return nbformat.read(plain.PLAIN / f"{chapter.stem}.ipynb", as_version=4)


@each
def test_a_plain_notebook_is_what_its_chapter_makes(chapter):
    assert stored(chapter) == plain.plain_notebook(chapter), "run `make words`"


@each
def test_nothing_in_it_is_for_the_site_alone(chapter):
    notebook = stored(chapter)
    words = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert RAW.findall(words) == []
    links = re.findall(r"\]\(([^)\s]*)\)", words)
    assert all(link.startswith("https://") for link in links) and len(links) > 3
    pictures = re.findall(r"/(book/figures/[^)?]*)", words)
    assert all((ROOT / picture).is_file() for picture in pictures)
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in codes)


@each
def test_its_code_is_the_chapters_and_solutions_are_folded(chapter):
    ours, theirs = (
        [cell for cell in notebook.cells if cell.cell_type == "code"]
        for notebook in (stored(chapter), notebooks.read_source(chapter))
    )
    first = colab.first_cell().source
    assert [cell.source.replace(plain.FIRST_CELL_ELSEWHERE, "") for cell in ours] == [
        cell.source for cell in theirs
    ]
    assert [cell.source.startswith(first) for cell in ours].count(True) == 1
    for cell in ours:
        is_folded = bool(plain.FOLDED.intersection(cell.metadata.get("tags", [])))
        assert cell.metadata.get("jupyter", {}).get("source_hidden", False) is is_folded
        assert (cell.metadata.get("cellView") == "form") is is_folded
    text = "\n".join(c.source for c in stored(chapter).cells if c.cell_type == "markdown")
    n_solutions = sum(
        cell.source.count("{solution}")
        for cell in notebooks.read_source(chapter).cells
        if cell.cell_type == "markdown"
    )
    assert text.count("<details><summary>Solution</summary>") == n_solutions


@each
def test_a_student_gets_no_solution(chapter):
    notebook = plain.without_solutions(plain.plain_notebook(chapter))
    text = "\n".join(cell.source for cell in notebook.cells)
    assert "<summary>Solution" not in text
    assert text.count("**Exercise ") == sum(
        "exercise" in cell.metadata.get("tags", []) for cell in notebook.cells
    )


@pytest.mark.slow
def test_a_students_notebook_runs_from_top_to_bottom(tmp_path):
    """Where the book stands beside its folder, whatever the directory of the kernel's start."""
    notebook = plain.without_solutions(plain.plain_notebook(notebooks.BOOK / "3_2_masks.py"))
    (tmp_path / "student").mkdir()
    (tmp_path / "book").symlink_to(notebooks.BOOK)
    client = NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": tmp_path / "student"}}
    )
    client.execute()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


def test_words_are_made_plain():
    text = """(a-label)=
## Title

See {cite}`vaswani2017attention` and {cite:t}`luong2015effective`,
{ref}`ex-order`, equation
{eq}`attention`, and [a chapter](0_one_hour.ipynb#part).

:::{admonition} Note well
:class: note

Some $x$.
:::

```{dropdown} More
Words.
```

```python
x = {"a": 1}
```"""
    expected = """## Title

See (Vaswani et al., 2017) and Luong et al. (2015),
[Exercise 3.2.5](PAGE/3_2_attention.html#ex-order), equation
[(1)](PAGE/3_2_attention.html#attention), and [a chapter](PAGE/0_one_hour.html#part).

> **Note well**
>
> Some $x$.

<details><summary>More</summary>

Words.

</details>

```python
x = {"a": 1}
```"""
    assert plain.plain_words(text, "intro") == expected.replace("PAGE", f"{plain.site()}/book")
