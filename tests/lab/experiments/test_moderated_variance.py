"""A comparison's own noise is combined with that of all: Smyth's prior, by simulation and by hand,
and what follows for intervals and sums of several rows."""

import math
import statistics

import numpy as np
import pytest
import torch

from lab.experiments.significance import Prior, contrast, estimate, fit_prior, p_value


def rows(*values):
    """Sentences that are all alike, so that all noise is that of the seeds."""
    return torch.tensor([[value, 1.0] for value in values for _ in range(2)], dtype=torch.float64)


def mean(sums):
    return float(sums[0] / sums[1])


def drawn(n, prior, degrees, seed=0):
    """True variances from the prior, and what `degrees` of freedom estimate of each."""
    generator = np.random.default_rng(seed)
    true = prior.degrees * prior.variance / generator.chisquare(prior.degrees, n)
    return true, true * generator.chisquare(degrees, n) / degrees


@pytest.mark.parametrize("prior", [Prior(4.0, 4.0), Prior(0.25, 12.0)])
def test_the_prior_of_many_variances_is_found_again(prior):
    _, variances = drawn(40_000, prior, 2)
    found = fit_prior(variances.tolist(), [2] * len(variances))
    assert found.variance == pytest.approx(prior.variance, rel=0.05)
    assert found.degrees == pytest.approx(prior.degrees, rel=0.1)


def test_variances_that_differ_by_chance_alone_are_one():
    variances = np.random.default_rng(1).chisquare(2, 30) / 2
    even = [statistics.fmean(variances)] * 30
    assert fit_prior(even, [2] * 30).degrees == 60
    assert fit_prior(even[:4], [2] * 4) is None


def test_variance_and_degrees_are_those_worked_out_by_hand():
    """(4 x 1 + 2 x 7) / 6 = 3, and a standard error of sqrt(3 / 3); t is 2.447 for six degrees."""
    assert Prior(1.0, 4.0).moderated(7.0, 2) == (3.0, 6.0)
    runs = [rows(x) for x in (5 - math.sqrt(7), 5.0, 5 + math.sqrt(7))]
    found = estimate(mean, runs, [rows(0.0)] * 3, n_samples=2, prior=Prior(1.0, 4.0))
    assert (found.seed_error, found.degrees) == (pytest.approx(1.0), 6.0)
    assert found.high - found.mean == pytest.approx(2.447, abs=1e-3)
    assert p_value(found, found.low) == pytest.approx(0.05, abs=1e-4)


def test_the_noise_of_a_sum_of_rows_grows_with_its_weights_and_is_its_own():
    """By hand, for 1, -1, -1 and 1: values 0.0, 1.0, 2.0 in three seeds, so a variance of 1; the
    prior is doubled, since 4 / 2 = 2. Without degrees it is Student's t of three."""
    moved, still = [rows(x) for x in (0.0, 1.0, 2.0)], [rows(0.0)] * 3
    terms = [(1.0, moved), (-1.0, still), (-1.0, still), (1.0, still)]
    alone = contrast(mean, terms, n_samples=2)
    assert (alone.mean, alone.degrees) == (pytest.approx(1.0), 2)
    assert alone.high - alone.mean == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    found = contrast(mean, terms, n_samples=2, prior=Prior(2.0, 2.0))
    assert found.seed_error == pytest.approx(math.sqrt((2 * 4 + 2 * 1) / 4 / 3))
    assert found.degrees == 4


def test_a_difference_of_several_rows_is_paired_by_sentence():
    """Sentences that are hard for all cancel: the interval of a row that is 0.1 above four others'
    mean is a point."""
    hard = torch.randn(50, generator=torch.Generator().manual_seed(3)).double()
    one, other = (torch.stack([hard + x, torch.ones(50).double()], 1) for x in (0.1, 0.0))
    found = contrast(mean, [(1.0, [one]), (-0.25, [other]), (-0.75, [other])], n_samples=50)
    assert (found.low, found.high) == (pytest.approx(0.1), pytest.approx(0.1))
