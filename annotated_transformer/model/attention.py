"""Attention (section 3.2): scaled dot-product attention, multi-head attention and the two masks.

A mask is boolean and True means *may look*. It is broadcast against the scores, whose last two axes
are queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from annotated_transformer.errors import ConfigError, require
from annotated_transformer.model.embedding import rotated


def padding_mask(tokens: Int[Tensor, "B L"], pad_id: int) -> Bool[Tensor, "B 1 1 L"]:
    """Let every query see every key that is a real token.

    >>> padding_mask(torch.tensor([[5, 7, 2, 0]]), pad_id=0)
    tensor([[[[ True,  True,  True, False]]]])
    """
    return (tokens != pad_id)[:, None, None, :]


def causal_mask(length: int, device: torch.device | str | None = None) -> Bool[Tensor, "1 1 L L"]:
    """Let query i see the keys 0 to i: a lower triangle (section 3.2.3).

    The diagonal stays visible, since the decoder's input is already shifted right by one; so every
    row keeps at least one key, also when a padding mask that hides only the end of a sentence is
    added by `&`.

    >>> causal_mask(3).int()
    tensor([[[[1, 0, 0],
              [1, 1, 0],
              [1, 1, 1]]]], dtype=torch.int32)
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()[None, None]


def attention_weights(
    q: Float[Tensor, "*B L K"], k: Float[Tensor, "*B S K"], mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*B L S"]:
    """softmax(Q K^T / sqrt(d_k)), each row a distribution over the keys (equation 1).

    Scores where `mask` is False are set to minus infinity before the softmax. A query that may see
    no key at all has no distribution: its row is NaN, and none of the masks above makes one out of
    a sentence with a real token.

    >>> q, k = torch.zeros(1, 2), torch.zeros(4, 2)
    >>> attention_weights(q, k, mask=torch.tensor([True, True, False, False]))
    tensor([[0.5000, 0.5000, 0.0000, 0.0000]])
    """
    _require_boolean(mask)
    scores_LS = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        scores_LS = scores_LS.masked_fill(~mask, -math.inf)
    return scores_LS.softmax(dim=-1)


def scaled_dot_product_attention(
    q: Float[Tensor, "*B L K"],
    k: Float[Tensor, "*B S K"],
    v: Float[Tensor, "*B S Kv"],
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*B L Kv"]:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V (equation 1).

    The readable form, which the book teaches; `MultiHeadAttention` calls PyTorch's fused kernel
    instead, and a test holds the two equal.

    >>> q, k, v = torch.zeros(1, 2), torch.zeros(2, 2), torch.tensor([[1.0], [3.0]])
    >>> scaled_dot_product_attention(q, k, v)
    tensor([[2.]])
    """
    return attention_weights(q, k, mask) @ v


def _require_boolean(mask: Tensor | None) -> None:
    # PyTorch's kernel adds a float mask to the scores, so that one of ones and zeros, as tutorials
    # make it, would hide nothing and raise no error.
    if mask is not None and mask.dtype != torch.bool:
        raise ConfigError(
            f"a mask must be boolean, True where a query may look, got {mask.dtype}: take "
            "mask != 0 of ones and zeros, mask == 0 of a mask that is added to the scores"
        )


Attend = Callable[["MultiHeadAttention", Tensor], Tensor]
"""Attention of the queries of a tensor over keys that no mask over a padded batch can describe.

Packed rows (`fast.packing`) and cached keys (`decoding_state`) are such. The function gets the
attention and its input x, and uses the parts `W_Q`, `heads` and `attend`.
"""


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O (section 3.2.2).

    Each head_i is Attention(Q W_i^Q, K W_i^K, V W_i^V). The h matrices W_i^Q stand side by side in
    one matrix `W_Q` of h * d_k columns, and so do the others; d_k and d_v need not be d_model / h
    (Table 3, row B). The paper's projections have no bias, and it drops no attention weights:
    `bias` and `dropout` are options of later systems, and so are `rotary`, which turns queries and
    keys by their positions, and `qk_norm`, which normalises them head by head. `scaled=False`
    leaves the 1/sqrt(d_k) out.

    >>> attention = MultiHeadAttention(d_model=8, h=2)
    >>> x, memory = torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    >>> attention(x, memory).shape
    torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        d_model: int,
        h: int,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
        scaled: bool = True,
        rotary: bool = False,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        require(h >= 1, f"h must be at least 1, got {h}")
        is_divisible = bool(d_k and d_v) or d_model % h == 0
        require(is_divisible, f"d_model must be a multiple of h, got {d_model} and {h}")
        d_k = d_k or d_model // h
        is_even = not rotary or d_k % 2 == 0
        require(is_even, f"rotary positions turn pairs of channels: d_k must be even, got {d_k}")
        d_v = d_v or d_model // h
        self.h = h
        self.dropout = dropout
        self.scale = None if scaled else 1.0  # None is the kernel's default, 1/sqrt(d_k)
        self.W_Q = nn.Linear(d_model, h * d_k, bias=bias)
        self.W_K = nn.Linear(d_model, h * d_k, bias=bias)
        self.W_V = nn.Linear(d_model, h * d_v, bias=bias)
        self.W_O = nn.Linear(h * d_v, d_model, bias=bias)
        self.rotary = rotary
        self.q_norm = nn.RMSNorm(d_k, eps=1e-6) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(d_k, eps=1e-6) if qk_norm else nn.Identity()

    def split_heads(self, x: Float[Tensor, "B L HK"]) -> Float[Tensor, "B {self.h} L _K"]:
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def queries_of(
        self, projected: Float[Tensor, "B L HK"], position: int | None = None
    ) -> Float[Tensor, "B {self.h} L _K"]:
        """Each head's queries from x W^Q; at `position`, or else at 0, 1, ..., L - 1."""
        queries = self.q_norm(self.split_heads(projected))
        return rotated(queries, position) if self.rotary else queries

    def keys_of(
        self, projected: Float[Tensor, "B L HK"], position: int | None = None
    ) -> Float[Tensor, "B {self.h} L _K"]:
        """Each head's keys from memory W^K, as `queries_of` makes queries."""
        keys = self.k_norm(self.split_heads(projected))
        return rotated(keys, position) if self.rotary else keys

    def keys_and_values(
        self, memory: Float[Tensor, "B S D"], position: int | None = None
    ) -> tuple[Float[Tensor, "B H S K"], Float[Tensor, "B H S Kv"]]:
        """What can be computed once for all queries: each head's keys and values."""
        return self.keys_of(self.W_K(memory), position), self.split_heads(self.W_V(memory))

    def heads(
        self,
        queries: Float[Tensor, "B H L K"],
        keys: Float[Tensor, "B H S K"],
        values: Float[Tensor, "B H S Kv"],
        mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "B L HKv"]:
        """Concat(head_1, ..., head_h), from queries, keys and values that are already projected.

        `mask` is boolean (True means *may look*), or already additive: 0 where a query may look
        and minus infinity elsewhere, in the type of the queries.
        """
        heads = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=causal,
            scale=self.scale,
        )
        return heads.transpose(1, 2).flatten(-2)

    def attend(
        self,
        x: Float[Tensor, "B L D"],
        keys: Float[Tensor, "B H S K"],
        values: Float[Tensor, "B H S Kv"],
        mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
        causal: bool = False,
        position: int | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Attention of the queries x W^Q over keys and values that are already projected."""
        queries = self.queries_of(self.W_Q(x), position)
        return self.W_O(self.heads(queries, keys, values, mask, causal))

    def forward(
        self,
        x: Float[Tensor, "*B D"],
        memory: Float[Tensor, "*M D"] | Attend,
        mask: Bool[Tensor, "..."] | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "*B D"]:
        """Queries from `x`, keys and values from `memory` (the same tensor for self-attention).

        `mask` is broadcast to (B, h, L, S). `causal` stands for `causal_mask(L)` without building
        it, which lets the fused kernel skip the upper triangle; use one of the two. Where keys and
        values are not those of a padded batch, `memory` is the function that reaches them
        (`Attend`).
        """
        if not isinstance(memory, Tensor):
            return memory(self, x)  # called here, so that hooks on this module see every call
        _require_boolean(mask)
        keys, values = self.keys_and_values(memory)
        return self.attend(x, keys, values, mask, causal)
