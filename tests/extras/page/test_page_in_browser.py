"""The exported page in Chromium: for hands, eyes and ears, with its doubts, with a model of one's
own, and when something fails, takes long or is not allowed."""

import json
import re
import shutil

import pytest
import torch
from marian_form import write_marian
from playwright.sync_api import expect

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint.weights import save_weights
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.extras.page.int8_rows import with_int8_rows
from annotated_transformer.extras.page.writing import write_page
from exported_page import BOOK_MODEL, IN_CHROMIUM, open_page, require_accessible
from toys import small_model, text_pairs

SENTENCE = "I would like to know why she did not come to the party."
ENGINE = "document.documentElement.dataset.engine"
THEME = "document.documentElement.dataset.theme"
SHOWN = "JSON.parse(document.querySelector('.attention-explorer script').textContent)"

pytestmark = IN_CHROMIUM


def book_translator():
    """The book's model in the page's arithmetic."""
    model, tokenizer = checkpoint.load_model(BOOK_MODEL)
    return Translator(with_int8_rows(model), tokenizer)


@pytest.fixture(scope="module")
def in_python():
    """The translation by beam width."""
    translator = book_translator()
    return {width: translator.translate([SENTENCE], beam_size=width)[0] for width in (1, 4)}


@pytest.fixture
def complaints(page):
    """What the page's scripts throw and write on the console."""
    texts = []
    page.on("console", lambda message: texts.append(message.text))
    page.on("pageerror", lambda error: texts.append(str(error)))
    return texts


@pytest.fixture
def requests(page):
    """The addresses that the page asks for."""
    urls = []
    page.on("request", lambda request: urls.append(request.url))
    return urls


@pytest.fixture
def opened(page, complaints, requests, folder):
    """The page from a disk."""
    open_page(page, folder.joinpath("index.html").as_uri())
    return page


@pytest.fixture(scope="module")
def in_a_book(tmp_path_factory):
    """A page that lies beside the book's."""
    folder = tmp_path_factory.mktemp("site")
    write_page(BOOK_MODEL, folder / "translator", book="../book/")
    return folder


def says(page, place, text):
    expect(page.locator(place)).to_have_text(text)


def translate(page, text, translation):
    page.fill("#text", text)
    says(page, "#translation", translation)


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


# What it shows


def test_it_works_from_a_disk_and_asks_for_nothing_but_its_files(
    opened, folder, in_python, requests, complaints
):
    assert opened.evaluate(ENGINE) == "WebAssembly"
    translate(opened, SENTENCE, in_python[4])
    files = {url for url in requests if not url.startswith("blob:")}
    assert files == {path.as_uri() for path in folder.iterdir()} and complaints == []


def test_the_keyboard_alone_is_enough(page, address, in_python):
    open_page(page, address.removesuffix("index.html"))
    press(page, "Tab", "Control+a")
    page.keyboard.type(SENTENCE)
    says(page, "#translation", in_python[4])
    says(page, "#spoken", in_python[4])  # what a screen reader hears
    expect(page.locator("#hypotheses li")).to_have_count(4)
    # Past the swap of languages, two buttons that copy and three to try.
    press(page, *["Tab"] * 7, *["ArrowLeft"] * 3)
    expect(page.locator("#hypotheses li")).to_have_count(1)
    says(page, "#translation", in_python[1])
    # Past the length penalty, and what belongs to tree and knock-out, to the decoder's
    # self-attention.
    press(page, *["Tab"] * 10, "ArrowRight", "ArrowRight")
    chosen = page.locator(".ax-says")
    expect(chosen).to_contain_text("Decoder self-attention, layer 3, head 1")
    page.focus("#text")
    press(page, "Control+a")
    page.keyboard.type("I like tea.")
    page.wait_for_function("document.querySelectorAll('.ax-queries li').length < 10")
    expect(chosen).to_contain_text("Decoder self-attention, layer 3, head 1")  # still chosen


