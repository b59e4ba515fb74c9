"""Encoder and decoder stacks (section 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from annotated_transformer.config import ModelConfig
from annotated_transformer.model.attention import Attend, MultiHeadAttention
from annotated_transformer.model.dropout import Dropout
from annotated_transformer.model.feed_forward import PositionwiseFeedForward


class AddNorm(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))): the residual connection round every sub-layer.

    That is post-norm, the paper's (sections 3.1 and 5.4). norm="pre" gives
    x + Dropout(Sublayer(LayerNorm(x))), and leaves the sum as it is.

    >>> add_norm = AddNorm(d_model=8, p_drop=0.1, norm="post")
    >>> add_norm(torch.randn(1, 3, 8), torch.relu).shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, d_model: int, p_drop: float, norm: str, rms_norm: bool = False) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(d_model, eps=1e-6) if rms_norm else nn.LayerNorm(d_model)
        self.dropout = Dropout(p_drop)
        self.post = norm == "post"

    def forward(
        self, x: Float[Tensor, "*B L D"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*B L D"]:
        if self.post:
            return self.norm(x + self.dropout(sublayer(x)))
        return x + self.dropout(sublayer(self.norm(x)))


def add_norm_of(config: ModelConfig) -> AddNorm:
    """The residual connection of every sub-layer, as the configuration wants it."""
    return AddNorm(config.d_model, config.p_drop, config.norm, config.rms_norm)


def attention_of(config: ModelConfig, to_itself: bool) -> MultiHeadAttention:
    """The attention of every layer, as the configuration wants it.

    Rotary positions turn self-attention alone: distances within one sentence have a meaning.
    """
    return MultiHeadAttention(
        config.d_model,
        config.h,
        config.d_k,
        config.d_v,
        bias=config.bias,
        dropout=config.attention_dropout,
        scaled=config.scaled_attention,
        rotary=to_itself and config.positions == "rotary",
        qk_norm=config.qk_norm,
    )


def final_norm(config: ModelConfig) -> nn.Module:
    """A norm after a pre-norm stack, whose sums are not normalised.

    The paper's post-norm needs none; `final_norm=True` has one all the same.
    """
    has_norm = config.norm == "pre" or config.final_norm
    return add_norm_of(config).norm if has_norm else nn.Identity()


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each inside an AddNorm.

    >>> layer = EncoderLayer(ModelConfig.tiny(vocab_size=100))
    >>> layer(torch.randn(1, 5, 128), mask=None).shape
    torch.Size([1, 5, 128])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = attention_of(config, to_itself=True)
        self.add_norm_1 = add_norm_of(config)
        self.feed_forward = PositionwiseFeedForward(
            config.d_model, config.d_ff, config.activation, config.ffn_dropout
        )
        self.add_norm_2 = add_norm_of(config)

    def forward(
        self,
        x: Float[Tensor, "*B D"],
        mask: Bool[Tensor, "B 1 1 S"] | None,
        attend: Attend | None = None,
    ) -> Float[Tensor, "*B D"]:
        """Each position sees all those that `mask` allows, or reaches its keys by `attend`."""
        x = self.add_norm_1(x, lambda y: self.self_attention(y, attend or y, mask))
        return self.add_norm_2(x, self.feed_forward)


class Encoder(nn.Module):
    """N encoder layers.

    >>> encoder = Encoder(ModelConfig.tiny(vocab_size=100))
    >>> len(encoder.layers)
    3
    """

    layers: Any  # of EncoderLayer, which PyTorch's list has no type for

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.N))
        self.norm = final_norm(config)

    def forward(
        self, x: Float[Tensor, "B S D"], mask: Bool[Tensor, "B 1 1 S"] | None
    ) -> Float[Tensor, "B S D"]:
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the memory, and feed-forward, each inside an AddNorm.

    The memory is the encoder's output.

    >>> layer = DecoderLayer(ModelConfig.tiny(vocab_size=100))
    >>> layer(torch.randn(1, 3, 128), memory=torch.randn(1, 5, 128)).shape
    torch.Size([1, 3, 128])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = attention_of(config, to_itself=True)
        self.add_norm_1 = add_norm_of(config)
        self.cross_attention = attention_of(config, to_itself=False)
        self.add_norm_2 = add_norm_of(config)
        self.feed_forward = PositionwiseFeedForward(
            config.d_model, config.d_ff, config.activation, config.ffn_dropout
        )
        self.add_norm_3 = add_norm_of(config)

    def forward(
        self,
        x: Float[Tensor, "*B D"],
        memory: Float[Tensor, "*M D"] | Attend,
        memory_mask: Bool[Tensor, "B 1 1 S"] | None = None,
        attend_past: Attend | None = None,
    ) -> Float[Tensor, "*B D"]:
        """Each target position sees itself, the earlier ones, and all of the source.

        In training the earlier ones are in `x`. In a step of decoding a cache holds them, and
        `attend_past` reaches them there, as `memory` then does the source's keys.
        """
        x = self.add_norm_1(x, lambda y: self.self_attention(y, attend_past or y, causal=True))
        x = self.add_norm_2(x, lambda y: self.cross_attention(y, memory, memory_mask))
        return self.add_norm_3(x, self.feed_forward)


class Decoder(nn.Module):
    """N decoder layers.

    >>> decoder = Decoder(ModelConfig.tiny(vocab_size=100))
    >>> decoder(torch.randn(1, 3, 128), torch.randn(1, 5, 128), memory_mask=None).shape
    torch.Size([1, 3, 128])
    """

    layers: Any  # of DecoderLayer, which PyTorch's list has no type for

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.N))
        self.norm = final_norm(config)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"],
        memory_mask: Bool[Tensor, "B 1 1 S"] | None,
    ) -> Float[Tensor, "B T D"]:
        for layer in self.layers:
            x = layer(x, memory, memory_mask)
        return self.norm(x)
