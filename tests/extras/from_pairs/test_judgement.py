"""A score comes with its interval and says in words what it means."""

import random

import pytest
from sacrebleu.metrics.bleu import BLEU

from annotated_transformer.extras.from_pairs.judgement import interval, verdict

GENERATOR = random.Random(2)
SENTENCES = [" ".join(GENERATOR.choices("abcdefgh", k=9)) for _ in range(90)]


def half_right(sentence):
    return sentence[: GENERATOR.choice([5, 11, 17])] + " x y"


def test_an_interval_is_as_wide_as_sacrebleus():
    outputs = [half_right(sentence) for sentence in SENTENCES]
    low, high = interval(outputs, SENTENCES)
    oracle = BLEU().corpus_score(outputs, [SENTENCES], n_bootstrap=1000)
    assert low < oracle.score < high
    assert (high - low) / 2 == pytest.approx(oracle._ci, rel=0.15)


@pytest.mark.parametrize(
    ("translate", "n", "words"),
    [
        (lambda x: x, 50, "100.0, 50 sentences): most translations can be understood"),
        (lambda x: x, 49, "49 sentences): too few sentences to tell, 50 are needed"),
        (lambda x: "y", 50, "50 sentences): it cannot translate yet"),
        (lambda x: "y", 9, "to tell, 50 are needed, but it cannot translate yet"),
    ],
    ids=["right", "few", "wrong", "few and wrong"],
)
def test_a_verdict_is_in_words(translate, n, words):
    rows = [("source", x, translate(x)) for x in SENTENCES[:n]]
    assert verdict(rows).endswith(words)


def test_to_copy_the_source_is_not_to_translate():
    """Related languages share words, so that copies score well."""
    rows = [(copied := half_right(x), x, copied) for x in SENTENCES]
    assert verdict(rows).endswith("it cannot translate yet")
    assert "cannot" not in verdict([(source, x, x) for source, x, _ in rows])
