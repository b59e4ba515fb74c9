"""Memory that a measurement keeps, so that no call pays for new pages."""

from __future__ import annotations

import ctypes
import os
import sys


def keep_freed_memory() -> None:
    """Let glibc keep large freed blocks in the process.

    Otherwise it gives their pages back after every step. PyTorch allocates and frees the same
    large tensors at each step, and their pages would have to be faulted in again. For timings, of
    the whole process; training itself gains nothing measurable from it. Does nothing where there is
    no glibc.
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
