"""Batches without their padding: all real positions side by side, R rows instead of B x L."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from annotated_transformer.model.attention import MultiHeadAttention
from annotated_transformer.model.transformer import Transformer


def _varlen_attn(*args: Any, **options: Any) -> Any:
    """PyTorch's kernel, imported when it is called: its module loads the compiler, for seconds."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn(*args, **options)


varlen_attn: Any = _varlen_attn if torch.__version__ >= "2.11" else None
"""None before PyTorch 2.11, whose kernel has no windows, which are how it is made causal."""


class Packing:
    """Takes the real positions out of a padded batch, and puts them back.

    Projections, feed-forward network, norms and dropout work on each position alone, so that they
    need no padding. Attention alone has to know which positions are of one sentence: a GPU's kernel
    is told where each one starts, for all others the rows are put back into (B, L).
    """

    def __init__(self, real: Bool[Tensor, "B L"]) -> None:
        """From where the real tokens are: at least one."""
        self.shape = real.shape
        self.positions = real.flatten().nonzero()[:, 0]
        self.rows = torch.zeros(real.numel(), dtype=torch.long, device=real.device)
        self.rows[self.positions] = torch.arange(len(self.positions), device=real.device)
        lengths = real.sum(dim=1)
        self.starts = F.pad(lengths.cumsum(dim=0), (1, 0)).int()
        """Sentence i has the rows starts[i] to starts[i + 1]."""
        self.longest = int(lengths.max())

    def to(self, device: torch.device | str) -> Packing:
        """The same on another device.

        A GPU need not be asked where the real positions are: the host knows.
        """
        moved = copy(self)
        on_gpu = torch.device(device).type == "cuda"
        for name in ("positions", "rows", "starts"):
            tensor = getattr(self, name)
            tensor = tensor.pin_memory() if on_gpu else tensor
            setattr(moved, name, tensor.to(device, non_blocking=on_gpu))
        return moved

    @classmethod
    def where_it_pays(
        cls, real: Bool[Tensor, "B L"], least_padding: float = 0.04
    ) -> Packing | None:
        """None where less than `least_padding` of the positions are padding.

        Packing costs some copies.
        """
        n_padding = real.numel() - int(real.sum())
        return cls(real) if n_padding > least_padding * real.numel() else None

    def pack(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "R D"]:
        """The rows of real positions, sentence after sentence."""
        return _Pack.apply(x.flatten(0, 1), self.positions)

    def unpack(self, x: Float[Tensor, "R D"]) -> Float[Tensor, "B L D"]:
        """Every row back in its place.

        A position of padding holds the first row, and gets no gradient. Attention gives padding
        no weight as a key, and `pack` leaves out what padding finds as a query.
        """
        return _Unpack.apply(x, self.rows, self.positions).view(*self.shape, -1)


class _Pack(torch.autograd.Function):
    """x[positions]; its gradient is 0 elsewhere.

    Positions are distinct, so that nothing has to be added up.
    """

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, positions_R: Tensor) -> Tensor:
        ctx.save_for_backward(positions_R)
        ctx.n = x_ND.size(0)
        return x_ND.index_select(0, positions_R)

    @staticmethod
    def backward(ctx: Any, grad_RD: Tensor) -> tuple[Tensor, None]:
        (positions_R,) = ctx.saved_tensors
        return grad_RD.new_zeros(ctx.n, grad_RD.size(1)).index_copy_(0, positions_R, grad_RD), None


class _Unpack(torch.autograd.Function):
    """x[rows], where the gradient of the real positions alone comes back."""

    @staticmethod
    def forward(ctx: Any, x_RD: Tensor, rows_N: Tensor, positions_R: Tensor) -> Tensor:
        ctx.save_for_backward(positions_R)
        return x_RD.index_select(0, rows_N)

    @staticmethod
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor, None, None]:
        (positions_R,) = ctx.saved_tensors
        return grad_ND.index_select(0, positions_R), None, None


Packings = tuple[Packing | None, Packing | None]
"""Of the source and of the target; None for a side that is padded."""


