"""Pairs of ids in shards on disk (section 5.1), so that a corpus may be larger than memory.

`prepare --encode` writes such a directory once (`shard_writing`), and `train --shards` reads it:

    shards.json             what they were made from, and of each shard its counts and checksums
    tokenizer.model         the vocabulary of the ids
    00000.ids.npy           all ids of the shard, end to end: source, target, source, target, ...
    00000.offsets.npy       2 n + 1 places in it: where each sentence begins, and the end

Both are NumPy's format, which `numpy.load(file, mmap_mode="r")` opens. They are read by pieces:
pages of a mapped file count as memory, and an epoch in random order would map all of them.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import os
import re
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from jaxtyping import Int32, Int64

from annotated_transformer.errors import ConfigError, LocalError, require
from annotated_transformer.files import read_bounded, require_ordinary
from annotated_transformer.settings import Settings
from annotated_transformer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from annotated_transformer.text.batching import TokenPair

FORMAT = 1
MANIFEST = "shards.json"
TOKENIZER = "tokenizer.model"
LONGEST = 2**16 - 1
"""Tokens of a sentence that a shard keeps at most; training has a limit of its own."""
MOST_MANIFEST, MOST_HEAD = 2**26, 2**10  # bytes: 100,000 shards; NumPy writes a head of 128
HEAD = re.compile(
    rb"(?s)\x93NUMPY\x01\x00..\{'descr': '([!-&(-~]+)', 'fortran_order': False, "
    rb"'shape': \((\d{1,19}),\), \} *\n"
)
"""The one head that NumPy writes here. NumPy's own reader evaluates it, whatever stands there."""


@dataclass(frozen=True)
class ShardEntry(Settings):
    """What `shards.json` says of one shard.

    `fingerprint` is that of all text from the beginning of the corpus to the end of this shard.
    """

    pairs: int
    left_out: int
    source_tokens: int
    target_tokens: int
    fingerprint: str
    ids_sha256: str
    offsets_sha256: str


@dataclass(frozen=True)
class Manifest(Settings):
    """What `shards.json` says of all.

    `tokenizer_sha256` is that of the file `tokenizer.model`; `pairs_per_shard` counts pairs of
    text, of which some are left out.
    """

    format: int
    complete: bool
    corpus: str
    split: str
    revision: str
    tokenizer_sha256: str
    vocab_size: int
    pairs_per_shard: int
    shards: list  # type: ignore[type-arg]

    @property
    def id_type(self) -> str:
        return "<u2" if self.vocab_size <= 2**16 else "<u4"


