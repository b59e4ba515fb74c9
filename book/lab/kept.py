"""What autograd keeps between a forward pass and its backward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def bytes_kept(work: Callable[[], object]) -> int:
    """Bytes of the memory that `work` keeps for its backward pass, each counted once."""
    kept: dict[int, Tensor] = {}  # held, so that no address is given twice

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        work()
    return sum(x.untyped_storage().nbytes() for x in kept.values())
