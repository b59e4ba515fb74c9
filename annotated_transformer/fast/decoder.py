"""Decoding fast with a trained model: few calls, weights stored for few rows or in few bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from annotated_transformer.errors import require
from annotated_transformer.fast.int8 import Int8Embedding
from annotated_transformer.fast.linear import LinearFunctions, as_function
from annotated_transformer.model.decoding_state import DecodingState, LayerCache, added_mask
from annotated_transformer.model.stacks import DecoderLayer, EncoderLayer
from annotated_transformer.model.transformer import Transformer


class FastDecoder:
    """`start` and `step` of a model in evaluation mode, with the same values, for search.

    In a step of few hypotheses the calls between the products take as long as the products. So here
    they are few: no modules inside modules, self-attention's W_Q, W_K and W_V fused into one, and
    all of the decoder's W_K and W_V for the source, a row for each hypothesis or source token.

    The model is left as it is. Matrices of one product are copied side by side, a quarter of a base
    model once more; its other parameters are read where they are. `start` copies again when the
    model's parameters have changed, be it by `load_state_dict` or by an optimizer, so that they
    count. What PyTorch does not count as a change of a parameter (`.data`, another dtype, another
    parameter in its place) needs a new FastDecoder; hooks are not called.

    `keep_float16_copy`: on a CPU, matrices whose numbers float16 holds exactly, as those of a
    float16 checkpoint are, get a copy in 16 bits, which steps of few rows read. Products and sums
    stay in float32, only the order of the sums differs.

    `dtype`: compute in float16 or bfloat16, from a copy of all parameters in that type; a GPU then
    reads half the bytes, and multiplies faster. Logits come in that type too, and are turned into
    probabilities in float32.
    """

    def __init__(
        self, model: Transformer, keep_float16_copy: bool = False, dtype: torch.dtype | None = None
    ) -> None:
        is_int8 = isinstance(model.embedding, Int8Embedding)
        is_float32 = dtype in (None, torch.float32)
        require(is_float32 or not is_int8, f"a model in 8 bits cannot be in {dtype} as well")
        self.model, self.config, self.keep_float16_copy = model, model.config, keep_float16_copy
        self.dtype = dtype or model.embedding.weight.dtype
        self.weights = list(model.parameters())
        self._prepare()

    @torch.inference_mode(False)
    def _prepare(self) -> None:
        model, functions = self.model, LinearFunctions(self.keep_float16_copy, self.dtype)
        self.encoder_layers = [_EncoderLayer(layer, functions) for layer in model.encoder.layers]
        self.layers = [_DecoderLayer(layer, functions) for layer in model.decoder.layers]
        has_final_norms = model.config.norm == "pre"
        self.memory_norm = functions.norm(model.encoder.norm) if has_final_norms else None
        self.final_norm = functions.norm(model.decoder.norm) if has_final_norms else None
        cross = [layer.cross_attention for layer in model.decoder.layers]
        memory_projections = [
            linear for attention in cross for linear in (attention.W_K, attention.W_V)
        ]
        self.memory_sizes = [linear.out_features for linear in memory_projections]
        self.memory_W_KV = functions.fused(memory_projections)
        self.embedding_VD = functions.parameter(model.embedding.weight)
        self.positions = model.positions.forward
        if isinstance(model.embedding, Int8Embedding):
            self.logits = functions.of(model.embedding.projection)
        else:
            self.logits = as_function(self.embedding_VD, None, self.keep_float16_copy)
        self.copies = functions.copies
        self.parameter_versions = self._versions()

    def _versions(self) -> list[int]:
        # How often each parameter was changed in place: PyTorch has no other name for it.
        return [parameter._version for parameter in self.weights]  # noqa: SLF001

    def _follow_the_model(self) -> None:
        """Copy its parameters again, to where they were: there a graph reads them."""
        if self.keep_float16_copy:
            self._prepare()
            return
        with torch.inference_mode(False), torch.no_grad():
            for copy, parameter in self.copies:
                copy.copy_(parameter)
        self.parameter_versions = self._versions()

    def __reduce__(self) -> tuple[type[FastDecoder], tuple[Transformer, bool, torch.dtype]]:
        """A copy belongs to a copy of the model."""
        return FastDecoder, (self.model, self.keep_float16_copy, self.dtype)

    @torch.no_grad()
    def start(self, source: Int[Tensor, "B S"]) -> DecodingState:
        """`Transformer.start`, without gradients.

        Raises ConfigError for a model in training mode.
        """
        is_ready = not self.model.training
        require(is_ready, "search needs a model in evaluation mode: call model.eval()")
        if self.parameter_versions != self._versions():
            self._follow_the_model()
        if not source.numel():
            return self.model.start(source)
        b, x_RD = len(source), self.model.embed(source).flatten(0, 1).to(self.dtype)
        mask = added_mask(self.model.source_mask(source), x_RD.dtype)
        for layer in self.encoder_layers:
            x_RD = layer.forward(x_RD, b, mask)
        projected = self.memory_W_KV(self.memory_norm(x_RD) if self.memory_norm else x_RD)
        parts = projected.split(self.memory_sizes, dim=-1)
        heads = [_heads(part, b, self.config.h) for part in parts]
        batched, caches = is_batched(source), []
        for keys, values in zip(heads[::2], heads[1::2], strict=True):
            keys = _stored_as_transpose(keys) if batched else keys.contiguous()
            caches.append(LayerCache(keys[:, :, :0], values[:, :, :0], keys, values.contiguous()))
        return DecodingState(caches, mask)

    @torch.no_grad()
    def step(self, tokens: Int[Tensor, "B W"], state: DecodingState) -> Float[Tensor, "B W V"]:
        """`Transformer.step`, without gradients."""
        if not tokens.numel():
            return self.model.step(tokens, state)
        position = self.positions(1, state.position)
        state.advance(tokens.size(1))
        masks = state.target_mask, state.memory_mask
        return self.logits_after(tokens, position, state.caches, *masks)

    def logits_after(
        self,
        tokens: Int[Tensor, "B W"],
        position: Float[Tensor, "1 D"] | float,
        caches: Sequence[LayerCache],
        target_mask: Float[Tensor, "B 1 W T"] | None,
        memory_mask: Float[Tensor, "B 1 1 S"] | None,
    ) -> Float[Tensor, "B W V"]:
        """A step's arithmetic: all that depends on the values of tensors, and on nothing else."""
        embedded_RD = F.embedding(tokens.flatten(), self.embedding_VD)
        x_RD = (embedded_RD * math.sqrt(self.config.d_model) + position).to(self.dtype)
        for layer, layer_cache in zip(self.layers, caches, strict=True):
            x_RD = layer.step(x_RD, layer_cache, target_mask, memory_mask)
        logits_RV = self.logits(self.final_norm(x_RD) if self.final_norm else x_RD)
        return logits_RV.view(*tokens.shape, -1)


