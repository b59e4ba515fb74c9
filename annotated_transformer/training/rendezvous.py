"""How the processes of an attempt find each other, and none of an earlier attempt (torchrun)."""

from __future__ import annotations

import secrets
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from annotated_transformer.errors import require

Store = Any
"""`torch.distributed.Store`, which mypy does not see there."""
PAUSE = 0.01  # seconds between two looks at the store


def make_group(
    backend: str, store: Store, rank: int = 0, n: int = 1, timeout: timedelta | None = None
) -> None:
    """Make the process group in such a way that `destroy_process_group` ends its threads.

    DDP imports `torch.distributed.nn`, whose functions take the current group as a default argument
    and so keep it alive until Python exits. A thread of the group that then needs the GIL, to free
    a tensor, is killed inside C++ code that allows no exception, and the process aborts ("terminate
    called without an active exception") although its work is saved. Since they are imported here,
    before there is a group, these functions hold none (LOG.md, "Many processes").
    """
    import torch.distributed.nn  # noqa: F401

    dist.init_process_group(backend, timeout=timeout, store=store, rank=rank, world_size=n)


def fresh_store(store: Store, rank: int, n: int, longest_wait: timedelta) -> Store:
    """A part of torchrun's store that no earlier attempt has written to.

    When torchrun restarts the processes it keeps its store, with the addresses of the dead ones
    (pytorch/pytorch#135712, #167288): a process that reads such an address before the successor has
    written its own connects to nobody (LOG.md, "Many processes"). The number of restarts cannot
    tell attempts apart, since each machine counts its own. So each process announces itself by a
    random name, and rank 0 answers under that name with the name of this attempt; a process reads
    only the answer to its own name.
    """
    own = secrets.token_hex(16)
    if rank > 0:
        store.set(f"here/{rank}", own)
        attempt = store.get(f"attempt/{own}").decode()  # `get` waits until it is there
        store.set(f"joined/{attempt}/{rank}", "")
    else:
        attempt = own
        _answer(store, attempt, n, time.monotonic() + longest_wait.total_seconds())
    return dist.PrefixStore(attempt, store)  # type: ignore[attr-defined]


def _answer(store: Store, attempt: str, n: int, deadline: float) -> None:
    """Tell the other processes the name of this attempt until each has confirmed it."""
    missing = set(range(1, n))
    while missing:
        require(time.monotonic() < deadline, f"these ranks never joined: {sorted(missing)}")
        for rank in sorted(missing):
            if store.check([f"joined/{attempt}/{rank}"]):
                missing.remove(rank)
            elif store.check([f"here/{rank}"]):
                store.set(f"attempt/{store.get(f'here/{rank}').decode()}", attempt)
        time.sleep(PAUSE)
