"""In from `torch.nn.Transformer`, which has the stacks and neither vocabulary nor embedding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from annotated_transformer.checkpoint import directory as checkpoint, weights
from annotated_transformer.config import ModelConfig
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import require, shown
from annotated_transformer.files import require_room

NAMES_OF_ACTIVATIONS = {F.relu: "relu", F.gelu: "gelu", F.silu: "silu"}
EPS = nn.LayerNorm(1).eps


def import_transformer(
    module: nn.Transformer,
    embedding: nn.Embedding | Float[Tensor, "V D"],
    tokenizer: Tokenizer,
    out: str | Path,
    **settings: Any,
) -> Path:
    """Write the module's stacks and one `embedding` for its three uses as the checkpoint `out`.

    `settings` are those of ModelConfig that the module does not know, such as `positions`. Raises
    ConfigError for layers that differ, for another epsilon than LayerNorm's own, and for a module
    whose parameters have no place here.
    """
    out = Path(out)
    require_room(out, checkpoint.CHECKPOINT_FILES)
    table = embedding.weight if isinstance(embedding, nn.Embedding) else embedding
    last = module.decoder
    both = [*module.encoder.layers, *last.layers]
    n = len(both) - len(last.layers)
    require(n > 0, "the module must have layers, got 0 in its encoder")
    layer = both[0]
    # PyTorch copies a decoder layer whose activation is a module with relu in its place.
    other = next((x.activation for x in both if x.activation not in NAMES_OF_ACTIVATIONS), None)
    rule = "the activation must be a function, torch.nn.functional's relu, gelu or silu"
    require(other is None, f"{rule}, got {shown(other)}")
    has_norm = module.encoder.norm is not None
    alike = n == len(last.layers) and len(set(map(_form, both))) == 1
    alike = alike and has_norm == (last.norm is not None) and has_norm >= layer.norm_first
    require(alike, "encoder and decoder must be alike in their layers and in a norm at the end")
    require(layer.linear1.bias is not None, "the module must have biases, got bias=False")
    eps = layer.norm1.eps
    require(eps == EPS, f"layer_norm_eps must be {EPS}, got {eps}")
    config = ModelConfig(
        vocab_size=len(table),
        N=len(last.layers),
        d_model=layer.linear1.in_features,
        d_ff=layer.linear1.out_features,
        h=layer.self_attn.num_heads,
        p_drop=layer.dropout1.p,
        attention_dropout=layer.self_attn.dropout,
        ffn_dropout=layer.dropout.p,
        norm="pre" if layer.norm_first else "post",
        activation=NAMES_OF_ACTIVATIONS[layer.activation],  # type: ignore[arg-type]
        bias=True,
        final_norm=has_norm and not layer.norm_first,
        **settings,
    )
    checkpoint.require_vocabulary(tokenizer, config)
    tensors = {"embedding.weight": table.detach()}
    for name, tensor in module.state_dict().items():
        tensors.update(by_our_names(name, tensor))
    weights.without_weights(config, weights.shapes_of(tensors), out / "model.safetensors")
    return checkpoint.write_directory(out, config, tokenizer, tensors=tensors)


def _form(layer: Any) -> tuple[Any, ...]:
    """What a layer computes, but for its weights."""
    return layer.activation, layer.norm_first, layer.self_attn.num_heads, layer.norm1.eps


def by_our_names(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Views of the tensor by our names: three for the queries', keys' and values' in one."""
    for theirs, ours in (
        ("self_attn", "self_attention"),
        ("multihead_attn", "cross_attention"),
        ("out_proj", "W_O"),
        ("linear1", "feed_forward.W_1"),
        ("linear2", "feed_forward.W_2"),
        *((f".norm{i}.", f".add_norm_{i}.norm.") for i in (1, 2, 3)),
    ):
        name = name.replace(theirs, ours)
    before, is_three, part = name.partition("in_proj_")
    if not is_three:
        yield name, tensor
        return
    for matrix, third in zip(("W_Q", "W_K", "W_V"), tensor.chunk(3), strict=True):
        yield f"{before}{matrix}.{part}", third
