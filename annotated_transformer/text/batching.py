"""A batch of pairs (section 5.1): ids, padded. `planning` says which pairs make which batch."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from annotated_transformer.config import PAD_ID, SPECIAL_IDS, SpecialIds
from annotated_transformer.errors import ConfigError, require
from annotated_transformer.text.parallel_text import require_text_pairs
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
        # Only from pinned memory does a copy to a GPU not wait for the GPU.
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
    while some := list(islice(rest, pairs_at_once)):
        require_text_pairs(some)
        sources, targets = (
            side.encode_batch(texts, bpe_dropout, seeds.getrandbits(31))
            for side, texts in zip(tokenizer.sides, zip(*some, strict=True), strict=True)
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
