"""Take heads out of a trained model: W_i^O = 0 (the paper's appendix)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from annotated_transformer.errors import require
from annotated_transformer.extras.attention_views.record import ATTENTIONS
from annotated_transformer.model.attention import MultiHeadAttention
from annotated_transformer.model.transformer import Transformer

Head = tuple[MultiHeadAttention, int]
"""An attention module and the number of one of its heads, counted from 0."""


@contextmanager
def knocked_out(*heads: Head, even: bool = False) -> Iterator[None]:
    """The model without these heads inside the `with` block: W_i^O = 0.

        with knocked_out((model.encoder.layers[1].self_attention, 0)):
            model(source, target_in)

    With W^O cut into h blocks of d_v rows, MultiHead = sum_i A_i V_i W_i^O is a sum over heads: a
    head with W_i^O = 0 adds nothing to it, and the others are as they were. With `even` a head
    stays but cannot choose: W_i^Q = 0 makes all its scores equal, so that each query gives the same
    weight to every key that it may see. The weights come back when the block ends, also by an
    error. Raises ConfigError for a head that the module does not have.
    """
    for module, i in heads:
        require(0 <= i < module.h, f"head must be 0 to {module.h - 1}, got {i}")
    kept: dict[Tensor, Tensor] = {}
    for module in {module for module, _ in heads}:
        for parameter in module.W_Q.parameters() if even else [module.W_O.weight]:
            kept[parameter] = parameter.detach().clone()
    try:
        with torch.no_grad():
            for module, i in heads:
                if even:
                    for projection in module.W_Q.parameters():
                        projection.unflatten(0, (module.h, -1))[i] = 0.0
                else:
                    module.W_O.weight.unflatten(1, (module.h, -1))[:, i] = 0.0
        yield
    finally:
        with torch.no_grad():
            for parameter, values in kept.items():
                parameter.copy_(values)


def heads_of(model: Transformer, attention: str) -> list[list[Head]]:
    """The heads of one attention ("encoder", "decoder" or "cross"), [layer][head]."""
    modules = dict(model.named_modules())
    layers = [modules[ATTENTIONS[attention].path.format(i)] for i in range(model.config.N)]
    return [[(module, i) for i in range(model.config.h)] for module in layers]
