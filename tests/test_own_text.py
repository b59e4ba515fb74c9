"""Our own training text: files that hold what they claim, and no sentence that judges a model."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from pathlib import Path

import pytest

from benchmarks import own_text

ROOT = Path(__file__).parents[1]
VISITORS = ROOT.parent / "shared" / "visitors"
TITLE = "Attention is all you need."
FILES = {name: own_text.rows(name) for name in ("train", "valid", "names")}


def words(text):
    return re.findall(r"[\w'@.]*\w", text.casefold())


def distance(some, others):
    """How many words are to be replaced, added or left out."""
    row = list(range(len(others) + 1))
    for i, word in enumerate(some, 1):
        before = row
        row = [i]
        for j, other in enumerate(others, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (word != other)))
    return row[-1]


def near(sources):
    sides = [s for name in ("train", "valid") for _, *pair in FILES[name] for s in pair]
    judged = [words(source) for source in sources]
    return [s for s in sides if any(distance(words(s), source) <= 1 for source in judged)]


def test_a_distance_counts_words():
    assert distance(["the", "cat", "sat"], ["a", "cat", "sat", "down"]) == 2


@pytest.mark.parametrize("name", FILES)
def test_rows_are_whole_composed_and_different(name):
    rows = FILES[name]
    assert len(set(rows)) == len(rows)
    for row in rows:
        assert all(field == field.strip() != "" for field in row)
        assert all(unicodedata.is_normalized("NFC", field) for field in row)


def test_no_sentence_stands_twice_and_100_pairs_are_held_out():
    assert len(FILES["valid"]) == 100 and 300 <= len(FILES["train"]) <= 500
    for side in (1, 2):
        sentences = [tuple(words(row[side])) for name in ("train", "valid") for row in FILES[name]]
        assert len(set(sentences)) == len(sentences)


def test_persons_are_copied_and_no_name_has_two_translations():
    assert all(english == german for kind, english, german in FILES["names"] if kind == "person")
    for side in (1, 2):
        names = [row[side] for row in FILES["names"]]
        assert len(set(names)) == len(names)


def test_sentences_whose_translations_were_judged_are_not_learned():
    typed = (ROOT / "benchmarks" / "typed.jsonl").read_text(encoding="utf-8").splitlines()
    assert not near(json.loads(line)["source"] for line in typed)


@pytest.mark.skipif(not VISITORS.is_dir(), reason="../shared/visitors is not in this checkout")
def test_sentences_that_score_a_model_are_not_learned():
    given = [
        json.loads(line)["source"]
        for path in sorted(VISITORS.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    title = next(row for row in FILES["train"] if row[1] == TITLE)
    assert len(given) > 70 and sorted(near(given)) == sorted(title[1:])


def test_a_name_is_replaced_by_one_of_its_kind_in_each_language():
    names = own_text.Names()
    pair = "Is Mr Koch in Munich?", "Ist Herr Koch in München?"
    assert names.known(pair) == [("Koch", "Koch"), ("Munich", "München")]
    assert not names.known(("The cook is here.", "Der Koch ist hier."))
    for seed in range(20):
        source, target = names.replaced(pair, random.Random(seed))
        person, place = source.removeprefix("Is Mr ")[:-1].split(" in ")
        german = names.english[place][1]
        assert names.kind_of[person, person] == "person"
        assert target == f"Ist Herr {person} in {german}?"


def test_the_text_is_the_corpus_and_what_is_added():
    corpus_pairs = [(f"Tom has {i} dogs.", f"Tom hat {i} Hunde.") for i in range(50)]
    corpus_pairs += [("He lives in Rome.", "Er lebt in Rom.")] * 50
    own = own_text.pairs("train")
    without, text = (own_text.training_text(corpus_pairs, copies) for copies in (0, 3))
    assert text == own_text.training_text(corpus_pairs, 3)
    assert text[:100] == without[:100] == corpus_pairs
    assert text[100 : 100 + len(own)] == own and not {*own} & {*without}
    assert len(without) == 100 + 50 + 2  # with other places, and 1% turned round
    turned = text[-round(0.01 * (150 + 3 * len(own))) :]
    assert all((y, x) in text for x, y in turned)
