"""Taking attention heads away (for the pictures of the appendix): what a head is for shows in what is lost without it.

With W^O cut into h blocks of d_v rows, MultiHead = sum_i A_i V_i W_i^O: a sum over heads. So a head is taken away by a
block of zeros, and the other heads are as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import comb

import torch
from jaxtyping import Bool
from torch import Tensor

from annotated_transformer.attention import MultiHeadAttention
from annotated_transformer.config import require

Head = tuple[MultiHeadAttention, int]
"""An attention module and the number of one of its heads, counted from 0."""


@contextmanager
def knocked_out(*heads: Head, even: bool = False) -> Iterator[None]:
    """The model without these heads, for the length of the `with` block: W_i^O = 0, so that each adds nothing.

        with knocked_out((model.encoder.layers[1].self_attention, 0)):
            model(source, target_in)

    With `even` a head stays but cannot choose: W_i^Q = 0 makes all its scores equal, so that each query gives the same
    weight to every key that it may see. The weights come back when the block ends, also by an error. Raises
    ConfigError for a head that the module does not have.
    """
    for module, i in heads:
        require(0 <= i < module.h, f"head must be 0 to {module.h - 1}, got {i}")
    changed = {parameter for module, _ in heads
               for parameter in ([*module.W_Q.parameters()] if even else [module.W_O.weight])}
    kept: dict[Tensor, Tensor] = {parameter: parameter.detach().clone() for parameter in changed}
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


def mcnemar(before: Bool[Tensor, "n"], after: Bool[Tensor, "n"]) -> float:
    """The p of McNemar's exact test: two-sided, for right and wrong answers to the same n questions.

    Only questions with two different answers count. If nothing has changed, each of them is as likely to go one way as
    the other, so that the smaller number of the two is binomial with one half (McNemar 1947, in its exact form).
    """
    lost, won = int((before & ~after).sum()), int((after & ~before).sum())
    n = lost + won
    tail = sum(comb(n, k) for k in range(min(lost, won) + 1))
    return min(1.0, 2 * tail / 2**n)