def test_greedy_search_stands_beside_the_beam(opened):
    translator = book_translator()
    text = "I'm allergic to nuts."
    greedy, beams = (translator.translate([text], beam_size=width)[0] for width in (1, 4))
    assert greedy != beams
    opened.fill("#text", text)
    expect(opened.locator("#greedy")).to_contain_text(f"Greedy search finds {greedy} (\u2212")
    opened.fill("#text", "Yes.")
    says(opened, "#greedy", "Greedy search finds the same.")
    opened.fill("#beam", "1")
    expect(opened.locator("#hypotheses li")).to_have_count(1)
    expect(opened.locator("#greedy")).to_be_empty()


def test_a_text_may_be_empty_long_or_without_a_letter(opened):
    translate(opened, " ", "")
    expect(opened.locator("#hypotheses")).to_be_hidden()
    opened.fill("#text", 20 * SENTENCE)
    expect(opened.locator("#said")).to_contain_text("tokens in")
    expect(opened.locator("#tree")).to_be_hidden()
    opened.fill("#text", SENTENCE)
    expect(opened.locator("#tree")).to_be_visible()
    translate(opened, " 2 + 2 = 4 ", "2 + 2 = 4")
    says(opened, "#said", "There is no letter in it: it stays as it is.")
    expect(opened.locator("#hypotheses")).to_be_hidden()


def test_the_tree_grows_by_keyboard_and_in_words(page, folder):
    page.emulate_media(reduced_motion="reduce")
    open_page(page, folder.joinpath("index.html").as_uri())
    steps = page.locator("#tree .step:not([hidden])")
    slider = page.locator("#step")
    n_steps = int(slider.get_attribute("max") or 0)
    finished = page.locator("#tree g.ends .value").all_text_contents()
    listed = page.locator("#hypotheses .number").all_text_contents()
    expect(steps).to_have_count(n_steps + 1)  # at first all of it
    assert sorted(finished) == [f"{i}. {score[1:-1]}" for i, score in enumerate(listed, 1)]
    won = page.locator("#tree g.wins text:not(.value)").all_text_contents()
    tokens = page.locator("#tokens .token").all_text_contents()
    assert won == ["<s>", *(t if len(t) <= 10 else f"{t[:9]}\u2026" for t in tokens)]

    page.focus("#play")
    says(page, "#play", "Next step")  # no motion is wanted
    press(page, "Enter")
    expect(steps).to_have_count(2)
    press(page, "Tab", "ArrowRight")
    expect(steps).to_have_count(3)
    words = f"Step 2 of {n_steps}: 4 beginnings kept, 0 finished"
    expect(slider).to_have_attribute("aria-valuetext", words)
    press(page, "Tab")
    expect(page.locator("#tree")).to_be_focused()  # where arrows move a wide picture
    press(page, "Tab", "Enter")
    best = page.locator("#hypotheses li").first.inner_text().rpartition(" (")[0]
    expect(page.locator("#tree-steps > li")).to_have_count(n_steps)
    expect(page.locator("#tree-steps")).to_contain_text(f"\u201c{best}\u201d is finished")
    expect(page.locator("#tree-steps [aria-current] li")).to_have_count(4)


def test_the_tree_plays_to_its_end(page, folder):
    page.emulate_media(reduced_motion="no-preference")
    open_page(page, folder.joinpath("index.html").as_uri())
    page.fill("#text", "Yes.")
    page.wait_for_function("document.querySelector('#step').max < 9")
    page.click("#play")
    says(page, "#play", "Pause")
    expect(page.locator("#tree .step[hidden]")).not_to_have_count(0)
    says(page, "#play", "Play")
    expect(page.locator("#tree .step[hidden]")).to_have_count(0)


