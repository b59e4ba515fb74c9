"""Student's t and Fisher's F, by the incomplete beta function: how surprising a number is."""

from __future__ import annotations

import math

STUDENT_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t for 95 %, two-sided, with 1, 2, ... degrees of freedom (Student 1908).

There is one degree less than there are seeds.
"""


def student_95(degrees: int) -> float:
    """Student's t for 95 %, two-sided."""
    return (
        STUDENT_95[degrees - 1] if degrees <= len(STUDENT_95) else student_quantile(0.05, degrees)
    )


def student_quantile(p: float, degrees: int) -> float:
    """The t whose absolute value is passed with probability p."""
    low, high = -12.0, 24.0  # of ln t
    for _ in range(60):
        middle = (low + high) / 2
        beyond = f_tail(math.exp(2 * middle), 1.0, 1, degrees)  # t^2 is F with one degree
        low, high = (middle, high) if beyond > p else (low, middle)
    return math.exp(low)


def f_tail(variance: float, common: float, degrees: int, common_degrees: int) -> float:
    """P(F > variance / common): how often chance makes a variance so many times the common one.

    It is an incomplete beta function (Abramowitz and Stegun 1964, 26.6.2). Where both are 0, it is
    1.
    """
    mine, others = degrees * variance, common_degrees * common
    if mine + others == 0:
        return 1.0
    return _incomplete_beta(others / (mine + others), common_degrees / 2, degrees / 2)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), by the continued fraction of Abramowitz and Stegun (1964), 26.5.8.

    It is worked out from behind, from a depth at which more changes nothing.
    """
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):  # where the fraction is slow
        return 1 - _incomplete_beta(1 - x, b, a)
    fraction = 1.0
    for m in range(60, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        fraction = 1 + even / (1 + odd / fraction)
    fraction = 1 - (a + b) * x / (a + 1) / fraction
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(front + a * math.log(x) + b * math.log1p(-x)) / (a * fraction)
