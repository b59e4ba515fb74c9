"""A report fences what a stranger wrote; of a chosen folder its own files are read."""

import re
from urllib.parse import quote

from playwright.sync_api import Page, expect

from exported_page import IN_CHROMIUM, open_page

pytestmark = IN_CHROMIUM


def test_a_report_shows_a_strangers_text_as_it_is(page: Page, address: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    text = "<img src=x> @someone ```` #1"
    open_page(page, f"{address}#text={quote(text)}&beam=1")
    page.get_by_role("button", name="Copy as a report").click()
    expect(page.locator("#spoken")).to_have_text("Report copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(f"Text (en):\n\n`````\n{text}\n`````\n\nTranslation (de):\n\n```")
    outside = re.sub(r"^(`{3,})\n.*?\n\1$", "", copied, flags=re.M | re.S)
    assert not any(mark in outside for mark in ("<img", "@someone", "#1", "`"))
