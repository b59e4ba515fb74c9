"""The exported page in Chromium: doubts, things to try, two directions, a model of one's own."""

import json
import os
import shutil
import time

import pytest
from marian_form import write_marian
from playwright.sync_api import expect

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint.weights import save_weights
from annotated_transformer.page.writing import write_page
from annotated_transformer.text.tokenizer import Tokenizer
from exported_page import BOOK_MODEL, IN_CHROMIUM, open_page
from toys import small_model, text_pairs

pytestmark = IN_CHROMIUM
SHOWN = "JSON.parse(document.querySelector('.attention-explorer script').textContent)"
DONE = "/stays outside|is here/.test(document.querySelector('#own-said').textContent)"


def set_unsure_below(model, value):
    path = model / "config.json"
    config = json.loads(path.read_text("utf-8"))
    config["doubt"]["unsure_below"] = value
    path.write_text(json.dumps(config), encoding="utf-8")


def test_it_says_when_it_is_unsure_and_marks_the_improbable_tokens(page, tmp_path):
    shutil.copytree(BOOK_MODEL, tmp_path / "model")
    set_unsure_below(tmp_path / "model", 0.999)
    written = write_page(tmp_path / "model", tmp_path / "page")
    open_page(page, written.joinpath("index.html").as_uri())
    expect(page.locator("#left")).not_to_be_empty()
    expect(page.locator("#doubt")).to_contain_text("The model is unsure")
    marked = page.locator("#translation mark").all_text_contents()
    rows = page.locator("#tokens tbody tr").all()
    tokens = [row.locator("th").inner_text().replace("\u2581", "") for row in rows[:-1]]
    p = [float(row.locator("td").first.inner_text().split()[0]) for row in rows[:-1]]
    assert [one.strip() for one in marked] == [
        token for token, one in zip(tokens, p, strict=True) if one < 99.9
    ]
    assert (
        page.locator("#translation").inner_text()
        == page.locator("#hypotheses li").first.inner_text().rpartition(" (")[0]
    )


def test_a_sure_translation_is_not_marked_and_what_is_lost_is_named(page, folder):
    open_page(page, folder.joinpath("index.html").as_uri())
    page.fill("#text", "I have a dog.")
    expect(page.locator("#translation")).to_contain_text("Hund")
    expect(page.locator("#doubt")).to_be_empty()
    expect(page.locator("#translation mark")).to_have_count(0)
    page.fill("#text", "Wo ist der Bahnhof?")
    expect(page.locator("#doubt")).to_contain_text(
        "This looks like German, and the model translates from English."
    )
    page.fill("#text", "Где находится вокзал?")
    expect(page.locator("#doubt")).to_contain_text("of this script it knows hardly a letter")
    page.fill("#text", "I work at Siemens.")
    lost = page.locator("#doubt p", has_text="Not in the translation")
    expect(lost.locator("mark")).not_to_have_count(0)
    expect(page.locator("#spoken")).to_contain_text("Not in the translation")
    page.fill("#text", "I haven't seen Tom since 1988.")
    expect(page.locator("#translation")).to_contain_text("seit 1988 ")
    expect(page.locator("#doubt")).to_contain_text("By score alone it would be")
    expect(page.locator("#doubt mark")).to_have_text("1988")


def test_a_button_copies_the_text_of_a_report(page, address):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_page(page, f"{address}#text=I have a dog.&beam=3")
    page.get_by_role("button", name="Copy as a report").click()
    expect(page.locator("#spoken")).to_have_text("Report copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(
        "Text (en):\n\n> I have a dog.\n\nTranslation (de):\n\n> Ich habe einen Hund.\n"
    )
    for word in (
        "beam width 3, length penalty 0.6",
        "mean probability of the tokens 0.",
        "lost: nothing",
        "model tatoeba-",
        "WebAssembly",
    ):
        assert word in copied
    page.fill("#text", "7")
    expect(page.locator("#report")).to_be_hidden()


