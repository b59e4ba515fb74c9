"""For the tests of the pages that the package writes: a Chromium, and the page of `book/model`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from annotated_transformer.page.writing import write_page
from exported_page import BOOK_MODEL
from tools.browser import chromium_page, served

PATIENCE = 600_000  # milliseconds: catches a browser that hangs, not one on a busy machine


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with chromium_page() as page:
        yield page


@pytest.fixture
def page(tab: Page) -> Iterator[Page]:
    with tab.context.new_page() as page:
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        yield page


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported page, which no test changes."""
    return write_page(BOOK_MODEL, tmp_path_factory.mktemp("site") / "page")


@pytest.fixture(scope="session")
def address(folder: Path) -> Iterator[str]:
    with served(folder.parent) as address:
        yield f"{address}/page/index.html"
