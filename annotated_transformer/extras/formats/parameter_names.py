"""Hugging Face's names for the parameters of a Transformer, and the order of its channels.

Marian, Pegasus and FSMT share the names. Marian and Pegasus store all sines before all cosines,
where the paper interleaves them: their channel j is our channel p[j], p = 0, 2, 4, ..., 1, 3, 5,
... So every side of a matrix that is the residual stream is put into that order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from annotated_transformer.config import ModelConfig

TABLE, LOGITS_BIAS = "model.shared.weight", "final_logits_bias"
"""Their names for the shared embedding and, (1, V), for the bias of the logits."""
NEVER = -100.0
"""A bias of the logits by which no search takes a token, and no loss becomes infinite."""


class Parameter(NamedTuple):
    """Our name for a parameter, theirs, and which of its axes is the residual stream, if any."""

    ours: str
    theirs: str
    axis: int | None


def parameters(config: ModelConfig, table: str = TABLE) -> Iterator[Parameter]:
    """Every parameter that both have; attention's biases too, which ours may lack."""
    yield Parameter("embedding.weight", table, 1)
    for stack, attentions in (("encoder", _ATTENTIONS[:1]), ("decoder", _ATTENTIONS)):
        for i in range(config.N):
            layer = f"{stack}.layers.{i}"
            for number, (ours, theirs) in enumerate(attentions, 1):
                attention = f"{layer}.{ours}", f"model.{layer}.{theirs}"
                for matrix, name, weight_axis, bias_axis in _PROJECTIONS:
                    yield from _linear(*attention, matrix, name, weight_axis, bias_axis)
                yield from _norm(f"{layer}.add_norm_{number}.norm", f"{attention[1]}_layer_norm")
            last = f"{layer}.add_norm_{len(attentions) + 1}.norm"
            yield from _linear(f"{layer}.feed_forward", f"model.{layer}", "W_1", "fc1", 1, None)
            yield from _linear(f"{layer}.feed_forward", f"model.{layer}", "W_2", "fc2", 0, 0)
            yield from _norm(last, f"model.{layer}.final_layer_norm")
        if config.norm == "pre":
            yield from _norm(f"{stack}.norm", f"model.{stack}.layer_norm")


_ATTENTIONS = ("self_attention", "self_attn"), ("cross_attention", "encoder_attn")
_PROJECTIONS = (
    ("W_Q", "q_proj", 1, None),
    ("W_K", "k_proj", 1, None),
    ("W_V", "v_proj", 1, None),
    ("W_O", "out_proj", 0, 0),
)


def _linear(
    ours: str, theirs: str, matrix: str, name: str, weight_axis: int, bias_axis: int | None
) -> Iterator[Parameter]:
    yield Parameter(f"{ours}.{matrix}.weight", f"{theirs}.{name}.weight", weight_axis)
    yield Parameter(f"{ours}.{matrix}.bias", f"{theirs}.{name}.bias", bias_axis)


def _norm(ours: str, theirs: str) -> Iterator[Parameter]:
    for part in ("weight", "bias"):
        yield Parameter(f"{ours}.{part}", f"{theirs}.{part}", 0)


def sines_first(d_model: int) -> Int[Tensor, "D"]:
    """Our channels in the order in which Marian has them: 0, 2, 4, ..., 1, 3, 5, ..."""
    channels = torch.arange(d_model)
    return torch.cat([channels[0::2], channels[1::2]])


def in_order(tensor: Tensor, axis: int | None, order: Int[Tensor, "D"] | None) -> Tensor:
    """The tensor with the channels of its `axis` in this order."""
    return tensor if axis is None or order is None else tensor.index_select(axis, order)