def read_manifest(directory: Path) -> Manifest:
    """What `shards.json` says. Raises ConfigError where there is none, or it has another form."""
    path = directory / MANIFEST
    try:
        stored = json.loads(read_bounded(path, MOST_MANIFEST).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(
            f"{directory} is not a directory of shards: it has no {MANIFEST}"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    try:
        found = Manifest.from_dict(stored)
        require(found.format == FORMAT, f"format must be {FORMAT}, got {found.format}")
        entries = [ShardEntry.from_dict(entry) for entry in found.shards]
        least = min((min(e.pairs, e.source_tokens, e.target_tokens) for e in entries), default=0)
        require(least >= 0, f"a shard's counts must not be negative, got {least}")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return Manifest(**{**vars(found), "shards": entries})


class ArrayFile:
    """A file of NumPy's format with one row of numbers, of which pieces are read.

    Raises ConfigError, with the file's name, unless it has `size` numbers of this type.
    """

    def __init__(self, path: Path, size: int, dtype: str) -> None:
        self.path, self.size, self.dtype = path, size, np.dtype(dtype)
        try:
            require_ordinary(path)
            with open(path, "rb") as file:
                head = HEAD.match(file.read(MOST_HEAD))
                n_bytes = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        if head is None:
            raise ConfigError(f"{path} is damaged: it has no head of NumPy's format")
        found, n_found = head[1].decode(), int(head[2])
        require(
            (n_found, found) == (size, self.dtype.str),
            f"{path} is another's: it has ({n_found},) numbers of type {found}, "
            f"and {MANIFEST} says ({size},) of {self.dtype.str}",
        )
        self.start = head.end()
        n_bytes -= self.start
        expected = size * self.dtype.itemsize
        require(
            n_bytes == expected,
            f"{path} is damaged: it has {n_bytes} bytes of numbers and should have {expected}",
        )

    @cached_property
    def file(self) -> BinaryIO:
        return open(self.path, "rb", buffering=0)  # closed with the object

    def read(self, start: int, stop: int) -> bytes:
        """The bytes of the numbers from `start` to `stop`, wherever another process is reading."""
        n_bytes = (stop - start) * self.dtype.itemsize
        at = self.start + start * self.dtype.itemsize
        if hasattr(os, "pread"):
            found = os.pread(self.file.fileno(), n_bytes, at)
        else:
            self.file.seek(at)
            found = self.file.read(n_bytes)
        if len(found) != n_bytes:
            raise LocalError(f"{self.path} was cut while it was being read")
        return found

    def numbers(self) -> np.ndarray:
        """All of them."""
        return np.frombuffer(self.read(0, self.size), self.dtype)

    def verified(self, sha256: str, at_once: int = 2**20) -> Iterator[np.ndarray]:
        """All of them, some at a time; at the end ConfigError if the file has another SHA-256."""
        with open(self.path, "rb") as file:
            digest = hashlib.sha256(file.read(self.start))
            while block := file.read(at_once * self.dtype.itemsize):
                digest.update(block)
                yield np.frombuffer(block, self.dtype)
        require(
            digest.hexdigest() == sha256,
            f"{self.path} is damaged: its SHA-256 is not the one in {MANIFEST}",
        )


class Shard:
    """The two files of one shard, as its entry describes them."""

    def __init__(self, directory: Path, number: int, entry: ShardEntry, id_type: str) -> None:
        n_ids = entry.source_tokens + entry.target_tokens
        ids, offsets = file_names(number)
        self.entry = entry
        self.ids = ArrayFile(directory / ids, n_ids, id_type)
        self.offsets = ArrayFile(directory / offsets, 2 * entry.pairs + 1, "<i8")

    def verify(self, vocab_size: int) -> None:
        """Raise ConfigError, with a file's name, unless all of it is as it was written.

        The checksums say so. What is wrong in spite of them, somebody has made on purpose.
        """
        largest, last, grows = 0, -1, True
        for part in self.ids.verified(self.entry.ids_sha256):
            largest = max(largest, int(part.max()))
        for part in self.offsets.verified(self.entry.offsets_sha256):
            grows = grows and bool((np.diff(part, prepend=last) > 0).all())
            last = int(part[-1])
        first = struct.unpack("<q", self.offsets.read(0, 1))[0]
        require(
            grows and (first, last) == (0, self.ids.size),
            f"{self.offsets.path} does not say where sentences begin in {self.ids.size} ids",
        )
        require(
            largest < vocab_size,
            f"{self.ids.path} has the id {largest}, and the vocabulary {vocab_size} tokens",
        )


def file_names(number: int) -> tuple[str, str]:
    """The names of a shard's files: ids and offsets."""
    return f"{number:05d}.ids.npy", f"{number:05d}.offsets.npy"


class Shards:
    """The pairs of a directory of shards: a `planning.PairStore`, and a sequence of pairs.

    Opening it reads `shards.json` and the head of every file, and `verify` reads everything. Raises
    ConfigError, with a file's name, for what is missing, unfinished or damaged.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.manifest = manifest = read_manifest(self.directory)
        require(
            manifest.complete and bool(manifest.shards),
            f"{directory} is not finished: give the same prepare --encode again, it goes on",
        )
        self.shards = [
            Shard(self.directory, number, entry, manifest.id_type)
            for number, entry in enumerate(manifest.shards)
        ]
        counts = [0, *(entry.pairs for entry in manifest.shards)]
        self.firsts = np.cumsum(counts)
        """The index of each shard's first pair, and the number of pairs."""

    @property
    def fingerprint(self) -> str:
        """That of the text: `batching.fingerprint` of the same pairs in a list."""
        return str(self.manifest.shards[-1].fingerprint)

    def tokenizer(self) -> Tokenizer:
        """The one that made the ids. Raises ConfigError if the file has another."""
        tokenizer = Tokenizer.load(self.directory / TOKENIZER)
        require(
            self.is_of(tokenizer) and tokenizer.vocab_size == self.manifest.vocab_size,
            f"{self.directory / TOKENIZER} is not the vocabulary of these shards",
        )
        return tokenizer

    def is_of(self, tokenizer: Tokenizer) -> bool:
        """Whether this tokenizer made the ids."""
        return tokenizer.digest == self.manifest.tokenizer_sha256

    def verify(self) -> None:
        """Read everything once, some 1 GB a second, and hold it to its checksums."""
        for shard in self.shards:
            shard.verify(self.manifest.vocab_size)

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def __getitem__(self, index: int) -> TokenPair:
        return self.gather(np.array([range(len(self))[index]]))[0]

    def lengths(self, indices: Int64[np.ndarray, "n"]) -> Int32[np.ndarray, "n 2"]:
        """Source and target tokens of many pairs: the offsets of each shard are read once."""
        found = np.empty((len(indices), 2), np.int32)
        shard_of = np.searchsorted(self.firsts, indices, side="right") - 1
        for number in np.unique(shard_of).tolist():
            here = np.flatnonzero(shard_of == number)
            places = 2 * (indices[here] - self.firsts[number])
            offsets = self.shards[number].offsets.numbers()
            middle = offsets[places + 1]
            found[here, 0] = middle - offsets[places]
            found[here, 1] = offsets[places + 2] - middle
        return found

    def gather(self, indices: Int64[np.ndarray, "n"]) -> list[TokenPair]:
        """The pairs at these indices, in this order."""
        firsts, pieces, ends = self.firsts.tolist(), [], []
        n = 0
        for index in indices.tolist():
            number = bisect.bisect_right(firsts, index) - 1
            shard, place = self.shards[number], 2 * (index - firsts[number])
            start, middle, stop = struct.unpack("<3q", shard.offsets.read(place, place + 3))
            pieces.append(shard.ids.read(start, stop))
            ends += [n + middle - start, n + stop - start]
            n = ends[-1]
        ids = array("i")
        joined = np.frombuffer(b"".join(pieces), self.manifest.id_type)
        ids.frombytes(joined.astype(np.intc).tobytes())
        sides = (ids[start:stop] for start, stop in pairwise([0, *ends]))
        return list(zip(sides, sides, strict=True))
