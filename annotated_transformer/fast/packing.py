"""Batches without their padding: all real positions side by side, R rows instead of B x L."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from annotated_transformer.model.attention import MultiHeadAttention
from annotated_transformer.model.transformer import Transformer


class Packing:
    """Takes the real positions out of a padded batch, and puts them back.

    Projections, feed-forward network, norms and dropout work on each position alone, so they need
    no padding. Only attention has to know which positions belong to one sentence: for its kernel
    the rows are put back into (B, L). (On a GPU a kernel that takes packed rows was no faster in a
    whole step: LOG.md, "A quarter of an hour on a GPU".)
    """

    def __init__(self, real: Bool[Tensor, "B L"]) -> None:
        """`real` is True at real tokens, of which there is at least one."""
        self.shape = real.shape
        self.positions = real.flatten().nonzero()[:, 0]
        self.rows = torch.zeros(real.numel(), dtype=torch.long, device=real.device)
        self.rows[self.positions] = torch.arange(len(self.positions), device=real.device)

    @classmethod
    def where_it_pays(
        cls, real: Bool[Tensor, "B L"], least_padding: float = 0.04
    ) -> Packing | None:
        """None where at most `least_padding` of the positions are padding.

        Below that the copies cost what they save (LOG.md, "Padding: packed training").
        """
        n_padding = real.numel() - int(real.sum())
        return cls(real) if n_padding > least_padding * real.numel() else None

    def pack(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "R D"]:
        """The rows of real positions, sentence after sentence."""
        # Backward passes of our own, here and in `unpack`, gained nothing (LOG.md, "Padding: packed
        # training").
        return x.flatten(0, 1).index_select(0, self.positions)

    def unpack(self, x: Float[Tensor, "R D"]) -> Float[Tensor, "B L D"]:
        """Every row back in its place.

        A position of padding gets a copy of the first row. That changes no value and no gradient:
        attention gives no weight to a key at padding, and `pack` drops the output of a query there.
        """
        return x.index_select(0, self.rows).view(*self.shape, -1)


Packings = tuple[Packing | None, Packing | None]
"""Of the source and of the target; None for a side that stays padded."""


def packings_where_they_pay(
    model: Transformer, source: Int[Tensor, "B S"], target_in: Int[Tensor, "B T"]
) -> Packings:
    """The packing of each side, where enough of it is padding."""
    pad_id = model.config.pad_id
    return Packing.where_it_pays(source != pad_id), Packing.where_it_pays(target_in != pad_id)


def can_pack(model: Transformer) -> bool:
    """Whether every attention of the model reaches packed rows by an `Attend`, as ours does.

    A module that a user has put in the place of one may not.
    """
    attentions = [layer.self_attention for layer in (*model.encoder.layers, *model.decoder.layers)]
    attentions += [layer.cross_attention for layer in model.decoder.layers]
    return all(type(module).forward is MultiHeadAttention.forward for module in attentions)


def packed_decode(
    model: Transformer,
    source: Int[Tensor, "B S"],
    target_in: Int[Tensor, "B T"],
    packings: Packings | None = None,
) -> tuple[Float[Tensor, "R D"], Int[Tensor, "R"]]:
    """The decoder's output, with little computed on padding, and the position of each of its rows.

    A position is an index into the flattened `target_in`. The rows are those of `model.decode`,
    computed by the same layers; a test holds values and gradients equal. Each side is packed as
    `packings` says, by default where it pays; a side that is not packed keeps its padding as rows.
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
    """What `attention(x, memory, mask, causal)` gives where x, memory or both are packed.

    The output has the rows of x; without `memory` its keys are those of x.
    """
    memory = x if memory is None else memory
    rows = attention.W_Q(x), attention.W_K(memory), attention.W_V(memory)
    queries, keys, values = (
        side.unpack(each) if side else each
        for each, side in zip(rows, (packing, memory_packing, memory_packing), strict=True)
    )
    heads = in_float32_on_a_cpu(attention.heads)(
        attention.queries_of(queries),
        attention.keys_of(keys),
        attention.split_heads(values),
        mask,
        causal,
    )
    return attention.W_O(packing.pack(heads) if packing else heads)


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


def in_float32_on_a_cpu(heads: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`MultiHeadAttention.heads` that computes in float32 where tensors of bfloat16 are on a CPU.

    There the backward pass of PyTorch's kernel takes ten times as long in bfloat16 as in float32
    (2.13, with AMX), 29 % of a step of base.
    """

    def in_float32(*projected: Any) -> Tensor:
        if projected[0].dtype != torch.bfloat16 or projected[0].device.type != "cpu":
            return heads(*projected)
        with torch.autocast("cpu", enabled=False):
            return heads(*(x.float() for x in projected[:3]), *projected[3:])

    return in_float32
