"""What a reader looks up is in the subject index, and the first page that it names tells of it."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "book"
subject_index = SimpleNamespace(**runpy.run_path(str(ROOT / "tools/sphinx/subject_index.py")))
PLACES = subject_index.places()


def text_of(page):
    path = BOOK / f"{page}.md"
    return (path if path.exists() else BOOK / f"{page}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("term", PLACES)
def test_every_page_that_is_named_has_the_term(term):
    pattern = subject_index.words(term)
    assert [page for page in PLACES[term] if not pattern.search(text_of(page))] == []
