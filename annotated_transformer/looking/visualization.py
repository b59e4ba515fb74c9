"""Looking at attention (the paper's appendix): record weights, draw them, show their code."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from annotated_transformer.config import ConfigError, require
from annotated_transformer.model.attention import (
    MultiHeadAttention,
    Way,
    attention_weights,
    causal_mask,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Line colours that colour-blind readers can tell apart (Okabe and Ito 2008).

`use_style` makes them the default.
"""
SOURCES = "https://github.com/annotated-transformer/annotated-transformer/blob/main/"
"""Where the files of the package can be read."""
HEAT_MAP = "cividis"
"""A colour map whose lightness grows evenly, much the same to most colour-blind readers."""


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """A dictionary that fills with attention weights "B h L S" as the model runs in the block.

        with record_attention(model) as weights:
            model(source, target_in)
        weights["encoder.layers.0.self_attention"]

    The keys are the names of the model's `MultiHeadAttention` modules. Each call of a module's
    `forward` computes the weights once more, from its own inputs, and replaces what an earlier call
    left; steps of a search and rows without padding are not recorded. Weights are before attention
    dropout and carry no gradient. Nothing is kept on the model: the hooks go when the block ends,
    also by an error.
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
        if isinstance(mask, Way):
            return
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


def use_style() -> None:
    """Set matplotlib's defaults to the book's: palette, small light figures, no needless frame."""
    import matplotlib
    from cycler import cycler

    matplotlib.rcParams.update(
        {
            "axes.prop_cycle": cycler(color=list(PALETTE)),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.figsize": (5.5, 3.2),
            "figure.dpi": 100,
            "savefig.dpi": 100,
            "font.size": 9,
            "image.cmap": HEAT_MAP,
        }
    )


def show(*symbols: Any) -> None:
    """Show the source of functions, classes, methods or modules as the installed package has it.

    A notebook shows one highlighted listing under a link to the file, or to each file; a terminal
    prints the source. Raises ConfigError for what has no source of its own, such as a number.
    """
    listings = [_listing(symbol) for symbol in symbols]
    plain = "\n\n\n".join(source for _, source in listings)
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()):
        files = dict.fromkeys(f"[`{file}`]({SOURCES}{file})" for file, _ in listings if file)
        markdown = "\n\n".join((*files, f"```python\n{plain}\n```"))
        shell.display_pub.publish({"text/markdown": markdown, "text/plain": plain})
    else:
        print(plain)


def _listing(symbol: Any) -> tuple[str, str]:
    """The file of a symbol, from the package's folder on ("" for another's), and its source."""
    try:
        source = textwrap.dedent(inspect.getsource(symbol)).rstrip()
        module = inspect.getmodule(symbol)
    except (TypeError, OSError):
        needed = "a function, class, method or module with source"
        raise ConfigError(f"show needs {needed}, got {symbol!r}") from None
    ours = module is not None and module.__name__.split(".")[0] == __name__.split(".")[0]
    return (module.__name__.replace(".", "/") + ".py" if module and ours else "", source)
