"""What a training run asks of the operating system: signals that wait for the end of a step, memory that is kept."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deferred_interrupt() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM instead of raising in the middle of a step; the second one raises at once."""
    received: list[int] = []

    def note(number: int, _: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def keep_freed_memory() -> None:
    """Let glibc keep large freed blocks in the process instead of giving their pages back after every step.

    PyTorch allocates and frees the same large tensors at each step, and their pages would have to be faulted in again.
    Does nothing where there is no glibc.
    """
    _mallopt(m_mmap_max=0, m_trim_threshold=2**31 - 1)


def return_freed_memory() -> None:
    """glibc's own settings again, after `keep_freed_memory`."""
    _mallopt(m_mmap_max=65_536, m_trim_threshold=128 * 1024)


def _mallopt(m_mmap_max: int, m_trim_threshold: int) -> None:
    if sys.platform == "linux" and "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(-4, m_mmap_max)  # the parameters' numbers in glibc's malloc.h
            mallopt(-1, m_trim_threshold)
