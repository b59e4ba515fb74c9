"""Quantiles and tails against printed tables, and against their densities."""

import math

import pytest
import torch

from lab.experiments.distributions import STUDENT_95, f_tail, student_95, student_quantile


def test_students_factors_solve_its_distribution():
    """The density of t, integrated numerically from minus the factor to the factor, is 0.95."""
    for degrees, factor in enumerate(STUDENT_95, 1):
        constant = (
            math.gamma((degrees + 1) / 2) / math.sqrt(degrees * math.pi) / math.gamma(degrees / 2)
        )
        t = torch.linspace(-factor, factor, 20_001, dtype=torch.float64)
        density = constant * (1 + t**2 / degrees) ** (-(degrees + 1) / 2)
        assert torch.trapezoid(density, t).item() == pytest.approx(0.95, abs=1e-4)


@pytest.mark.parametrize(
    ("p", "degrees", "t"), [(0.5, 1, 1.0), (0.001, 5, 6.869), (0.01, 60, 2.660), (1e-9, 2, 31623)]
)
def test_quantiles_are_those_of_the_table(p, degrees, t):
    assert student_quantile(p, degrees) == pytest.approx(t, rel=2e-4)
    assert student_95(degrees) == pytest.approx(student_quantile(0.05, degrees), rel=2e-4)


@pytest.mark.parametrize(
    ("p", "degrees", "others", "f"),
    [
        (0.05, 1, 1, 161.45), (0.05, 3, 20, 3.0984), (0.01, 2, 20, 5.8489), (0.01, 5, 50, 3.4077),
        (0.05, 120, 120, 1.3519), (0.5, 7, 7, 1.0),
    ],
)  # fmt: skip
def test_tails_of_f_are_those_of_the_table(p, degrees, others, f):
    assert f_tail(f * 0.3, 0.3, degrees, others) == pytest.approx(p, rel=1e-3)


@pytest.mark.parametrize("f", [1e-6, 0.2, 1.0, 3.0, 1e6])
def test_tails_of_f_are_exact_where_there_is_a_formula(f):
    """One and one degree is Cauchy's law; by symmetry equal variances are a matter of heads."""
    assert f_tail(f, 1.0, 1, 1) == pytest.approx(2 / math.pi * math.atan(f**-0.5), rel=1e-12)
    assert f_tail(f, 1.0, 2, 9) == pytest.approx((1 + 2 * f / 9) ** -4.5, rel=1e-12)
    for degrees in (3, 50, 1000):
        assert f_tail(f, f, degrees, degrees) == pytest.approx(0.5, rel=1e-12)


def test_a_variance_of_nothing_is_no_surprise_and_one_beside_nothing_is():
    assert f_tail(0.0, 1.0, 2, 20) == f_tail(0.0, 0.0, 2, 20) == 1.0
    assert f_tail(1.0, 0.0, 2, 20) == 0.0
