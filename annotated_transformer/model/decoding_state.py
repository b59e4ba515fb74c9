"""What decoding keeps from step to step: keys, values, and which hypothesis sees which of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from annotated_transformer.errors import require
from annotated_transformer.model.attention import MultiHeadAttention
from annotated_transformer.model.stacks import DecoderLayer


class LayerCache:
    """The KV cache of one decoder layer: B sentences, W hypotheses each.

    All hypotheses of a sentence share one row. `keys` and `values` hold the T tokens decoded so
    far, W more with each step. A common prefix is stored once, as in a prefix tree, and
    `DecodingState.target_mask` says which tokens belong to which hypothesis, so branching copies
    nothing (LOG.md, "The cache of a search"). Each query scores all T tokens. That is cheap for
    beams, which share most of their tokens; W hypotheses without a common prefix cost W times the
    scores.

    Both are the filled part of buffers that are written in place (so there are no gradients through
    several steps) and reallocated when full. `memory_keys` and `memory_values` hold the source.
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
        self.memory_keys = memory_keys
        self.memory_values = memory_values

    @classmethod
    def of_memory(cls, layer: DecoderLayer, memory: Float[Tensor, "B S D"]) -> LayerCache:
        """Before the first step: the source's keys and values, no target positions."""
        keys, values = layer.self_attention.keys_and_values(memory[:, :0])
        return cls(keys, values, *layer.cross_attention.keys_and_values(memory))

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

    def attend_past(
        self,
        attention: MultiHeadAttention,
        x: Float[Tensor, "B W D"],
        mask: Float[Tensor, "B 1 W T"] | None,
        position: int,
    ) -> Float[Tensor, "B W D"]:
        """Append the new keys and values, then attend to each cached token that `mask` allows.

        All W hypotheses are at the same `position`.
        """
        self.append(*attention.keys_and_values(x, position))
        return attention.attend(x, self.keys, self.values, mask, position=position)

    def attend_memory(
        self,
        attention: MultiHeadAttention,
        x: Float[Tensor, "B W D"],
        mask: Float[Tensor, "B 1 1 S"] | None,
    ) -> Float[Tensor, "B W D"]:
        """Attend to the source, whose keys and values were computed before the first step."""
        return attention.attend(x, self.memory_keys, self.memory_values, mask)

    def _set(self, *filled: Tensor, n_more: int = 0) -> None:
        """Hold these keys and values, in new buffers.

        They have room for as many again, and for at least `n_more` or 16.
        """
        self.length = filled[0].size(2)
        # More room at the start, 32 or 64, gained nothing (LOG.md, "The cache of a search").
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


@dataclass
class DecodingState:
    """B sentences with W hypotheses each, all decoded up to the same position.

    The caches hold T tokens per sentence, those of all its hypotheses, as a prefix tree.
    `target_mask` is 0 where token t is in hypothesis w (an ancestor, or its newest) and minus
    infinity elsewhere; it is None as long as a sentence has only ever had one hypothesis.
    `memory_mask` is minus infinity at padding and 0 elsewhere; it is None without padding.
    """

    caches: list[LayerCache]
    memory_mask: Float[Tensor, "B 1 1 S"] | None
    target_mask: Float[Tensor, "B 1 W T"] | None = None
    position: int = 0

    def advance(self, n_hypotheses: int) -> None:
        """Before a step: one more position; each hypothesis sees its own new token.

        Raises ConfigError if there are other than W hypotheses.
        """
        mask = self.target_mask
        width = 1 if mask is None else mask.size(2)
        require(n_hypotheses == width, "a step takes the hypotheses that reorder made")
        self.position += 1
        if mask is not None:
            own = mask.new_full((n_hypotheses, n_hypotheses), -torch.inf).fill_diagonal_(0)
            self.target_mask = torch.cat([mask, own.expand(len(mask), 1, -1, -1)], dim=3)

    def reorder(self, parents: Int[Tensor, "B W"]) -> None:
        """Hypothesis (b, w) continues what was hypothesis (b, parents[b, w]); W may change.

        Only the mask changes, unless the buffers are full: then tokens that are in no hypothesis
        are forgotten. Not so on a GPU, where the host would have to wait to hear how many they are:
        there the next step makes room for all.
        """
        b, n_hypotheses = parents.shape
        if self.target_mask is None:
            if n_hypotheses == 1:
                return
            self.target_mask = self.caches[0].memory_keys.new_zeros(b, 1, 1, self.caches[0].length)
        rows = torch.arange(b, device=parents.device)[:, None]
        self.target_mask = self.target_mask[rows, :, parents].transpose(1, 2)
        if b and self.caches[0].room < n_hypotheses and parents.device.type == "cpu":
            self._forget(self.target_mask)

    def _forget(self, target_mask: Float[Tensor, "B 1 W T"]) -> None:
        """Drop tokens that are in no hypothesis.

        A sentence that has more of them than another keeps some, masked.
        """
        is_needed = (target_mask == 0).any(dim=2)[:, 0]
        n_kept = int(is_needed.sum(dim=1).max())
        positions = is_needed.byte().argsort(dim=1, descending=True, stable=True)[:, :n_kept]
        index = positions[:, None, None].expand(-1, -1, target_mask.size(2), -1)
        self.target_mask = target_mask.gather(3, index)
        for cache in self.caches:
            cache.forget_all_but(positions)

    def keep(self, sentences: Int[Tensor, "kept"]) -> None:
        """Drop every sentence but these, with all its hypotheses."""
        for cache in self.caches:
            cache.keep(sentences)
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask[sentences]
        if self.target_mask is not None:
            self.target_mask = self.target_mask[sentences]


def added_mask(
    mask: Bool[Tensor, "B 1 1 S"], dtype: torch.dtype
) -> Float[Tensor, "B 1 1 S"] | None:
    """What is added to scores instead: 0 where `mask` is True, else minus infinity.

    None if all of it is True; a GPU, for whose answer the host would have to wait, is not asked.
    """
    if mask.device.type == "cpu" and mask.all():
        return None
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)
