"""Where the processes of one attempt find each other, and none of an attempt before."""

from __future__ import annotations

import secrets
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from annotated_transformer.errors import require

Store = Any
"""`torch.distributed.Store`, which mypy does not see there."""
PAUSE = 0.01  # seconds


def make_group(
    backend: str, store: Store, rank: int = 0, n: int = 1, timeout: timedelta | None = None
) -> None:
    """Make the group of processes, such that `destroy_process_group` ends its threads.

    DDP imports `torch.distributed.nn`, whose functions take the group that exists at that moment as
    a default argument, and so keep it alive until Python exits. A thread of the group that needs
    Python's lock by then, to free a tensor, is ended inside C++ code that allows no exception. The
    process aborts ("terminate called without an active exception") though its work is saved.
    Imported here, before there is a group, they keep none.
    """
    import torch.distributed.nn  # noqa: F401

    dist.init_process_group(backend, timeout=timeout, store=store, rank=rank, world_size=n)


def fresh_store(store: Store, rank: int, n: int, longest_wait: timedelta) -> Store:
    """A part of torchrun's store in which nothing is left of an attempt before.

    Where torchrun starts the processes again it keeps its store, in which the addresses of the dead
    ones stand (pytorch/pytorch#135712, #167288): whoever reads one before its successor has written
    another connects to nobody. The number of restarts would tell attempts apart, but each machine
    counts its own. So each process says by a random name that it is here, and the first one tells
    that name the name of this attempt: an answer to somebody else is never read.
    """
    own = secrets.token_hex(16)
    if rank > 0:
        store.set(f"here/{rank}", own)
        attempt = store.get(f"attempt/{own}").decode()  # which waits for it
        store.set(f"joined/{attempt}/{rank}", "")
    else:
        attempt = own
        _answer(store, attempt, n, time.monotonic() + longest_wait.total_seconds())
    return dist.PrefixStore(attempt, store)  # type: ignore[attr-defined]


def _answer(store: Store, attempt: str, n: int, deadline: float) -> None:
    """Tell the others the name of this attempt, until each has heard it."""
    missing = set(range(1, n))
    while missing:
        require(time.monotonic() < deadline, f"processes that never came: {sorted(missing)}")
        for rank in sorted(missing):
            if store.check([f"joined/{attempt}/{rank}"]):
                missing.remove(rank)
            elif store.check([f"here/{rank}"]):
                store.set(f"attempt/{store.get(f'here/{rank}').decode()}", attempt)
        time.sleep(PAUSE)