def test_a_knocked_out_model_says_what_it_says_in_python(opened, in_python):
    translator = book_translator()
    attention = translator.model.decoder.layers[1].cross_attention
    hook = attention.W_O.register_forward_pre_hook(lambda _, x: (torch.zeros_like(x[0]),))
    (without_layer,) = translator.translate([SENTENCE], beam_size=4)
    hook.remove()
    translator.model.positions.table.zero_()
    (without_positions,) = translator.translate([SENTENCE], beam_size=4)
    assert len({without_layer, without_positions, in_python[4]}) == 3

    opened.fill("#text", SENTENCE)
    opened.focus("#without-layer")
    press(opened, "ArrowUp")  # from the last layer, 3, to 2
    left = opened.locator("#left")
    expect(left).to_contain_text(without_layer)
    expect(opened.locator("#whole")).to_contain_text(in_python[4])
    expect(left.locator("mark")).not_to_have_count(0)
    expect(opened.locator("#spoken")).to_contain_text(without_layer)
    opened.fill("#step", "2")
    opened.focus("#without-kind")
    press(opened, "Home")  # no attention
    says(opened, "#without-said", "The translation stays the same.")
    expect(opened.locator("mark")).to_have_count(0)
    opened.focus("#without-positions")
    press(opened, "Space")
    expect(left).to_contain_text(without_positions)
    says(opened, "#translation", in_python[4])  # as it was
    expect(opened.locator("#step")).to_have_value("2")  # nor have the other views changed


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_a_phone_is_wide_enough(page, folder, scheme):
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.set_viewport_size({"width": 360, "height": 800})
    open_page(page, folder.joinpath("index.html").as_uri())
    expect(page.locator(".ax-queries")).to_be_visible()
    assert page.evaluate(THEME) == scheme
    page.get_by_role("button", name="Show this head as a table").click()
    expect(page.locator("#left")).not_to_be_empty()
    for summary in page.locator("summary").all():
        summary.click()
    require_accessible(page)


def test_on_a_wide_screen_it_stands_side_by_side_and_ten_tokens_of_the_tree_fit(opened):
    opened.set_viewport_size({"width": 1440, "height": 900})
    opened.fill("#text", "My brother is reading a new book in the garden.")
    expect(opened.locator("#translation")).to_contain_text("Bruder")
    expect(opened.locator("#left")).not_to_be_empty()
    assert opened.locator("#tokens tbody tr").count() >= 10
    places = ("#translation", "#tree > svg", ".ax-queries")
    boxes = [opened.locator(place).bounding_box() for place in places]
    assert all(box["y"] + box["height"] <= 900 for box in boxes)
    assert all(box["x"] + 300 < after["x"] for box, after in zip(boxes, boxes[1:]))
    tree = "document.querySelector('#tree')"
    assert opened.evaluate("document.documentElement.scrollHeight") < 2000
    for width in (1440, 360):
        opened.set_viewport_size({"width": width, "height": 800})
        assert opened.evaluate(f"{tree}.scrollWidth <= {tree}.clientWidth")


def test_a_frame_of_a_book_shows_one_view_alone(page, in_a_book):
    address = in_a_book.joinpath("translator", "index.html").as_uri()
    chapter = in_a_book / "chapter.html"
    chapter.write_text(
        "<script>onmessage = ({ data }) => { window.told = data.height; };</script>"
        f'<iframe src="{address}#view=tokens&text=I%20like%20tea.&theme=dark"></iframe>'
    )
    page.goto(chapter.as_uri())
    frame = page.frame_locator("iframe")
    expect(frame.locator("html[data-ready]")).to_have_attribute("data-theme", "dark")
    expect(frame.locator("#text")).to_have_value("I like tea.")
    expect(frame.locator("#tokens")).to_be_visible()
    for other in ("h1", "#tree", "#explorer", "#beside", "#beam", ".chapter >> nth=0"):
        expect(frame.locator(other)).to_be_hidden()
    assert page.evaluate("window.told") > 300
    page.evaluate("frames[0].postMessage({ theme: 'light' }, '*')")
    expect(frame.locator("html")).to_have_attribute("data-theme", "light")


