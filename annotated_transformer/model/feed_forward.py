"""Position-wise feed-forward network (section 3.3)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from annotated_transformer.config import Activation
from annotated_transformer.errors import require
from annotated_transformer.model.dropout import Dropout


class SwiGLU(nn.Module):
    """silu(a) * b for the two halves a and b of the channels (Shazeer 2020)."""

    def forward(self, x: Float[Tensor, "*B F2"]) -> Float[Tensor, "*B F"]:
        gate, linear = x.chunk(2, dim=-1)
        return F.silu(gate) * linear


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "swiglu": SwiGLU,
}


class PositionwiseFeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, at every position alone (equation 2).

    The paper's activation is the ReLU and it drops nothing inside; the other activations and
    `dropout` are options. "swiglu" gates one half of x W_1 + b_1, of 2 d_ff columns, by the other.

    >>> PositionwiseFeedForward(d_model=8, d_ff=32)(torch.randn(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: Activation = "relu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        names = ", ".join(ACTIVATIONS)
        require(activation in ACTIVATIONS, f"activation must be one of {names}, got {activation}")
        self.W_1 = nn.Linear(d_model, 2 * d_ff if activation == "swiglu" else d_ff)
        self.activation = ACTIVATIONS[activation]()
        self.dropout = Dropout(dropout)
        self.W_2 = nn.Linear(d_ff, d_model)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        return self.W_2(self.dropout(self.activation(self.W_1(x))))
