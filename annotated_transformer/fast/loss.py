"""The loss of section 5.4 with backward passes of its own: equal values, fewer arrays of logits.

PyTorch's cross-entropy with label smoothing keeps three (tokens x V) arrays.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from annotated_transformer.errors import ConfigError


def require_targets(logits: Tensor, target_out: Tensor, name: str = "logits") -> None:
    """Raise ConfigError unless there is one target for each position of the logits, in its place.

    Flattened, the targets of another shape would be taken for those of other positions.
    """
    if logits.shape[:-1] != target_out.shape:
        raise ConfigError(
            f"{name} of shape {tuple(logits.shape)} need targets of shape "
            f"{tuple(logits.shape[:-1])}, got {tuple(target_out.shape)}"
        )


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Per-token loss from logits, keeping one (tokens x V) array for the backward pass.

    With q = (1 - eps) onehot(y) + eps / V and z the logits, the
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


def smoothed_cross_entropy(
    logits: Float[Tensor, "*B V"],
    target_out: Int[Tensor, "*B"],
    eps_ls: float = 0.1,
    pad_id: int = 0,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """`training.loss.label_smoothed_cross_entropy`, with one (tokens x V) array kept for backward.

    The same sums and units. It has no second derivative.
    """
    require_targets(logits, target_out)
    logits_NV = logits.flatten(0, -2)
    if logits_NV.dtype in (torch.float16, torch.bfloat16):
        logits_NV = logits_NV.float()
    padding_N = target_out.flatten() == pad_id
    # A pad_id such as -100 is not an index into V. Any index will do: padding is set to 0 below.
    target_N = target_out.flatten().masked_fill(padding_N, 0)
    loss_N, nll_N = _SmoothedCrossEntropy.apply(logits_NV, target_N, eps_ls)
    return loss_N.masked_fill(padding_N, 0.0).sum(), nll_N.masked_fill(padding_N, 0.0).sum()


class _LinearCrossEntropy(torch.autograd.Function):
    """Summed loss and nll of logits x E^T at the real positions, a block at a time.

    The forward pass computes the gradient as well. With p = softmax(z), the gradient of the loss
    with respect to z is p - (1 - eps) onehot(y) - eps / V. The last term is a constant, so it is
    never materialised as a (rows x V) array: it takes eps / V times the sum of all rows of E from
    the gradient of x, and eps / V times the sum of all x from that of E. The mean of z, which the
    loss needs, is x times the mean of the rows of E.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        target_N: Tensor,
        eps_ls: float,
        pad_id: int,
        block_rows: int,
        learns: bool,
    ) -> tuple[Tensor, Tensor]:
        precision = torch.promote_types(x_ND.dtype, torch.float32)
        real_R = (target_N != pad_id).nonzero()[:, 0]
        share = eps_ls / weight_VD.size(0)
        sum_D = weight_VD.sum(0, dtype=precision)
        in_16_bits = torch.is_autocast_enabled(x_ND.device.type)
        dtype = torch.get_autocast_dtype(x_ND.device.type) if in_16_bits else x_ND.dtype
        small_VD = weight_VD.to(dtype)  # here, since autocast would round it for every block
        loss, nll = (x_ND.new_zeros((), dtype=precision) for _ in range(2))
        if learns:
            grad_x_ND, grad_weight_VD = torch.zeros_like(x_ND), torch.zeros_like(weight_VD)
        for rows in real_R.split(block_rows):
            x_MD, target_M1 = x_ND[rows], target_N[rows, None]
            small_MD = x_MD.to(dtype)
            logits_MV = (small_MD @ small_VD.T).to(precision)
            p_MV = logits_MV.softmax(dim=-1)
            p_M1, z_M1 = p_MV.gather(-1, target_M1), logits_MV.gather(-1, target_M1)
            nll_M1 = -p_M1.log()
            if (p_M1 < torch.finfo(precision).tiny).any():  # p has lost digits, or is 0
                nll_M1 = logits_MV.logsumexp(dim=-1, keepdim=True) - z_M1
            nll += nll_M1.sum()
            sum_of_z = (x_MD.sum(0, dtype=precision) * sum_D).sum()
            loss += (1 - eps_ls) * nll_M1.sum() + eps_ls * (nll_M1 + z_M1).sum() - share * sum_of_z
            if not learns:
                continue
            p_MV.scatter_add_(-1, target_M1, torch.full_like(nll_M1, eps_ls - 1))
            p_MV = p_MV.to(dtype)
            grad_x_ND[rows] = (p_MV @ small_VD).to(x_ND.dtype).sub_(sum_D, alpha=share)
            if dtype == grad_weight_VD.dtype:
                grad_weight_VD.addmm_(p_MV.T, small_MD)
            else:
                grad_weight_VD += p_MV.T @ small_MD
        if learns:
            grad_weight_VD.sub_(x_ND[real_R].sum(0), alpha=share)
            ctx.save_for_backward(grad_x_ND, grad_weight_VD)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_x_ND, grad_weight_VD = ctx.saved_tensors
        return grad_x_ND * grad_loss, grad_weight_VD * grad_loss, None, None, None, None, None


def linear_cross_entropy(
    x: Float[Tensor, "*B D"],
    weight: Float[Tensor, "V D"],
    target_out: Int[Tensor, "*B"],
    eps_ls: float = 0.1,
    pad_id: int = 0,
    block_rows: int | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """`label_smoothed_cross_entropy` of the logits x weight^T, without ever holding all of them.

    Logits exist for `block_rows` real positions at a time (default: 2^20 numbers, at least 128
    rows: with fewer, the gradient of `weight` would be read and written too often). Their gradient
    softmax(z) - q is multiplied into those of `x` and `weight` at once, and only where gradients
    are wanted (`torch.is_grad_enabled`). Same sums and units; a test holds the two equal, value and
    gradient.

    PyTorch 2.13 has a function of this name in `torch.nn.functional`, which goes in chunks too, but
    makes all logits, with a warning, as soon as there is label smoothing. A test compares the two;
    once PyTorch's can smooth in chunks, ours may no longer be needed.
    """
    require_targets(x, target_out, "rows")
    # 2^20 logits are 4 MB, which fit the cache; 256 rows gained too little (LOG.md, "The loss
    # of training").
    block_rows = block_rows or max(128, 2**20 // weight.size(0))
    learns = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    rows = (x.flatten(0, -2), weight, target_out.flatten())
    return _LinearCrossEntropy.apply(*rows, eps_ls, pad_id, block_rows, learns)
