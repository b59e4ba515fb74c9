"""A Chromium for the tests of the pages that the package writes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tools.browser import chromium_page

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
