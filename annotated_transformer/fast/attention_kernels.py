"""Which of a GPU's attention kernels may be taken (section 3.2.1): all but cuDNN's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Let a GPU take any attention kernel but cuDNN's, which PyTorch prefers on an H100 or a B200.

    cuDNN makes a plan for each new shape, which takes about a second (measured on a B200: issue
    3704 of modelscope/FunASR on GitHub), and nearly every batch of sentences and every step of a
    search has a new shape. With a mask its backward pass can also give NaN (PyTorch 2.13 on an
    H100: issue 196678 of pytorch/pytorch).
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
