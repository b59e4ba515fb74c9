"""The learning curve of the parser (section 6.3): a power law through F1, and where it leads."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from annotated_transformer.parsing import BracketCounts, f1_of_counts

PAPER = {"training sentences": 40_000, "F1": 91.3}
"""Table 4, Transformer (4 layers), WSJ only; section 6.3 says about 40,000."""


def power_law(points: Sequence[tuple[int, float]], floor: float = 0.0) -> tuple[float, float]:
    """b and c of error = floor + b n^-c: a straight line through the logarithms."""
    x = [math.log(n) for n, _ in points]
    y = [math.log(error - floor) for _, error in points]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    products = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    slope = products / sum((a - mean_x) ** 2 for a in x)
    return math.exp(mean_y - slope * mean_x), -slope


def learning_curve(records: Sequence[dict[str, Any]], n_resamples: int = 1000) -> dict[str, Any]:
    """Errors over training sentences, the law fitted to them, and where it leads.

    `f1 there` is where it leads at the paper's number of sentences. The interval is over resampled
    held-out sentences (the same for all sizes). It knows nothing of other seeds, nor of whether the
    law is the right one: `with_floor` is the same with half of the smallest error as a floor.
    """
    sizes = [record["training"]["sentences"] for record in records]
    target = PAPER["training sentences"]
    all_counts = [[BracketCounts(*count) for count in record["counts"]] for record in records]

    def fit(chosen: Sequence[int], floor: bool = False) -> tuple[float, float, float]:
        errors = [100 - f1_of_counts([counts[i] for i in chosen]).f1 for counts in all_counts]
        a = min(errors) / 2 if floor else 0.0
        b, c = power_law(list(zip(sizes, errors, strict=True)), a)
        return b, c, 100 - a - b * target**-c

    everything = range(len(all_counts[0]))
    generator = random.Random(0)
    fits = [fit(generator.choices(everything, k=len(everything))) for _ in range(n_resamples)]

    def interval(column: int) -> list[float]:
        values = sorted(row[column] for row in fits)
        return [values[round(0.025 * n_resamples)], values[round(0.975 * n_resamples) - 1]]

    b, c, at_target = fit(everything)
    return {
        "sizes": sizes,
        "f1": [record["test"][0]["f1"] for record in records],
        "b": b,
        "c": c,
        "c interval": interval(1),
        "at": target,
        "f1 there": at_target,
        "f1 there interval": interval(2),
        "f1 there with_floor": fit(everything, floor=True)[2],
    }
