"""The translator's views in the built chapters: live in Chromium, and without JavaScript.

Skipped where there is no Chromium or no built book (`make html`).
"""

from pathlib import Path
from urllib.parse import unquote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tools.browser import CHROMIUM, served

HTML = Path(__file__).parents[1] / "_build" / "html"
# What a view shows of its own, and what it leaves to the others.
VIEWS = {
    "intro": ("translate", "#translation", ["#hypotheses", "#tokens", "#explorer", "#beside"]),
    "0_one_hour": ("tokens", "#tokens", ["#hypotheses", "#explorer", "#beside"]),
    "3_2_attention": ("attention", "#explorer", ["#hypotheses", "#tokens", "#beside"]),
    "6_1_translation": ("beam", "#hypotheses", ["#tokens", "#explorer", "#beside"]),
    "7_attention_visualizations": ("knock-out", "#beside", ["#hypotheses", "#tokens", "#explorer"]),
}
STICKS_OUT = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
in_chapters = pytest.mark.parametrize("chapter", VIEWS)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not CHROMIUM, reason="no chromium on this machine (apt-get install chromium)"
    ),
    pytest.mark.skipif(
        not all((HTML / "book" / f"{name}.html").exists() for name in VIEWS),
        reason="no built book (make html)",
    ),
]


@pytest.fixture(scope="module")
def address():
    with served(HTML.parent) as address:
        yield f"{address}/{HTML.name}/book"


@pytest.fixture
def phone(page):
    page.set_viewport_size({"width": 360, "height": 800})
    page.emulate_media(reduced_motion="reduce")  # axe sees no colour on its way to another
    return page


def barriers(frame):
    """What axe-core calls serious or critical inside the frame."""
    found = Axe().run(frame).response["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


@in_chapters
def test_a_chapter_shows_its_view_alive_on_a_phone(phone, address, chapter):
    name, own, others = VIEWS[chapter]
    errors: list[str] = []
    phone.on("pageerror", lambda error: errors.append(str(error)))
    phone.goto(f"{address}/{chapter}.html")
    view = phone.locator(".translator-view.live")
    view.scroll_into_view_if_needed()  # the frame is lazy
    held = view.locator("iframe").element_handle()
    assert held is not None
    frame = held.content_frame()
    assert frame is not None
    root = frame.locator("html[data-ready]")
    expect(root).to_have_attribute("data-view", name)
    expect(view.locator(".stored")).to_be_hidden()
    expect(frame.locator(own)).to_be_visible()
    for other in ("h1", *others):
        expect(frame.locator(other)).to_be_hidden()
    expect(frame.locator("#translation")).not_to_be_empty()
    assert frame.locator("#text").input_value() in unquote(view.get_attribute("data-src") or "")

    for theme in ("dark", "light"):  # the frame follows the chapter's colours
        phone.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        expect(root).to_have_attribute("data-theme", theme)
        assert barriers(frame) == []
    inside = frame.evaluate("document.body.offsetHeight")
    expect(view.locator("iframe")).to_have_css("height", f"{inside + 4}px")
    for place in (phone, frame):
        assert place.evaluate(STICKS_OUT) == 0
    assert errors == []
