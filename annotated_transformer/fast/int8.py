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
    """x W^T + b with W and x rounded to 8 bits: W once, row by row, x at each call, as a whole.

    w is s_w q_w with an integer -127 <= q_w <= 127 and s_w = max |w| / 127 of its row; x is
    s_x (q_x - z), with 256 steps from its least to its largest entry, or 128 where the CPU's sums
    would not be exact. So an output depends a little on what else is in the batch. The kernels are
    PyTorch's own, of a kind that it has deprecated; LOG.md has the plan for the day they go.
    """

    def __init__(
        self, weight: Float[Tensor, "O I"], bias: Float[Tensor, "O"] | None = None
    ) -> None:
        super().__init__()
        self.out_features = weight.size(0)
        weight = weight.detach().contiguous()
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
        """`forward` for one row or more, without what it costs to call a module."""
        packed, reduce_range = self.packed, not sums_are_exact()
        linear = torch.ops.quantized.linear_dynamic.default
        return lambda x: linear(x, packed, reduce_range)

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
def sums_are_exact() -> bool:
    """Whether this CPU adds products of 8 bits without overflow.

    A CPU without VNNI adds pairs of them in 16 bits.
    """
    ones = torch.ones(1, 64)
    linear = torch.ops.quantized.linear_dynamic.default
    return linear(ones, Int8Linear(ones).packed, reduce_range=False).item() > 63


class Int8Embedding(SharedEmbedding):
    """The shared embedding, with its projection in 8 bits.

    Tokens are still looked up in float32.
    """

    def __init__(self, embedding: SharedEmbedding) -> None:
        nn.Module.__init__(self)
        self.weight = embedding.weight
        self.projection = Int8Linear(embedding.weight)

    def logits(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        return self.projection(x)


def quantize(model: Transformer) -> Transformer:
    """Put every linear layer and the projection to logits into 8 bits, in place.

    This is for decoding on a CPU alone. Embeddings, norms, softmax and attention stay in float32.
    Such a model cannot be saved. Raises ConfigError where PyTorch has no such kernels, and unless
    the model is in float32, on the CPU and not in 8 bits already.
    """
    weight = model.embedding.weight
    require(
        weight.device.type == "cpu" and weight.dtype == torch.float32,
        "int8 needs a model in float32 on the CPU",
    )
    require(not isinstance(model.embedding, Int8Embedding), "the model is in 8 bits already")
    engines = {"x86", "fbgemm", "onednn", "qnnpack"} & set(
        torch.backends.quantized.supported_engines
    )
    require(
        bool(engines) and hasattr(torch, "quantize_per_channel"),
        "this PyTorch has no 8-bit kernels for its CPU",
    )
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8Linear(child.weight, child.bias))
    model.embedding = Int8Embedding(model.embedding)
    return model.train(model.training)
