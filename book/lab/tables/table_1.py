"""Table 1 (section 4): the operations of a layer."""

from __future__ import annotations

from annotated_transformer.errors import ConfigError, require

LAYERS = (
    "self-attention",
    "recurrent",
    "convolutional",
    "restricted self-attention",
    "separable convolutional",
)
"""The rows of Table 1 in its order, and last the one that section 4's text adds."""


def layer_operations(layer: str, n: int, d: int, k: int = 3, r: int = 3, gates: int = 1) -> int:
    """The operations behind "complexity per layer" in Table 1: n vectors of d entries in, n out.

    A multiplication with its addition counts as two. As in the table, self-attention has its scores
    and its weighted mean, without projections; k is a convolution's kernel width and r the number
    of neighbours that restricted self-attention sees. A recurrence has a product with its input and
    one with its state for each of its `gates`, four in an LSTM. Softmax, tanh and biases are not
    counted. Raises ConfigError for a layer that is not in `LAYERS`.
    """
    require(min(n, d, k, r) >= 1, f"n, d, k and r must be at least 1, got {n}, {d}, {k} and {r}")
    if layer not in LAYERS:
        raise ConfigError(f"layer must be one of {', '.join(LAYERS)}, got {layer}")
    return {
        "self-attention": 4 * n * n * d,
        "recurrent": 4 * gates * n * d * d,
        "convolutional": 2 * k * n * d * d,
        "restricted self-attention": 4 * r * n * d,
        "separable convolutional": 2 * (k * n * d + n * d * d),
    }[layer]
