"""The layer types that Table 1 compares (section 4): n vectors of d entries in, as many out.

Tensors are (L, D) or (B, L, D); the table's n is L and its d is D. Like the table, none has
projections or biases. What they cost is counted in `book/lab/tables/table_1.py`; the recurrent ones are
PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from annotated_transformer.errors import ConfigError, require
from annotated_transformer.model.attention import scaled_dot_product_attention


def self_attention(x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L D"]:
    """softmax(x x^T / sqrt(d)) x (equation 1 with Q = K = V = x), by PyTorch's fused kernel.

    The kernel keeps no n^2 weights where it can avoid it; `scaled_dot_product_attention(x, x, x)`
    does.
    """
    # With a batch: B sentences of one head, the shape that the fused kernel takes.
    head = x[..., None, :, :]
    return F.scaled_dot_product_attention(head, head, head)[..., 0, :, :]


def restricted_self_attention(x: Float[Tensor, "*B L D"], r: int) -> Float[Tensor, "*B L D"]:
    """Self-attention in which each query sees the r positions centred on its own (section 4).

    At the two ends it sees fewer. No score outside the window is computed: 4 r n d operations, and
    memory for r n weights at most. The n windows are a view of x, not a copy. The paper leaves open
    where the neighbourhood lies and what happens at the ends. Raises ConfigError unless r is odd.
    """
    require(r >= 1 and r % 2 == 1, f"r must be odd, so that a window has a middle, got {r}")
    n, reach = x.size(-2), r // 2
    windows = F.pad(x, (0, 0, reach, reach)).unfold(-2, r, 1).transpose(-2, -1)  # *B L r D
    position = torch.arange(n, device=x.device)[:, None] + torch.arange(r, device=x.device) - reach
    real = ((position >= 0) & (position < n))[:, None].expand(*x.shape[:-1], 1, r)
    # To the kernel every window is a head with one query: so it reads the view where it lies.
    return F.scaled_dot_product_attention(x[..., None, :], windows, windows, real)[..., 0, :]


def convolution(
    x: Float[Tensor, "*B L D"], W: Float[Tensor, "D D k"], dilation: int = 1
) -> Float[Tensor, "*B L D"]:
    """z_t = sum over j < k of W_j x_{t - dilation j}, with zeros before the first position.

    `W[..., k - 1 - j]` is W_j: PyTorch's order, outputs first. It looks back only, as in ByteNet's
    decoder; a dilation above 1 leaves gaps between the k positions.
    """
    past = F.pad(x.transpose(-2, -1), (dilation * (W.size(-1) - 1), 0))
    return F.conv1d(past, W, dilation=dilation).transpose(-2, -1)


def separable_convolution(
    x: Float[Tensor, "*B L D"], kernel: Float[Tensor, "D 1 k"], W: Float[Tensor, "D D"]
) -> Float[Tensor, "*B L D"]:
    """Each entry convolved by itself with its k numbers, then one matrix (Chollet 2017).

    The matrix is the same at every position.
    """
    past = F.pad(x.transpose(-2, -1), (kernel.size(-1) - 1, 0))
    return F.conv1d(past, kernel, groups=x.size(-1)).transpose(-2, -1) @ W


LAYER_TYPES = (
    "self-attention",
    "self-attention, weights stored",
    "recurrent",
    "recurrent (LSTM)",
    "convolutional",
    "convolutional, dilated",
    "restricted self-attention",
    "separable convolutional",
)
"""What `make_layer` makes: Table 1's rows in its order, with their variants."""


def make_layer(layer: str, d: int, k: int = 3, r: int = 3) -> Callable[[Tensor], Tensor]:
    """A layer of one of the `LAYER_TYPES` for vectors of d entries, with random weights, if any.

    The recurrent ones are `torch.nn.RNN` (tanh) and `torch.nn.LSTM`; a dilated convolution has gaps
    of k, as the second layer of a stack. Weights come from PyTorch's generator, on its default
    device; those of the convolutions keep the size of what they multiply. Raises ConfigError for
    another name.
    """
    match layer:
        case "self-attention":
            return self_attention
        case "self-attention, weights stored":
            return lambda x: scaled_dot_product_attention(x, x, x)
        case "restricted self-attention":
            return lambda x: restricted_self_attention(x, r)
        case "recurrent" | "recurrent (LSTM)":
            recurrent = nn.LSTM if "LSTM" in layer else nn.RNN
            cell: nn.Module = recurrent(d, d, bias=False, batch_first=True)
            return lambda x: cell(x)[0]
        case "convolutional" | "convolutional, dilated":
            W, gap = torch.randn(d, d, k) / math.sqrt(k * d), k if "dilated" in layer else 1
            return lambda x: convolution(x, W, gap)
        case "separable convolutional":
            kernel, mix = torch.randn(d, 1, k) / math.sqrt(k), torch.randn(d, d) / math.sqrt(d)
            return lambda x: separable_convolution(x, kernel, mix)
    raise ConfigError(f"layer must be one of {'; '.join(LAYER_TYPES)}, got {layer}")


def layers_to_connect(layer: Callable[[Tensor, int], Tensor], n: int, d: int = 2) -> int:
    """The least number of stacked layers after which output n depends on input 1.

    This is Table 1's maximum path length. It is found by gradient: `layer(x, depth)` with depth 0,
    1, ... is stacked on random positive x of (n, d), in float64, until the derivative of the last
    output by the first input is not zero. Weights must be positive, so that nothing cancels. Raises
    ConfigError if n layers do not connect the two.
    """
    x = y = torch.rand(n, d, dtype=torch.float64).requires_grad_()
    for depth in range(n):
        y = layer(y, depth)
        [gradient] = torch.autograd.grad(y[-1].sum(), x, retain_graph=True)
        if gradient[0].any():
            return depth + 1
    ends = f"the first of {n} positions to the last"
    raise ConfigError(f"{n} layers must connect {ends}, and these do not")
