"""Label smoothing (section 5.4)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


class SmoothedCrossEntropy(torch.autograd.Function):
    """Per-token loss from logits, keeping one (tokens x V) array for the backward pass.

    Plain operations would keep four. With q = (1 - eps) onehot(y) + eps / V and z the logits, the
    loss is logsumexp(z) - sum_v q_v z_v and its gradient softmax(z) - q.
    """

    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, target_N: Tensor, eps_ls: float
    ) -> tuple[Tensor, Tensor]:
        log_z_N = logits_NV.logsumexp(dim=-1)
        nll_N = log_z_N - logits_NV.gather(-1, target_N[:, None])[:, 0]
        loss_N = nll_N.clone()
        if eps_ls:
            loss_N = (1 - eps_ls) * nll_N + eps_ls * (log_z_N - logits_NV.mean(dim=-1))
        ctx.save_for_backward(logits_NV, log_z_N, target_N)
        ctx.eps_ls = eps_ls
        ctx.mark_non_differentiable(nll_N)
        return loss_N, nll_N

    @staticmethod
    def backward(ctx: Any, grad_loss_N: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        logits_NV, log_z_N, target_N = ctx.saved_tensors
        grad_NV = (logits_NV - log_z_N[:, None]).exp_()
        if ctx.eps_ls:
            grad_NV -= ctx.eps_ls / logits_NV.size(-1)
        at_target_N = torch.full_like(log_z_N, ctx.eps_ls - 1)
        grad_NV.scatter_add_(-1, target_N[:, None], at_target_N[:, None])
        return grad_NV.mul_(grad_loss_N[:, None]), None, None


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
    leaves open. Computed in float32 or better, whatever the type of the logits.

    >>> logits, target_out = torch.zeros(1, 2, 4), torch.tensor([[3, 0]])  # the second is padding
    >>> label_smoothed_cross_entropy(logits, target_out, eps_ls=0.1, pad_id=0)  # log 4, twice
    (tensor(1.3863), tensor(1.3863))
    """
    target_N = target_out.flatten()
    logits_NV = logits.flatten(0, -2)
    if logits_NV.dtype in (torch.float16, torch.bfloat16):
        logits_NV = logits_NV.float()
    loss_N, nll_N = SmoothedCrossEntropy.apply(logits_NV, target_N, eps_ls)
    padding_N = target_N == pad_id
    return loss_N.masked_fill(padding_N, 0.0).sum(), nll_N.masked_fill(padding_N, 0.0).sum()
