"""Checks of your answers to the book's exercises: they say what is wrong, and not what is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from annotated_transformer.errors import require
from lab.exercises import on_attention, on_data, on_layers, on_positions, on_results, on_training  # noqa: F401
from lab.exercises.judging import EXERCISES, judge


class Verdict(NamedTuple):
    """Whether an answer is right, and if not, what is wrong; true where it is right."""

    exercise: str
    diagnosis: str | None

    def __bool__(self) -> bool:
        return self.diagnosis is None

    def __str__(self) -> str:
        return f"{self.exercise}: right." if self else f"{self.exercise}: not yet. {self.diagnosis}"

    def _ipython_display_(self) -> None:
        """Nothing: `check` has printed it."""


def check(
    exercise: str = "", answer: Callable[..., Any] | None = None, *, strict: bool = False
) -> Verdict | list[str]:
    """Print one line: `3.3: right.`, or `3.3: not yet.` and a sentence that says what is wrong.

    The same is returned, as a `Verdict`; with `strict` an answer that is not right raises
    AssertionError, for those who grade. `answer` is called in several cases, with small inputs of
    unequal sizes (tensors in float64), which it must not change. The global random state stays as
    it is. Without arguments: the list of exercises. Raises ConfigError for an id that is not there,
    and for no answer.
    """
    if not exercise:
        return sorted(EXERCISES)
    known = ", ".join(sorted(EXERCISES))
    require(exercise in EXERCISES, f"there is no exercise {exercise!r}; there are {known}")
    require(answer is not None, f"give your function too: check({exercise!r}, function)")
    verdict = Verdict(exercise, judge(EXERCISES[exercise](), answer))
    if strict and not verdict:
        raise AssertionError(str(verdict))
    print(verdict)
    return verdict
