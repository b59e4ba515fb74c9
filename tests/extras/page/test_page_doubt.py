"""The page doubts what the translator in Python doubts, and knows what it has never read (Node)."""

import json
import re
import shutil
from pathlib import Path

import pytest

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.data import corpus
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.extras.page.int8_rows import with_int8_rows
from annotated_transformer.extras.page.writing import write_page
from annotated_transformer.extras.visitors.doubt import (
    Doubt,
    TranslatedWords,
    lost_words,
    translated_words,
)
from annotated_transformer.extras.visitors.typed_lines import as_read, for_visitors
from tools.page_engine import NODE, run_engine

BOOK_MODEL = Path(__file__).parents[3] / "book" / "model"
CASES = json.loads((Path(__file__).parents[1] / "typed_lines.json").read_text("utf-8"))
TEXTS = [
    "I have a dog.", "I have 77777 books and 444444 pens.", "I work at Siemens.", "",
    "WHERE IS IT?", "Write to anna@example.org, please.", "I haven't seen Tom since 1988.",
    "\u0130stanbul \u00df \U0001d400 Stra\u00dfe 1,000.50",
]  # fmt: skip
STRANGE = {
    "I have a dog.": "",
    "Wo ist der Bahnhof?": "target",
    "Je voudrais une tasse de café.": "words",
    "Где находится вокзал?": "script",
    "駅はどこですか": "script",
    "Hello, Priya!": "",  # too short to say
    "Mr. Fitzgerald lives in Bristol.": "",  # German has the word "in" as well
    "Her skin burns easily.": "",  # no common word, and four that it knows
    "the dog " * 20: "long",
}
pytestmark = pytest.mark.skipif(not NODE, reason="no node on this machine")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_page(BOOK_MODEL, tmp_path_factory.mktemp("page") / "book")


def test_mean_and_lost_words_are_pythons(page):
    model, tokenizer = checkpoint.load_model(BOOK_MODEL)
    doubt = Doubt.of(checkpoint.read_config(BOOK_MODEL))
    translator = for_visitors(Translator(with_int8_rows(model), tokenizer), doubt)
    expected = translator.n_best(TEXTS, n_best=2)
    (found,) = run_engine(page, {"do": "translate", "texts": TEXTS, "settings": {"nBest": 2}})
    for ours, theirs in zip(found, expected, strict=True):
        if not ours["hypotheses"]:
            continue
        assert [one["text"] for one in ours["hypotheses"]] == [one.text for one in theirs]
        means = [one["meanP"] for one in ours["hypotheses"]]
        assert means == pytest.approx([one.mean_p for one in theirs])
        assert [tuple(one["lost"]) for one in ours["hypotheses"]] == [one.lost for one in theirs]
    assert [bool(one[0].lost) for one in expected].count(True) >= 2


def test_lost_words_are_pythons_on_pairs_that_do_not_belong_together(page):
    pairs = corpus.load("tatoeba-en-de", "valid")[:600]
    crossed = [
        (one, other) for (one, _), (_, other) in zip(pairs, pairs[1:] + pairs[:1], strict=True)
    ]
    crossed += [(text, other) for text in TEXTS for other in TEXTS]
    crossed += [(one[0], other[1]) for one in CASES["lost"] for other in CASES["lost"]]
    some = sorted({word for pair, _ in pairs[::2] for word in re.findall(r"[A-Z]\w+", pair)})
    counts = []
    for to, translated in (("de", []), ("en", some), ("", some), ("es", ["nobody"])):
        job = {"do": "lost", "pairs": crossed, "to": to, "translated": translated}
        (found,) = run_engine(page, job)
        expected = [lost_words(*pair, to, translated) for pair in crossed]
        assert [tuple(one) for one in found] == expected
        texts = [text for pair in crossed for text in (*pair, " ".join(pair).upper())]
        (read,) = run_engine(page, {"do": "asRead", "texts": texts})
        assert read == [as_read(text) for text in texts]
        counts.append(sum(map(bool, expected)))
    assert 10 < counts[0] < counts[1] < counts[3]


