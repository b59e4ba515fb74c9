"""Batches of pairs (section 5.1): ids, padded, and which pairs make which batch.

An epoch is *planned* from lengths, a window of pairs at a time, and each group of the plan is
*gathered* when its turn comes, so memory does not grow with the corpus. The order of an epoch is a
permutation that is computed, not stored. Two integers, the epoch and the number of batches, say how
far a run has come; everything else follows from the seed. So each of many processes makes the whole
plan, and gathers only its own groups.
"""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int, Int32, Int64, UInt64
from torch import Tensor

from annotated_transformer.config import PAD_ID, SPECIAL_IDS, SpecialIds, TrainConfig
from annotated_transformer.data.parallel_text import require_text_pairs
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import ConfigError, require
from annotated_transformer.views import html_table

Ids = Sequence[int]
TokenPair = tuple[Ids, Ids]
TextPairs = Sequence[tuple[str, str]]
WINDOW = TrainConfig.window
"""Pairs that are planned at a time. Fewer mean more padding: measured with the lengths of sentences
and batches of 25,000 tokens, 2.8 percent are padding, and 7.4 with a quarter of the window (LOG.md,
"Data larger than memory")."""
PERMUTED_AT_ONCE = 2**16  # to permute: few enough for the processor's cache
ROUNDS = 8  # even: halves of unequal size change places in every round


class Batch(NamedTuple):
    """Token ids, padded on the right, and the number of real target tokens (eos included).

    The decoder reads `target_in` (bos y_1 ... y_n) and is to predict `target_out` (y_1 ... y_n
    eos): the outputs, shifted right by one (section 3.1). The source ends in eos, so that no
    sentence is empty.

    >>> batch = make_batch([([5, 6], [7]), ([8], [9, 10])])
    >>> batch.target_in.tolist(), batch.target_out.tolist(), batch.n_tokens
    ([[1, 7, 0], [1, 9, 10]], [[7, 2, 0], [9, 10, 2]], 5)
    """

    source: Int[Tensor, "B S"]
    target_in: Int[Tensor, "B T"]
    target_out: Int[Tensor, "B T"]
    n_tokens: int

    def _repr_html_(self) -> str:
        shapes = [(name, tuple(getattr(self, name).shape)) for name in self._fields[:3]]
        return html_table("Batch", [*shapes, ("n_tokens", f"{self.n_tokens:,}")])

    def to(self, device: torch.device | str) -> Batch:
        source, target_in, target_out = (copied_to(device, tensor) for tensor in self[:3])
        return Batch(source, target_in, target_out, self.n_tokens)


def copied_to(device: torch.device | str, tensor: Tensor) -> Tensor:
    """The host's tensor on `device`, without a wait for a GPU."""
    # Only from pinned memory does a copy to a GPU not wait for the GPU.
    on_gpu = torch.device(device).type == "cuda"
    return (tensor.pin_memory() if on_gpu else tensor).to(device, non_blocking=on_gpu)


def encode_pairs(
    tokenizer: Tokenizer,
    pairs: TextPairs,
    max_length: int,
    bpe_dropout: float = 0.0,
    seed: int = 0,
    pairs_at_once: int = 10_000,
) -> list[TokenPair]:
    """Ids of every pair whose sides have 1 to `max_length` tokens, eos counted.

    Raises ConfigError for rows that are not pairs of text.
    """
    encoded: list[TokenPair] = []
    seeds = random.Random(seed)
    rest = iter(pairs)
    # The tokenizer returns lists, which take 36 bytes per id where arrays take 4 (LOG.md, "Batches
    # on the host"), so only `pairs_at_once` pairs are lists at any time.
    while block := list(islice(rest, pairs_at_once)):
        require_text_pairs(block)
        sources, targets = (
            side.encode_batch(texts, bpe_dropout, seeds.getrandbits(31))
            for side, texts in zip(tokenizer.sides, zip(*block, strict=True), strict=True)
        )
        encoded += [
            (array("i", x), array("i", y))
            for x, y in zip(sources, targets, strict=True)
            if 0 < len(x) < max_length and 0 < len(y) < max_length
        ]
    return encoded


def pad(
    rows: Sequence[Ids],
    pad_id: int = PAD_ID,
    before: Ids = (),
    after: Ids = (),
    multiple_of: int = 1,
) -> Int[Tensor, "B L"]:
    """Rows of ids as one tensor, each between `before` and `after`, filled up on the right.

    The length is that of the longest row, rounded up to a multiple of `multiple_of`. Raises
    ConfigError when there are no rows.
    """
    require(len(rows) > 0, "a batch needs at least one sentence, got none")
    longest = len(before) + max(map(len, rows)) + len(after)
    n_padding = _rounded_up(longest, multiple_of) - len(after)
    end = array("i", after) + array("i", [pad_id]) * n_padding
    ids = array("i")
    for row in rows:
        for part in (before, row, end[: len(end) - len(before) - len(row)]):
            # An array("i"), as `encode_pairs` makes it, is copied in one piece.
            ids.extend(part if getattr(part, "typecode", "i") == "i" else list(part))
    return torch.from_numpy(np.array(ids, dtype=np.int64)).view(len(rows), -1)


