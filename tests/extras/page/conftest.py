"""For the tests of the pages that the package writes: the page of `book/model`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from annotated_transformer.extras.page.writing import write_page
from exported_page import BOOK_MODEL
from tools.browser import served


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported page, which no test changes."""
    return write_page(BOOK_MODEL, tmp_path_factory.mktemp("site") / "page")


@pytest.fixture(scope="session")
def address(folder: Path) -> Iterator[str]:
    with served(folder.parent) as address:
        yield f"{address}/page/index.html"
