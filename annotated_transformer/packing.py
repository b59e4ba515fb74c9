"""Batches without their padding: the real positions of all sentences side by side, R rows instead of B x L."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from annotated_transformer.attention import MultiHeadAttention
from annotated_transformer.transformer import Transformer


class Packing:
    """Takes the real positions out of a padded batch, and puts them back.

    Projections, feed-forward network, norms and dropout work on each position alone, so that they need no padding.
    Attention alone has to know which positions are of one sentence; for it the rows are put back into (B, L).
    """

    def __init__(self, real: Bool[Tensor, "B L"]) -> None:
        """From where the real tokens are: at least one."""
        self.shape = real.shape
        self.positions = real.flatten().nonzero()[:, 0]
        self.rows = torch.zeros(real.numel(), dtype=torch.long, device=real.device)
        self.rows[self.positions] = torch.arange(len(self.positions), device=real.device)

    @classmethod
    def where_it_pays(cls, real: Bool[Tensor, "B L"], least_padding: float = 0.04) -> Packing | None:
        """None where less than `least_padding` of the positions are padding: packing costs some copies."""
        n_padding = real.numel() - int(real.sum())
        return cls(real) if n_padding > least_padding * real.numel() else None

    def pack(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "R D"]:
        """The rows of real positions, sentence after sentence."""
        return _Pack.apply(x.flatten(0, 1), self.positions)

    def unpack(self, x: Float[Tensor, "R D"]) -> Float[Tensor, "B L D"]:
        """Every row back in its place. A position of padding holds the first row, and gets no gradient.

        Attention gives padding no weight as a key, and `pack` leaves out what padding finds as a query.
        """
        return _Unpack.apply(x, self.rows, self.positions).view(*self.shape, -1)


class _Pack(torch.autograd.Function):
    """x[positions]; its gradient is 0 elsewhere. Positions are distinct, so that nothing has to be added up."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, positions_R: Tensor) -> Tensor:
        ctx.save_for_backward(positions_R)
        ctx.n = x_ND.size(0)
        return x_ND.index_select(0, positions_R)

    @staticmethod
    def backward(ctx: Any, grad_RD: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (positions_R,) = ctx.saved_tensors
        return grad_RD.new_zeros(ctx.n, grad_RD.size(1)).index_copy_(0, positions_R, grad_RD), None


class _Unpack(torch.autograd.Function):
    """x[rows], where the gradient of the real positions alone comes back."""

    @staticmethod
    def forward(ctx: Any, x_RD: Tensor, rows_N: Tensor, positions_R: Tensor) -> Tensor:
        ctx.save_for_backward(positions_R)
        return x_RD.index_select(0, rows_N)

    @staticmethod
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (positions_R,) = ctx.saved_tensors
        return grad_ND.index_select(0, positions_R), None, None


def packed_decode(
    model: Transformer, source: Int[Tensor, "B S"], target_in: Int[Tensor, "B T"]
) -> tuple[Float[Tensor, "R D"], Int[Tensor, "R"]]:
    """The decoder's output with little computed on padding, and which of the B x T positions its rows are.

    What `model.decode` gives at these positions, by the same layers with `packed_attention` in place of attention; a
    test holds values and gradients equal. Each side is packed where it pays, so that a few rows may be padding.
    """
    mask = model.source_mask(source)
    source_packing = Packing.where_it_pays(source != model.config.pad_id)
    packing = Packing.where_it_pays(target_in != model.config.pad_id)
    memory, x = model.embed(source), model.embed(target_in)
    memory = source_packing.pack(memory) if source_packing else memory
    x = packing.pack(x) if packing else x

    def attend_source(y: Tensor) -> Tensor:
        return packed_attention(encoder_layer.self_attention, y, y, source_packing, source_packing, mask)

    def attend_past(y: Tensor) -> Tensor:
        return packed_attention(decoder_layer.self_attention, y, y, packing, packing, causal=True)

    def attend_memory(y: Tensor) -> Tensor:
        return packed_attention(decoder_layer.cross_attention, y, memory, packing, source_packing, mask)

    for encoder_layer in model.encoder.layers:
        memory = encoder_layer.add_norm_1(memory, attend_source)
        memory = encoder_layer.add_norm_2(memory, encoder_layer.feed_forward)
    memory = model.encoder.norm(memory)
    for decoder_layer in model.decoder.layers:
        x = decoder_layer.add_norm_1(x, attend_past)
        x = decoder_layer.add_norm_2(x, attend_memory)
        x = decoder_layer.add_norm_3(x, decoder_layer.feed_forward)
    x = model.decoder.norm(x)
    if packing:
        return x, packing.positions
    return x.flatten(0, 1), torch.arange(target_in.numel(), device=x.device)


def packed_attention(
    attention: MultiHeadAttention,
    x: Float[Tensor, "*X D"],
    memory: Float[Tensor, "*M D"],
    packing: Packing | None,
    memory_packing: Packing | None,
    mask: Bool[Tensor, "B 1 1 S"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "*X D"]:
    """`attention(x, memory, mask, causal)`, where x, memory or both are packed; so is what comes back, as x is."""

    def projected(rows: Tensor, matrix: torch.nn.Module, packed: Packing | None) -> Tensor:
        rows = matrix(rows)
        return attention.split_heads(packed.unpack(rows) if packed else rows)

    heads = attention.heads(
        projected(x, attention.W_Q, packing),
        projected(memory, attention.W_K, memory_packing),
        projected(memory, attention.W_V, memory_packing),
        mask,
        causal,
    )
    return attention.W_O(packing.pack(heads) if packing else heads)
