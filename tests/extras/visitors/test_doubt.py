"""What to doubt in a translation, by hand and against the model's own probabilities."""

import json
import math
import shutil
import time
from itertools import product
from pathlib import Path
from string import ascii_lowercase

import pytest
import torch

from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.visitors.doubt import (
    Doubt,
    TranslatedWords,
    lost_words,
    translated_words,
)
from annotated_transformer.extras.visitors.typed_lines import for_visitors

BOOK_MODEL = Path(__file__).parents[3] / "book" / "model"
EN_DE = "en", "de"
CASES = json.loads((Path(__file__).parents[1] / "typed_lines.json").read_text("utf-8"))


@pytest.mark.parametrize(("source", "translation", "to", "lost"), CASES["lost"])
def test_what_is_lost_is_named(source, translation, to, lost):
    assert list(lost_words(source, translation, to, CASES["translated"])) == lost


def test_a_line_of_ten_thousand_names_takes_no_pattern_for_each():
    """Megabytes are cut to what the model reads, so nearly all names of such a line are lost."""
    names = ["".join(letters).title() for letters in product(ascii_lowercase, repeat=3)]
    text = " ".join(f"{name} -{i}" for i, name in enumerate(names))
    began = time.process_time()
    assert len(lost_words(text, "Da.", "de", ["Lisbon"])) == 2 * len(names) > 35_000
    assert time.process_time() - began < 3  # 0.5 s; with the patterns 10 s


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


def test_words_of_german_follow_from_shorter_ones():
    pairs = [
        (s, "Here.") for s in ("Frau", "Arbeit", "Arbeiten", "Hausarbeit", "Haus", "Herr Müll")
    ]
    assert translated_words(pairs, 1, "de") == ["Arbeit", "Frau", "Haus", "Herr", "Müll"]
    words = TranslatedWords(translated_words(pairs, 1, "de"), "de")
    kinds = {
        word: word in words for word in ("Hausarbeiten", "Landhaus", "Müller", "Hauser", "arbeit")
    }
    assert kinds == dict(zip(kinds, (True, True, False, False, False), strict=True))
    text = "Herr Haus und Frau Müller gehen ins Haus."
    assert lost_words(text, "They go in.", "en", words) == ("Haus", "Müller")


def test_a_config_of_0_2_knows_the_words_of_one_language():
    config = {"corpus": "tatoeba-en-de", "doubt": {"translated": "Work"}}
    assert [bool(words) for words in Doubt.of(config).translated] == [True, False]
    config["doubt"]["translated"] = ["Work", "Arbeit"]
    assert "Arbeiter" not in Doubt.of(config).translated[0]
    assert "Arbeiter" in Doubt.of(config).translated[1]
    config["doubt"]["translated"] = ["Work"]
    with pytest.raises(ConfigError, match="translated must be two texts"):
        Doubt.of(config)


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