class _Layer:
    """What a layer of the encoder and one of the decoder have in common.

    They work on rows: the R positions of B sentences, side by side.
    """

    def __init__(self, layer: EncoderLayer | DecoderLayer, functions: LinearFunctions) -> None:
        own, feed_forward = layer.self_attention, layer.feed_forward
        self.h, self.scale, self.is_post_norm = own.h, own.scale, layer.add_norm_1.post
        self.sizes = [linear.out_features for linear in (own.W_Q, own.W_K, own.W_V)]
        self.W_QKV = functions.fused([own.W_Q, own.W_K, own.W_V])
        unfused = own.W_O, feed_forward.W_1, feed_forward.W_2
        self.self_W_O, self.W_1, self.W_2 = map(functions.of, unfused)
        activation = feed_forward.activation
        self.activation = F.relu_ if isinstance(activation, nn.ReLU) else activation.forward

    def add_norm(
        self,
        x_RD: Tensor,
        norm: Callable[[Tensor], Tensor],
        sublayer: Callable[..., Tensor],
        *of: Any,
    ) -> Tensor:
        if self.is_post_norm:
            return norm(x_RD + sublayer(x_RD, *of))
        return x_RD + sublayer(norm(x_RD), *of)

    def queries_keys_values(self, x_RD: Tensor, b: int) -> list[Tensor]:
        return [_heads(part, b, self.h) for part in self.W_QKV(x_RD).split(self.sizes, dim=-1)]

    def attention(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        fused: bool = False,
    ) -> Tensor:
        if fused or not is_batched(queries):
            kernel = F.scaled_dot_product_attention
            heads = kernel(queries, keys, values, attn_mask=mask, scale=self.scale)
        else:
            scores = queries * (self.scale or queries.size(-1) ** -0.5) @ keys.transpose(2, 3)
            heads = (scores if mask is None else scores.add_(mask)).softmax(-1) @ values
        return heads.transpose(1, 2).flatten(2).flatten(0, 1)

    def feed_forward(self, x_RD: Tensor) -> Tensor:
        return self.W_2(self.activation(self.W_1(x_RD)))


