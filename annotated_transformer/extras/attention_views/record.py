"""Record attention weights as a model runs (the paper's appendix)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from annotated_transformer.model.attention import MultiHeadAttention, attention_weights, causal_mask


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
