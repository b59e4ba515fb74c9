"""A sweep of Table 1: the sizes along it, and the exponent of what was measured over them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import stats

K, R = 3, 33  # kernel width and neighbourhood


def geometric(low: int, high: int, multiple: int = 16) -> list[int]:
    """low, ..., high by steps of the square root of 2, each but the ends rounded to a multiple."""
    steps = round(2 * math.log2(high / low))
    between = [multiple * round(low * 2 ** (i / 2) / multiple) for i in range(1, steps)]
    return [low, *between, high]


def fit(sizes: list[int], values: list[float]) -> dict[str, float]:
    """The slope of log value over log size by least squares, with its 95 percent interval.

    The interval is that of Student's t.
    """
    line = stats.linregress(np.log(sizes), np.log(values))
    half = stats.t.isf(0.025, len(sizes) - 2) * line.stderr
    ends = {"low": float(line.slope - half), "high": float(line.slope + half)}
    return {"exponent": float(line.slope), **ends}


def shape(over: str, size: int, other: int) -> tuple[int, int]:
    """(n, d) of a sweep's point."""
    return (size, other) if over == "n" else (other, size)


def settings(over: str, other: int) -> dict[str, Any]:
    """What a record says of a sweep over n or d, in which the other letter stays as it is."""
    return {"over": over, {"n": "d", "d": "n"}[over]: other, "k": K, "r": R}
