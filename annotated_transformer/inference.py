"""A trained model made ready to decode fast on a CPU: weights laid out for few rows, or in 8 bits."""

from __future__ import annotations

import warnings

import torch
from jaxtyping import Float
from torch import Tensor, nn

from annotated_transformer.attention import MultiHeadAttention
from annotated_transformer.config import ConfigError
from annotated_transformer.embedding import SharedEmbedding
from annotated_transformer.transformer import Transformer


def lay_out(model: Transformer) -> Transformer:
    """Store the model's matrices column by column, in place; the same numbers, and nothing else changes.

    x W^T with few rows of x reads all of W. PyTorch keeps W (out, in) row by row, so that a kernel has to gather or
    copy it first; the transposed copy is read in order. Training, whose x has many rows, gains nothing from it.
    """
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = parameter.data.t().contiguous().t()
    return model


class Int8Linear(nn.Module):
    """x W^T + b with W and x rounded to 8 bits: W once, row by row, x at each call, as a whole.

    w is s_w q_w with an integer -127 <= q_w <= 127 and s_w = max |w| / 127 of its row; sums are exact in int32. The
    scale of x is that of its largest entry, so that an output depends a little on what else is in the batch. The
    kernels are PyTorch's own (FBGEMM or oneDNN).
    """

    def __init__(self, weight: Float[Tensor, "O I"], bias: Float[Tensor, "O"] | None = None) -> None:
        super().__init__()
        self.out_features = weight.size(0)
        weight = weight.detach().float().contiguous()
        scales = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
        zeros = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings():  # PyTorch 2.13 warns that it will give up this type of tensor
            warnings.simplefilter("ignore", UserWarning)
            rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(rounded, None if bias is None else bias.detach().float())

    def forward(self, x: Float[Tensor, "*B I"]) -> Float[Tensor, "*B O"]:
        if x.numel() == 0:
            return x.new_empty(*x.shape[:-1], self.out_features)
        return torch.ops.quantized.linear_dynamic.default(x, self.packed, reduce_range=False)


class _Int8Attention(MultiHeadAttention):
    """Attention with all its projections in 8 bits; those of self-attention are one, so that x is rounded once."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        nn.Module.__init__(self)
        self.h, self.dropout, self.scale = attention.h, attention.dropout, attention.scale
        projections = (attention.W_Q, attention.W_K, attention.W_V)
        self.sizes = [linear.out_features for linear in projections]
        weight = torch.cat([linear.weight for linear in projections])
        bias = None if attention.W_Q.bias is None else torch.cat([linear.bias for linear in projections])
        self.W_QKV = Int8Linear(weight, bias)
        self.W_Q, self.W_K, self.W_V, self.W_O = (  # type: ignore[assignment]
            Int8Linear(linear.weight, linear.bias) for linear in (*projections, attention.W_O)
        )

    def project(self, x: Float[Tensor, "B L D"]) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, values = map(self.split_heads, self.W_QKV(x).split(self.sizes, dim=-1))
        return queries, keys, values


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

    Embeddings, norms, softmax and attention stay in float32. Raises ConfigError where PyTorch has no such kernels, and
    for a model that is not on the CPU.
    """
    if model.embedding.weight.device.type != "cpu":
        raise ConfigError("int8 needs a model on the CPU")
    try:
        Int8Linear(torch.ones(1, 1))(torch.ones(1, 1))
    except (RuntimeError, AttributeError) as error:
        raise ConfigError(f"this PyTorch has no 8-bit kernels for its CPU: {str(error).splitlines()[0]}") from None
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, MultiHeadAttention):
                setattr(module, name, _Int8Attention(child))
            elif isinstance(child, nn.Linear) and not isinstance(module, MultiHeadAttention):
                setattr(module, name, Int8Linear(child.weight, child.bias))
    model.embedding = _Int8Logits(model.embedding)
    return model
