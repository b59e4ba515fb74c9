"""Sentence scores add up to the corpus scores,
and the intervals are those of textbook statistics."""

import math

import pytest
import torch

from annotated_transformer.decoding.evaluation import bleu, perplexity
from annotated_transformer.errors import ConfigError
from lab.experiments.significance import (
    Estimate,
    bleu_of_sums,
    estimate,
    half_width,
    holm,
    p_value,
    ppl_of_sums,
    sentence_bleu_statistics,
    sentence_nll,
)
from toys import random_pairs, small_model

HYPOTHESES = ["the cat sat on the mat", "a dog sleeps under the old table", "", "no"]
LONGEST = "a dog is asleep under the old table today"
REFERENCES = ["the cat sat on the red mat", LONGEST, "yes", "no"]


def mean(sums):
    """A metric of rows (value, 1): the mean value."""
    return float(sums[0] / sums[1])


def rows(*values):
    return torch.tensor([[value, 1.0] for value in values], dtype=torch.float64)


def normal(seed, n=400, spread=1.0, shift=0.0):
    draws = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    return rows(*(shift + spread * draws.double()).tolist())


def test_nats_of_sentences_add_up_to_perplexity():
    model, pairs = small_model(), random_pairs(3, 17)
    nll = sentence_nll(model, pairs, max_tokens=40)
    assert nll[:, 1].tolist() == [len(target) + 1 for _, target in pairs]
    assert ppl_of_sums(nll.sum(0)) == pytest.approx(perplexity(model, pairs), rel=1e-9)
    assert ppl_of_sums(nll[4]) == pytest.approx(perplexity(model, pairs[4:5]), rel=1e-9)


def test_a_model_that_drops_out_and_no_pairs_are_refused():
    with pytest.raises(ConfigError, match="eval mode"):
        sentence_nll(small_model().train(), random_pairs(3, 2))
    with pytest.raises(ConfigError, match="no pairs"):
        sentence_nll(small_model(), [])


@pytest.mark.parametrize("of", [[0, 1, 2, 3], [1, 0], [2], [3, 3, 1]])
def test_counts_of_sentences_add_up_to_bleu(of):
    counts = sentence_bleu_statistics(HYPOTHESES, REFERENCES)[of].sum(0)
    hypotheses, references = ([side[i] for i in of] for side in (HYPOTHESES, REFERENCES))
    assert bleu_of_sums(counts) == pytest.approx(bleu(hypotheses, references).score)


def test_the_interval_of_a_mean_is_the_textbooks():
    sample = normal(1)
    found = estimate(mean, [sample], n_samples=4000)
    error = sample[:, 0].std().item() / math.sqrt(len(sample))
    assert found.mean == pytest.approx(sample[:, 0].mean().item())
    assert found.low == pytest.approx(found.mean - 1.96 * error, abs=0.15 * error)
    assert found.high == pytest.approx(found.mean + 1.96 * error, abs=0.15 * error)


def test_pairing_takes_out_what_both_sides_share():
    """A small constant gain on very different sentences: invisible side by side,
    certain pair by pair."""
    base = normal(2, spread=10)
    better = normal(2, spread=10, shift=0.1)
    one, other = estimate(mean, [better]), estimate(mean, [base])
    assert one.low < other.high
    found = estimate(mean, [better], [base])
    assert (found.low, found.high) == (pytest.approx(0.1), pytest.approx(0.1))
    assert found.sign == 1


def test_seeds_that_differ_widen_the_interval_by_students_t():
    narrow = estimate(mean, [normal(3)] * 3)
    wide = estimate(mean, [normal(3, shift=i) for i in (-1, 0, 1)])
    assert wide.mean == pytest.approx(narrow.mean)
    of_sentences = (narrow.high - narrow.low) / 2
    of_seeds = 4.30265 * 1 / math.sqrt(3)  # the standard deviation of -1, 0, 1 is 1
    assert (wide.high - wide.low) / 2 == pytest.approx(math.hypot(of_sentences, of_seeds))


def test_a_sign_needs_the_interval_and_every_seed():
    assert Estimate(1.0, 0.2, 1.8, [1.5, 0.5]).sign == 1
    assert Estimate(-1.0, -1.8, -0.2, [-1.5, -0.5]).sign == -1
    assert Estimate(1.0, -0.1, 2.1, [1.5, 0.5]).sign == 0
    assert Estimate(1.0, 0.2, 1.8, [2.5, -0.5]).sign == 0


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ConfigError, match="no runs"):
        estimate(mean, [])
    with pytest.raises(ConfigError, match="as many runs"):
        estimate(mean, [normal(1)], [normal(1), normal(2)])
    with pytest.raises(ConfigError, match="same sentences"):
        estimate(mean, [normal(1, 5)], [normal(1, 6)])


def test_p_values_are_those_worked_out_by_hand():
    """One standard error away, by sentences alone: 0.3173. Seeds 1, 2, 3 alone: t is
    2 / (1 / sqrt(3)) with two degrees of freedom, and p = 1 - t / sqrt(2 + t^2) = 0.0742."""
    assert p_value(Estimate(1.0, 1 - 1.96, 1 + 1.96, [1.0] * 3)) == pytest.approx(0.3173, abs=1e-4)
    half = 4.303 / math.sqrt(3)
    found = Estimate(2.0, 2 - half, 2 + half, [1.0, 2.0, 3.0])
    assert p_value(found) == pytest.approx(0.0742, abs=1e-4)
    two = Estimate(1.5, 1.5 - 12.706 / 2, 1.5 + 12.706 / 2, [1.0, 2.0])  # t = 3, Cauchy's law
    assert p_value(two) == pytest.approx(1 - 2 / math.pi * math.atan(3), abs=1e-4)
    assert p_value(found, 2.0) == 1.0


@pytest.mark.parametrize("n_seeds", [1, 2, 3, 4, 5, 8, 12])
def test_p_is_five_percent_where_the_interval_ends(n_seeds):
    """Whatever share sentences and seeds have in it."""
    runs = [normal(3, n=30, shift=0.1 * i**2) for i in range(n_seeds)]
    found = estimate(mean, runs)
    assert p_value(found, found.low) == pytest.approx(0.05, abs=1e-4)
    assert p_value(found, found.high) == pytest.approx(0.05, abs=1e-4)
    assert half_width(found, 0.05) == pytest.approx((found.high - found.low) / 2, rel=1e-3)
    assert half_width(found, 0.01) > half_width(found, 0.05)
    assert p_value(found, found.high + 0.1) < 0.05 < p_value(found, found.high - 0.1)


def test_holms_correction_is_that_of_the_textbook():
    """Sorted: 4 x 0.005, 3 x 0.01, 2 x 0.03, and 1 x 0.04 raised to the one before it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
