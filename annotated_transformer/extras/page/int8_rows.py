"""The page's arithmetic: 8 bits per weight, a scale for each row, exact sums.

JavaScript computes it in `files/products.js`, WebAssembly in `files/kernels.c`. Here the paper's
own `Transformer` computes the same numbers, with matrices of integers, so that its greedy and beam
search say what the page must answer.
"""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float, Int8, Shaped
from torch import Tensor, nn

from annotated_transformer.errors import require
from annotated_transformer.model.embedding import SharedEmbedding
from annotated_transformer.model.transformer import Transformer

STEPS = 2047
"""A row of activations is rounded to integers from -2047 to 2047: 12 bits.

WebAssembly multiplies numbers of 16 bits, so 12 bits cost no more time than 8. On `book/model` they
cut the loss of greedy search from 0.27 BLEU to 0.07.
"""
WIDEST = (2**31 - 1) // (127 * STEPS)
"""The most columns of a matrix of which no sum of products can reach 2^31."""


def round_rows(weight: Float[Tensor, "O I"]) -> tuple[Int8[Tensor, "O I"], Float[Tensor, "O"]]:
    """Integers q from -127 to 127 and a float32 scale s for each row, so that w is about s q.

    s is max |w| / 127 of the row, or 1 for a row of zeros.
    """
    weight = weight.detach().double()
    scales = (weight.abs().amax(dim=1) / 127).float()
    scales[scales == 0] = 1.0
    rounded = torch.floor(weight / scales[:, None].double() + 0.5).clamp(-127, 127)
    return rounded.to(torch.int8), scales


class Int8Rows(nn.Module):
    """x W^T + b with W rounded row by row, and each row of x to `STEPS` steps on either side.

    A row x is q m / STEPS, with integers q and m = max |x|. Sums of products of integers are exact
    in any order. All else is computed in float64, of which JavaScript's numbers are.
    """

    def __init__(
        self, weight: Float[Tensor, "O I"], bias: Float[Tensor, "O"] | None = None
    ) -> None:
        super().__init__()
        rounded, scales = round_rows(weight)
        self.rounded = rounded.double()
        self.scales = scales.double()
        self.bias = None if bias is None else bias.detach().float().double()

    def forward(self, x: Float[Tensor, "*B I"]) -> Shaped[Tensor, "*B O"]:
        largest = x.abs().amax(dim=-1, keepdim=True)
        steps = torch.where(largest > 0, STEPS / largest, 0.0)
        q = torch.floor(x * steps + 0.5)
        y = q @ self.rounded.T * (largest / STEPS) * self.scales
        return y if self.bias is None else y + self.bias


class Int8RowsEmbedding(SharedEmbedding):
    """The shared embedding: the rounded rows are looked up, and are the projection to logits."""

    def __init__(self, embedding: SharedEmbedding) -> None:
        nn.Module.__init__(self)
        self.zero_id = embedding.zero_id
        self.projection = Int8Rows(embedding.weight, embedding.bias)
        rows = self.projection.rounded * self.projection.scales[:, None]
        self.weight = nn.Parameter(rows, requires_grad=False)

    def logits(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        return self.projection(x)


def with_int8_rows(model: Transformer) -> Transformer:
    """A copy of `model` that computes what the page computes, in evaluation mode.

    It cannot be trained or saved.
    """
    model = copy.deepcopy(model).cpu().float().double().eval()
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8Rows(child.weight, child.bias))
    model.embedding = Int8RowsEmbedding(model.embedding)
    return model


KNOWN_TO_A_PAGE = (
    "norm", "positions=learned", "positions=concatenated", "positions=none", "activation=gelu",
    "activation=silu", "bias", "scaled_attention", "final_norm", "output_bias", "zero_start",
    "first_position", "attention_dropout", "ffn_dropout",
)  # fmt: skip
"""What the engine of a page computes besides the paper's model (`ModelConfig.beyond`)."""


def rounded_tensors(model: Transformer) -> dict[str, Tensor]:
    """What a page needs of a model, by the names of its checkpoint.

    Matrices are int8, with "X.scale" beside "X.weight"; norms, biases and learned positions are
    float32. Raises ConfigError for a matrix whose sums might overflow, and for parts of a model
    that came after the paper.
    """
    model.config.require_known(KNOWN_TO_A_PAGE, "a page")
    matrices = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        stem = name.removesuffix(".weight")
        if name.endswith(".weight") and stem in matrices | {"embedding"}:
            columns = tensor.size(1)
            require(
                columns <= WIDEST,
                f"a page adds up at most {WIDEST:,} products of 8 bits by 12 in 32 bits, "
                f"got {columns:,} columns in {stem}",
            )
            tensors[name], tensors[f"{stem}.scale"] = round_rows(tensor.float())
        else:
            tensors[name] = tensor.float()
    return tensors
