"""Costs are ratios of the processor's seconds: the same work has 1, and waiting costs nothing."""

import time

import pytest
import torch

from lab.cost import bytes_kept, times_in_turns

MATRIX = torch.randn(150, 150, generator=torch.Generator().manual_seed(1))


def multiply(times):
    for _ in range(times):
        MATRIX @ MATRIX


@pytest.mark.slow
def test_work_that_waits_costs_what_it_computes():
    """As a process does that others keep from its core."""

    def waits():
        multiply(40)
        time.sleep(0.02)

    works = {"one": lambda: multiply(40), "waits": waits, "two": lambda: multiply(80)}
    found = times_in_turns(works, "one", rounds=20)
    assert found["one"] == (1, 1, 1)
    assert found["waits"].median < 1.5 < found["two"].median < 2.5
    assert all(ratio.low <= ratio.median <= ratio.high for ratio in found.values())


def test_every_round_takes_all_in_turn_and_every_other_in_reverse():
    calls = []
    works = {name: lambda name=name: (calls.append(name), multiply(5)) for name in "ab"}
    times_in_turns(works, "a", rounds=3)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"


def test_what_is_kept_for_the_backward_pass_is_counted_once():
    """x * x keeps its 3 * 4 numbers of 4 bytes once, tanh its result."""
    x = torch.ones(3, 4, requires_grad=True)
    assert bytes_kept(lambda: x * x) == 48
    assert bytes_kept(lambda: torch.tanh(x * 1)) == 48
