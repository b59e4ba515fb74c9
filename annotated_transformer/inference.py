"""A trained model made ready to decode fast: steps of few calls, weights laid out for few rows, in 16 or 8 bits."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from annotated_transformer.config import ConfigError, require
from annotated_transformer.embedding import SharedEmbedding
from annotated_transformer.stacks import DecoderLayer, LayerCache
from annotated_transformer.transformer import DecodingState, Transformer


def lay_out(model: Transformer) -> Transformer:
    """Store the model's matrices column by column, in place; the same numbers, and nothing else changes.

    x W^T with few rows of x reads all of W. PyTorch keeps W (out, in) row by row, so that a kernel has to gather or
    copy it first; the transposed copy is read in order. Training, whose x has many rows, gains nothing from it.
    """
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = _column_by_column(parameter.data)
    return model


def _column_by_column(weight: Float[Tensor, "O I"]) -> Float[Tensor, "O I"]:
    return weight.t().contiguous().t()


class Int8Linear(nn.Module):
    """x W^T + b with W and x rounded to 8 bits: W once, row by row, x at each call, as a whole.

    w is s_w q_w with an integer -127 <= q_w <= 127 and s_w = max |w| / 127 of its row; x is s_x (q_x - z), with 256
    steps from its least to its largest entry, or 128 where the CPU's sums would not be exact. So an output depends a
    little on what else is in the batch. The kernels are PyTorch's own.
    """

    def __init__(self, weight: Float[Tensor, "O I"], bias: Float[Tensor, "O"] | None = None) -> None:
        super().__init__()
        self.out_features = weight.size(0)
        weight = weight.detach().contiguous()
        scales = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
        zeros = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*quantized tensor creation functions.*deprecated")
            rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(rounded, None if bias is None else bias.detach())

    def forward(self, x: Float[Tensor, "*B I"]) -> Float[Tensor, "*B O"]:
        if x.numel() == 0:
            return x.new_empty(*x.shape[:-1], self.out_features)
        return torch.ops.quantized.linear_dynamic.default(x, self.packed, reduce_range=not _sums_are_exact())

    @property
    def weight(self) -> Float[Tensor, "O I"]:
        """W as it was rounded."""
        return torch.ops.quantized.linear_unpack(self.packed)[0].dequantize()

    @property
    def bias(self) -> Float[Tensor, "O"] | None:
        return torch.ops.quantized.linear_unpack(self.packed)[1]

    def get_extra_state(self) -> Any:
        raise ConfigError("a model in 8 bits cannot be saved: save it as it was before")


@cache
def _sums_are_exact() -> bool:
    """Whether this CPU adds products of 8 bits without overflow; those without VNNI add pairs of them in 16 bits."""
    layer = Int8Linear(torch.ones(1, 64))
    return torch.ops.quantized.linear_dynamic.default(torch.ones(1, 64), layer.packed, reduce_range=False).item() > 63


class _Int8Logits(SharedEmbedding):
    """The shared embedding, with its projection in 8 bits; tokens are still looked up in float32."""

    def __init__(self, embedding: SharedEmbedding) -> None:
        nn.Module.__init__(self)
        self.weight = embedding.weight
        self.projection = Int8Linear(embedding.weight)

    def logits(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        return self.projection(x)


def quantize(model: Transformer) -> Transformer:
    """Put every linear layer and the projection to logits into 8 bits, in place: for decoding on a CPU alone.

    Embeddings, norms, softmax and attention stay in float32. Such a model cannot be saved. Raises ConfigError where
    PyTorch has no such kernels, and unless the model is in float32, on the CPU and not in 8 bits already.
    """
    weight = model.embedding.weight
    require(weight.device.type == "cpu" and weight.dtype == torch.float32, "int8 needs a model in float32 on the CPU")
    require(not isinstance(model.embedding, _Int8Logits), "the model is in 8 bits already")
    engines = {"x86", "fbgemm", "onednn", "qnnpack"} & set(torch.backends.quantized.supported_engines)
    require(bool(engines) and hasattr(torch, "quantize_per_channel"), "this PyTorch has no 8-bit kernels for its CPU")
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8Linear(child.weight, child.bias))
    model.embedding = _Int8Logits(model.embedding)
    return model.train(model.training)


class InferenceModel:
    """`start` and `step` of a model in evaluation mode, with the same values, for search.

    In a step of few hypotheses the calls between the products take as long as the products. So here they are few: no
    modules inside modules, self-attention's W_Q, W_K and W_V as one product, a row for each hypothesis. The model's
    parameters are used as they are, those three as parts of one matrix, so that nothing is held twice and weights that
    are loaded into the model count; hooks on the decoder's modules do not, and a model that changes its type or its
    modules needs a new one. In 8 bits the three are packed once more.

    `copy_halves`: on a CPU, matrices whose numbers float16 holds exactly, as those of a float16 checkpoint are, get a
    copy in 16 bits, which steps of few rows read. Products and sums stay in float32, only the order of the sums
    differs. `start` makes the copies anew when weights have changed.
    """

    def __init__(self, model: Transformer, copy_halves: bool = False) -> None:
        self.model, self.config, self.copy_halves = model, model.config, copy_halves
        self.weights = list(model.parameters())
        self._make_ready()

    def _make_ready(self) -> None:
        model, copy_halves = self.model, self.copy_halves
        self.layers = [_LayerSteps(layer, copy_halves) for layer in model.decoder.layers]
        self.final_norm = _norm(model.decoder.norm) if model.config.norm == "pre" else None
        self.embedding_VD, self.positions = model.embedding.weight.detach(), model.positions.forward
        projection = model.embedding.projection if isinstance(model.embedding, _Int8Logits) else model.embedding
        self.logits = _product(projection, copy_halves)
        self.versions = [parameter._version for parameter in self.weights]

    def __reduce__(self) -> tuple[type[InferenceModel], tuple[Transformer, bool]]:
        return InferenceModel, (self.model, self.copy_halves)  # a copy shares its weights with the copy of the model

    @torch.no_grad()
    def start(self, source: Int[Tensor, "B S"]) -> DecodingState:
        """`Transformer.start`, without gradients. Raises ConfigError for a model in training mode."""
        require(not self.model.training, "search needs a model in evaluation mode: call model.eval()")
        if self.copy_halves and self.versions != [parameter._version for parameter in self.weights]:
            with torch.inference_mode(False):
                self._make_ready()
        state = self.model.start(source)
        if _is_batched(source):
            for layer_cache in state.caches:
                keys, values = layer_cache.memory_keys, layer_cache.memory_values
                layer_cache.memory_keys = keys.transpose(2, 3).contiguous().transpose(2, 3)
                layer_cache.memory_values = values.contiguous()
        return state

    @torch.no_grad()
    def step(self, tokens: Int[Tensor, "B W"], state: DecodingState) -> Float[Tensor, "B W V"]:
        """`Transformer.step`, without gradients."""
        if not tokens.numel():
            return self.model.step(tokens, state)
        position = self.positions(1, state.position)
        state.advance(tokens.size(1))
        return self.logits_after(tokens, position, state.caches, state.target_mask, state.memory_mask)

    def logits_after(
        self,
        tokens: Int[Tensor, "B W"],
        position: Float[Tensor, "1 D"] | float,
        caches: Sequence[Any],
        target_mask: Float[Tensor, "B 1 W T"] | None,
        memory_mask: Float[Tensor, "B 1 1 S"] | None,
    ) -> Float[Tensor, "B W V"]:
        """A step's arithmetic: all that depends on the values of tensors, and on nothing else."""
        x_RD = F.embedding(tokens.flatten(), self.embedding_VD) * math.sqrt(self.config.d_model) + position
        for layer, layer_cache in zip(self.layers, caches, strict=True):
            x_RD = layer.step(x_RD, layer_cache, target_mask, memory_mask)
        return self.logits(self.final_norm(x_RD) if self.final_norm else x_RD).view(*tokens.shape, -1)


