"""Embeddings and softmax (section 3.4), positional encoding (section 3.5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from annotated_transformer.config import ModelConfig
from annotated_transformer.errors import ConfigError, require


class SharedEmbedding(nn.Module):
    """One matrix E (V, d_model): source embedding, target embedding, projection before the softmax.

    `forward` gives E[token] * sqrt(d_model); `logits` gives x E^T, with no bias and no factor
    (section 3.4). With rows drawn from N(0, 1 / d_model) both come out with a variance near 1; the
    paper leaves the initial values open. `bias` is added to the logits, and `zero_id` is a token
    that is embedded as zeros whatever its row holds: options, for the models of other programs.

    >>> embedding = SharedEmbedding(vocab_size=100, d_model=8)
    >>> x = embedding(torch.tensor([[5, 7, 2]]))
    >>> x.shape, embedding.logits(x).shape
    (torch.Size([1, 3, 8]), torch.Size([1, 3, 100]))
    """

    def __init__(
        self, vocab_size: int, d_model: int, bias: bool = False, zero_id: int | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocab_size, d_model) / math.sqrt(d_model))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None
        self.zero_id = zero_id

    def forward(self, tokens: Int[Tensor, "*B"]) -> Float[Tensor, "*B D"]:
        return self.look_up(tokens, self.weight) * math.sqrt(self.weight.size(1))

    def look_up(
        self, tokens: Int[Tensor, "*B"], weight: Float[Tensor, "V D"]
    ) -> Float[Tensor, "*B D"]:
        """The rows of `tokens` in `weight`, the matrix or a copy of it."""
        rows = F.embedding(tokens, weight)
        if self.zero_id is None:
            return rows
        return rows.masked_fill((tokens == self.zero_id)[..., None], 0.0)

    def logits(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        return F.linear(x, self.weight, self.bias)


def positional_encoding(length: int, d_model: int) -> Float[Tensor, "{length} {d_model}"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos(the same).

    Columns are interleaved, as printed (section 3.5). Angles are computed in float64 and rounded
    once, so that far positions are as exact as near ones. Raises ConfigError for an odd d_model.

    >>> positional_encoding(length=2, d_model=4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    require(d_model % 2 == 0, f"sinusoidal positions need an even d_model, got {d_model}")
    pos = torch.arange(length, dtype=torch.float64)[:, None]
    two_i = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = pos / 10000 ** (two_i / d_model)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).float()


def concatenated_positional_encoding(
    length: int, d_model: int
) -> Float[Tensor, "{length} {d_model}"]:
    """All sines, then all cosines, at wavelengths 2 pi 10000^(i / (d_model / 2 - 1)).

    So tensor2tensor, the authors' own code, computes positions, where the paper prints interleaved
    columns and the exponent 2i / d_model. The order of the columns makes no difference to a model;
    the exponent does: here the longest wavelength is 10000 * 2 pi, as the text says. Raises
    ConfigError for an odd d_model.
    """
    require(d_model % 2 == 0, f"sinusoidal positions need an even d_model, got {d_model}")
    position = torch.arange(length, dtype=torch.float64)[:, None]
    i = torch.arange(d_model // 2, dtype=torch.float64)
    angle = position / 10000 ** (i / max(d_model // 2 - 1, 1))
    return torch.cat([angle.sin(), angle.cos()], dim=1).float()


def rotated(x: Float[Tensor, "B H L K"], position: int | None = None) -> Float[Tensor, "B H L K"]:
    """Queries or keys, each pair of channels turned by its position's angle (Su et al. 2021).

        (x_2i, x_2i+1) -> (x_2i cos a - x_2i+1 sin a, x_2i sin a + x_2i+1 cos a)

    The angle a is that of the sinusoids, pos / 10000^(2i / d_k), so that a product of a query and a
    key depends on the distance of their positions alone. All L rows are at `position`, or at 0, 1,
    ..., L - 1.
    """
    length = x.size(-2) if position is None else position + 1
    table = _table(max(64, 1 << (length - 1).bit_length()), x.size(-1), x.device, x.dtype)
    turns = table[:length] if position is None else table[position:length]
    sin, cos = turns[:, 0::2], turns[:, 1::2]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


@lru_cache(maxsize=16)
def _table(length: int, d: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # the table outlives a search
        return positional_encoding(length, d).to(device, dtype)


class SinusoidalPositions(nn.Module):
    """Rows `start` to `start + length` of `encoding`'s table, which grows when it must.

    `first` is the row of the first token.
    """

    table: Tensor

    def __init__(
        self,
        d_model: int,
        length: int = 256,
        encoding: Callable[[int, int], Tensor] = positional_encoding,
        first: int = 0,
    ) -> None:
        super().__init__()
        self.encoding = encoding
        self.first = first
        self.register_buffer("table", encoding(length, d_model), persistent=False)

    def forward(self, length: int, start: int = 0) -> Float[Tensor, "{length} D"]:
        start += self.first
        table = self.table  # another thread may put a shorter one there before it is sliced
        if start + length > table.size(0):
            with torch.inference_mode(False):  # the table outlives a search
                longer = self.encoding(2 * (start + length), table.size(1))
                table = self.table = longer.to(table.device, table.dtype)
        return table[start : start + length]


class LearnedPositions(nn.Module):
    """A trained vector for each of `max_len` positions (Table 3, row E).

    Raises ConfigError beyond the last.
    """

    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(max_len, d_model) / math.sqrt(d_model))

    def forward(self, length: int, start: int = 0) -> Float[Tensor, "{length} D"]:
        end = start + length
        max_len = self.weight.size(0)
        if end > max_len:
            raise ConfigError(f"learned positions end at max_len {max_len}, got length {end}")
        return self.weight[start:end]


class NoPositions(nn.Module):
    """Zero for every position: the model that is blind to order, for experiments."""

    def forward(self, length: int, start: int = 0) -> float:
        return 0.0


def positions_of(config: ModelConfig) -> nn.Module:
    """The module that adds positions, as `config.positions` names it."""
    if config.positions == "learned":
        return LearnedPositions(config.d_model, config.max_len)
    if config.positions in ("none", "rotary"):  # attention turns its queries and keys instead
        return NoPositions()
    is_printed = config.positions == "sinusoidal"
    encoding = positional_encoding if is_printed else concatenated_positional_encoding
    return SinusoidalPositions(config.d_model, encoding=encoding, first=config.first_position)
