"""Fast decoding with a trained model: few calls, weights laid out for few rows or in few bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import is_
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from annotated_transformer.errors import require
from annotated_transformer.fast.int8 import Int8Embedding
from annotated_transformer.fast.linear import LinearFunctions, linear_function
from annotated_transformer.model.decoding_state import DecodingState, LayerCache, added_mask
from annotated_transformer.model.stacks import DecoderLayer, EncoderLayer
from annotated_transformer.model.transformer import Transformer

KNOWN_TO_FAST_DECODER = (
    "norm", "positions=learned", "positions=concatenated", "positions=none", "activation", "bias",
    "scaled_attention", "rms_norm", "final_norm", "output_bias", "zero_start", "first_position",
    "attention_dropout", "ffn_dropout",
)  # fmt: skip
"""What a `FastDecoder` computes besides the paper's model (`ModelConfig.beyond`)."""


def search_model_for(
    model: Transformer, dtype: torch.dtype | None = None, keep_float16_copy: bool = False
) -> FastDecoder | Transformer:
    """What searches soonest with `model`: a `FastDecoder`, or the model itself, in float32.

    The model itself where it has an option that the `FastDecoder` does not know, and neither 8 nor
    16 bits are asked for; those raise ConfigError then. `dtype` is by default float16 for a
    `FastDecoder` on a GPU, else float32.
    """
    is_int8 = isinstance(model.embedding, Int8Embedding)
    if (
        model.config.beyond(KNOWN_TO_FAST_DECODER)
        and not is_int8
        and dtype in (None, torch.float32)
    ):
        return model
    on_gpu = model.embedding.weight.device.type == "cuda"
    default = torch.float16 if on_gpu else None
    return FastDecoder(model, keep_float16_copy, dtype or default)


