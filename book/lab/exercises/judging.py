"""How an answer to an exercise is judged: beside what is right, and beside known mistakes.

A typical mistake is written down as a function that makes it, with the sentence that says what is
wrong. Where the reader's function returns what that function returns, the sentence is the
diagnosis.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

Function = Callable[..., Any]


@dataclass(frozen=True)
class Exercise:
    """One function that the book asks for.

    `cases` maps what is special about a case (a phrase such as "with a mask", which a diagnosis
    quotes) to the arguments of the call, simple cases first. `mistakes` maps a diagnosis to a
    function that makes the mistake. `law` is given the arguments and a result with the right shape
    and wrong numbers, and may name a broken law.

    The functions of an exercise wear no shapes: a mistake may well be one of shape, or of type.
    """

    right: Function
    cases: dict[str, tuple[Any, ...]]
    mistakes: dict[str, Function] = field(default_factory=dict)
    law: Callable[..., str | None] = lambda *_: None


EXERCISES: dict[str, Callable[[], Exercise]] = {}
"""Each exercise that asks for a function, by its id.

The id is the paper's section and, where there are several, a word.
"""


def exercise(name: str) -> Callable[[Callable[[], Exercise]], Callable[[], Exercise]]:
    """Put what the decorated function makes into EXERCISES, under this id."""
    return lambda make: EXERCISES.setdefault(name, make)


def normal(seed: int = 0) -> Callable[..., Tensor]:
    """A source of normal float64 tensors, `draw(2, 3)`; the global random state stays as it is."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)


def judge(exercise: Exercise, answer: Any) -> str | None:
    """None where `answer` is right in every case, or else a sentence that says what is wrong."""
    if not callable(answer):
        return f"Hand over the function itself, without calling it; this is {_kind(answer)}."
    expected, given = {}, {}
    for case, arguments in exercise.cases.items():
        expected[case] = exercise.right(*copy.deepcopy(arguments))
        passed = copy.deepcopy(arguments)
        given[case] = _call(answer, passed)
        names = inspect.signature(exercise.right).parameters
        for name, before, after in zip(names, arguments, passed):
            if not callable(before) and not _same(before, after):
                advice = "make a new value and leave the old one as it is."
                return f"Your function changes its argument {name}; {advice}"
    faults = {case: _fault(expected[case], given[case]) for case in exercise.cases}
    wrong = [case for case, fault in faults.items() if fault]
    if not wrong:
        return None
    known = _known_mistake(exercise, expected, given, wrong[0])
    return known or _unknown_mistake(exercise, given, faults, wrong[0])


class _Raised(NamedTuple):
    kind: str
    message: str


def _call(function: Function, arguments: tuple[Any, ...]) -> Any:
    """What the function returns, or what it raised."""
    try:
        return function(*arguments)
    # The function is a reader's: it may fail in any way, and the reader is told how in one line.
    except Exception as error:
        return _Raised(type(error).__name__, (str(error).strip().splitlines() or [""])[0][:150])


def _known_mistake(
    exercise: Exercise, expected: dict[str, Any], given: dict[str, Any], first_wrong: str
) -> str | None:
    """The sentence of the mistake that explains every case.

    Or else that of the only mistake that explains the first wrong case.
    """
    explain_first = []
    for sentence, mistaken in exercise.mistakes.items():
        made, shows = {}, []
        for case, arguments in exercise.cases.items():
            made[case] = _call(mistaken, copy.deepcopy(arguments))
            if not isinstance(made[case], _Raised) and not _same(expected[case], made[case]):
                shows.append(case)
        if shows and all(_same(made[case], given[case]) for case in made):
            return sentence
        if first_wrong in shows and _same(made[first_wrong], given[first_wrong]):
            explain_first.append(sentence)
    return explain_first[0] if len(explain_first) == 1 and _is_telling(given[first_wrong]) else None


def _is_telling(value: Any) -> bool:
    """Whether two such results are hardly equal by chance: an array of floats, or one inside."""
    whole = value if isinstance(value, (list, tuple)) else [value]
    parts = value.values() if isinstance(value, dict) else whole
    tensors = [part for part in parts if isinstance(part, Tensor)]
    return any(tensor.is_floating_point() and tensor.numel() > 2 for tensor in tensors)


