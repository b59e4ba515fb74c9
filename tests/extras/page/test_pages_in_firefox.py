"""Both exported pages in the stock Firefox: other engine, same words, same losses."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.extras.page.int8_rows import with_int8_rows
from annotated_transformer.extras.page.writing import write_page
from lab.training_page import reversal
from lab.training_page.page import write_training_page
from tools.browser import served
from tools.firefox import FIREFOX, FirefoxPage, firefox_page

BOOK_MODEL = Path(__file__).parents[3] / "book" / "model"
SENTENCE = "I would like to know why she did not come to the party."
READY = "document.documentElement.dataset.ready !== undefined"
TAB = "\ue004"  # WebDriver's name for the key

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not FIREFOX, reason="no firefox on this machine (apt-get install firefox-esr)"
    ),
]


@pytest.fixture(scope="module")
def tab() -> Iterator[FirefoxPage]:
    with firefox_page() as page:
        yield page


def text_of(selector: str) -> str:
    return f"document.querySelector({selector!r}).textContent"


@pytest.fixture(scope="module")
def translator_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(BOOK_MODEL, tmp_path_factory.mktemp("site") / "page")


@pytest.fixture(scope="module")
def in_python() -> str:
    model, tokenizer = checkpoint.load_model(BOOK_MODEL)
    return Translator(with_int8_rows(model), tokenizer).translate([SENTENCE], beam_size=4)[0]


@pytest.mark.parametrize("is_served", [False, True])
def test_what_is_typed_is_translated_as_in_python_from_a_disk_and_from_a_server(
    tab: FirefoxPage, translator_page: Path, in_python: str, is_served: bool
) -> None:
    with served(translator_page.parent) as address:
        at_disk = translator_page.joinpath("index.html").as_uri()
        tab.go_to(f"{address}/page/" if is_served else at_disk)
        tab.wait_for(READY)
        assert tab.evaluate("document.documentElement.dataset.engine") == "WebAssembly"
        tab.press(TAB)
        assert tab.evaluate("document.activeElement.id") == "text"
        tab.evaluate("document.activeElement.select()")
        tab.press(*SENTENCE)
        tab.wait_for(f"{text_of('#translation')} === {in_python!r}")
        asked = tab.evaluate(
            "performance.getEntriesByType('resource').map((one) => one.name).join(' ')"
        )
    from_elsewhere = [
        url
        for url in asked.split()
        if not url.startswith((address, "blob:", translator_page.as_uri()))
    ]
    assert from_elsewhere == [] == tab.complaints


def test_it_trains_as_pytorch_does(tab: FirefoxPage, tmp_path: Path) -> None:
    losses = reversal.losses(seed=1, n_steps=10)
    folder = write_training_page(tmp_path / "page", reversal.page_settings(), 1, losses)
    tab.go_to(folder.joinpath("index.html").as_uri())
    tab.wait_for(READY)
    tab.evaluate("document.querySelector('#go').click()")
    tab.wait_for(f"parseInt({text_of('#said')}) >= 20")
    assert "by at most 0.0000" in tab.evaluate(text_of("#difference"))
    assert tab.complaints == []


def test_what_a_script_throws_is_raised_and_what_it_complains_of_is_kept(
    tab: FirefoxPage, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"  # no data: address, which Firefox refuses from another page
    page.write_text("<!doctype html><title>A page</title><p>", encoding="utf-8")
    tab.go_to(page.as_uri())
    with pytest.raises(RuntimeError, match="no such thing"):
        tab.evaluate("(() => { throw new Error('no such thing'); })()")
    with pytest.raises(RuntimeError, match="never came"):
        tab.wait_for("document.body.textContent === 'a word'", seconds=0.2)
    before = len(tab.complaints)
    tab.evaluate("console.error('not well')")
    assert tab.complaints[before:] == ["not well"]
    tab.complaints.clear()