class _LayerSteps:
    """A decoder layer's `step` for R = B W hypotheses, one row each."""

    def __init__(self, layer: DecoderLayer, copy_halves: bool) -> None:
        own, cross, feed_forward = layer.self_attention, layer.cross_attention, layer.feed_forward
        self.h, self.scale, self.is_post_norm = own.h, own.scale, layer.add_norm_1.post
        self.sizes = [linear.out_features for linear in (own.W_Q, own.W_K, own.W_V)]
        self.W_QKV = _one_product([own.W_Q, own.W_K, own.W_V], copy_halves)
        alone = own.W_O, cross.W_Q, cross.W_O, feed_forward.W_1, feed_forward.W_2
        self.own_W_O, self.cross_W_Q, self.cross_W_O, self.W_1, self.W_2 = (_product(x, copy_halves) for x in alone)
        activation = feed_forward.activation
        self.activation = F.relu_ if isinstance(activation, nn.ReLU) else activation.forward
        self.norms = [_norm(add_norm.norm) for add_norm in (layer.add_norm_1, layer.add_norm_2, layer.add_norm_3)]
        self.sublayers = self.self_attention, self.cross_attention, self.feed_forward

    def step(
        self, x_RD: Tensor, layer_cache: LayerCache, target_mask: Tensor | None, memory_mask: Tensor | None
    ) -> Tensor:
        masks = target_mask, memory_mask, None
        for norm, sublayer, mask in zip(self.norms, self.sublayers, masks, strict=True):
            if self.is_post_norm:
                x_RD = norm(x_RD + sublayer(x_RD, layer_cache, mask))
            else:
                x_RD = x_RD + sublayer(norm(x_RD), layer_cache, mask)
        return x_RD

    def self_attention(self, x_RD: Tensor, layer_cache: LayerCache, mask: Tensor | None) -> Tensor:
        b = len(layer_cache.memory_keys)
        queries, keys, values = (self.heads(part, b) for part in self.W_QKV(x_RD).split(self.sizes, dim=-1))
        layer_cache.append(keys, values)
        return self.own_W_O(self.attention(queries, layer_cache.keys, layer_cache.values, mask))

    def cross_attention(self, x_RD: Tensor, layer_cache: LayerCache, mask: Tensor | None) -> Tensor:
        keys, values = layer_cache.memory_keys, layer_cache.memory_values
        return self.cross_W_O(self.attention(self.heads(self.cross_W_Q(x_RD), len(keys)), keys, values, mask))

    def heads(self, rows: Tensor, b: int) -> Tensor:
        """(R, h d) as (B, h, W, d)."""
        return rows.view(b, len(rows) // b, self.h, -1).transpose(1, 2)

    def attention(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        if _is_batched(queries):
            scores = queries * (self.scale or queries.size(-1) ** -0.5) @ keys.transpose(2, 3)
            heads = (scores if mask is None else scores.add_(mask)).softmax(-1) @ values
        else:
            heads = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=self.scale)
        return heads.transpose(1, 2).flatten(2).flatten(0, 1)

    def feed_forward(self, x_RD: Tensor, layer_cache: LayerCache, mask: Tensor | None) -> Tensor:
        return self.W_2(self.activation(self.W_1(x_RD)))


def _is_batched(sentences: Int[Tensor, "B ..."] | Float[Tensor, "B ..."]) -> bool:
    """Whether so many sentences take a step on a CPU that attention is faster as two batched products than fused.

    With the source's keys stored as K^T it takes 0.7 to 0.9 of the time, and more for a few (benchmarks/README.md).
    """
    return len(sentences) >= 16 and sentences.device.type == "cpu"


def _product(layer: Any, copy_halves: bool) -> Callable[[Tensor], Tensor]:
    """x W^T + b, without what it costs to call a module."""
    if isinstance(layer, Int8Linear):
        packed, reduce_range, linear = layer.packed, not _sums_are_exact(), torch.ops.quantized.linear_dynamic.default
        return lambda x: linear(x, packed, reduce_range)
    bias = getattr(layer, "bias", None)
    return _float_product(layer.weight.detach(), None if bias is None else bias.detach(), copy_halves)


def _float_product(weight: Tensor, bias: Tensor | None, copy_halves: bool) -> Callable[[Tensor], Tensor]:
    """x W^T + b from W or, for few rows, from a copy of W in float16 where that has the same numbers: half the bytes.

    A call of the copy's kernel, FBGEMM's, costs some 20 microseconds more, so W must not be small. With vectors of 512
    bits it falls behind at 64 rows, with 256 bits it was ahead at any number (benchmarks/README.md).
    """
    product = partial(F.linear, weight=weight, bias=bias)
    if not (copy_halves and _reads_halves(weight)):
        return product
    halves = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
    linear = torch.ops.quantized.linear_dynamic_fp16.default
    least, most = 2**19 // weight.numel(), 16 if "512" in torch.backends.cpu.get_cpu_capability() else sys.maxsize
    return lambda x: linear(x, halves) if least <= len(x) <= most else product(x)


def _reads_halves(weight: Tensor) -> bool:
    has_kernel = "fbgemm" in torch.backends.quantized.supported_engines
    fits = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= 2**17
    return has_kernel and fits and torch.equal(weight.half().float(), weight)


def _one_product(layers: list[Any], copy_halves: bool) -> Callable[[Tensor], Tensor]:
    """The products side by side: x is read, and rounded, once. The layers' parameters become parts of what it holds."""
    with torch.no_grad():
        weight = torch.cat([layer.weight for layer in layers])
        bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    if isinstance(layers[0], Int8Linear):
        return _product(Int8Linear(weight, bias), copy_halves)
    sizes = [layer.out_features for layer in layers]
    if weight.device.type == "cpu":
        weight = _column_by_column(weight)
    for layer, part in zip(layers, weight.split(sizes), strict=True):
        layer.weight.data = part
    for layer, part in zip(layers, bias.split(sizes) if bias is not None else (), strict=False):
        layer.bias.data = part
    return _float_product(weight, bias, copy_halves)


def _norm(norm: Any) -> Callable[[Tensor], Tensor]:
    weight, bias = norm.weight.detach(), norm.bias.detach()
    return partial(F.layer_norm, normalized_shape=norm.normalized_shape, weight=weight, bias=bias, eps=norm.eps)
