"""Linear layers for decoding: called as functions, fused, stored for few rows, read in 16 bits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from annotated_transformer.fast.int8 import Int8Linear
from annotated_transformer.model.transformer import Transformer


def store_column_major(model: Transformer) -> Transformer:
    """Store the model's matrices column by column, in place.

    The numbers are the same, and nothing else changes. x W^T with few rows of x reads all of W.
    PyTorch keeps W (out, in) row by row, so that a kernel has to gather or copy it first; the
    transposed copy is read in order. Training, whose x has many rows, gains nothing from it.
    """
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = column_major(parameter.data)
    return model


def column_major(weight: Float[Tensor, "O I"]) -> Float[Tensor, "O I"]:
    """The same matrix, stored column by column: a copy."""
    return weight.t().contiguous().t()


class LinearFunctions:
    """x W^T + b and norms of a model's layers, without what it costs to call a module.

    `copies` are the copies of parameters that were made for them.
    """

    def __init__(self, keep_float16_copy: bool, dtype: torch.dtype) -> None:
        self.keep_float16_copy, self.dtype = keep_float16_copy, dtype
        self.copies: list[tuple[Tensor, nn.Parameter]] = []

    def parameter(self, parameter: nn.Parameter) -> Tensor:
        """The parameter itself, or a copy in the other type."""
        tensor = parameter.detach().to(self.dtype)
        if tensor.dtype != parameter.dtype:
            self.copies.append((tensor, parameter))
        return tensor

    def norm(self, norm: Any) -> Callable[[Tensor], Tensor]:
        weight, bias = self.parameter(norm.weight), self.parameter(norm.bias)
        shape, eps = norm.normalized_shape, norm.eps
        return partial(F.layer_norm, normalized_shape=shape, weight=weight, bias=bias, eps=eps)

    def of(self, layer: Any) -> Callable[[Tensor], Tensor]:
        if isinstance(layer, Int8Linear):
            return layer.function()
        bias = None if layer.bias is None else self.parameter(layer.bias)
        return as_function(self.parameter(layer.weight), bias, self.keep_float16_copy)

    def fused(self, layers: list[Any]) -> Callable[[Tensor], Tensor]:
        """The products of several layers side by side, from a copy of their matrices.

        So x is read, and rounded, once.
        """
        bias = None
        with torch.no_grad():
            weight = torch.cat([layer.weight for layer in layers]).to(self.dtype)
            if layers[0].bias is not None:
                bias = torch.cat([layer.bias for layer in layers]).to(self.dtype)
        if isinstance(layers[0], Int8Linear):
            return self.of(Int8Linear(weight, bias))
        if weight.device.type == "cpu":
            weight = column_major(weight)
        sizes = [layer.out_features for layer in layers]
        self.copies += zip(weight.split(sizes), [layer.weight for layer in layers], strict=True)
        if bias is not None:
            self.copies += zip(bias.split(sizes), [layer.bias for layer in layers], strict=True)
        return as_function(weight, bias, self.keep_float16_copy)


def as_function(
    weight: Tensor, bias: Tensor | None, keep_float16_copy: bool
) -> Callable[[Tensor], Tensor]:
    """x W^T + b from W or, for few rows, from a copy of W in float16.

    The copy is made where it has the same numbers; it is half the bytes. A call of the copy's
    kernel, FBGEMM's, costs some 20 microseconds more, so W must not be small. With vectors of 512
    bits it falls behind at 64 rows, with 256 bits it was ahead at any number
    (LOG.md).
    """
    product = partial(F.linear, weight=weight, bias=bias)
    has_kernel = "fbgemm" in torch.backends.quantized.supported_engines and weight.is_cpu
    is_large = weight.numel() >= 2**17
    if not (keep_float16_copy and has_kernel and is_large and is_exact_in_float16(weight)):
        return product
    float16_copy = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
    linear = torch.ops.quantized.linear_dynamic_fp16.default
    has_512 = "512" in torch.backends.cpu.get_cpu_capability()
    least, most = 2**19 // weight.numel(), 16 if has_512 else sys.maxsize
    return lambda x: linear(x, float16_copy) if least <= len(x) <= most else product(x)


def is_exact_in_float16(weight: Tensor) -> bool:
    """Whether float16 holds each of these float32 numbers as it is."""
    return weight.dtype == torch.float32 and torch.equal(weight.half().float(), weight)
