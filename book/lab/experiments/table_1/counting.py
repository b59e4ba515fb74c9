"""Table 1, counted: the memory of each layer type, what waits in it, how far its ends are apart.

What is counted comes out the same on every run; what is timed stands in `timing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from annotated_transformer.errors import require
from lab.experiments.table_1.instruments import longest_chain, peak_bytes
from lab.experiments.table_1.layer_types import (
    LAYER_TYPES,
    convolution,
    layers_to_connect,
    make_layer,
    restricted_self_attention,
    self_attention,
    separable_convolution,
)
from lab.experiments.table_1.sweep import K, R, fit, settings, shape

STORED_LAYER, RESTRICTED = "self-attention, weights stored", "restricted self-attention"


def measured_memory(small: bool) -> Iterator[dict[str, Any]]:
    """Peak bytes of one layer for one sentence with gradients on, and their exponents."""
    for layer in LAYER_TYPES:
        by_the_largest_tensors = (2, 0) if layer == STORED_LAYER else (1, 1)
        for over, theory in zip("nd", by_the_largest_tensors):
            low_d = {STORED_LAYER: 16, RESTRICTED: 512}.get(layer, 64)
            low, other = (256, 64) if over == "n" else (low_d, 1024)
            if small:
                low, other = low // 8, other // 8
            sizes = [low * 2**i for i in range(4)]
            values = []
            for size in sizes:
                n, d = shape(over, size, other)
                x = torch.randn(1, n, d, requires_grad=True)
                values.append(peak_bytes(make_layer(layer, d, K, R), x))
            yield {
                "measure": "memory",
                "layer": layer,
                **settings(over, other),
                "theory": theory,
                "sizes": sizes,
                "bytes": values,
                "memory": fit(sizes, [float(v) for v in values]),
            }


def chain(layer: str, n: int, d: int) -> int:
    """Products that wait for one another in a layer.

    Counted on the device meta, where no recurrence is fused.
    """
    with torch.device("meta"):
        return longest_chain(make_layer(layer, d, K, 3)(torch.randn(1, n, d, requires_grad=True)))


def waiting(sizes: tuple[int, ...] = (16, 32, 64)) -> Iterator[dict[str, Any]]:
    """The chains of all layers; theory: n for a recurrence, else constant."""
    for layer in LAYER_TYPES:
        chains = [chain(layer, n, 8) for n in sizes]
        theory = sizes if layer.startswith("recurrent") else [chains[0]] * 3
        record = {"measure": "sequential", "layer": layer, "n": sizes, "chains": chains}
        yield {**record, "theory": theory}


def paths(lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    """Layers, or steps within one layer, from the first position to the last, by gradient.

    Here k = r = 3.
    """
    ones = torch.ones(2, 2, K, dtype=torch.float64) / (2 * K)
    kernel, mix = ones[:, :1], ones[..., 0]
    stacks: dict[str, Callable[[Tensor, int], Tensor]] = {
        "self-attention": lambda x, depth: self_attention(x),
        "convolutional": lambda x, depth: convolution(x, ones),
        "convolutional, dilated": lambda x, depth: convolution(x, ones, K**depth),
        "restricted self-attention": lambda x, depth: restricted_self_attention(x, 3),
        "separable convolutional": lambda x, depth: separable_convolution(x, kernel, mix),
    }
    theory: dict[str, Callable[[int], int]] = {
        "self-attention": lambda n: 1,
        "convolutional": lambda n: -(-(n - 1) // (K - 1)),
        "convolutional, dilated": lambda n: next(m for m in range(n) if K**m >= n),
        "restricted self-attention": lambda n: n - 1,
        "separable convolutional": lambda n: -(-(n - 1) // (K - 1)),
        "recurrent": lambda n: n - 1,
        "recurrent (LSTM)": lambda n: n - 1,
    }
    found: dict[str, list[int]] = {}
    for layer, stack in stacks.items():
        found[layer] = [layers_to_connect(stack, n) for n in lengths]
    # A recurrence is one layer, and a step in it for each further position.
    for layer in ("recurrent", "recurrent (LSTM)"):
        found[layer] = [chain(layer, n, 2) - chain(layer, 1, 2) for n in lengths]
        x = torch.randn(1, lengths[0], 2, requires_grad=True)
        [gradient] = torch.autograd.grad(make_layer(layer, 2)(x)[0, -1].sum(), x)
        depends = bool(gradient[0, 0].any())
        require(depends, f"the last output of {layer} does not depend on the first input")
    return [
        {"measure": "path", "layer": layer, "n": lengths, "steps": steps}
        | {"theory": [theory[layer](n) for n in lengths]}
        for layer, steps in found.items()
    ]
