"""For every test that looks at a page: a Chromium, and a new tab in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tools.browser import SECONDS, chromium_page

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    from playwright.sync_api import expect

    expect.set_options(timeout=1000 * SECONDS)
    with chromium_page() as page:
        yield page


@pytest.fixture
def page(tab: Page) -> Iterator[Page]:
    with tab.context.new_page() as page:
        yield page
