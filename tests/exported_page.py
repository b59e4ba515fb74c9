"""What the tests of the pages that the package writes share."""

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tools.browser import CHROMIUM

BOOK_MODEL = Path(__file__).parents[1] / "book" / "model"
IN_CHROMIUM = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not CHROMIUM, reason="no chromium on this machine (apt-get install chromium)"
    ),
]


def require_accessible(page: Page) -> None:
    """axe-core finds nothing, and the page is no wider than its window."""
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []


def open_page(page: Page, address: str) -> None:
    """Go there, and wait until the page's own script says that it is ready."""
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