def _rounded_up(length: int, multiple_of: int) -> int:
    return -(-length // multiple_of) * multiple_of


def pad_source(
    sentences: Sequence[Ids], ids: SpecialIds = SPECIAL_IDS, multiple_of: int = 1
) -> Int[Tensor, "B S"]:
    """Source sentences as the encoder reads them: eos at the end of each, then padding."""
    return pad(sentences, ids.pad_id, after=[ids.eos_id], multiple_of=multiple_of)


def make_batch(
    pairs: Sequence[TokenPair], ids: SpecialIds = SPECIAL_IDS, multiple_of: int = 1
) -> Batch:
    """The batch of these pairs of ids (given without bos and eos), at least one.

    Raises ConfigError for anything else, such as pairs of texts.

    >>> make_batch([([5, 6], [7]), ([8], [9])]).source
    tensor([[5, 6, 2],
            [8, 2, 0]])
    """
    require_id_pairs(pairs)
    targets = [target for _, target in pairs]
    return Batch(
        source=pad_source([source for source, _ in pairs], ids, multiple_of),
        target_in=pad(targets, ids.pad_id, before=[ids.bos_id], multiple_of=multiple_of),
        target_out=pad(targets, ids.pad_id, after=[ids.eos_id], multiple_of=multiple_of),
        n_tokens=sum(map(len, targets)) + len(targets),
    )


def require_id_pairs(pairs: Iterable[Any]) -> None:
    """Raise ConfigError unless every pair is a tuple (or a list) of two sequences of token ids."""
    for pair in pairs:
        is_row = isinstance(pair, tuple | list) and len(pair) == 2
        if not is_row or any(isinstance(side, str | int) for side in pair):
            raise ConfigError(f"a pair must be two lists of token ids, got {pair!r:.60}")


def placeholder_batch(n_tokens: int) -> Batch:
    """A placeholder for a batch that another process computes: only its token count is used."""
    empty = torch.empty(0, 0, dtype=torch.long)
    return Batch(empty, empty, empty, n_tokens)


@runtime_checkable
class PairStore(Protocol):
    """Pairs of ids in memory or on disk. A plan needs the lengths of many, a batch the ids of few.

    `lengths` counts source and target tokens, without bos and eos. `gather` gives the pairs in the
    order of the indices.
    """

    def __len__(self) -> int: ...

    def lengths(self, indices: Int64[np.ndarray, "n"]) -> Int32[np.ndarray, "n 2"]: ...

    def gather(self, indices: Int64[np.ndarray, "n"]) -> list[TokenPair]: ...


MAX_ENCODED_TOKENS = 2**16 - 1
"""The most tokens of a sentence that an encoded corpus keeps; training has a limit of its own."""


class EncodedCorpus(PairStore, ABC):
    """A `PairStore` on disk, made once with a tokenizer: `extras.shards` has one."""

    directory: Path

    @property
    @abstractmethod
    def pairs_sha256(self) -> str:
        """The digest of the text: `parallel_text.pairs_sha256` of the same pairs in a list."""

    @abstractmethod
    def is_of(self, tokenizer: Tokenizer) -> bool:
        """Whether this tokenizer made the ids."""

    @abstractmethod
    def verify(self) -> None:
        """Raise ConfigError, with a file's name, unless everything is as it was written."""


class PairsInMemory:
    """A list of pairs as a `PairStore`."""

    def __init__(self, pairs: Sequence[TokenPair]) -> None:
        self.pairs = pairs
        lengths = (length for pair in pairs for length in map(len, pair))
        self.all_lengths = np.fromiter(lengths, np.int32, 2 * len(pairs)).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self.pairs)

    def lengths(self, indices: Int64[np.ndarray, "n"]) -> Int32[np.ndarray, "n 2"]:
        return self.all_lengths[indices]

    def gather(self, indices: Int64[np.ndarray, "n"]) -> list[TokenPair]:
        return [self.pairs[i] for i in indices.tolist()]


def n_fitting(store: PairStore, max_length: int) -> int:
    """The number of pairs with at most `max_length` tokens on each side, eos counted."""
    n = len(store)
    windows = (np.arange(i, min(i + WINDOW, n)) for i in range(0, n, WINDOW))
    return sum(int((store.lengths(indices).max(axis=1) < max_length).sum()) for indices in windows)


