"""What to doubt in a translation, by hand and against the model's own probabilities."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.visitors.doubt import Doubt, lost_words, translated_words

BOOK_MODEL = Path(__file__).parents[3] / "book" / "model"
EN_DE = "en", "de"


@pytest.mark.parametrize(
    ("source", "translation", "lost"),
    [
        ("The train leaves at 7:45.", "Der Zug fährt um 75.", ["7:45"]),
        ("The train leaves at 7:45.", "Der Zug fährt um 7.45 Uhr.", []),
        ("We need 12 eggs and 27 cups.", "Wir brauchen zwölf Eier und 22 Tassen.", ["27"]),
        ("Chapter 8 is longer than chapter 6.", "Kapitel 8 ist länger als Kapitel.", ["6"]),
        ("22 of 22", "22 von zwei", ["22"]),  # as often as it was there
        ("I owe you 3,000 yen.", "Ich schulde dir 3000 Yen.", []),
        ("He is 007.", "Er ist sieben.", ["007"]),
        ("Write to anna@example.org, please.", "Bitte schreib.", ["anna@example.org"]),
        ("See example.org.", "Siehe Example.org.", []),
        ("Let's meet Kowalski.", "Treffen wir Kaleki.", ["Kowalski"]),
        ("Have you been to Lisbon?", "Warst du in Lissabon?", []),  # as training translates it
        ("Kowalski is here. Kowalski!", "Kowaleki ist da.", ["Kowalski", "Kowalski"]),
        ("Umbrellas are expensive.", "Schirme sind teuer.", []),
        ("We live in South Korea.", "Wir leben in Südkorea.", []),  # within a word
        ("I met Bo, dear.", "Ich traf ihn.", []),  # two letters, and small ones
        ("See Jean-Luc, South-East.", "Siehe Jan-Luc, Südost.", ["Jean-Luc"]),
        ("The CPU is hot.", "Die KPU ist heiß.", ["CPU"]),
    ],
)
def test_what_is_lost_is_named(source, translation, lost):
    translated = (
        "The",
        "Let",
        "Have",
        "Lisbon",
        "Umbrellas",
        "South",
        "East",
        "Write",
        "See",
        "Chapter",
    )
    assert list(lost_words(source, translation, "de", translated)) == lost


def test_without_translated_words_there_are_no_names_and_small_numbers_may_be_words():
    text = "In Lyon leben 3 Kowalskis und 27 Hunde."
    assert lost_words(text, "") == ("27",)
    assert lost_words(text, "", "en") == ("3", "27")
    assert lost_words(text, "", "es", ["Hunde"]) == ("Lyon", "Kowalskis", "27")


def test_a_word_is_translated_if_a_pair_does_not_leave_it_as_it_is():
    pairs = [("Tom saw Priya in Turkey.", "Tom sah Priya in der Türkei."), ("Tom, go!", "Geh!")]
    assert translated_words(pairs) == ["Tom", "Turkey"]
    assert translated_words(pairs, least=1) == ["Saw", "Tom", "Turkey"]
    assert translated_words([("OF KOREA, Korea", "Südkorea"), ("It is so", "Es ist so")]) == []


def test_the_mean_is_geometric_over_the_tokens_and_the_end():
    model, tokenizer = load_model(BOOK_MODEL)
    [[best]] = Translator(model, tokenizer).n_best(["I have a dog."], n_best=1)
    source = torch.tensor([[*tokenizer.encode("I have a dog."), model.config.eos_id]])
    told = [*tokenizer.encode(best.text), model.config.eos_id]
    with torch.inference_mode():
        p_TV = model(source, torch.tensor([[model.config.bos_id, *told[:-1]]]))[0].softmax(-1)
    ps = [float(p_TV[i, token]) for i, token in enumerate(told)]
    assert best.mean_p == pytest.approx(math.prod(ps) ** (1 / len(ps)), rel=1e-4)


def test_a_checkpoint_says_below_what_it_is_unsure(tmp_path):
    shutil.copytree(BOOK_MODEL, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text("utf-8"))
    found = {}
    for unsure_below in (None, 0.0, 1.0, 2, "high"):
        config["doubt"] = {"translated": "Work"}
        if unsure_below is not None:
            config["doubt"]["unsure_below"] = unsure_below
        path.write_text(json.dumps(config))
        if unsure_below in (2, "high"):
            with pytest.raises(ConfigError, match="unsure_below must be between 0 and 1"):
                Translator.from_checkpoint(tmp_path / "model")
        else:
            translator = Translator.from_checkpoint(tmp_path / "model")
            found[unsure_below] = translator.n_best(["I work at Siemens."], n_best=1)[0][0]
    assert [one.unsure for one in found.values()] == [False, False, True]
    assert found[1.0].lost == ("Siemens",) and Doubt.of(config | {"doubt": {}}).languages == EN_DE


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

    doubt = Doubt(languages=EN_DE, translated=frozenset(["Where", "Meet", "Turkey"]))
    translator = Translator(model, tokenizer, engine=engine, doubt=doubt)
    best = [some[0] for some in found.values()]
    places = 2, 1, 1, 0, 0
    assert translator.translate(list(found)) == [
        found[text][n] for text, n in zip(found, places, strict=True)
    ]
    assert asked == [(5, 4, 1), (4, 16, 16)]
    assert translator.translate(list(found), by_score=True) == best
    assert translator.translate(list(found), beam_size=1) == best
    assert asked[2:] == [(5, 4, 1), (5, 1, 1)]
    [two] = translator.n_best(list(found)[:1], n_best=2)
    assert [one.text for one in two] == [found["I was born in 1988."][n] for n in (2, 0)]


def test_the_book_model_is_calibrated():
    assert (
        0 < Doubt.of(json.loads((BOOK_MODEL / "config.json").read_text("utf-8"))).unsure_below < 1
    )
