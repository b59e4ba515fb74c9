"""Attention weights as a heat map, with a token at each row and column (the paper's appendix)."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

from annotated_transformer.errors import require

HEAT_MAP = "cividis"
"""A colour map whose lightness grows evenly, much the same to most colour-blind readers."""


def plot_attention(
    weights: Float[Tensor, "L S"],
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """A heat map of one head's weights: a row for each query, a column for each key.

    Each row sums to 1. Colours run from 0 to the largest weight. Without `ax` there is a new
    figure, with a colour bar. Returns the axes. Raises ConfigError when the numbers of tokens and
    of weights differ.
    """
    require_tokens(weights, query_tokens, key_tokens)
    n_queries, n_keys = weights.shape
    own_figure = ax is None
    if ax is None:
        # Inches: 0.32 a token, and room for the labels and the colour bar.
        size = (max(2.5, 0.32 * n_keys + 1.6), max(2.2, 0.32 * n_queries + 1.2))
        ax = plt.subplots(figsize=size, layout="constrained")[1]
    values = weights.detach().float().cpu().numpy()
    image = ax.imshow(values, cmap=HEAT_MAP, vmin=0.0, aspect="auto")
    ax.set_xticks(range(n_keys), labels=list(key_tokens), rotation=90, parse_math=False)
    ax.set_yticks(range(n_queries), labels=list(query_tokens), parse_math=False)
    ax.set_xlabel("key (attended to)")
    ax.set_ylabel("query")
    if title:
        ax.set_title(title)
    if own_figure:
        ax.figure.colorbar(image, ax=ax, label="attention weight")
    return ax


def require_tokens(
    weights: Float[Tensor, "*B L S"], queries: Sequence[str], keys: Sequence[str]
) -> None:
    """Raise ConfigError unless there is a token for each query and each key of the weights."""
    n_queries, n_keys = weights.shape[-2:]
    require(
        (len(queries), len(keys)) == (n_queries, n_keys),
        f"the weights are {n_queries} queries by {n_keys} keys, "
        f"got {len(queries)} query tokens and {len(keys)} key tokens",
    )
