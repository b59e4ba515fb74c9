"""Dropout (section 5.4), with cheap random numbers on a CPU."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """Each entry is 0 with probability p, else x / (1 - p) (Srivastava et al. 2014).

    In evaluation mode it is x itself. `torch.nn.Dropout` does the same; on a CPU it draws a number
    for each entry, one after the other, which takes a tenth of a training step. Here 16 random bits
    decide, four entries from one draw, and p is met to the nearest multiple of 2^-16; the entries
    that stay are divided by 1 minus what p was rounded to, so that the mean is still x.
    """

    def forward(self, x: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        if not self.training:
            return x
        n_dropped = round(self.p * 2**16)
        if x.device.type != "cpu" or n_dropped in (0, 2**16) or torch.compiler.is_compiling():
            return super().forward(x)
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device)
        bits = draws.random_(-(2**63), None).view(torch.int16)
        keep = torch.empty_like(x, requires_grad=False, memory_format=torch.contiguous_format)
        torch.ge(bits[: x.numel()].view_as(x), n_dropped - 2**15, out=keep)
        return x * keep.mul_(2**16 / (2**16 - n_dropped))
