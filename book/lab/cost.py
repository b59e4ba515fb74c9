"""What a training step costs: its time, and what autograd keeps for the backward pass."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

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


def times_in_turns(works: Mapping[str, Work], against: str, rounds: int = 7) -> dict[str, float]:
    """How many times as long as `against` each takes: medians over rounds in which all have a turn.

    They are warm: each was called before.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - began)
    return {
        name: statistics.median(a / b for a, b in zip(ours, seconds[against], strict=True))
        for name, ours in seconds.items()
    }
