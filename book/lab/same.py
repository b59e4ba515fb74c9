"""Chapter 0's listing and the package, held to each other: the same weights, the same numbers."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from annotated_transformer import Transformer
from lab import listing

Ours = TypeVar("Ours", bound=nn.Module)


def with_weights(ours: Ours, theirs: nn.Module) -> Ours:
    """A module of the listing, with the weights of the package's module of the same form.

    The two name their parts alike but for a stack, which is a list here, and the embedding, E.
    """
    state = theirs.state_dict()
    names = {name: name.replace(".layers.", ".").replace("embedding.weight", "E") for name in state}
    ours.load_state_dict({names[name]: weight for name, weight in state.items()})
    return ours.train(theirs.training)


def listing_of(model: Transformer) -> nn.Module:
    """The listing's Transformer with the sizes and the weights of a model of the package."""
    c = model.config
    sizes = c.vocab_size, c.N, c.d_model, c.d_ff, c.h, c.p_drop
    return with_weights(listing.Transformer(*sizes), model)


def equal(ours: Tensor, theirs: Tensor) -> str:
    """A line that says so; AssertionError where two numbers differ by more than rounding."""
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    return f"listing and package are equal in {' x '.join(map(str, ours.shape))} numbers"
