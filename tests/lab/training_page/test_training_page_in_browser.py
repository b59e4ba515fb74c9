"""The training page in Chromium: from a disk and from a server, for hands, eyes and ears."""

import pytest
from playwright.sync_api import expect

from exported_page import IN_CHROMIUM, open_page, require_accessible
from lab.training_page import reversal
from lab.training_page.page import write_training_page
from tools.browser import served

pytestmark = IN_CHROMIUM
TINY = {"d_model": 8, "d_ff": 8, "nWords": 4}  # some steps show the form, not the skill


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page with its own sizes, and PyTorch's first losses with these."""
    losses = reversal.losses(seed=1, n_steps=10)
    out = tmp_path_factory.mktemp("site") / "page"
    return write_training_page(out, reversal.page_settings(), 1, losses)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    out = tmp_path_factory.mktemp("site") / "quick"
    return write_training_page(out, {**reversal.page_settings(), **TINY}, 1, [1.0])


def wait_for_steps(page, n):
    page.wait_for_function(f"parseInt(document.querySelector('#said').textContent) >= {n}")


def test_from_a_disk_it_trains_as_pytorch_does_and_asks_for_nothing(page, folder):
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda said: complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    open_page(page, folder.joinpath("index.html").as_uri())
    expect(page.locator("#difference")).to_be_empty()
    page.click("#go")
    wait_for_steps(page, 50)
    expect(page.locator("#difference")).to_contain_text("by at most 0.0000")
    expect(page.locator("#numbers tbody tr")).not_to_have_count(0)
    files = {url for url in asked if not url.startswith("blob:")}
    assert files == {path.as_uri() for path in folder.iterdir()} and complaints == []


@pytest.mark.parametrize("is_there", [False, True])
def test_without_a_worker_it_trains_in_the_page(page, quick, is_there):
    """Whether the browser has none, or a server allows scripts from its own address alone."""
    if is_there:
        policy = '<meta http-equiv="Content-Security-Policy" content="worker-src \'none\'">'
        text = quick.joinpath("index.html").read_text(encoding="utf-8")
        strict = text.replace("<title>", f"{policy}<title>")
        answer = {"body": strict, "content_type": "text/html"}
        page.route("**/index.html", lambda route: route.fulfill(**answer))
    else:
        page.add_init_script("delete window.Worker")
    with served(quick.parent) as address:
        open_page(page, f"{address}/quick/index.html")
    page.click("#go")
    wait_for_steps(page, 20)


def test_the_keyboard_alone_is_enough(page, quick):
    open_page(page, quick.joinpath("index.html").as_uri())
    # What changes all the time is not read aloud.
    expect(page.locator("output[aria-live=off]")).to_have_count(2)
    expect(page.locator("output")).to_have_count(2)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#go")).to_have_text("Pause")
    expect(page.locator("#spoken")).to_have_text("Training.")  # what a screen reader hears
    wait_for_steps(page, 60)
    page.keyboard.press("Space")
    expect(page.locator("#go")).to_have_text("Go on")
    page.wait_for_selector("html[data-ready=paused]")
    said = page.locator("#said").inner_text()
    page.wait_for_timeout(500)
    assert page.locator("#said").inner_text() == said
    assert page.locator("#numbers tbody tr").count() == int(said.split()[0]) // 50
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # start again
    expect(page.locator("#said")).to_be_empty()
    expect(page.locator("#numbers tbody tr")).to_have_count(0)
    for _ in range(2):
        page.keyboard.press("Tab")
    page.keyboard.press("Space")  # without positions
    expect(page.locator("#positions")).not_to_be_checked()
    for _ in range(2):
        page.keyboard.press("Tab")
    expect(page.locator("#word")).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("abc")
    expect(page.locator("#maps text")).to_have_count(4 * 2 * 4)  # letters and end, on two sides
    label = page.locator("#maps svg").last.get_attribute("aria-label") or ""
    assert label.startswith("Cross, head 2: looks most, c at ") and label.count(" at ") == 4


def test_an_error_ends_the_training_and_is_heard(page, quick):
    text = quick.joinpath("engine.js").read_text(encoding="utf-8")
    old = "const turn = () => {"
    broken = text.replace(old, f"{old} if (trainer.steps >= 8) throw 'no memory';")
    assert broken != text
    page.route("**/engine.js", lambda route: route.fulfill(body=broken))
    with served(quick.parent) as address:
        open_page(page, f"{address}/quick/index.html")
    page.click("#go")
    for place in ("#said", "#spoken"):
        expect(page.locator(place)).to_have_text("This did not work: no memory")
    expect(page.locator("#go")).to_have_text("Go on")


def test_an_empty_seed_is_the_seed_of_pytorchs_curve(page, folder):
    open_page(page, folder.joinpath("index.html").as_uri())
    page.fill("#seed", "")
    page.press("#seed", "Tab")
    expect(page.locator("#curve circle")).to_have_count(1)
    page.fill("#seed", "2")
    page.press("#seed", "Tab")
    expect(page.locator("#curve circle")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_a_phone_is_wide_enough(page, quick, scheme):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 360, "height": 800})
    open_page(page, quick.joinpath("index.html").as_uri())
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    page.click("#go")
    wait_for_steps(page, 60)
    page.click("#go")
    expect(page.locator("#go")).to_have_text("Go on")
    page.locator("summary").click()
    require_accessible(page)
