"""Checks of your answers to the book's exercises: they say what is wrong, and not what is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from annotated_transformer.errors import require
from lab.exercises import on_attention, on_data, on_layers, on_positions, on_results, on_training  # noqa: F401
from lab.exercises.judging import EXERCISES, judge


def check(exercise: str, answer: Callable[..., Any]) -> None:
    """Print one line: `3.3: right.`, or `3.3: not yet.` and a sentence that says what is wrong.

    `answer` is called in several cases, with small inputs of unequal sizes (tensors in float64),
    which it must not change. The global random state stays as it is. Raises ConfigError for an id
    that is not in EXERCISES.
    """
    known = ", ".join(sorted(EXERCISES))
    require(exercise in EXERCISES, f"there is no exercise {exercise!r}; there are {known}")
    diagnosis = judge(EXERCISES[exercise](), answer)
    print(f"{exercise}: right." if diagnosis is None else f"{exercise}: not yet. {diagnosis}")
