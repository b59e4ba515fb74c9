"""The module that exchanges gradients (section 5.2): DDP."""

from __future__ import annotations

import inspect
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

_wrapped: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def data_parallel(loss: nn.Module) -> nn.Module:
    """The module whose backward pass gives every process the mean of all gradients (DDP).

    The table of positions is no weight: it grows on its own, so that buffers are left alone.
    """
    known = inspect.signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, bool] = {name: False, "gradient_as_bucket_view": True}
    module = DistributedDataParallel(loss, **options)  # type: ignore[arg-type]
    _wrapped.add(module)
    return module


def exchanging(loss: nn.Module, is_last: bool) -> AbstractContextManager[Any]:
    """Within the block gradients are exchanged if this is the last batch of a process in a step.

    Before that they are only added up (`no_sync`).
    """
    if isinstance(loss, DistributedDataParallel):
        return nullcontext() if is_last else loss.no_sync()
    return nullcontext()


def let_go_of_gradients() -> None:
    """Take from all that `data_parallel` made what exchanges gradients.

    It holds the group of processes. If it were the last to do so, it would wait, with Python's lock
    in its hands, for a thread of the group that waits for this lock, and the process would hang.
    """
    for module in _wrapped:
        vars(module).pop("logger", None)
        vars(module).pop("reducer", None)
