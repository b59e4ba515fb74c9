"""Decoding steps on a GPU as CUDA graphs: recorded once for each shape, then one call a step.

A step of few hypotheses is more than a hundred small kernels, and a GPU runs one faster than its
host can start the next. A graph starts all of them at once, but it reads and writes the memory that
it was recorded with, and no shape in it can change. So the caches lie in buffers that keep their
place, of sizes that are rounded up, the rest masked.

To record a graph takes as long as several steps without one, so there must be few. Sizes go up by
factors of four, and a beam keeps the places of hypotheses that have ended: a file of any length
needs a handful (a test counts them).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from annotated_transformer.config import require
from annotated_transformer.fast.decoder import FastDecoder
from annotated_transformer.fast.graph_recording import Recorder, Run
from annotated_transformer.model.decoding_state import DecodingState, LayerCache

FIRST_CAPACITY = 128
"""Tokens of a sentence that the first buffers hold, those of all its hypotheses."""
MOST_UNUSED = 2**32
"""Bytes of buffers that are kept, with their graphs, for later sentences."""


class GraphedModel:
    """`start` and `step` of `decoder`, with the same values, for search.

    Each step of a known shape is one call. Where there is no GPU the same steps are computed,
    without a graph. Weights that are loaded into the model count, as for a FastDecoder. Raises
    ConfigError if `decoder` has copies in 16 bits.
    """

    def __init__(self, decoder: FastDecoder) -> None:
        weights_stay = not decoder.keep_float16_copy
        require(weights_stay, "graphs need weights that stay where they are: no keep_float16_copy")
        self.decoder, self.config = decoder, decoder.config
        self.record = Recorder(decoder.embedding_VD.device)
        self.unused: list[_Buffers] = []

    def start(self, source: Int[Tensor, "B S"]) -> DecodingState:
        """`FastDecoder.start`; the state belongs to this model."""
        return _HeldState(self.decoder.start(source), self)

    @torch.no_grad()
    def step(self, tokens: Int[Tensor, "B W"], state: _HeldState) -> Float[Tensor, "B W V"]:
        """`FastDecoder.step`."""
        if not tokens.numel():
            return self.decoder.embedding_VD.new_empty(*tokens.shape, self.config.vocab_size)
        n_sentences, n_hypotheses = tokens.shape
        position = self.decoder.positions(1, state.position)
        state.advance(n_hypotheses)
        state.width = max(state.width, n_hypotheses)
        while state.caches[0].room < state.width:
            state.grow()
        graph = state.buffers.graph(n_sentences, state.width, self.decoder)
        graph.fill(tokens, position, state)
        is_first = state.position == 1  # how wide the beam is shows in the next one
        logits = graph.run() if is_first else graph.replay(self.record)
        logits = logits[:n_sentences, :n_hypotheses].clone()
        for layer_cache in state.caches:
            layer_cache.length += n_hypotheses
        return logits

    def take(self, caches: list[LayerCache], capacity: int) -> _Buffers:
        """Buffers for these caches, with that much room: unused ones if there are any."""
        n_sentences, _, source_length, _ = caches[0].memory_keys.shape
        sizes = _round_up(n_sentences), _round_up(source_length, 64), capacity
        for buffers in self.unused:
            if buffers.sizes == sizes:
                self.unused.remove(buffers)
                buffers.clear()
                return buffers
        return _Buffers(caches, *sizes)

    def give_back(self, buffers: _Buffers) -> None:
        self.unused.append(buffers)
        while sum(kept.n_bytes for kept in self.unused) > MOST_UNUSED:
            del self.unused[0]


def _round_up(n: int, least: int = 16) -> int:
    """`least` times a power of four, so that few shapes occur.

    A GPU takes 16 rows in the time of one.
    """
    while least < n:
        least *= 4
    return least


class _HeldState(DecodingState):
    """A DecodingState whose caches are in buffers of the model.

    `width` is that of its widest step.
    """

    def __init__(self, state: DecodingState, model: GraphedModel) -> None:
        memory_keys, mask = state.caches[0].memory_keys, state.memory_mask
        n_sentences, _, source_length, _ = memory_keys.shape
        if mask is None:
            mask = memory_keys.new_zeros(n_sentences, 1, 1, source_length)
        mask = F.pad(mask, (0, _round_up(source_length, 64) - source_length), value=-torch.inf)
        super().__init__(state.caches, mask, state.target_mask, state.position)
        self.model, self.width = model, 1
        self._move(FIRST_CAPACITY)

    def _move(self, capacity: int) -> None:
        self.buffers = self.model.take(self.caches, capacity)
        pairs = zip(self.caches, self.buffers.layers, strict=True)
        self.caches = [_HeldCache(cache, parts) for cache, parts in pairs]
        self.release = weakref.finalize(self, self.model.give_back, self.buffers)
        self.release.atexit = False

    def grow(self) -> None:
        """Move to buffers with four times the room."""
        release = self.release
        self._move(4 * self.buffers.sizes[-1])
        release()

    def _forget(self, target_mask: Float[Tensor, "B 1 W T"]) -> None:
        """Nothing: the next step makes room."""


class _BufferedCache(LayerCache):
    """A LayerCache in the first rows of buffers that are there already.

    They are for its keys, its values, and the keys and values of the source.
    """

    def __init__(self, parts: list[Tensor], n_sentences: int) -> None:
        keys, values, memory_keys, memory_values = (part[:n_sentences] for part in parts)
        super().__init__(keys[:, :, :0], values[:, :, :0], memory_keys, memory_values)
        self.buffers = [keys, values]


class _HeldCache(_BufferedCache):
    """One that holds what `cache` does, and never leaves its buffers."""

    def __init__(self, cache: LayerCache, parts: list[Tensor]) -> None:
        n_sentences, _, source_length, _ = cache.memory_keys.shape
        super().__init__(parts, n_sentences)
        self.memory_keys[:, :, :source_length] = cache.memory_keys
        self.memory_values[:, :, :source_length] = cache.memory_values
        self._set(cache.keys, cache.values)

    def _set(self, *filled: Tensor, n_more: int = 0) -> None:
        self.length = filled[0].size(2)
        for buffer, part in zip(self.buffers, filled, strict=True):
            buffer[:, :, : self.length] = part

    def keep(self, sentences: Int[Tensor, "kept"]) -> None:
        parts = *self.buffers, self.memory_keys, self.memory_values
        for part in parts:
            part[: len(sentences)] = part.index_select(0, sentences)
        kept = (part[: len(sentences)] for part in parts)
        *self.buffers, self.memory_keys, self.memory_values = kept


class _Buffers:
    """Memory for the caches of n sentences, with the graphs that were recorded on it."""

    def __init__(
        self, caches: list[LayerCache], n_sentences: int, source_length: int, capacity: int
    ) -> None:
        self.sizes = n_sentences, source_length, capacity

        def room_for(part: Tensor, length: int) -> Tensor:
            return part.new_zeros(n_sentences, part.size(1), length, part.size(3))

        with torch.inference_mode(False):
            self.layers = [
                [
                    *(room_for(part, capacity) for part in cache.buffers),
                    room_for(cache.memory_keys, source_length),
                    room_for(cache.memory_values, source_length),
                ]
                for cache in caches
            ]
        self.n_bytes = sum(part.nbytes for parts in self.layers for part in parts)
        self.graphs: dict[tuple[int, int], _Graph] = {}

    def clear(self) -> None:
        """Set all to 0.

        Attention reads what is masked, with a weight of 0, and a NaN that some search left would
        still count.
        """
        for parts in self.layers:
            for part in parts:
                part.zero_()

    def graph(self, n_sentences: int, n_hypotheses: int, decoder: FastDecoder) -> _Graph:
        shape = _round_up(n_sentences), n_hypotheses
        if shape not in self.graphs:
            self.graphs[shape] = _Graph(self, *shape, decoder)
        return self.graphs[shape]


class _Graph:
    """The step of n sentences with W hypotheses each; it is recorded when it is first replayed."""

    def __init__(
        self, buffers: _Buffers, n_sentences: int, n_hypotheses: int, decoder: FastDecoder
    ) -> None:
        _, source_length, capacity = buffers.sizes
        floats, self.decoder = decoder.embedding_VD, decoder
        self.recorded: Run | None = None
        with torch.inference_mode(False):
            self.tokens = floats.new_zeros(n_sentences, n_hypotheses, dtype=torch.long)
            self.slots = floats.new_zeros(n_hypotheses, dtype=torch.long)
            self.position = floats.new_zeros(1, floats.size(1))
            self.target_mask = floats.new_zeros(n_sentences, 1, n_hypotheses, capacity)
            self.memory_mask = floats.new_zeros(n_sentences, 1, 1, source_length)
        self.caches = [_CacheInGraph(parts, n_sentences, self.slots) for parts in buffers.layers]

    def run(self) -> Tensor:
        """The logits of what was filled in."""
        return self.decoder.logits_after(
            self.tokens, self.position, self.caches, self.target_mask, self.memory_mask
        )

    def replay(self, record: Callable[[Run], Run]) -> Tensor:
        """What `run` gives, as a graph."""
        self.recorded = self.recorded or record(self.run)
        return self.recorded()

    def fill(
        self, tokens: Int[Tensor, "B W"], position: Tensor | float, state: DecodingState
    ) -> None:
        """Fill what the graph reads. Rows that are not in use see all tokens, so that none is NaN.

        What hypotheses beyond `tokens` write is seen by none, and written over in the next step.
        """
        n_sentences, n_hypotheses = tokens.shape
        length = state.caches[0].length
        filled = length + n_hypotheses
        self.tokens[:n_sentences, :n_hypotheses] = tokens
        self.position[:] = position
        torch.arange(length, length + len(self.slots), out=self.slots)
        self.target_mask[..., :filled] = 0
        self.target_mask[..., filled:] = -torch.inf
        if state.target_mask is not None:
            self.target_mask[:n_sentences, :, :n_hypotheses, :filled] = state.target_mask
        if state.memory_mask is not None:
            self.memory_mask[:n_sentences] = state.memory_mask


class _CacheInGraph(_BufferedCache):
    """One whose keys and values are all of the buffers.

    New ones go to `slots`, so that the host need not know a length.
    """

    def __init__(self, parts: list[Tensor], n_sentences: int, slots: Int[Tensor, "W"]) -> None:
        super().__init__(parts, n_sentences)
        self.length, self.slots = self.buffers[0].size(2), slots

    def append(self, keys: Float[Tensor, "B H W K"], values: Float[Tensor, "B H W Kv"]) -> None:
        for buffer, new in zip(self.buffers, (keys, values), strict=True):
            buffer.index_copy_(2, self.slots, new)
