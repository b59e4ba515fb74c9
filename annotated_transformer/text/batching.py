"""Batching (section 5.1): pairs of similar length, at most `max_tokens` tokens on each side."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from annotated_transformer.config import PAD_ID, SPECIAL_IDS, SpecialIds
from annotated_transformer.errors import require
from annotated_transformer.text.parallel_text import Fingerprint

if TYPE_CHECKING:
    from annotated_transformer.text.tokenizer import Tokenizer

Ids = Sequence[int]
TokenPair = tuple[Ids, Ids]
TextPairs = Sequence[tuple[str, str]]


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

    def to(self, device: torch.device | str) -> Batch:
        on_gpu = torch.device(device).type == "cuda"
        source, target_in, target_out = (
            (t.pin_memory() if on_gpu else t).to(device, non_blocking=on_gpu) for t in self[:3]
        )
        return Batch(source, target_in, target_out, self.n_tokens)


def encode_pairs(
    tokenizer: Tokenizer,
    pairs: TextPairs,
    max_length: int,
    bpe_dropout: float = 0.0,
    seed: int = 0,
    at_once: int = 10_000,
) -> list[TokenPair]:
    """Ids of both sides of every pair that has 1 to `max_length` of them on each side.

    Eos is counted. `at_once` pairs at a time are lists, which take 36 bytes an id; kept are arrays,
    which take 4.
    """
    encoded: list[TokenPair] = []
    seeds = random.Random(seed)
    rest = iter(pairs)
    while some := list(islice(rest, at_once)):
        sides = (
            tokenizer.encode_batch(texts, bpe_dropout, seeds.getrandbits(31))
            for texts in zip(*some, strict=True)
        )
        encoded += [
            (array("i", x), array("i", y))
            for x, y in zip(*sides, strict=True)
            if 0 < len(x) < max_length and 0 < len(y) < max_length
        ]
    return encoded


def fingerprint(pairs: TextPairs) -> str:
    """A SHA-256 of all texts, their order and what stands opposite what.

    Other pairs have another.
    """
    seen, rest = Fingerprint(), iter(pairs)
    while some := list(islice(rest, 10_000)):
        seen.add(some)
    return seen.hexdigest()


def pad(
    rows: Sequence[Ids],
    pad_id: int = PAD_ID,
    before: Ids = (),
    after: Ids = (),
    multiple_of: int = 1,
) -> Int[Tensor, "B L"]:
    """Rows of ids as one tensor, each between `before` and `after`, filled up on the right.

    The length is that of the longest row, rounded up to a multiple of `multiple_of`. Rows that are
    an array("i"), as `encode_pairs` makes them, are copied in one piece each. Raises ConfigError
    when there are no rows.
    """
    require(len(rows) > 0, "a batch needs at least one sentence, got none")
    longest = len(before) + max(map(len, rows)) + len(after)
    n_padding = _rounded_up(longest, multiple_of) - len(after)
    end = array("i", after) + array("i", [pad_id]) * n_padding
    ids = array("i")
    for row in rows:
        for part in (before, row, end[: len(end) - len(before) - len(row)]):
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

    >>> make_batch([([5, 6], [7]), ([8], [9])]).source
    tensor([[5, 6, 2],
            [8, 2, 0]])
    """
    targets = [target for _, target in pairs]
    return Batch(
        source=pad_source([source for source, _ in pairs], ids, multiple_of),
        target_in=pad(targets, ids.pad_id, before=[ids.bos_id], multiple_of=multiple_of),
        target_out=pad(targets, ids.pad_id, after=[ids.eos_id], multiple_of=multiple_of),
        n_tokens=sum(map(len, targets)) + len(targets),
    )


def unmade_batch(n_tokens: int) -> Batch:
    """A batch for whom only its number of tokens counts."""
    empty = torch.empty(0, 0, dtype=torch.long)
    return Batch(empty, empty, empty, n_tokens)


def concatenated(
    pairs: Sequence[TokenPair], share: float, generator: random.Random
) -> list[TokenPair]:
    """share * N joined pairs for N `pairs`: x_i x_j with y_i y_j, for random i and j.

    Where sentences are short, a model learns to stop early and sees little of positions far from
    bos. Two sentences in a row are a long one (Nguyen, Murray and Chiang 2021,
    https://aclanthology.org/2021.iwslt-1.33).
    """
    first, second = (generator.choices(pairs, k=round(share * len(pairs))) for _ in range(2))
    return [
        (array("i", [*x_i, *x_j]), array("i", [*y_i, *y_j]))
        for (x_i, y_i), (x_j, y_j) in zip(first, second, strict=True)
    ]


def group_by_length(
    lengths: Sequence[tuple[int, int]], max_tokens: int, generator: random.Random
) -> list[list[int]]:
    """Indices of pairs in groups of similar length.

    No side of a group exceeds `max_tokens` when padded. `lengths` counts source and target tokens.
    Pairs are sorted by target, then source length, ties in random order, and cut wherever the next
    pair would not fit.
    """
    order = list(range(len(lengths)))
    generator.shuffle(order)
    order.sort(key=lambda i: lengths[i][::-1])
    groups: list[list[int]] = []
    longest = 0
    for i in order:
        longest = max(longest, *lengths[i])
        if not groups or longest * (len(groups[-1]) + 1) > max_tokens:
            groups.append([])
            longest = max(lengths[i])
            require(
                longest <= max_tokens,
                f"max_tokens must hold the longest sentence, got {max_tokens} and {longest}",
            )
        groups[-1].append(i)
    return groups


def token_batches(
    pairs: Sequence[TokenPair],
    max_tokens: int,
    *,
    seed: int = 1,
    epoch: int = 0,
    shuffle: bool = True,
    start: int = 0,
    ids: SpecialIds = SPECIAL_IDS,
    multiple_of: int = 1,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Iterator[Batch]:
    """One epoch: every pair once, in batches of at most `max_tokens` padded tokens on each side.

    The order depends on `seed` and `epoch` alone, so `start=k` resumes an epoch after its k-th
    batch. With `shuffle=False` batches go from short to long. `multiple_of=8` rounds lengths up,
    which a GPU likes: few shapes, for each of which it may have to make a plan, and of sizes that
    its tensor cores take. Then a sentence that only the rounding makes too long is a batch of its
    own. `is_wanted` is asked before each batch; without it, it is an `unmade_batch`. Raises
    ConfigError when a sentence is longer than `max_tokens`.

    >>> pairs = [([5] * n, [6] * n) for n in (1, 2, 3, 4)]
    >>> [tuple(batch.source.shape) for batch in token_batches(pairs, 12, shuffle=False)]
    [(3, 4), (1, 5)]
    """

    def padded(length: int) -> int:
        return min(_rounded_up(length, multiple_of), max(length, max_tokens))

    generator = random.Random(f"{seed} {epoch}")
    lengths = [(padded(len(source) + 1), padded(len(target) + 1)) for source, target in pairs]
    groups = group_by_length(lengths, max_tokens, generator)
    if shuffle:
        generator.shuffle(groups)
    for group in groups[start:]:
        chosen = [pairs[i] for i in group]
        n_tokens = sum(len(target) + 1 for _, target in chosen)
        yield make_batch(chosen, ids, multiple_of) if is_wanted() else unmade_batch(n_tokens)