class FastDecoder:
    """`Transformer.start` and `Transformer.step` for search: the same values, sooner.

    With few hypotheses, the overhead of calls costs as much as the matrix products. So this class
    avoids nested modules, fuses self-attention's W_Q, W_K and W_V into one matrix, and fuses all
    decoder layers' W_K and W_V for the source (LOG.md, "Steps without modules in modules"). Tensors
    have one row per hypothesis or source token.

    The model itself does not change. Fused matrices are copies, as large as a quarter of a base
    model; the other parameters are read in place. `start` copies the weights again after
    `load_state_dict` or an optimizer step. Changes that bypass PyTorch's version counter (`.data`,
    another dtype) need a new FastDecoder. Hooks are not called; `stands_for_model` is False then.

    `keep_float16_copy`: on a CPU, each matrix that float16 represents exactly (all of a float16
    checkpoint) gets a copy in 16 bits, and steps with few rows read the copy. Products and sums
    stay in float32; only the order of the sums differs.

    `dtype`: compute in float16 or bfloat16, from a copy of all parameters in that dtype; a GPU then
    reads half the bytes and multiplies faster. The logits have that dtype too; search turns them
    into probabilities in float32.
    """

    def __init__(
        self, model: Transformer, keep_float16_copy: bool = False, dtype: torch.dtype | None = None
    ) -> None:
        unknown = ", ".join(model.config.beyond(KNOWN_TO_FAST_DECODER))
        rule = "search with the model itself, in float32"
        require(not unknown, f"FastDecoder does not know this model's {unknown}: {rule}")
        is_int8 = isinstance(model.embedding, Int8Embedding)
        is_float32 = dtype in (None, torch.float32)
        require(is_float32 or not is_int8, f"a model in 8 bits cannot be in {dtype} as well")
        self.model = model
        self.config = model.config
        self.keep_float16_copy = keep_float16_copy
        self.dtype = dtype or model.embedding.weight.dtype
        self.modules = list(model.modules())
        self.parameters = list(model.parameters())
        self._copy_weights()

    def stands_for_model(self) -> bool:
        """Whether the model computes what this does.

        Not with a hook, nor with a module or parameter put in another's place since this was made.
        """
        modules = list(self.model.modules())
        is_same = len(modules) == len(self.modules) and all(map(is_, modules, self.modules))
        return (
            is_same
            and all(map(is_, self.model.parameters(), self.parameters))
            # PyTorch has no public name for these.
            and not any(m._forward_hooks or m._forward_pre_hooks for m in modules)  # noqa: SLF001
        )

    # Search runs in inference mode, and a parameter read there for the first time would become
    # an inference tensor, which can no longer be trained.
    @torch.inference_mode(False)
    def _copy_weights(self) -> None:
        model = self.model
        functions = LinearFunctions(self.keep_float16_copy, self.dtype)
        self.encoder_layers = [_FastLayer(layer, functions) for layer in model.encoder.layers]
        self.decoder_layers = [_FastLayer(layer, functions) for layer in model.decoder.layers]
        self.memory_norm, self.final_norm = (
            norm if isinstance(norm, nn.Identity) else functions.norm(norm)
            for norm in (model.encoder.norm, model.decoder.norm)
        )
        cross = [layer.cross_attention for layer in model.decoder.layers]
        projections = [linear for attention in cross for linear in (attention.W_K, attention.W_V)]
        self.memory_sizes = [linear.out_features for linear in projections]
        self.memory_W_KV = functions.fused_linear(projections)
        self.embedding_VD = functions.parameter(model.embedding.weight)
        self.positions = model.positions.forward
        if isinstance(model.embedding, Int8Embedding):
            self.logits = functions.linear(model.embedding.projection)
        else:
            bias = model.embedding.bias
            bias_V = None if bias is None else functions.parameter(bias)
            self.logits = linear_function(self.embedding_VD, bias_V, self.keep_float16_copy)
        self.versions = self._versions()

    def _versions(self) -> list[int]:
        # PyTorch counts the changes in place of each tensor, and has no public name for the count.
        return [parameter._version for parameter in self.parameters]  # noqa: SLF001

    def __reduce__(self) -> tuple[type[FastDecoder], tuple[Transformer, bool, torch.dtype]]:
        """Copying or pickling copies the model, and makes a FastDecoder of the copy."""
        return FastDecoder, (self.model, self.keep_float16_copy, self.dtype)

    @torch.no_grad()
    def start(self, source: Int[Tensor, "B S"]) -> DecodingState:
        """`Transformer.start`, without gradients.

        Raises ConfigError for a model in training mode.
        """
        is_ready = not self.model.training
        require(is_ready, "search needs a model in evaluation mode: call model.eval()")
        if self.versions != self._versions():
            self._copy_weights()
        if not source.numel():
            return self.model.start(source)
        b = len(source)
        x_RD = self.model.embed(source).flatten(0, 1).to(self.dtype)
        mask = added_mask(self.model.source_mask(source), x_RD.dtype)
        for layer in self.encoder_layers:
            x_RD = layer(x_RD, b, mask)
        parts = self.memory_W_KV(self.memory_norm(x_RD)).split(self.memory_sizes, dim=-1)
        heads = [_split_heads(part, b, self.config.h) for part in parts]
        caches = []
        for keys, values in zip(heads[::2], heads[1::2], strict=True):
            # Stored as K^T, in the order in which the product Q K^T reads them. The order is lost
            # when a sentence leaves the batch: keeping it gained nothing (LOG.md, "Attention of few
            # queries on a CPU").
            keys = keys.mT.contiguous().mT if is_batched(source) else keys.contiguous()
            caches.append(LayerCache(keys[:, :, :0], values[:, :, :0], keys, values.contiguous()))
        return DecodingState(caches, mask)

    @torch.no_grad()
    def step(self, tokens: Int[Tensor, "B W"], state: DecodingState) -> Float[Tensor, "B W V"]:
        """`Transformer.step`, without gradients."""
        if not tokens.numel():
            return self.model.step(tokens, state)
        embedded_RD = self.model.embedding.look_up(tokens.flatten(), self.embedding_VD)
        position = self.positions(1, state.position)
        x_RD = (embedded_RD * math.sqrt(self.config.d_model) + position).to(self.dtype)
        state.advance(tokens.size(1))
        for layer, cache in zip(self.decoder_layers, state.caches, strict=True):
            x_RD = layer(x_RD, len(tokens), state.target_mask, cache, state.memory_mask)
        return self.logits(self.final_norm(x_RD)).view(*tokens.shape, -1)


