"""Record attention weights as a model runs, and draw them (the paper's appendix)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from annotated_transformer.errors import require
from annotated_transformer.model.attention import MultiHeadAttention, attention_weights, causal_mask

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEAT_MAP = "cividis"
"""A colour map whose lightness grows evenly, much the same to most colour-blind readers."""


class Attention(NamedTuple):
    """One of the model's three attentions (section 3.2.3).

    `path.format(i)` names its module in layer i, as `record_attention` does.
    """

    title: str
    path: str


ATTENTIONS = {
    "encoder": Attention("Encoder self-attention", "encoder.layers.{}.self_attention"),
    "decoder": Attention("Decoder self-attention", "decoder.layers.{}.self_attention"),
    "cross": Attention("Encoder-decoder attention", "decoder.layers.{}.cross_attention"),
}


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """A dictionary that fills with attention weights "B h L S" as the model runs in the block.

    The keys are the names of the model's `MultiHeadAttention` modules. Each call of a module's
    `forward` computes the weights once more, from its own inputs, and replaces those of an earlier
    call; steps of a search and rows without padding are not recorded. The weights are those before
    attention dropout, and carry no gradient. Nothing stays on the model: its hooks are removed when
    the block ends, also by an error.

    >>> model = Transformer(ModelConfig.tiny(vocab_size=100))
    >>> with record_attention(model) as weights:
    ...     logits = model(torch.tensor([[5, 7, 2]]), torch.tensor([[1, 8]]))
    >>> weights["decoder.layers.0.cross_attention"].shape
    torch.Size([1, 4, 2, 3])
    """
    found: dict[str, Tensor] = {}

    def record(
        name: str, module: MultiHeadAttention, x: Tensor, memory: Tensor, mask: Tensor | None
    ) -> None:
        with torch.no_grad():
            keys, _ = module.keys_and_values(memory)
            queries = module.queries_of(module.W_Q(x))
            if module.scale is not None:
                # `attention_weights` divides by sqrt(d_k), a layer with scaled=False does not.
                queries = queries * (module.scale * queries.size(-1) ** 0.5)
            found[name] = attention_weights(queries, keys, mask)

    with attention_calls(model, record):
        yield found


@contextmanager
def attention_calls(model: nn.Module, see: Callable[..., None]) -> Iterator[None]:
    """Inside the block, `see(name, module, x, memory, mask)` before each attention computes.

    A causal attention comes with its mask. Calls whose keys are packed or cached, as in the steps
    of a search, are left out: they have no `memory` to see.
    """

    def hook(name: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # The caller may have given each argument by position or by name.
        call = inspect.signature(module.forward).bind(*args, **kwargs)
        call.apply_defaults()
        x, memory, mask, causal = (call.arguments[key] for key in ("x", "memory", "mask", "causal"))
        if isinstance(memory, Tensor):
            see(name, module, x, memory, causal_mask(x.size(1), x.device) if causal else mask)

    hooks = []
    try:
        for name, module in model.named_modules():
            if isinstance(module, MultiHeadAttention):
                call_hook = partial(hook, name)
                hooks.append(module.register_forward_pre_hook(call_hook, with_kwargs=True))
        yield
    finally:
        for handle in hooks:
            handle.remove()


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
        from matplotlib import pyplot as plt

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
