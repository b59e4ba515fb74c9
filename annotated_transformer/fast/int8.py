"""Linear layers in 8 bits, for decoding on a CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from annotated_transformer.errors import ConfigError, require
from annotated_transformer.model.embedding import SharedEmbedding
from annotated_transformer.model.transformer import Transformer


class Int8Linear(nn.Module):
    """x W^T + b with W and x rounded to 8 bits: W once, row by row; x at each call, as a whole.

    An entry of W is s_w q_w, with an integer -127 <= q_w <= 127 and its row's s_w = max |w| / 127.
    An entry of x is s_x (q_x - z), in 256 steps from the least to the largest entry, or in 128
    where the CPU's sums of 256 would not be exact. All rows of x share s_x and z, so an output
    depends a little on the rest of its batch. The kernels are PyTorch's; the functions that make
    its quantized tensors are deprecated (LOG.md, "8 bits", says what will replace them).
    """

    def __init__(
        self, weight: Float[Tensor, "O I"], bias: Float[Tensor, "O"] | None = None
    ) -> None:
        super().__init__()
        self.out_features = weight.size(0)
        weight = weight.detach().contiguous()
        # A row of zeros would have a scale of 0, and 0 / 0 is NaN, which cannot be rounded.
        scales = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
        zeros = torch.zeros(len(weight), dtype=torch.long)
        deprecated = ".*quantized tensor creation functions.*deprecated"
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=deprecated)
            rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        bias = None if bias is None else bias.detach()
        self.packed = torch.ops.quantized.linear_prepack(rounded, bias)

    def forward(self, x: Float[Tensor, "*B I"]) -> Float[Tensor, "*B O"]:
        if x.numel() == 0:
            return x.new_empty(*x.shape[:-1], self.out_features)
        return self.function()(x)

    def function(self) -> Callable[[Tensor], Tensor]:
        """`forward` for one row or more, without a module's overhead."""
        packed = self.packed
        reduce_range = not sums_are_exact()
        linear = torch.ops.quantized.linear_dynamic.default
        return lambda x: linear(x, packed, reduce_range)

    @property
    def weight(self) -> Float[Tensor, "O I"]:
        """W after rounding, in float32."""
        return torch.ops.quantized.linear_unpack(self.packed)[0].dequantize()

    @property
    def bias(self) -> Float[Tensor, "O"] | None:
        return torch.ops.quantized.linear_unpack(self.packed)[1]

    def get_extra_state(self) -> Any:
        raise ConfigError("a model in 8 bits cannot be saved: save it before quantizing")


@cache
def sums_are_exact() -> bool:
    """Whether this CPU adds products of 8 bits without overflow, as CPUs with VNNI do."""
    # The others add two products of 255 x 127 in 16 bits, where the sum saturates at 32,767.
    ones = torch.ones(1, 64)
    linear = torch.ops.quantized.linear_dynamic.default
    return linear(ones, Int8Linear(ones).packed, reduce_range=False).item() > 63


class Int8Embedding(SharedEmbedding):
    """The shared embedding: its projection is in 8 bits, its look-up in float32."""

    def __init__(self, embedding: SharedEmbedding) -> None:
        nn.Module.__init__(self)
        self.weight = embedding.weight
        self.zero_id = embedding.zero_id
        self.projection = Int8Linear(embedding.weight, embedding.bias)

    def logits(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        return self.projection(x)


def quantize(model: Transformer) -> Transformer:
    """Put every linear layer and the projection to logits into 8 bits, in place.

    This is for decoding on a CPU only. Embeddings, norms, softmax and attention stay in float32.
    Such a model cannot be saved. Raises ConfigError where PyTorch has no such kernels, and unless
    the model is in float32, on the CPU and not yet in 8 bits.
    """
    weight = model.embedding.weight
    is_float32 = weight.is_cpu and weight.dtype == torch.float32
    require(is_float32, "int8 needs a model in float32 on the CPU")
    require(not isinstance(model.embedding, Int8Embedding), "the model is in 8 bits already")
    engines = {"x86", "fbgemm", "onednn", "qnnpack"}
    has_engine = not engines.isdisjoint(torch.backends.quantized.supported_engines)
    has_kernels = has_engine and hasattr(torch, "quantize_per_channel")
    require(has_kernels, "this PyTorch has no 8-bit kernels for this CPU")
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8Linear(child.weight, child.bias))
    model.embedding = Int8Embedding(model.embedding)
    return model.train(model.training)