class JoinedPairs:
    """A store of n pairs and, behind them, share * n joined ones.

    A joined pair is x_i x_j with y_i y_j, for random i and j that the seed and the epoch decide. It
    is two indices until it is gathered. Where sentences are short, a model learns to stop early and
    sees little of positions far from bos; two in a row make a long one (Nguyen, Murray and Chiang
    2021, https://aclanthology.org/2021.iwslt-1.33).
    """

    def __init__(self, store: PairStore, share: float, seed: int, epoch: int) -> None:
        self.store = store
        self.n_joined = round(share * len(store))
        self.keys = _keys(f"{seed} {epoch} concatenate", 2)

    def __len__(self) -> int:
        return len(self.store) + self.n_joined

    def parts(self, indices: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n 2"]:
        """The indices i and j of each; -1 for the j of a pair that is not joined."""
        n = len(self.store)
        i, j = (
            (_mixed(indices.astype(np.uint64), key) % np.uint64(n)).astype(np.int64)
            for key in self.keys
        )
        is_plain = indices < n
        return np.stack([np.where(is_plain, indices, i), np.where(is_plain, -1, j)], axis=1)

    def lengths(self, indices: Int64[np.ndarray, "n"]) -> Int32[np.ndarray, "n 2"]:
        first, second = self.parts(indices).T
        lengths = self.store.lengths(first)
        lengths[second >= 0] += self.store.lengths(second[second >= 0])
        return lengths

    def gather(self, indices: Int64[np.ndarray, "n"]) -> list[TokenPair]:
        first, second = self.parts(indices).T
        pairs = self.store.gather(first)
        second_pairs = iter(self.store.gather(second[second >= 0]))
        for place in np.flatnonzero(second >= 0).tolist():
            (x_i, y_i), (x_j, y_j) = pairs[place], next(second_pairs)
            pairs[place] = array("i", [*x_i, *x_j]), array("i", [*y_i, *y_j])
        return pairs


def permuted(positions: Int64[np.ndarray, "n"], size: int, key: str) -> Int64[np.ndarray, "n"]:
    """What stands at these positions in a random order of 0 ... `size` - 1.

    Nothing is stored, whatever the size. Each key gives another order, the same on every machine.

    This is a Feistel network: the bits of a number are cut in two, and in each round one half is
    changed by a hash of the other, which can be undone, so that no two numbers meet. It permutes
    0 ... 2**k - 1, the next power of two; an index at or beyond `size` is permuted again until it
    falls below it (cycle walking: Black and Rogaway 2002,
    https://web.cs.ucdavis.edu/~rogaway/papers/subset.pdf).
    """
    require(size >= 1, f"there must be something to permute, got {size}")
    bits = max(2, (size - 1).bit_length())
    keys = _keys(key, ROUNDS)
    result = np.empty(len(positions), np.int64)
    for first in range(0, len(positions), PERMUTED_AT_ONCE):
        block = _feistel(positions[first : first + PERMUTED_AT_ONCE].astype(np.uint64), bits, keys)
        while len(beyond := np.flatnonzero(block >= size)):
            block[beyond] = _feistel(block[beyond], bits, keys)
        result[first : first + PERMUTED_AT_ONCE] = block
    return result


def _feistel(
    numbers: UInt64[np.ndarray, "n"], bits: int, keys: list[UInt64[np.ndarray, "3"]]
) -> UInt64[np.ndarray, "n"]:
    n_right = bits // 2
    n_left = bits - n_right
    left = numbers >> np.uint64(n_right)
    right = numbers & np.uint64(2**n_right - 1)
    for key in keys:
        left, right = right, left ^ _mixed(right, key) >> np.uint64(64 - n_left)
        n_left, n_right = n_right, n_left
    return left << np.uint64(n_right) | right


def _mixed(
    numbers: UInt64[np.ndarray, "n"], key: UInt64[np.ndarray, "3"]
) -> UInt64[np.ndarray, "n"]:
    """64 bits that look random, the high ones most of all: products modulo 2**64."""
    product = (numbers + key[0]) * key[1]
    product = (product ^ product >> np.uint64(32)) * key[2]
    return product ^ product >> np.uint64(29)


def _keys(name: str, n: int) -> list[UInt64[np.ndarray, "3"]]:
    """n keys, each of a number to add and two odd numbers to multiply by."""
    numbers = np.frombuffer(hashlib.shake_256(name.encode()).digest(24 * n), "<u8")
    return list(numbers.astype(np.uint64).reshape(n, 3) | np.array([0, 1, 1], np.uint64))


class Group(NamedTuple):
    """A batch before it is made: its pairs, and the number of its target tokens with eos."""

    indices: Int64[np.ndarray, "B"]
    n_tokens: int


def group_by_length(
    lengths: Int[np.ndarray, "n 2"], max_tokens: int
) -> list[Int64[np.ndarray, "B"]]:
    """Rows in groups of similar length, short to long, whose padded sides fit into `max_tokens`.

    `lengths` counts source and target tokens. Rows are sorted by target, then source length, ties
    in the order given; a new group begins wherever the next row would not fit.
    """
    order = np.lexsort((lengths[:, 0], lengths[:, 1]))  # target padding costs logits as well
    longest = lengths[order].max(axis=1)
    groups = []
    start = 0
    while start < len(order):
        widest = np.maximum.accumulate(longest[start : start + max_tokens // int(longest[start])])
        n_rows = int(np.count_nonzero(widest * np.arange(1, len(widest) + 1) <= max_tokens))
        groups.append(order[start : start + n_rows])
        start += n_rows
    return groups


def plan(
    store: PairStore,
    max_tokens: int,
    *,
    seed: int = 1,
    epoch: int = 0,
    shuffle: bool = True,
    max_length: int | None = None,
    window: int = WINDOW,
    multiple_of: int = 1,
) -> Iterator[Group]:
    """One epoch as groups of indices, without the ids: every pair once, in a random order.

    Pairs of more than `max_length` tokens on a side, eos counted, are left out; without it, one
    that is longer than `max_tokens` is a ConfigError. Within a window, groups are those of
    `group_by_length` and come in random order. `multiple_of` is that of `token_batches`.
    """
    longest = max_tokens if max_length is None else max_length
    require(window >= 1, f"window must be at least 1, got {window}")
    too_long = f"max_length must not exceed max_tokens, got {longest} and {max_tokens}"
    require(longest <= max_tokens, too_long)
    n = len(store)
    size = -(-n // max(1, -(-n // window)))  # windows of equal size: a short one would pad more
    for first in range(0, n, max(1, size)):
        indices = np.arange(first, min(first + size, n))
        if shuffle:
            indices = permuted(indices, n, f"{seed} {epoch}")
        lengths = store.lengths(indices) + np.int32(1)
        fits = lengths.max(axis=1) <= longest
        sizes = f"{max_tokens} and {lengths.max()}"
        message = f"max_tokens must hold the longest sentence, got {sizes}"
        require(max_length is not None or bool(fits.all()), message)
        indices = indices[fits]
        lengths = lengths[fits]
        n_targets = lengths[:, 1]  # before they are rounded up: the loss counts real tokens
        if multiple_of > 1:
            rounded = -(-lengths // multiple_of) * multiple_of
            lengths = np.minimum(rounded, np.maximum(lengths, max_tokens)).astype(np.int32)
        groups = group_by_length(lengths, max_tokens)
        turns = np.arange(len(groups))
        if shuffle:  # from short to long, batches of one length would follow each other all epoch
            turns = permuted(turns, max(1, len(groups)), f"{seed} {epoch} {first}")
        for turn in turns.tolist():
            chosen = groups[turn]
            yield Group(indices[chosen], int(n_targets[chosen].sum()))


def token_batches(
    pairs: PairStore | Sequence[TokenPair],
    max_tokens: int,
    *,
    seed: int = 1,
    epoch: int = 0,
    shuffle: bool = True,
    max_length: int | None = None,
    window: int = WINDOW,
    start: int = 0,
    ids: SpecialIds = SPECIAL_IDS,
    multiple_of: int = 1,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Iterator[Batch]:
    """One epoch: every pair once, in batches of at most `max_tokens` padded tokens on each side.

    The order depends on `seed` and `epoch` alone, so `start=k` resumes an epoch after its k-th
    batch: what comes before is planned again, which takes a third of a second of CPU for a million
    pairs, and is not gathered. With `shuffle=False` batches go from short to long. `multiple_of=8`
    rounds lengths up: a GPU is faster with few shapes, of sizes that its tensor cores take. A
    sentence that is longer than `max_tokens` only after rounding is a batch of its own. `is_wanted`
    is called before each batch; where it returns False, the batch is a `placeholder_batch`.
    `max_length` and `window` are those of `plan`. Raises ConfigError as `plan` does.

    >>> pairs = [([5] * n, [6] * n) for n in (1, 2, 3, 4)]
    >>> [tuple(batch.source.shape) for batch in token_batches(pairs, 12, shuffle=False)]
    [(3, 4), (1, 5)]
    """
    store = pairs if isinstance(pairs, PairStore) else PairsInMemory(pairs)
    groups = plan(
        store,
        max_tokens,
        seed=seed,
        epoch=epoch,
        shuffle=shuffle,
        max_length=max_length,
        window=window,
        multiple_of=multiple_of,
    )
    for group in islice(groups, start, None):
        if is_wanted():
            yield make_batch(store.gather(group.indices), ids, multiple_of)
        else:
            yield placeholder_batch(group.n_tokens)
