"""What a training step costs: its time, and what autograd keeps for the backward pass."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from annotated_transformer import make_batch
from annotated_transformer.training.run import TrainingRun
from lab.experiments.table_3.miniature import Variation

Work = Callable[[], object]


def bytes_kept(work: Work) -> int:
    """Bytes of the memory that `work` keeps for its backward pass, each counted once."""
    kept: dict[int, Tensor] = {}  # held, so that no address is given twice

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        work()
    return sum(x.untyped_storage().nbytes() for x in kept.values())


def step_of(variation: Variation) -> Work:
    """A training step of the miniature: 32 random pairs of 14 tokens a side."""
    model, training = variation.configs(seed=1, to_the_end=True)
    run = TrainingRun(model, training)
    ids = torch.randint(4, model.vocab_size, (32, 28)).tolist()
    batch = make_batch([(row[:14], row[14:]) for row in ids])
    return lambda: run.step([batch])


class Ratio(NamedTuple):
    """A time as a multiple of another: the median over rounds, and the quartiles around it."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def times_in_turns(works: Mapping[str, Work], against: str, rounds: int = 20) -> dict[str, Ratio]:
    """How many times as long as `against` each takes, in seconds of the processor on one thread.

    In each round all take a turn, every other round in reverse, so that whatever slows the machine
    down slows them all alike. What other processes do is not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for work in works.values():
            work()
        for number in range(rounds):
            for name in list(works)[:: -1 if number % 2 else 1]:
                began = time.process_time()
                works[name]()
                seconds[name].append(time.process_time() - began)
    finally:
        torch.set_num_threads(threads)
    found = {}
    for name, ours in seconds.items():
        ratios = [a / b for a, b in zip(ours, seconds[against], strict=True)]
        low, median, high = statistics.quantiles(ratios)
        found[name] = Ratio(median, low, high)
    return found