def test_each_view_of_a_page_in_a_book_links_to_its_chapter(opened, in_a_book):
    expect(opened.locator(".chapter:visible")).to_have_count(0)
    open_page(opened, in_a_book.joinpath("translator", "index.html").as_uri())
    links = opened.locator(".chapter:visible a")
    expect(links).to_have_count(6)
    assert links.first.get_attribute("href") == "../book/6_1_translation.html"


# Its address, languages and buttons


@pytest.mark.parametrize("is_served", [False, True])
def test_the_address_shows_a_friend_what_is_shown_here(
    page, folder, address, complaints, is_served
):
    start = address if is_served else folder.joinpath("index.html").as_uri()
    open_page(page, start)
    for name, value in (("text", "Yes & no."), ("beam", "2"), ("alpha", "1.1")):
        page.fill(f"#{name}", value)
    link = f"{start}#text=Yes+%26+no.&beam=2&alpha=1.1"
    page.wait_for_url(link)
    half = "const text = document.querySelector('#text'); text.value = '\\ud83d';"
    page.evaluate(f"{half} text.dispatchEvent(new Event('input')); 0")
    page.wait_for_url(f"{start}#text=%EF%BF%BD&beam=2&alpha=1.1")
    page.evaluate("location.hash = 'text=No.&beam=3'")
    says(page, "#translation", "Nein.")
    expect(page.locator("#hypotheses li")).to_have_count(3)
    page.goto("about:blank")
    open_page(page, link)
    values = [page.locator(f"#{name}").input_value() for name in ("text", "beam", "alpha")]
    assert values == ["Yes & no.", "2", "1.1"] and complaints == []


def test_buttons_copy_the_address_and_a_report(page, address):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_page(page, f"{address}#text=I have a dog.&beam=3")

    def copied(button, answer):
        page.get_by_role("button", name=button).click()
        says(page, "#spoken", answer)
        return page.evaluate("navigator.clipboard.readText()")

    report = copied("Copy as a report", "Report copied")
    assert report.startswith(
        "Text (en):\n\n```\nI have a dog.\n```\n\n"
        "Translation (de):\n\n```\nIch habe einen Hund.\n```\n"
    )
    facts = ["beam width 3, length penalty 0.6", "mean probability of the tokens 0."]
    facts += ["lost: nothing", "model tatoeba-", "WebAssembly"]
    assert [fact for fact in facts if fact not in report] == []
    link = copied("Copy link", "Link copied")
    assert link == f"{address}#text=I+have+a+dog.&beam=3&alpha=0.6"
    page.fill("#text", "7")
    expect(page.locator("#report")).to_be_hidden()
    says(page, "#copy", "Copy link")


def test_each_text_has_its_language_and_its_own_direction(opened):
    opened.fill("#text", "Yes.")
    expect(opened.locator("#left")).not_to_be_empty()
    expect(opened.locator("#text")).to_have_attribute("lang", "en")
    for place in ("#translation", "#hypotheses", "#whole", "#left", "#tokens tbody"):
        expect(opened.locator(place)).to_have_attribute("lang", "de")
    for place in ("#text", "#translation", "#whole", "#left", "#hypotheses li >> nth=0"):
        expect(opened.locator(place)).to_have_attribute("dir", "auto")
    opened.fill("#text", "\u05e9\u05dc\u05d5\u05dd")
    direction = "getComputedStyle(document.querySelector('#text')).direction"
    assert opened.evaluate(direction) == "rtl"


# Its doubts, and things to try


