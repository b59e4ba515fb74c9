"""The exported page's address, languages and links, in Chromium."""

import pytest
from playwright.sync_api import expect

from exported_page import IN_CHROMIUM, open_page

pytestmark = IN_CHROMIUM


@pytest.mark.parametrize("is_served", [False, True])
def test_the_address_shows_a_friend_what_is_shown_here(page, folder, address, is_served):
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    start = address if is_served else folder.joinpath("index.html").as_uri()
    open_page(page, start)
    page.fill("#text", "Yes & no.")
    page.fill("#beam", "2")
    page.fill("#alpha", "1.1")
    link = f"{start}#text=Yes+%26+no.&beam=2&alpha=1.1"
    page.wait_for_url(link)
    half = "const text = document.querySelector('#text'); text.value = '\\ud83d';"
    page.evaluate(f"{half} text.dispatchEvent(new Event('input')); 0")
    page.wait_for_url(f"{start}#text=%EF%BF%BD&beam=2&alpha=1.1")
    page.evaluate("location.hash = 'text=No.&beam=3'")
    expect(page.locator("#translation")).to_have_text("Nein.")
    expect(page.locator("#hypotheses li")).to_have_count(3)
    page.goto("about:blank")
    open_page(page, link)
    shown = [page.locator(f"#{name}").input_value() for name in ("text", "beam", "alpha")]
    assert shown == ["Yes & no.", "2", "1.1"] and complaints == []


def test_a_button_copies_the_address(page, address):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_page(page, f"{address}#text=Yes.")
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#spoken")).to_have_text("Link copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"{address}#text=Yes.&beam=4&alpha=0.6"
    page.fill("#text", "No.")
    expect(page.locator("#copy")).to_have_text("Copy link")


def test_each_text_has_its_language_and_its_own_direction(page, address):
    open_page(page, f"{address}#text=Yes.")
    expect(page.locator("#left")).not_to_be_empty()
    languages = {"#text": "en"} | dict.fromkeys(
        ("#translation", "#hypotheses", "#whole", "#left", "#tokens tbody"), "de"
    )
    for place, language in languages.items():
        expect(page.locator(place)).to_have_attribute("lang", language)
    for place in ("#text", "#translation", "#whole", "#left", "#hypotheses li >> nth=0"):
        expect(page.locator(place)).to_have_attribute("dir", "auto")
    page.fill("#text", "\u05e9\u05dc\u05d5\u05dd")
    assert page.evaluate("getComputedStyle(document.querySelector('#text')).direction") == "rtl"
