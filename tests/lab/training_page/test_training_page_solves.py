"""The training page in Chromium, with its own settings, until it can do what it learns."""

from playwright.sync_api import expect

from exported_page import IN_CHROMIUM, open_page
from lab.training_page import reversal
from lab.training_page.page import write_training_page

pytestmark = IN_CHROMIUM
LONGEST = 3000  # steps; seeds 1 and 2 need 1,000 and 1,200
STEPS = "parseInt(document.querySelector('#said').textContent.match(/\\d+ steps/))"
IS_SOLVED = "document.querySelector('#said').textContent.startsWith('Solved')"


def test_it_trains_until_every_held_out_word_is_reversed(page, tmp_path):
    """Bounded by steps, since a busy machine may take any time; 100 steps in ten minutes it must
    make."""
    written = write_training_page(tmp_path / "page", reversal.page_settings(), 1, [])
    open_page(page, written.joinpath("index.html").as_uri())
    page.click("#go")
    for n in range(100, LONGEST + 1, 100):
        page.wait_for_function(f"{IS_SOLVED} || {STEPS} >= {n}", polling=1000)
        if page.evaluate(IS_SOLVED):
            break
    assert page.evaluate(IS_SOLVED)
    said = "all 200 held-out words of 8 letters are reversed exactly."
    expect(page.locator("#said")).to_contain_text(said)
    expect(page.locator("#spoken")).to_contain_text(said)  # what a screen reader hears
    expect(page.locator("#go")).to_have_text("Go on")
    page.wait_for_selector("html[data-ready=paused]")
    of_all = "200 of 200 words of 8 letters are reversed exactly."
    expect(page.locator("#right")).to_have_text(of_all)
    samples = page.locator("#samples tbody tr")
    words, says = (samples.locator(cell).all_text_contents() for cell in ("th", "td:nth-child(2)"))
    assert len(words) == 5 and says == [word[::-1] for word in words]
