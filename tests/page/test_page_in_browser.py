"""The exported page in Chromium: from a disk and from a server, for hands, eyes and ears."""

from pathlib import Path

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.page.int8_rows import with_int8_rows
from annotated_transformer.page.writing import write_page
from annotated_transformer.translation.translator import Translator
from exported_page import IN_CHROMIUM, open_page
from tools.browser import served

BOOK_MODEL = Path(__file__).parents[2] / "book" / "model"
SENTENCE = "I would like to know why she did not come to the party."

pytestmark = IN_CHROMIUM


@pytest.fixture(scope="module")
def in_python():
    """The translation by beam width, in the page's arithmetic."""
    model, tokenizer = checkpoint.load_model(BOOK_MODEL)
    translator = Translator(with_int8_rows(model), tokenizer)
    return {width: translator.translate([SENTENCE], beam_size=width)[0] for width in (1, 4)}


def test_it_works_from_a_disk_and_asks_for_nothing_but_its_files(page, folder, in_python):
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda said: complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    open_page(page, folder.joinpath("index.html").as_uri())
    assert page.evaluate("document.documentElement.dataset.engine") == "WebAssembly"
    page.fill("#text", SENTENCE)
    expect(page.locator("#translation")).to_have_text(in_python[4])
    files = {url for url in asked if not url.startswith("blob:")}
    assert files == {path.as_uri() for path in folder.iterdir()} and complaints == []


@pytest.mark.parametrize(
    ("without", "engine"),
    [("WebAssembly.validate = () => false", "JavaScript"), ("", "WebAssembly")],
)
def test_without_simd_or_a_worker_it_says_the_same(page, folder, in_python, without, engine):
    """A worker does not see what is changed in its page: there the engine runs in the page."""
    page.add_init_script(f"delete window.Worker; {without}")
    with served(folder.parent) as address:
        open_page(page, f"{address}/page/index.html")
        assert page.evaluate("document.documentElement.dataset.engine") == engine
        page.fill("#text", SENTENCE)
        expect(page.locator("#translation")).to_have_text(in_python[4])


def test_the_keyboard_alone_is_enough(page, folder, in_python):
    with served(folder.parent) as address:
        open_page(page, f"{address}/page/")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type(SENTENCE)
    expect(page.locator("#translation")).to_have_text(in_python[4])
    expect(page.locator("#spoken")).to_have_text(in_python[4])  # what a screen reader hears
    expect(page.locator("#hypotheses li")).to_have_count(4)
    for _ in range(7):  # past the swap of languages, two buttons that copy and three to try
        page.keyboard.press("Tab")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    expect(page.locator("#hypotheses li")).to_have_count(1)
    expect(page.locator("#translation")).to_have_text(in_python[1])
    for _ in range(10):  # past the length penalty, and what belongs to tree and knock-out
        page.keyboard.press("Tab")
    for _ in range(2):
        page.keyboard.press("ArrowRight")  # to the decoder's self-attention
    said = page.locator(".ax-says")
    expect(said).to_contain_text("Decoder self-attention, layer 3, head 1")
    page.focus("#text")
    page.keyboard.press("Control+a")
    page.keyboard.type("I like tea.")
    page.wait_for_function("document.querySelectorAll('.ax-queries li').length < 10")
    expect(said).to_contain_text("Decoder self-attention, layer 3, head 1")  # still chosen


def test_a_worker_that_is_refused_leaves_its_work_to_the_page(page, folder, in_python):
    """As a server does that allows scripts from its own address alone."""
    policy = '<meta http-equiv="Content-Security-Policy" content="worker-src \'none\'">'
    text = folder.joinpath("index.html").read_text(encoding="utf-8")
    strict = text.replace("<title>", f"{policy}<title>")
    page.route("**/index.html", lambda route: route.fulfill(body=strict, content_type="text/html"))
    with served(folder.parent) as address:
        open_page(page, f"{address}/page/index.html")
    page.fill("#text", SENTENCE)
    expect(page.locator("#translation")).to_have_text(in_python[4])