def test_three_things_to_try_show_what_they_say(page, folder):
    """On the book's model: if another one translates these otherwise, they need other sentences."""
    open_page(page, folder.joinpath("index.html").as_uri())
    said = page.locator(".ax-says")
    page.get_by_role("button", name="An ambiguous word").click()
    expect(page.locator("#translation")).to_have_text("Der Zug fährt, wenn die Blätter fallen.")
    expect(said).to_contain_text("to predict Bl. Strongest keys: leav")
    layer, head = said.inner_text().split("layer ")[1].split(". Query")[0].split(", head ")
    weights = page.evaluate(SHOWN)
    rows, map_ = weights["weights"][0][int(layer) - 1][int(head) - 1], weights["maps"][0]
    looked = [max(range(len(row)), key=row.__getitem__) for row in rows]
    at = [
        looked[next(i for i, piece in enumerate(map_["predicts"]) if piece.startswith(word))]
        for word in ("\u2581fährt", "\u2581Bl")
    ]
    assert [map_["keys"][i] for i in at] == ["\u2581leav"] * 2 and at[0] < at[1]

    page.get_by_role("button", name="A verb far away").click()
    expect(page.locator("#translation")).to_contain_text("gekauft hat.")
    expect(said).to_contain_text("to predict gekauft. Strongest keys: bought")

    page.get_by_role("button", name="A head knocked out").click()
    expect(page.locator("#try-said")).to_contain_text("the translation changes: see Knock out.")
    expect(page.locator("#left mark")).not_to_have_count(0)
    expect(page.locator("#without-head")).not_to_have_value("")
    assert 1 <= page.locator("#whole mark").count() <= 2


def test_on_a_wide_screen_it_stands_side_by_side_and_ten_tokens_of_the_tree_fit(page, folder):
    page.set_viewport_size({"width": 1440, "height": 900})
    open_page(page, folder.joinpath("index.html").as_uri())
    page.fill("#text", "My brother is reading a new book in the garden.")
    expect(page.locator("#translation")).to_contain_text("Bruder")
    expect(page.locator("#left")).not_to_be_empty()
    assert page.locator("#tokens tbody tr").count() >= 10
    boxes = [
        page.locator(one).bounding_box() for one in ("#translation", "#tree > svg", ".ax-queries")
    ]
    assert all(box and box["y"] + box["height"] <= 900 for box in boxes)
    left = [box["x"] for box in boxes if box]
    assert left[0] + 300 < left[1] and left[1] + 300 < left[2]
    tree = "document.querySelector('#tree')"
    assert page.evaluate(f"{tree}.scrollWidth <= {tree}.clientWidth")
    assert page.evaluate("document.documentElement.scrollHeight") < 2000
    page.set_viewport_size({"width": 360, "height": 800})
    assert page.evaluate(f"{tree}.scrollWidth <= {tree}.clientWidth")


def small(path):
    tokenizer = Tokenizer.train(
        [side for pair in text_pairs(0, 200) for side in pair], 290, symbols=["<2source>"]
    )
    model = small_model(vocab_size=290).float()
    checkpoint.write_directory(path, model.config, tokenizer, {"corpus": "mine-en-de"})
    save_weights(path / "model.safetensors", model)
    return path


def test_a_button_swaps_the_languages_of_a_model_that_knows_the_way_back(page, tmp_path):
    """It has a piece that asks for the language of the sources, with which such a source begins."""
    written = write_page(small(tmp_path / "model"), tmp_path / "page", example="tea bad")
    address = written.joinpath("index.html").as_uri()
    open_page(page, address)
    expect(page.locator("#swap")).to_be_hidden()
    data = (written / "model.js").read_text("utf-8")
    both = data.replace('"\\u2581<2source>"', '"<2source>"')
    assert both != data
    (written / "model.js").write_text(both, encoding="utf-8")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    expect(page.locator("#direction-said")).to_have_text("English to German")
    expect(page.locator(".ax-queries")).to_be_visible()
    source = f"{SHOWN}.maps[1].keys[0]"
    assert page.evaluate(source) != "<2source>"
    found = page.locator("#translation").inner_text()
    page.get_by_role("button", name="Swap languages").click()
    expect(page.locator("#direction-said")).to_have_text("German to English")
    expect(page.locator("#text")).to_have_value(found)
    expect(page.locator("#text")).to_have_attribute("lang", "de")
    expect(page.locator("#translation")).to_have_attribute("lang", "en")
    page.fill("#text", "tea bad")  # a small random model may answer without a letter
    page.wait_for_function(f"{source} === '<2source>'")