class _EncoderLayer(_Layer):
    def __init__(self, layer: EncoderLayer, functions: LinearFunctions) -> None:
        super().__init__(layer, functions)
        self.norms = functions.norm(layer.add_norm_1.norm), functions.norm(layer.add_norm_2.norm)

    def forward(self, x_RD: Tensor, b: int, mask: Tensor | None) -> Tensor:
        x_RD = self.add_norm(x_RD, self.norms[0], self.self_attention, b, mask)
        return self.add_norm(x_RD, self.norms[1], self.feed_forward)

    def self_attention(self, x_RD: Tensor, b: int, mask: Tensor | None) -> Tensor:
        queries, keys, values = self.queries_keys_values(x_RD, b)
        return self.self_W_O(self.attention(queries, keys, values, mask, fused=True))


class _DecoderLayer(_Layer):
    """A step of R = B W hypotheses."""

    def __init__(self, layer: DecoderLayer, functions: LinearFunctions) -> None:
        super().__init__(layer, functions)
        cross = layer.cross_attention
        self.cross_W_Q, self.cross_W_O = functions.of(cross.W_Q), functions.of(cross.W_O)
        add_norms = layer.add_norm_1, layer.add_norm_2, layer.add_norm_3
        self.norms = [functions.norm(add_norm.norm) for add_norm in add_norms]

    def step(
        self,
        x_RD: Tensor,
        layer_cache: LayerCache,
        target_mask: Tensor | None,
        memory_mask: Tensor | None,
    ) -> Tensor:
        x_RD = self.add_norm(x_RD, self.norms[0], self.self_attention, layer_cache, target_mask)
        x_RD = self.add_norm(x_RD, self.norms[1], self.cross_attention, layer_cache, memory_mask)
        return self.add_norm(x_RD, self.norms[2], self.feed_forward)

    def self_attention(self, x_RD: Tensor, layer_cache: LayerCache, mask: Tensor | None) -> Tensor:
        queries, keys, values = self.queries_keys_values(x_RD, len(layer_cache.memory_keys))
        layer_cache.append(keys, values)
        return self.self_W_O(self.attention(queries, layer_cache.keys, layer_cache.values, mask))

    def cross_attention(self, x_RD: Tensor, layer_cache: LayerCache, mask: Tensor | None) -> Tensor:
        keys, values = layer_cache.memory_keys, layer_cache.memory_values
        queries = _heads(self.cross_W_Q(x_RD), len(keys), self.h)
        return self.cross_W_O(self.attention(queries, keys, values, mask))


def _heads(rows: Tensor, b: int, h: int) -> Tensor:
    """(B L, h d) as (B, h, L, d)."""
    return rows.view(b, len(rows) // b, h, -1).transpose(1, 2)


def _stored_as_transpose(keys: Tensor) -> Tensor:
    return keys.transpose(2, 3).contiguous().transpose(2, 3)


def is_batched(sentences: Int[Tensor, "B ..."] | Float[Tensor, "B ..."]) -> bool:
    """Whether on a CPU, for so many sentences, batched products attend faster than a fused kernel.

    With the source's keys stored as K^T it takes 0.7 to 0.9 of the time, and more for a few
    (LOG.md).
    """
    return len(sentences) >= 16 and sentences.device.type == "cpu"