def packings_where_they_pay(
    model: Transformer, source: Int[Tensor, "B S"], target_in: Int[Tensor, "B T"]
) -> Packings:
    """The packing of each side of which more than a little is padding."""
    source_packing, packing = (
        Packing.where_it_pays(side != model.config.pad_id) for side in (source, target_in)
    )
    return source_packing, packing


def packed_decode(
    model: Transformer,
    source: Int[Tensor, "B S"],
    target_in: Int[Tensor, "B T"],
    packings: Packings | None = None,
) -> tuple[Float[Tensor, "R D"], Int[Tensor, "R"]]:
    """The decoder's output with little computed on padding, and the positions of its rows.

    The positions are among the B x T of `target_in`. The rows are those of `model.decode`, computed
    by the same layers; a test holds values and gradients equal. Each side is packed
    where it pays, so that a few rows may be padding, or as `packings` says.
    """
    mask = model.source_mask(source)
    source_packing, packing = packings or packings_where_they_pay(model, source, target_in)
    memory, x = model.embed(source), model.embed(target_in)
    memory = source_packing.pack(memory) if source_packing else memory
    x = packing.pack(x) if packing else x

    attend_source = partial(
        attend_packed, packing=source_packing, memory_packing=source_packing, mask=mask
    )
    for encoder_layer in model.encoder.layers:
        memory = encoder_layer(memory, None, attend_source)
    memory = model.encoder.norm(memory)
    attend_memory = partial(
        attend_packed, packing=packing, memory_packing=source_packing, memory=memory, mask=mask
    )
    attend_past = partial(attend_packed, packing=packing, memory_packing=packing, causal=True)
    for decoder_layer in model.decoder.layers:
        x = decoder_layer(x, attend_memory, attend_past=attend_past)
    x = model.decoder.norm(x)
    if packing:
        return x, packing.positions
    return x.flatten(0, 1), torch.arange(target_in.numel(), device=x.device)


def attend_packed(
    attention: MultiHeadAttention,
    x: Tensor,
    packing: Packing | None,
    memory_packing: Packing | None,
    memory: Tensor | None = None,
    mask: Bool[Tensor, "B 1 1 S"] | None = None,
    causal: bool = False,
) -> Tensor:
    """What `attention(x, memory, mask, causal)` gives where x is packed, memory is, or both.

    The output has the rows of x; without `memory` its keys are those of x. Where both are packed,
    and a GPU has a kernel for sentences of different lengths, no padding and no mask is made.
    """
    memory = x if memory is None else memory
    rows = attention.W_Q(x), attention.W_K(memory), attention.W_V(memory)
    if packing and memory_packing and fits_kernel(attention, rows[0]):
        heads = varlen_attn(
            *(each.unflatten(-1, (attention.h, -1)) for each in rows),
            packing.starts,
            memory_packing.starts,
            packing.longest,
            memory_packing.longest,
            scale=attention.scale,
            window_size=(-1, 0) if causal else (-1, -1),
        )
        return attention.W_O(heads.flatten(-2))
    queries, keys, values = (
        attention.split_heads(side.unpack(each) if side else each)
        for each, side in zip(rows, (packing, memory_packing, memory_packing), strict=True)
    )
    heads = attention.heads(queries, keys, values, mask, causal)
    return attention.W_O(packing.pack(heads) if packing else heads)


def has_kernel(device: torch.device) -> bool:
    """Whether this PyTorch and this GPU have attention for sentences of different lengths.

    The GPU must be of the generation Ampere or newer.
    """
    return (
        varlen_attn is not None
        and device.type == "cuda"
        and torch.cuda.get_device_properties(device).major >= 8
    )


def fits_kernel(attention: MultiHeadAttention, queries: Float[Tensor, "R HK"]) -> bool:
    """Whether FlashAttention 2 (Dao 2023) can take these queries.

    It needs 16 bits and d_k = d_v, a multiple of 8 up to 256; `varlen_attn` drops no weights.
    """
    d_k, d_v = (matrix.out_features // attention.h for matrix in (attention.W_K, attention.W_V))
    fits = d_k == d_v <= 256 and d_k % 8 == 0 and not (attention.dropout and attention.training)
    return fits and queries.dtype in (torch.bfloat16, torch.float16) and has_kernel(queries.device)
