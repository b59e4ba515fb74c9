"""Label smoothing (section 5.4)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from annotated_transformer.fast.loss import require_targets

Criterion = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From logits (B, T, V) and the ids of the target (B, T) to the summed loss, which is minimised,
and a summed nll, which is logged."""


def label_smoothed_cross_entropy(
    logits: Float[Tensor, "*B V"],
    target_out: Int[Tensor, "*B"],
    eps_ls: float = 0.1,
    pad_id: int = 0,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """(loss, nll): cross-entropy against smoothed targets, and against the targets alone.

    A smoothed target is (1 - eps_ls) onehot(target) + eps_ls / V. Both are sums, in nats, over the
    positions whose target is not `pad_id`; a position of padding adds nothing and has no gradient.
    Only `loss` has a gradient; `nll` is what perplexity is made of. Smoothing spreads eps_ls over
    the whole vocabulary, the true token included (Szegedy et al. 2016, section 7), which the paper
    leaves open. Computed in float32 or better, whatever the dtype of the logits. `TrainingRun`
    takes the same from `fast.loss`, which keeps fewer arrays. Raises ConfigError for targets of
    another shape than that of the positions.

    >>> logits, target_out = torch.zeros(1, 2, 4), torch.tensor([[3, 0]])  # the second is padding
    >>> label_smoothed_cross_entropy(logits, target_out, eps_ls=0.1, pad_id=0)  # log 4, twice
    (tensor(1.3863), tensor(1.3863))
    """
    require_targets(logits, target_out)
    logits_NV = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    entropy = partial(F.cross_entropy, target=target_out.flatten(), ignore_index=pad_id)
    loss = entropy(logits_NV, reduction="sum", label_smoothing=eps_ls)
    return loss, entropy(logits_NV.detach(), reduction="sum")
