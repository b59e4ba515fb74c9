"""Sentence scores add up to the corpus scores, and the bootstrap agrees with textbook statistics."""

import math

import pytest
import torch
from toys import random_pairs, small_model

from annotated_transformer.config import ConfigError
from annotated_transformer.evaluation import bleu, perplexity
from annotated_transformer.experiments.significance import (
    Estimate,
    bleu_of_sums,
    bootstrap,
    ppl_of_sums,
    sentence_bleu_statistics,
    sentence_nll,
)

HYPOTHESES = ["the cat sat on the mat", "a dog sleeps under the old table", "", "no"]
REFERENCES = ["the cat sat on the red mat", "a dog is asleep under the old table today", "yes", "no"]


def mean(sums):
    """A metric of rows (value, 1): the mean value."""
    return float(sums[0] / sums[1])


def rows(*values):
    return torch.tensor([[value, 1.0] for value in values], dtype=torch.float64)


def normal(seed, n=400, shift=0.0, spread=1.0):
    return rows(*(shift + spread * torch.randn(n, generator=torch.Generator().manual_seed(seed))).tolist())


def test_nats_of_sentences_add_up_to_perplexity():
    model, pairs = small_model(), random_pairs(3, 17)
    nll = sentence_nll(model, pairs, max_tokens=40)
    assert nll[:, 1].tolist() == [len(target) + 1 for _, target in pairs]
    assert ppl_of_sums(nll.sum(0)) == pytest.approx(perplexity(model, pairs), rel=1e-9)
    assert ppl_of_sums(nll[4]) == pytest.approx(perplexity(model, pairs[4:5]), rel=1e-9)


def test_a_model_that_drops_out_is_refused():
    with pytest.raises(ConfigError, match="eval mode"):
        sentence_nll(small_model().train(), random_pairs(3, 2))


@pytest.mark.parametrize("of", [[0, 1, 2, 3], [1, 0], [2], [3, 3, 1]])
def test_counts_of_sentences_add_up_to_bleu(of):
    counts = sentence_bleu_statistics(HYPOTHESES, REFERENCES)[of].sum(0)
    assert bleu_of_sums(counts) == pytest.approx(bleu([HYPOTHESES[i] for i in of], [REFERENCES[i] for i in of]).score)


def test_the_interval_of_a_mean_is_the_textbooks():
    sample = normal(1)
    found = bootstrap(mean, [sample], n_samples=4000)
    error = sample[:, 0].std().item() / math.sqrt(len(sample))
    assert found.mean == pytest.approx(sample[:, 0].mean().item())
    assert found.low == pytest.approx(found.mean - 1.96 * error, abs=0.15 * error)
    assert found.high == pytest.approx(found.mean + 1.96 * error, abs=0.15 * error)


def test_pairing_takes_out_what_both_sides_share():
    """A small constant gain on very different sentences: invisible side by side, certain pair by pair."""
    base = normal(2, spread=10)
    better = base + torch.tensor([0.1, 0.0])
    one, other = bootstrap(mean, [better]), bootstrap(mean, [base])
    assert one.low < other.high
    found = bootstrap(mean, [better], [base])
    assert found.low == pytest.approx(0.1)
    assert found.high == pytest.approx(0.1)
    assert found.sign == 1


def test_seeds_that_differ_widen_the_interval():
    same, apart = [normal(3)] * 3, [normal(3) + torch.tensor([shift, 0.0]) for shift in (-1.0, 0.0, 1.0)]
    narrow, wide = bootstrap(mean, same), bootstrap(mean, apart)
    assert wide.mean == pytest.approx(narrow.mean)
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
    expected = math.sqrt(2 / 3 / 3)  # of a mean of three draws from -1, 0, 1
    assert wide.high - wide.low == pytest.approx(2 * 1.96 * expected, rel=0.1)


def test_a_sign_needs_the_interval_and_every_seed():
    assert Estimate(1.0, 0.2, 1.8, [1.5, 0.5]).sign == 1
    assert Estimate(-1.0, -1.8, -0.2, [-1.5, -0.5]).sign == -1
    assert Estimate(1.0, -0.1, 2.1, [1.5, 0.5]).sign == 0
    assert Estimate(1.0, 0.2, 1.8, [2.5, -0.5]).sign == 0


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ConfigError, match="no runs"):
        bootstrap(mean, [])
    with pytest.raises(ConfigError, match="as many runs"):
        bootstrap(mean, [normal(1)], [normal(1), normal(2)])
    with pytest.raises(ConfigError, match="same sentences"):
        bootstrap(mean, [normal(1, 5)], [normal(1, 6)])
