"""Lines as people type them: rules that wrap a translator, and leave it as it is."""

import json
from pathlib import Path

import pytest

from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.decoding import translator as translation
from annotated_transformer.decoding.search import Hypothesis
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.visitors.doubt import Doubt, TranslatedWords
from annotated_transformer.extras.visitors.typed_lines import as_read, for_visitors, has_letter
from toys import small_model, toy_tokenizer

BOOK_MODEL = Path(__file__).parents[3] / "book" / "model"
EN_DE = "en", "de"
CASES = json.loads((Path(__file__).parents[1] / "typed_lines.json").read_text("utf-8"))
FAST = {"beam_size": 2, "max_extra": 3}


@pytest.fixture(scope="module")
def typed():
    tokenizer = toy_tokenizer()
    return for_visitors(Translator(small_model(vocab_size=tokenizer.vocab_size), tokenizer))


@pytest.mark.parametrize(("line", "read"), CASES["read"])
def test_nobody_is_shouted_at(typed, line, read):
    assert as_read(line) == read
    if has_letter(read):
        assert typed.translate([line], **FAST) == typed.translator.translate([read], **FAST)


def test_a_line_without_a_letter_comes_back(typed, monkeypatch):
    searched = []

    def search(model, source, config):
        searched.append(len(source))
        return [[Hypothesis(typed.translator.tokenizer.encode("tea"), -1.0, -2.0)] for _ in source]

    monkeypatch.setattr(translation, "search_beams", search)
    lines = ["2 + 2 = 4", " \u200b ", "?!", "😀", "12 \udfff", "a1", ""]
    answers = ["2 + 2 = 4", "\u200b", "?!", "😀", "12 \ufffd", "tea", ""]
    assert typed.translate(lines) == answers
    assert searched == [1]


def test_the_first_of_the_n_best_is_the_translation(typed):
    sources = ["tea bad", "", "gab head fee"]
    n_best = typed.n_best(sources, n_best=3, beam_size=4, max_extra=3)
    assert [best[0].text for best in n_best] == typed.translate(sources, beam_size=4, max_extra=3)
    assert [len(best) for best in n_best] == [3, 1, 3]


@pytest.mark.parametrize("given", ["tea.", ["tea", 5]], ids=str)
def test_what_is_no_list_of_strings_is_refused(typed, given):
    with pytest.raises(ConfigError, match="^sentences must be a list of strings, got "):
        typed.translate(given)
    with pytest.raises(ConfigError, match="beam_size must be between"):
        typed.translate_stream(["tea"], beam_size=0)  # at the call, not at the first line


def test_what_has_lost_something_is_searched_with_a_wider_beam():
    """And taken from it, the first that has lost the fewest, if that is fewer."""
    found = {
        "I was born in 1988.": ("Ich bin 19888 geboren.", "Ich bin da.", "Ich bin 1988 geboren."),
        "Meet 22 men at 7:45.": ("Triff sie.", "Triff 22 Männer um 75.", "Triff 22 Männer."),
        "I met Kowalski.": ("Ich traf ihn.", "Ich traf Kowalski.", "Kowalski!"),
        "Where is Kowalski?": ("Wo ist er?", "Wo ist Kawalski?"),
        "Turkey is here.": ("Die Türkei ist hier.", "Turkey ist hier."),
    }
    model, tokenizer = load_model(BOOK_MODEL)
    asked = []

    def engine(sources, search):
        asked.append((len(sources), search.beam_size, search.n_best))
        beams = [found[tokenizer.decode(ids)] for ids in sources]
        # A wide beam begins with the other of two, which has lost as much: the first stays.
        narrow = search.beam_size < 16
        return [
            [
                (tokenizer.encode(text), -float(i))
                for i, text in enumerate(beam if narrow or len(beam) > 2 else beam[::-1], 1)
            ]
            for beam in beams
        ]

    doubt = Doubt(
        languages=EN_DE,
        translated=(TranslatedWords(["Where", "Meet", "Turkey"]), TranslatedWords()),
    )
    translator = for_visitors(Translator(model, tokenizer, engine=engine), doubt)
    best = [some[0] for some in found.values()]
    places = 2, 1, 1, 0, 0
    assert translator.translate(list(found)) == [
        found[text][n] for text, n in zip(found, places, strict=True)
    ]
    assert asked == [(5, 4, 1), *[(1, 16, 16)] * 4]
    assert translator.translate(list(found), beam_size=1) == best
    assert asked[5:] == [(5, 1, 1)]
    assert translator.translator.translate(list(found)) == best
    [two] = translator.n_best(list(found)[:1], n_best=2)
    assert [one.text for one in two] == [found["I was born in 1988."][n] for n in (2, 0)]