def test_greedy_search_stands_beside_the_beam(page, folder):
    model, tokenizer = checkpoint.load_model(BOOK_MODEL)
    translator, text = Translator(with_int8_rows(model), tokenizer), "I'm allergic to nuts."
    found, beams = (translator.translate([text], beam_size=width)[0] for width in (1, 4))
    assert found != beams
    open_page(page, folder.joinpath("index.html").as_uri())
    page.fill("#text", text)
    greedy = page.locator("#greedy")
    expect(greedy).to_contain_text(f"Greedy search finds {found} (\u2212")
    page.fill("#text", "Yes.")
    expect(greedy).to_have_text("Greedy search finds the same.")
    page.fill("#beam", "1")
    expect(page.locator("#hypotheses li")).to_have_count(1)
    expect(greedy).to_be_empty()


def test_a_long_text_is_translated_without_pictures(page, folder):
    open_page(page, folder.joinpath("index.html").as_uri())
    page.fill("#text", 20 * SENTENCE)
    expect(page.locator("#tree")).to_be_hidden()
    expect(page.locator("#said")).to_contain_text("tokens in")
    page.fill("#text", SENTENCE)
    expect(page.locator("#tree")).to_be_visible()


def test_an_empty_text_has_no_translation(page, folder):
    open_page(page, folder.joinpath("index.html").as_uri())
    page.fill("#text", " ")
    expect(page.locator("#translation")).to_have_text("")
    expect(page.locator("#hypotheses")).to_be_hidden()


def test_a_line_without_a_letter_comes_back_as_it_is(page, folder):
    open_page(page, folder.joinpath("index.html").as_uri())
    page.fill("#text", " 2 + 2 = 4 ")
    expect(page.locator("#translation")).to_have_text("2 + 2 = 4")
    expect(page.locator("#said")).to_have_text("There is no letter in it: it stays as it is.")
    expect(page.locator("#hypotheses")).to_be_hidden()


def test_the_tree_grows_by_keyboard_and_in_words(page, folder):
    page.emulate_media(reduced_motion="reduce")
    open_page(page, folder.joinpath("index.html").as_uri())
    shown, slider = page.locator("#tree .step:not([hidden])"), page.locator("#step")
    n_steps = int(slider.get_attribute("max") or 0)
    finished = page.locator("#tree g.ends .value").all_text_contents()
    listed = page.locator("#hypotheses .number").all_text_contents()
    expect(shown).to_have_count(n_steps + 1)  # at first all of it
    assert sorted(finished) == [f"{i}. {score[1:-1]}" for i, score in enumerate(listed, 1)]
    won = page.locator("#tree g.wins text:not(.value)").all_text_contents()
    told = page.locator("#tokens .token").all_text_contents()
    short = [token if len(token) <= 10 else f"{token[:9]}\u2026" for token in told]
    assert won == ["<s>", *short]

    page.focus("#play")
    expect(page.locator("#play")).to_have_text("Next step")  # no motion is wanted
    page.keyboard.press("Enter")
    expect(shown).to_have_count(2)
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    expect(shown).to_have_count(3)
    said = f"Step 2 of {n_steps}: 4 beginnings kept, 0 finished"
    expect(slider).to_have_attribute("aria-valuetext", said)
    page.keyboard.press("Tab")
    expect(page.locator("#tree")).to_be_focused()  # where arrows move a wide picture
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    best = page.locator("#hypotheses li").first.inner_text().rpartition(" (")[0]
    last = page.locator("#tree-steps > li")
    expect(last).to_have_count(n_steps)
    expect(page.locator("#tree-steps")).to_contain_text(f"\u201c{best}\u201d is finished")
    expect(page.locator("#tree-steps [aria-current] li")).to_have_count(4)


def test_the_tree_plays_to_its_end(page, folder):
    page.emulate_media(reduced_motion="no-preference")
    open_page(page, folder.joinpath("index.html").as_uri())
    page.fill("#text", "Yes.")
    page.wait_for_function("document.querySelector('#step').max < 9")
    button = page.locator("#play")
    button.click()
    expect(button).to_have_text("Pause")
    expect(page.locator("#tree .step[hidden]")).not_to_have_count(0)
    expect(button).to_have_text("Play")
    expect(page.locator("#tree .step[hidden]")).to_have_count(0)