def test_it_says_when_it_is_unsure_and_marks_the_improbable_tokens(page, tmp_path):
    model = shutil.copytree(BOOK_MODEL, tmp_path / "model")
    config = json.loads((model / "config.json").read_text("utf-8"))
    config["doubt"]["unsure_below"] = 0.999
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    open_page(page, write_page(model, tmp_path / "page").joinpath("index.html").as_uri())
    expect(page.locator("#left")).not_to_be_empty()
    expect(page.locator("#doubt")).to_contain_text("The model is unsure")
    rows = page.locator("#tokens tbody tr").all()[:-1]
    tokens = [row.locator("th").inner_text().replace("\u2581", "") for row in rows]
    percents = [float(row.locator("td").first.inner_text().split()[0]) for row in rows]
    improbable = [token for token, p in zip(tokens, percents, strict=True) if p < 99.9]
    marked = page.locator("#translation mark").all_text_contents()
    assert [text.strip() for text in marked] == improbable
    best = page.locator("#hypotheses li").first.inner_text().rpartition(" (")[0]
    assert page.locator("#translation").inner_text() == best


def test_a_sure_translation_is_not_marked_and_what_is_lost_is_named(opened):
    doubt = opened.locator("#doubt")
    translate(opened, "I have a dog.", "Ich habe einen Hund.")
    expect(doubt).to_be_empty()
    expect(opened.locator("#translation mark")).to_have_count(0)
    opened.fill("#text", "Wo ist der Bahnhof?")
    expect(doubt).to_contain_text("This looks like German, and the model translates from English.")
    opened.fill("#text", "Где находится вокзал?")
    expect(doubt).to_contain_text("of this script it knows hardly a letter")
    opened.fill("#text", "I work at Siemens.")
    lost = opened.locator("#doubt p", has_text="Not in the translation")
    expect(lost.locator("mark")).not_to_have_count(0)
    expect(opened.locator("#spoken")).to_contain_text("Not in the translation")
    opened.fill("#text", "I haven't seen Tom since 1988.")
    expect(opened.locator("#translation")).to_contain_text("seit 1988 ")
    expect(doubt).to_contain_text("By score alone it would be")
    says(opened, "#doubt mark", "1988")


def test_three_things_to_try_show_what_they_say(opened):
    """On the book's model: if another one translates these otherwise, they need other sentences."""

    def try_out(name):
        opened.get_by_role("button", name=name).click()

    chosen = opened.locator(".ax-says")
    try_out("An ambiguous word")
    says(opened, "#translation", "Der Zug fährt, wenn die Blätter fallen.")
    expect(chosen).to_contain_text("to predict Bl. Strongest keys: leav")
    layer, head = map(int, re.search(r"layer (\d+), head (\d+)", chosen.inner_text()).groups())
    shown = opened.evaluate(SHOWN)
    rows = shown["weights"][0][layer - 1][head - 1]
    names = shown["maps"][0]
    strongest = [names["keys"][max(range(len(row)), key=row.__getitem__)] for row in rows]
    places = [
        next(i for i, piece in enumerate(names["predicts"]) if piece.startswith(word))
        for word in ("\u2581fährt", "\u2581Bl")
    ]
    assert [strongest[i] for i in places] == ["\u2581leav"] * 2

    try_out("A verb far away")
    expect(opened.locator("#translation")).to_contain_text("gekauft hat.")
    expect(chosen).to_contain_text("to predict gekauft. Strongest keys: bought")

    try_out("A head knocked out")
    expect(opened.locator("#try-said")).to_contain_text("the translation changes: see Knock out.")
    expect(opened.locator("#left mark")).not_to_have_count(0)
    expect(opened.locator("#without-head")).not_to_have_value("")
    assert 1 <= opened.locator("#whole mark").count() <= 2


