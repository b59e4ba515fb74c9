"""The exported page in Chromium on every sentence of its corpus's test split, against Python."""

from pathlib import Path

import pytest

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.data import corpus
from annotated_transformer.extras.page.int8_rows import with_int8_rows
from annotated_transformer.extras.page.writing import write_page
from benchmarks.page import ids_in_python, same, searches
from exported_page import open_page
from tools.browser import CHROMIUM

BOOK_MODEL = Path(__file__).parents[3] / "book" / "model"
EVERY = 10  # the beam takes five times as long as greedy search: every tenth sentence has its turn
# The page's own engine, from the text that is typed to the ids.
SEARCH = """async ([texts, every]) => {
  const engine = makeEngine(), translator = await engine.Translator.load(pageModel);
  const { model } = translator, sources = texts.map((text) => translator.source(text));
  return {
    greedy: sources.map((source) => engine.greedySearch(model, source)),
    "beam 4": sources.filter((_, i) => i % every === 0)
      .map((source) => engine.beamSearch(model, source)[0].tokens),
  };
}"""


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine (apt-get install chromium)")
def test_the_ids_are_pythons_on_the_whole_test_split(page, tmp_path):
    """Greedy search in each of 1,000 sentences, the beam in 99 of a hundred; all of the beam's
    are in `benchmarks/page.py`."""
    texts = [source for source, _ in corpus.load("tatoeba-en-de", "test")]
    written = write_page(BOOK_MODEL, tmp_path / "page")
    open_page(page, written.joinpath("index.html").as_uri())
    found = page.evaluate(SEARCH, [texts, EVERY])

    model, tokenizer = checkpoint.load_model(BOOK_MODEL)
    in_python = searches(with_int8_rows(model))
    sources = tokenizer.encode_batch(texts)
    expected = {
        "greedy": ids_in_python(in_python["greedy"], sources, model.config),
        "beam 4": ids_in_python(in_python["beam 4"], sources[::EVERY], model.config),
    }
    assert len(texts) == 1000 and found["greedy"] == expected["greedy"]
    assert len(found["beam 4"]) == 100 and same(found["beam 4"], expected["beam 4"]) >= 99