def test_a_knocked_out_model_says_what_it_says_in_python(page, folder, in_python):
    model, tokenizer = checkpoint.load_model(BOOK_MODEL)
    translator = Translator(with_int8_rows(model), tokenizer)
    attention = translator.model.decoder.layers[1].cross_attention
    hook = attention.W_O.register_forward_pre_hook(lambda _, x: (torch.zeros_like(x[0]),))
    (without_layer,) = translator.translate([SENTENCE], beam_size=4)
    hook.remove()
    translator.model.positions.table.zero_()
    (without_positions,) = translator.translate([SENTENCE], beam_size=4)
    assert len({without_layer, without_positions, in_python[4]}) == 3

    open_page(page, folder.joinpath("index.html").as_uri())
    page.fill("#text", SENTENCE)
    page.focus("#without-layer")
    page.keyboard.press("ArrowUp")  # from the last layer, 3, to 2
    left = page.locator("#left")
    expect(left).to_contain_text(without_layer)
    expect(page.locator("#whole")).to_contain_text(in_python[4])
    expect(left.locator("mark")).not_to_have_count(0)
    expect(page.locator("#spoken")).to_contain_text(without_layer)
    page.focus("#without-kind")
    page.keyboard.press("Home")  # no attention
    expect(page.locator("#without-said")).to_have_text("The translation stays the same.")
    expect(page.locator("mark")).to_have_count(0)
    page.focus("#without-positions")
    page.keyboard.press("Space")
    expect(left).to_contain_text(without_positions)
    expect(page.locator("#translation")).to_have_text(in_python[4])  # as it was


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_a_phone_is_wide_enough(page, folder, scheme):
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.set_viewport_size({"width": 360, "height": 800})
    open_page(page, folder.joinpath("index.html").as_uri())
    expect(page.locator(".ax-queries")).to_be_visible()
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    page.get_by_role("button", name="Show this head as a table").click()
    expect(page.locator("#left")).not_to_be_empty()
    for summary in page.locator("summary").all():
        summary.click()
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []


def test_a_frame_of_a_book_shows_one_view_alone(page, tmp_path):
    write_page(BOOK_MODEL, tmp_path / "translator", book="../book/")
    address = tmp_path.joinpath("translator", "index.html").as_uri()
    (tmp_path / "chapter.html").write_text(
        "<script>onmessage = ({ data }) => { window.told = data.height; };</script>"
        f'<iframe src="{address}#view=tokens&text=I%20like%20tea.&theme=dark"></iframe>'
    )
    page.goto(tmp_path.joinpath("chapter.html").as_uri())
    frame = page.frame_locator("iframe")
    expect(frame.locator("html[data-ready]")).to_have_attribute("data-theme", "dark")
    expect(frame.locator("#text")).to_have_value("I like tea.")
    expect(frame.locator("#tokens")).to_be_visible()
    for other in ("h1", "#tree", "#explorer", "#beside", "#beam", ".chapter >> nth=0"):
        expect(frame.locator(other)).to_be_hidden()
    assert page.evaluate("window.told") > 300
    page.evaluate("frames[0].postMessage({ theme: 'light' }, '*')")
    expect(frame.locator("html")).to_have_attribute("data-theme", "light")


def test_each_view_of_a_page_in_a_book_links_to_its_chapter(page, folder, tmp_path):
    open_page(page, folder.joinpath("index.html").as_uri())
    expect(page.locator(".chapter:visible")).to_have_count(0)
    write_page(BOOK_MODEL, tmp_path / "translator", book="../book/")
    open_page(page, tmp_path.joinpath("translator", "index.html").as_uri())
    links = page.locator(".chapter:visible a")
    expect(links).to_have_count(6)
    assert links.first.get_attribute("href") == "../book/6_1_translation.html"
