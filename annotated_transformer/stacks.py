"""Encoder and decoder stacks (section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from annotated_transformer.attention import MultiHeadAttention
from annotated_transformer.config import ModelConfig
from annotated_transformer.dropout import Dropout
from annotated_transformer.feed_forward import PositionwiseFeedForward


class AddNorm(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))): the residual connection round every sub-layer (sections 3.1 and 5.4).

    That is post-norm, the paper's. norm="pre" gives x + Dropout(Sublayer(LayerNorm(x))), and leaves the sum as it is.
    """

    def __init__(self, d_model: int, p_drop: float, norm: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(p_drop)
        self.post = norm == "post"

    def forward(
        self, x: Float[Tensor, "*B L D"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*B L D"]:
        if self.post:
            return self.norm(x + self.dropout(sublayer(x)))
        return x + self.dropout(sublayer(self.norm(x)))


def _attention(config: ModelConfig) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.d_model, config.h, config.d_k, config.d_v, config.bias, config.attention_dropout,
        config.scaled_attention,
    )


def _feed_forward(config: ModelConfig) -> PositionwiseFeedForward:
    return PositionwiseFeedForward(config.d_model, config.d_ff, config.activation, config.ffn_dropout)


def _add_norm(config: ModelConfig) -> AddNorm:
    return AddNorm(config.d_model, config.p_drop, config.norm)


def _final_norm(config: ModelConfig) -> nn.Module:
    """Pre-norm sums leave the stack unnormalised, so one LayerNorm follows; the paper's post-norm needs none."""
    return nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each inside an AddNorm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention, self.add_norm_1 = _attention(config), _add_norm(config)
        self.feed_forward, self.add_norm_2 = _feed_forward(config), _add_norm(config)

    def forward(
        self, x: Float[Tensor, "B S D"], mask: Bool[Tensor, "B 1 1 S"] | None
    ) -> Float[Tensor, "B S D"]:
        x = self.add_norm_1(x, lambda y: self.self_attention(y, y, mask))
        return self.add_norm_2(x, self.feed_forward)


class Encoder(nn.Module):
    """N encoder layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers: Iterable[EncoderLayer] = nn.ModuleList(  # type: ignore[assignment]
            EncoderLayer(config) for _ in range(config.N)
        )
        self.norm = _final_norm(config)

    def forward(
        self, x: Float[Tensor, "B S D"], mask: Bool[Tensor, "B 1 1 S"] | None
    ) -> Float[Tensor, "B S D"]:
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class LayerCache:
    """What one decoder layer keeps between steps, one row a *sentence*, for B sentences with W hypotheses each.

    `keys` and `values` hold the tokens decoded so far: T of them in all, W more with each step. Hypotheses that have a
    beginning in common share its tokens, so together they are a prefix tree, and nothing moves when one of them
    branches or ends; `DecodingState.target_mask` says which tokens are in which. A query meets all T, so this is cheap
    for beams, which share most of what they have; W hypotheses with nothing in common cost W times the scores.
    Both are the filled part of buffers that are written in place (so not for gradients through several steps), and
    made anew when full. `memory_keys` and `memory_values` hold the source.
    """

    def __init__(
        self,
        keys: Float[Tensor, "B H 0 K"],
        values: Float[Tensor, "B H 0 Kv"],
        memory_keys: Float[Tensor, "B H S K"],
        memory_values: Float[Tensor, "B H S Kv"],
    ) -> None:
        """From no positions (keys and values of length 0) and the source's keys and values."""
        self.length = 0
        self.buffers = [keys, values]
        self.memory_keys, self.memory_values = memory_keys, memory_values

    @property
    def keys(self) -> Float[Tensor, "B H T K"]:
        return self.buffers[0].narrow(2, 0, self.length)

    @property
    def values(self) -> Float[Tensor, "B H T Kv"]:
        return self.buffers[1].narrow(2, 0, self.length)

    @property
    def room(self) -> int:
        """How many positions still fit in the buffers."""
        return self.buffers[0].size(2) - self.length

    def append(self, keys: Float[Tensor, "B H W K"], values: Float[Tensor, "B H W Kv"]) -> None:
        n_new = keys.size(2)
        if self.room < n_new:
            self._set(self.keys, self.values, n_more=n_new)
        for buffer, new in zip(self.buffers, (keys, values), strict=True):
            buffer.narrow(2, self.length, n_new).copy_(new)
        self.length += n_new

    def _set(self, *filled: Tensor, n_more: int = 0) -> None:
        """Hold these keys and values, in new buffers with room for as many again, and for `n_more` or 16 at least."""
        self.length = filled[0].size(2)
        capacity = self.length + max(self.length, n_more, 16)
        self.buffers = [part.new_empty(*part.shape[:2], capacity, part.size(3)) for part in filled]
        for buffer, part in zip(self.buffers, filled, strict=True):
            buffer.narrow(2, 0, self.length).copy_(part)

    def forget_all_but(self, positions: Int[Tensor, "B kept"]) -> None:
        """Keep these positions of each sentence, in this order."""
        rows = torch.arange(len(positions), device=positions.device)[:, None]
        self._set(*(buffer[rows, :, positions].transpose(1, 2) for buffer in self.buffers))

    def keep(self, sentences: Int[Tensor, "kept"]) -> None:
        """Drop every sentence but these."""
        self.buffers = [buffer.index_select(0, sentences) for buffer in self.buffers]
        self.memory_keys = self.memory_keys.index_select(0, sentences)
        self.memory_values = self.memory_values.index_select(0, sentences)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, and feed-forward, each inside an AddNorm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention, self.add_norm_1 = _attention(config), _add_norm(config)
        self.cross_attention, self.add_norm_2 = _attention(config), _add_norm(config)
        self.feed_forward, self.add_norm_3 = _feed_forward(config), _add_norm(config)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"],
        memory_mask: Bool[Tensor, "B 1 1 S"] | None,
    ) -> Float[Tensor, "B T D"]:
        """All target positions at once, each blind to the later ones."""
        x = self.add_norm_1(x, lambda y: self.self_attention(y, y, causal=True))
        x = self.add_norm_2(x, lambda y: self.cross_attention(y, memory, memory_mask))
        return self.add_norm_3(x, self.feed_forward)

    def start(self, memory: Float[Tensor, "B S D"]) -> LayerCache:
        """The cache before the first step: the source's keys and values, and no target positions."""
        keys, values = self.self_attention.keys_and_values(memory[:, :0])
        return LayerCache(keys, values, *self.cross_attention.keys_and_values(memory))

    def step(
        self,
        x: Float[Tensor, "B W D"],
        cache: LayerCache,
        target_mask: Float[Tensor, "B 1 W T"] | None,
        memory_mask: Float[Tensor, "B 1 1 S"] | None,
    ) -> Float[Tensor, "B W D"]:
        """One new position of W hypotheses a sentence: what `forward` gives at that position."""

        def self_attention(y: Tensor) -> Tensor:
            cache.append(*self.self_attention.keys_and_values(y))
            return self.self_attention.attend(y, cache.keys, cache.values, target_mask)

        def cross_attention(y: Tensor) -> Tensor:
            return self.cross_attention.attend(y, cache.memory_keys, cache.memory_values, memory_mask)

        x = self.add_norm_1(x, self_attention)
        x = self.add_norm_2(x, cross_attention)
        return self.add_norm_3(x, self.feed_forward)


class Decoder(nn.Module):
    """N decoder layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers: Iterable[DecoderLayer] = nn.ModuleList(  # type: ignore[assignment]
            DecoderLayer(config) for _ in range(config.N)
        )
        self.norm = _final_norm(config)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"],
        memory_mask: Bool[Tensor, "B 1 1 S"] | None,
    ) -> Float[Tensor, "B T D"]:
        for layer in self.layers:
            x = layer(x, memory, memory_mask)
        return self.norm(x)

    def start(self, memory: Float[Tensor, "B S D"]) -> list[LayerCache]:
        return [layer.start(memory) for layer in self.layers]

    def step(
        self,
        x: Float[Tensor, "B W D"],
        caches: list[LayerCache],
        target_mask: Float[Tensor, "B 1 W T"] | None,
        memory_mask: Float[Tensor, "B 1 1 S"] | None,
    ) -> Float[Tensor, "B W D"]:
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer.step(x, cache, target_mask, memory_mask)
        return self.norm(x)
