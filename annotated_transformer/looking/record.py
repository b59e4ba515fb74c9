"""Record attention weights as a model runs, and draw them (the paper's appendix)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from annotated_transformer.errors import require
from annotated_transformer.model.attention import (
    MultiHeadAttention,
    attention_weights,
    causal_mask,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEAT_MAP = "cividis"
"""A colour map whose lightness grows evenly, much the same to most colour-blind readers."""


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """A dictionary that fills with attention weights "B h L S" as the model runs in the block.

    The keys are the names of the model's `MultiHeadAttention` modules. Each call of a module's
    `forward` computes the weights once more, from its own inputs, and replaces what an earlier call
    left; steps of a search and rows without padding are not recorded. Weights are before attention
    dropout and carry no gradient. Nothing is kept on the model: the hooks go when the block ends,
    also by an error.

    >>> model = Transformer(ModelConfig.tiny(vocab_size=100))
    >>> with record_attention(model) as weights:
    ...     logits = model(torch.tensor([[5, 7, 2]]), torch.tensor([[1, 8]]))
    >>> weights["decoder.layers.0.cross_attention"].shape
    torch.Size([1, 4, 2, 3])
    """
    found: dict[str, Tensor] = {}
    hooks = []
    try:
        for name, module in model.named_modules():
            if isinstance(module, MultiHeadAttention):
                record = _recorder(name, found)
                hooks.append(module.register_forward_pre_hook(record, with_kwargs=True))
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _recorder(name: str, found: dict[str, Tensor]) -> Callable[..., None]:
    def record(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = inspect.signature(module.forward).bind(*args, **kwargs)
        call.apply_defaults()
        x, memory, mask, causal = (call.arguments[key] for key in ("x", "memory", "mask", "causal"))
        if not isinstance(memory, Tensor):
            return  # packed or cached keys
        with torch.no_grad():
            keys, _ = module.keys_and_values(memory)
            if causal:
                mask = causal_mask(x.size(1), x.device)
            queries = module.split_heads(module.W_Q(x))
            if module.scale is not None:
                # `attention_weights` divides by sqrt(d_k), a layer with scaled=False does not.
                queries = queries * (module.scale * queries.size(-1) ** 0.5)
            found[name] = attention_weights(queries, keys, mask)

    return record


def plot_attention(
    weights: Float[Tensor, "L S"],
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """A heat map of one head's weights: a row for each query, a column for each key.

    Each row sums to 1. Colours run from 0 to the largest weight; a new figure gets a colour bar.
    Returns the axes. Raises ConfigError when the numbers of tokens and of weights differ.
    """
    n_queries, n_keys = weights.shape
    require(
        (len(query_tokens), len(key_tokens)) == (n_queries, n_keys),
        f"the weights are {n_queries} queries by {n_keys} keys, "
        f"got {len(query_tokens)} query tokens and {len(key_tokens)} key tokens",
    )
    own_figure = ax is None
    if ax is None:
        from matplotlib import pyplot as plt

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