def test_a_folder_that_is_chosen_translates_and_one_that_does_not_fit_is_refused(
    page, folder, tmp_path
):
    asked: list[str] = []
    open_page(page, folder.joinpath("index.html").as_uri())
    page.on("request", lambda request: asked.append(request.url))
    write_marian(tmp_path / "opus-mt-en-de", text_pairs(0, 300))
    bad = shutil.copytree(tmp_path / "opus-mt-en-de", tmp_path / "bad")
    (bad / "vocab.json").unlink()

    page.fill("#text", "I have a dog.")
    expect(page.locator("#translation")).to_have_text("Ich habe einen Hund.")
    page.set_input_files("#folder", bad)
    page.wait_for_function(DONE)
    expect(page.locator("#own-said")).to_have_text(
        "This model stays outside: the folder has no vocab.json."
    )
    expect(page.locator("#translation")).to_have_text("Ich habe einen Hund.")

    page.set_input_files("#folder", tmp_path / "opus-mt-en-de")
    page.wait_for_function("/is here/.test(document.querySelector('#own-said').textContent)")
    expect(page.locator("#about")).to_contain_text(
        "opus-mt-en-de: a Transformer of 0.0 million parameters, 2 layers of 2 heads"
    )
    page.fill("#text", "tea bad")
    page.wait_for_function(
        "document.querySelectorAll('.ax-queries li').length"
        " && document.querySelector('#left').textContent"
    )
    expect(page.locator("#tree g.wins")).not_to_have_count(0)
    page.select_option("#without-layer", "1")
    expect(page.locator("#without-said")).not_to_be_empty()

    page.set_input_files("#folder", BOOK_MODEL)
    page.wait_for_function("document.querySelector('#about').textContent.startsWith('model: a')")
    page.fill("#text", "I have a dog.")
    expect(page.locator("#translation")).to_have_text("Ich habe einen Hund.")
    assert [url for url in asked if not url.startswith("blob:")] == []


@pytest.mark.skipif("LARGE" not in os.environ, reason="takes a minute: LARGE=1")
def test_74_million_parameters_of_opus_mts_form_translate(page, folder, tmp_path):
    sizes = {"N": 6, "d_model": 512, "d_ff": 2048, "h": 8}
    write_marian(tmp_path / "opus-mt-en-de", text_pairs(0, 300), more=58_000, **sizes)
    open_page(page, folder.joinpath("index.html").as_uri())
    page.set_default_timeout(600_000)
    began = time.monotonic()
    page.set_input_files("#folder", tmp_path / "opus-mt-en-de")
    page.wait_for_function("/is here/.test(document.querySelector('#own-said').textContent)")
    rounded = time.monotonic()
    expect(page.locator("#about")).to_contain_text("73.9 million parameters, 6 layers of 8 heads")
    page.evaluate("document.querySelector('#left').textContent = ''")
    page.fill("#text", "tea bad")
    page.wait_for_function("document.querySelector('#left').textContent")
    ended = time.monotonic()
    n = page.locator("#tokens tbody tr").count()
    print(f"{n} tokens: rounded in {rounded - began:.1f} s, translated in {ended - rounded:.1f} s")


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


def test_files_that_are_dropped_anywhere_on_the_page_are_a_model(page, folder, tmp_path):
    open_page(page, folder.joinpath("index.html").as_uri())
    model = small(tmp_path / "model")
    content = {path.name: list(path.read_bytes()) for path in model.iterdir()}
    weights = content.pop("model.safetensors")
    page.evaluate(DROP, content)
    said = page.locator("#own-said")
    expect(said).to_have_text("This model stays outside: the folder has no model.safetensors.")
    page.evaluate(DROP, {**content, "model.safetensors": weights})
    expect(said).to_contain_text("The model is here")
    expect(page.locator("#about")).to_contain_text("2 layers of 2 heads")
