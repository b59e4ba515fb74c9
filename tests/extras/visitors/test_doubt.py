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
from annotated_transformer.extras.visitors.typed_lines import for_visitors

BOOK_MODEL = Path(__file__).parents[3] / "book" / "model"
EN_DE = "en", "de"


@pytest.mark.parametrize(
    ("source", "translation", "to", "lost"),
    [
        ("There is 1 seat.", "Es gibt keine Plätze.", "de", ("1",)),  # "ein" is in "keine"
        ("There is 1 seat.", "Es gibt einen Platz.", "de", ()),
        ("I have 8 apples.", "In der Nacht habe ich Äpfel.", "de", ("8",)),
        ("I have 8 apples.", "Ich habe acht Äpfel.", "de", ()),
        ("I called 3 times.", "Ich habe dreimal angerufen.", "de", ()),
        ("Ich habe 10 Autos.", "I often have cars.", "en", ("10",)),
        ("Ich habe 1 Auto.", "I have someone.", "en", ("1",)),
        ("Ann sleeps.", "Man kann schlafen.", "de", ("Ann",)),
        ("Ann's dog sleeps.", "Anns Hund schläft.", "de", ()),
        ("Tim has time.", "Time ist da.", "de", ("Tim",)),
        ("I drink tea.She drinks milk.", "Ich trinke Tee.", "de", ()),
        ("See example.org/tea, please.", "Siehe bitte.", "de", ("example.org/tea",)),
        ("It is -8 degrees.", "Es sind 8 Grad.", "de", ("-8",)),
        ("It is -8 degrees.", "Es sind minus 8 Grad.", "de", ()),
        ("Chapters 3-8.", "Kapitel 3-8.", "de", ()),
    ],
)
def test_a_number_or_a_name_inside_another_word_is_lost(source, translation, to, lost):
    translated = "There", "I", "Ich", "It", "See", "Chapters", "She", "Autos", "Auto"
    assert lost_words(source, translation, to, translated) == lost


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
    translator = for_visitors(Translator(model, tokenizer))
    [[best]] = translator.n_best(["I have a dog."], n_best=1)
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
                for_visitors(Translator.from_checkpoint(tmp_path / "model"))
        else:
            translator = for_visitors(Translator.from_checkpoint(tmp_path / "model"))
            found[unsure_below] = translator.n_best(["I work at Siemens."], n_best=1)[0][0]
    assert [one.unsure for one in found.values()] == [False, False, True]
    assert found[1.0].lost == ("Siemens",) and Doubt.of(config | {"doubt": {}}).languages == EN_DE


def test_the_book_model_is_calibrated():
    assert (
        0 < Doubt.of(json.loads((BOOK_MODEL / "config.json").read_text("utf-8"))).unsure_below < 1
    )