class _FastLayer:
    """An encoder or decoder layer on rows: the R positions of B sentences, side by side."""

    def __init__(self, layer: EncoderLayer | DecoderLayer, functions: LinearFunctions) -> None:
        own = layer.self_attention
        self.h = own.h
        self.scale = own.scale
        self.is_post_norm = layer.add_norm_1.post
        self.sizes = [linear.out_features for linear in (own.W_Q, own.W_K, own.W_V)]
        self.W_QKV = functions.fused_linear([own.W_Q, own.W_K, own.W_V])
        self.W_O = functions.linear(own.W_O)
        add_norms = [layer.add_norm_1, layer.add_norm_2]
        if isinstance(layer, DecoderLayer):
            self.cross_W_Q = functions.linear(layer.cross_attention.W_Q)
            self.cross_W_O = functions.linear(layer.cross_attention.W_O)
            add_norms.append(layer.add_norm_3)
        self.norms = [functions.norm(add_norm.norm) for add_norm in add_norms]
        self.W_1 = functions.linear(layer.feed_forward.W_1)
        self.W_2 = functions.linear(layer.feed_forward.W_2)
        activation = layer.feed_forward.activation
        self.activation = F.relu_ if isinstance(activation, nn.ReLU) else activation.forward

    def __call__(
        self,
        x_RD: Tensor,
        b: int,
        mask: Tensor | None,
        cache: LayerCache | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """The layer's output; with a cache, that of one step of the decoder."""
        x_RD = self.add_norm(0, x_RD, self.self_attention, b, mask, cache)
        if cache is not None:
            x_RD = self.add_norm(1, x_RD, self.cross_attention, memory_mask, cache)
        return self.add_norm(-1, x_RD, self.feed_forward)

    def add_norm(
        self, i: int, x_RD: Tensor, sublayer: Callable[..., Tensor], *arguments: Any
    ) -> Tensor:
        if self.is_post_norm:
            return self.norms[i](x_RD + sublayer(x_RD, *arguments))
        return x_RD + sublayer(self.norms[i](x_RD), *arguments)

    def self_attention(
        self, x_RD: Tensor, b: int, mask: Tensor | None, cache: LayerCache | None
    ) -> Tensor:
        parts = self.W_QKV(x_RD).split(self.sizes, dim=-1)
        queries, keys, values = (_split_heads(part, b, self.h) for part in parts)
        if cache is None:
            return self.W_O(self.fused_attention(queries, keys, values, mask))
        cache.append(keys, values)
        return self.W_O(self.attention(queries, cache.keys, cache.values, mask))

    def cross_attention(self, x_RD: Tensor, mask: Tensor | None, cache: LayerCache) -> Tensor:
        queries = _split_heads(self.cross_W_Q(x_RD), len(cache.memory_keys), self.h)
        heads = self.attention(queries, cache.memory_keys, cache.memory_values, mask)
        return self.cross_W_O(heads)

    def fused_attention(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        kernel = F.scaled_dot_product_attention
        return _join_heads(kernel(queries, keys, values, attn_mask=mask, scale=self.scale))

    def attention(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        if not is_batched(queries):
            return self.fused_attention(queries, keys, values, mask)
        scores = queries * (self.scale or queries.size(-1) ** -0.5) @ keys.transpose(2, 3)
        weights = (scores if mask is None else scores.add_(mask)).softmax(-1)
        return _join_heads(weights @ values)

    def feed_forward(self, x_RD: Tensor) -> Tensor:
        return self.W_2(self.activation(self.W_1(x_RD)))


def _split_heads(rows: Tensor, b: int, h: int) -> Tensor:
    """(B L, h d) as (B, h, L, d)."""
    return rows.view(b, len(rows) // b, h, -1).transpose(1, 2)


def _join_heads(heads: Tensor) -> Tensor:
    """(B, h, L, d) as (B L, h d)."""
    return heads.transpose(1, 2).flatten(2).flatten(0, 1)


def is_batched(sentences: Int[Tensor, "B ..."] | Float[Tensor, "B ..."]) -> bool:
    """Whether so many sentences attend faster by two batched products than by the fused kernel.

    On a CPU, with the source's keys stored as K^T, the products take 0.7 to 0.9 of the time from 16
    sentences on, and more for fewer (LOG.md, "Attention of few queries on a CPU").
    """
    return len(sentences) >= 16 and sentences.device.type == "cpu"
