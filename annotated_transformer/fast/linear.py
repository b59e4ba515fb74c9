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
    """Store the model's matrices column by column, in place: strides change, numbers do not.

    x W^T with few rows of x reads all of W. PyTorch stores W (out, in) row by row, so its kernel
    has to gather or copy W first; a transposed copy is read in order (LOG.md, "Weights where few
    rows meet them"). Training, whose x has many rows, gains nothing from it.
    """
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = column_major(parameter.data)
    return model


def column_major(weight: Float[Tensor, "O I"]) -> Float[Tensor, "O I"]:
    """A copy of the matrix, stored column by column."""
    return weight.t().contiguous().t()  # contiguous() copies; the second t() is a view of the copy


class LinearFunctions:
    """Turns layers into functions of rows x: x W^T + b, or a norm, without a module's overhead."""

    def __init__(self, keep_float16_copy: bool, dtype: torch.dtype) -> None:
        self.keep_float16_copy = keep_float16_copy
        self.dtype = dtype

    def parameter(self, parameter: nn.Parameter) -> Tensor:
        """The parameter itself, or a copy where it has another dtype."""
        return parameter.detach().to(self.dtype)

    def norm(self, norm: Any) -> Callable[[Tensor], Tensor]:
        weight = self.parameter(norm.weight)
        options = {"normalized_shape": norm.normalized_shape, "weight": weight, "eps": norm.eps}
        if isinstance(norm, nn.RMSNorm):
            return partial(F.rms_norm, **options)
        return partial(F.layer_norm, bias=self.parameter(norm.bias), **options)

    def linear(self, layer: Any) -> Callable[[Tensor], Tensor]:
        if isinstance(layer, Int8Linear):
            return layer.function()
        bias = None if layer.bias is None else self.parameter(layer.bias)
        return linear_function(self.parameter(layer.weight), bias, self.keep_float16_copy)

    def fused_linear(self, layers: list[Any]) -> Callable[[Tensor], Tensor]:
        """The outputs of several layers side by side, by one product with a copy of their matrices.

        In 8 bits, x is rounded once for all of them. Training, whose products are large, would gain
        nothing (LOG.md, "Products in training").
        """
        has_bias = layers[0].bias is not None
        with torch.no_grad():
            weight = torch.cat([layer.weight for layer in layers]).to(self.dtype)
            bias = torch.cat([layer.bias for layer in layers]).to(self.dtype) if has_bias else None
        if isinstance(layers[0], Int8Linear):
            return Int8Linear(weight, bias).function()
        if weight.is_cpu:
            weight = column_major(weight)
        return linear_function(weight, bias, self.keep_float16_copy)


def linear_function(
    weight: Tensor, bias: Tensor | None, keep_float16_copy: bool
) -> Callable[[Tensor], Tensor]:
    """x W^T + b; where x has few rows, perhaps from a copy of W in float16: half the bytes to read.

    The copy is made if float16 holds exactly the same numbers. FBGEMM's kernel reads it, for the
    numbers of rows at which that is faster.
    """
    product = partial(F.linear, weight=weight, bias=bias)
    has_kernel = "fbgemm" in torch.backends.quantized.supported_engines and weight.is_cpu
    # A call of FBGEMM's kernel costs some 20 microseconds more, so W must not be small. On AVX-512
    # it is slower from 64 rows on; on AVX2 it was faster at every size measured (LOG.md, "Weights
    # where few rows meet them").
    is_large = weight.numel() >= 2**17
    if not (keep_float16_copy and has_kernel and is_large and is_exact_in_float16(weight)):
        return product
    # The smaller W, the more rows it takes to make up for the call: 4 with 2^17 numbers in W.
    least = 2**19 // weight.numel()
    most = 16 if "512" in torch.backends.cpu.get_cpu_capability() else sys.maxsize
    float16_copy = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
    linear = torch.ops.quantized.linear_dynamic_fp16.default
    return lambda x: linear(x, float16_copy) if least <= len(x) <= most else product(x)


def is_exact_in_float16(weight: Tensor) -> bool:
    """Whether these are float32 numbers that float16 holds without rounding."""
    return weight.dtype == torch.float32 and torch.equal(weight.half().float(), weight)