# Another model


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A checkpoint of a small model."""
    path = tmp_path_factory.mktemp("small") / "model"
    lines = [side for pair in text_pairs(0, 200) for side in pair]
    model = small_model(vocab_size=290).float()
    tokenizer = Tokenizer.train(lines, 290, symbols=["<2source>"])
    checkpoint.write_directory(path, model.config, tokenizer, {"corpus": "mine-en-de"})
    save_weights(path / "model.safetensors", model)
    return path


def test_a_button_swaps_the_languages_of_a_model_that_knows_the_way_back(page, small, tmp_path):
    """It has a piece that asks for the language of the sources, with which such a source begins."""
    written = write_page(small, tmp_path / "page", example="tea bad")
    open_page(page, written.joinpath("index.html").as_uri())
    expect(page.locator("#swap")).to_be_hidden()
    data = (written / "model.js").read_text("utf-8")
    both = data.replace('"\\u2581<2source>"', '"<2source>"')
    assert both != data
    (written / "model.js").write_text(both, encoding="utf-8")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    says(page, "#direction-said", "English to German")
    expect(page.locator(".ax-queries")).to_be_visible()
    source = f"{SHOWN}.maps[1].keys[0]"
    assert page.evaluate(source) != "<2source>"
    translation = page.locator("#translation").inner_text()
    page.get_by_role("button", name="Swap languages").click()
    says(page, "#direction-said", "German to English")
    expect(page.locator("#text")).to_have_value(translation)
    expect(page.locator("#text")).to_have_attribute("lang", "de")
    expect(page.locator("#translation")).to_have_attribute("lang", "en")
    page.fill("#text", "tea bad")  # a small random model may answer without a letter
    page.wait_for_function(f"{source} === '<2source>'")


def test_a_folder_that_is_chosen_translates_and_one_that_does_not_fit_is_refused(
    opened, requests, tmp_path
):
    """What lies one folder further down does not count."""
    theirs = tmp_path / "opus-mt-en-de"
    write_marian(theirs)
    bad = shutil.copytree(theirs, tmp_path / "bad")
    (bad / "vocab.json").unlink()
    shutil.copytree(theirs, bad / "old")
    requests.clear()

    def choose(folder, answer):
        opened.evaluate("document.querySelector('#own-said').textContent = ''")
        opened.set_input_files("#folder", folder)
        expect(opened.locator("#own-said")).to_contain_text(answer)

    translate(opened, "I have a dog.", "Ich habe einen Hund.")
    choose(bad, "This model stays outside: the folder has no vocab.json.")
    says(opened, "#translation", "Ich habe einen Hund.")
    choose(theirs, "is here")
    expect(opened.locator("#about")).to_contain_text(
        "opus-mt-en-de: a Transformer of 0.0 million parameters, 2 layers of 2 heads"
    )
    opened.fill("#text", "tea bad")
    opened.wait_for_function(
        "document.querySelectorAll('.ax-queries li').length"
        " && document.querySelector('#left').textContent"
    )
    expect(opened.locator("#tree g.wins")).not_to_have_count(0)
    opened.select_option("#without-layer", "1")
    expect(opened.locator("#without-said")).not_to_be_empty()
    choose(BOOK_MODEL, "is here")
    expect(opened.locator("#about")).to_contain_text("model: a")
    translate(opened, "I have a dog.", "Ich habe einen Hund.")
    assert [url for url in requests if not url.startswith("blob:")] == []


DROP = """async (content) => {
  const transfer = new DataTransfer();
  for (const [name, bytes] of Object.entries(content)) {
    transfer.items.add(new File([Uint8Array.from(bytes)], name));
  }
  const asked = { dataTransfer: transfer, bubbles: true, cancelable: true };
  for (const type of ["dragover", "drop"]) {
    document.querySelector("h1").dispatchEvent(new DragEvent(type, asked));
  }
}"""


def test_files_that_are_dropped_anywhere_on_the_page_are_a_model(opened, small):
    content = {path.name: list(path.read_bytes()) for path in small.iterdir()}
    opened.evaluate(DROP, {k: v for k, v in content.items() if k != "model.safetensors"})
    says(opened, "#own-said", "This model stays outside: the folder has no model.safetensors.")
    opened.evaluate(DROP, content)
    expect(opened.locator("#own-said")).to_contain_text("The model is here")
    expect(opened.locator("#about")).to_contain_text("2 layers of 2 heads")


# When something fails, takes long or is not allowed


def allow_only(page, folder, policy):
    """As a server does with its header Content-Security-Policy."""
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}"><title>'
    text = folder.joinpath("index.html").read_text(encoding="utf-8").replace("<title>", meta)
    page.route("**/index.html", lambda route: route.fulfill(body=text, content_type="text/html"))


@pytest.mark.parametrize(
    ("script", "policy", "engine"),
    [
        # A worker does not see what is changed in its page: there the engine runs in the page.
        ("delete window.Worker; WebAssembly.validate = () => false", "", "JavaScript"),
        ("delete window.Worker", "", "WebAssembly"),
        ("", "worker-src 'none'", "WebAssembly"),
        ("", "script-src 'self'", "JavaScript"),  # nor are scripts in HTML allowed
    ],
)
def test_without_simd_or_a_worker_it_says_the_same(
    page, folder, address, in_python, script, policy, engine
):
    page.add_init_script(script)
    if policy:
        allow_only(page, folder, policy)
    open_page(page, address)
    assert page.evaluate(ENGINE) == engine
    translate(page, SENTENCE, in_python[4])
    expect(page.locator(".ax-queries li")).not_to_have_count(0)


def spoil_engine(page, folder, old, new):
    """Let the page have another text of its engine."""
    text = (folder / "engine.js").read_text(encoding="utf-8")
    assert text.count(old) == 1
    page.route("**/engine.js", lambda route: route.fulfill(body=text.replace(old, new)))


def test_after_an_error_what_was_typed_meanwhile_is_translated(page, folder, address):
    begin = "translate: async (request) => {"
    fail = "await new Promise((_, no) => setTimeout(no, 2000, 'no memory'));"
    spoil_engine(page, folder, begin, f"{begin} if (request.text === 'fail') {fail}")
    open_page(page, address)
    page.fill("#text", "fail")
    says(page, "#said", "This did not work: no memory")
    says(page, "#spoken", "This did not work: no memory")
    expect(page.locator("#translation")).to_be_empty()
    expect(page.locator("#hypotheses")).to_be_hidden()
    translate(page, "Yes.", "Ja.")
    page.fill("#text", "fail")
    translate(page, "No.", "Nein.")
    expect(page.locator("#hypotheses")).to_be_visible()


def test_that_the_model_did_not_load_is_said_aloud(page, folder, address):
    fail = 'load: async () => { throw "no memory"; }, unused: async ({'
    spoil_engine(page, folder, "load: async ({", fail)
    page.goto(address)
    for place in ("#said", "#spoken"):
        says(page, place, "The model did not load: no memory")


def test_explorers_of_earlier_sentences_are_given_up(opened):
    """New colours are drawn by the one that stands in the page."""
    for n, text in enumerate(("Yes.", "I like tea.", "No."), 2):
        opened.fill("#text", text)
        opened.wait_for_function(f"window.attentionExplorers === {n}")
    assert opened.locator(".attention-explorer").count() == 1
    drawn = "document.querySelector('.ax-heads canvas').toDataURL()"
    light = opened.evaluate(drawn)
    opened.evaluate(f"{THEME} = 'dark'")
    opened.wait_for_function(f"{drawn} !== {light!r}")


def test_a_long_search_is_announced_cut_and_given_up_for_a_newer_text(opened):
    opened.evaluate(
        "window.heard = []; new MutationObserver(() => heard.push(document.querySelector('#said')"
        ".textContent)).observe(document.querySelector('#said'), { childList: true })"
    )
    translation = opened.locator("#translation")
    opened.fill("#text", "tea " * 2000)
    says(opened, "#said", "Translating…")
    expect(translation).to_have_attribute("aria-busy", "true")
    translate(opened, "Yes.", "Ja.")
    expect(translation).to_have_attribute("aria-busy", "false")
    assert not [text for text in opened.evaluate("window.heard") if "is cut" in text]
    opened.fill("#beam", "1")
    opened.fill("#text", "tea " * 600)
    cut = re.compile("The text is cut: 511 of its 6.. tokens are translated.")
    says(opened, "#said", cut)
    says(opened, "#spoken", cut)