def _unknown_mistake(
    exercise: Exercise, given: dict[str, Any], faults: dict[str, str | None], case: str
) -> str:
    if faults[case] == _NUMBERS:
        broken = exercise.law(*copy.deepcopy(exercise.cases[case]), given[case])
        if broken:
            return broken
    right = next((f" ({case}, it is right)" for case, fault in faults.items() if not fault), "")
    return f"{case[0].upper()}{case[1:]}, {faults[case]}{right}."


_NUMBERS = "the result has the right shape and wrong numbers"


def _fault(expected: Any, given: Any, what: str = "the result") -> str | None:
    """What keeps `given` from being `expected`, types and shapes first; None where they agree."""
    if isinstance(given, _Raised):
        return f"your function raises {given.kind}: {given.message.rstrip('.')}"
    if isinstance(given, Tensor) and given.numel() == 1 and isinstance(expected, (int, float)):
        given = given.item()
    if isinstance(expected, Tensor) and expected.dim() == 0 and isinstance(given, (int, float)):
        expected = expected.item()
    if isinstance(expected, Tensor):
        return _tensor_fault(expected, given, what)
    if isinstance(expected, (dict, list, tuple)):
        return _collection_fault(expected, given, what)
    if isinstance(expected, float):
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            return f"{what} must be a number, yours is {_kind(given)}"
        return None if math.isclose(expected, given, rel_tol=1e-5) else f"{what} is not {given:.6g}"
    if not isinstance(given, type(expected)):
        return f"{what} must be {_kind(expected)}, yours is {_kind(given)}"
    return None if expected == given else f"{what} is not {given!r}"


def _collection_fault(expected: Any, given: Any, what: str) -> str | None:
    if type(given) is not type(expected):
        return f"{what} must be {_kind(expected)}, yours is {_kind(given)}"
    if isinstance(expected, dict):
        if expected.keys() != given.keys():
            names = ", ".join(map(str, given))
            return f"the names in {what} must be those that came in, yours are {names}"
        entries = (_fault(expected[key], given[key], f"entry {key}") for key in expected)
        return next(filter(None, entries), None)
    if any(isinstance(part, (Tensor, list, dict)) for part in expected):
        if len(given) != len(expected):
            return f"{what} must have {len(expected)} parts, yours has {len(given)}"
        parts = [f"part {i} of {what}" for i in range(len(expected))]
        return next(filter(None, map(_fault, expected, given, parts)), None)
    return None if expected == given else f"{what} is not {given!r}"


def _tensor_fault(expected: Tensor, given: Any, what: str) -> str | None:
    if not isinstance(given, Tensor):
        return f"{what} must be a tensor, yours is {_kind(given)}"
    if expected.shape != given.shape:
        return f"{what} must have shape {tuple(expected.shape)}, yours has {tuple(given.shape)}"
    if (expected.dtype == torch.bool) != (given.dtype == torch.bool):
        right = "True and False" if expected.dtype == torch.bool else "numbers"
        return f"{what} must hold {right}, yours is of type {given.dtype}"
    if given.is_floating_point() and not expected.is_floating_point():
        return f"{what} must hold whole numbers, yours is of type {given.dtype}"
    one, other = expected.detach().double(), given.detach().double().to(expected.device)
    largest = one.masked_fill(~one.isfinite(), 0.0).abs().max().item()
    if torch.allclose(one, other, rtol=1e-5, atol=1e-5 * largest, equal_nan=True):
        return None
    if bool(one.isfinite().all()) and not bool(other.isfinite().all()):
        return f"{what} has numbers that are not finite (NaN or infinity)"
    return f"{what} has the right shape and wrong numbers"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, _Raised):
        return isinstance(other, _Raised) and one.kind == other.kind
    return _fault(one, other) is None


def _kind(value: Any) -> str:
    if value is None:
        return "nothing (is there a return?)"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