def test_compounds_and_endings_of_german_are_no_names(page):
    pairs = [(target, source) for source, target in corpus.load("tatoeba-en-de", "valid")[:300]]
    words = TranslatedWords(translated_words(pairs[::2], 1, "de"), "de")
    assert len(words.words) > 100
    job = {"do": "lost", "pairs": pairs, "to": "en", "translated": [*words.words]}
    (german, exact) = run_engine(page, job | {"language": "de"}, job)
    for lost, language in ((german, "de"), (exact, "en")):
        known = TranslatedWords(words.words, language)
        assert [tuple(one) for one in lost] == [lost_words(*pair, "en", known) for pair in pairs]
    assert 0 < sum(map(len, german)) < sum(map(len, exact))


def test_a_token_has_the_probability_that_the_model_gives_it(page):
    text = "We need 12 eggs and 27 litres of milk, Kowalski."
    (found,) = run_engine(page, {"do": "translate", "texts": [text], "settings": {"nBest": 1}})
    best = found[0]["hypotheses"][0]
    job = {"do": "look", "source": found[0]["source"], "target": best["tokens"]}
    (seen,) = run_engine(page, job)
    assert best["ps"] == pytest.approx([one["p"] for one in seen["next"]])


def test_parts_with_their_probabilities_make_the_text(page):
    """A character of several bytes is one part, with the least probability of its bytes."""
    _, tokenizer = checkpoint.load_model(BOOK_MODEL)
    tokens = [*tokenizer.encode("Tee \U0001f600 und"), 9, *tokenizer.encode("x")]
    ps = [i / 100 for i in range(len(tokens), 0, -1)]
    (parts,) = run_engine(page, {"do": "parts", "tokens": tokens, "ps": [*ps, 0.5]})
    assert "".join(part["text"] for part in parts) == tokenizer.decode(tokens)
    smiley = next(part for part in parts if "\U0001f600" in part["text"])
    assert smiley["p"] == min(
        ps[i]
        for i, piece in enumerate(tokenizer.pieces(tokens))
        if piece in ("<0xF0>", "<0x9F>", "<0x98>", "<0x80>")
    )


def test_what_it_has_never_read_is_told_apart(page):
    job = {"do": "translate", "texts": list(STRANGE), "settings": {"beamSize": 1}}
    (found,) = run_engine(page, job)
    assert [one["strange"] for one in found] == list(STRANGE.values())


def test_the_way_back_takes_the_languages_the_other_way_round(page):
    settings = {"beamSize": 1, "back": True}
    texts = ["Ich habe heute keine Zeit.", "I do not have the time for this today."]
    (found,) = run_engine(page, {"do": "translate", "texts": texts, "settings": settings})
    assert [one["strange"] for one in found] == ["", "target"]


def test_of_the_validation_split_hardly_a_sentence_is_strange(page):
    """And nearly every one of its translations, typed in their place, is."""
    pairs = corpus.load("tatoeba-en-de", "valid")[:300]
    jobs = [{"do": "strange", "texts": [pair[side] for pair in pairs]} for side in (0, 1)]
    sources, targets = run_engine(page, *jobs)
    assert sum(map(bool, sources)) <= 0.01 * len(pairs)
    assert targets.count("target") >= 0.9 * len(pairs)


def test_a_page_of_a_model_that_nobody_has_calibrated_doubts_less(tmp_path):
    shutil.copytree(BOOK_MODEL, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text("utf-8"))
    del config["doubt"]
    path.write_text(json.dumps(config))
    page = write_page(tmp_path / "model", tmp_path / "page")
    job = {"do": "translate", "texts": list(STRANGE)[:4], "settings": {"beamSize": 1}}
    (found,) = run_engine(page, job)
    assert [one["strange"] for one in found] == ["", "", "", "script"]
