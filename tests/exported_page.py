"""What the tests of the pages that the package writes share."""

from playwright.sync_api import Page


def open_page(page: Page, address: str) -> None:
    """Go there, and wait until the page's own script says that it is ready."""
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
