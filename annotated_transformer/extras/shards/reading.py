"""Pairs of ids in shards on disk (section 5.1), so that a corpus may be larger than memory.

`prepare --encode` writes such a directory once (`shard_writing`), and `train --shards` reads it:

    shards.json             what they were made from, and of each shard its counts and checksums
    tokenizer.model         the vocabulary of the ids
    00000.ids.npy           all ids of the shard, end to end: source, target, source, target, ...
    00000.offsets.npy       2 n + 1 places in it: where each sentence begins, and the end

Both are in NumPy's format, which `numpy.load(file, mmap_mode="r")` opens. They are not mapped here:
pages of a mapped file count as memory, and an epoch in random order would map all of them (LOG.md,
"Data larger than memory").
"""

from __future__ import annotations

import bisect
import hashlib
import io
import json
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int32, Int64

from annotated_transformer.checkpoint.directory import SHARDS_MANIFEST
from annotated_transformer.data.batching import EncodedCorpus, TokenPair
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import ConfigError, LocalError, require
from annotated_transformer.files import read_bounded, require_ordinary, without_folders
from annotated_transformer.settings import Settings

SHARD_FORMAT = 1
TOKENIZER_FILE = "tokenizer.model"
MAX_MANIFEST_BYTES = 2**26  # 100,000 shards
NUMBERS_AT_ONCE = 2**20  # read to verify a file, so that its size does not matter


@dataclass(frozen=True)
class ShardEntry(Settings):
    """What `shards.json` says of one shard.

    `pairs_sha256` is the digest of all text from the beginning of the corpus to this shard's end.
    """

    pairs: int
    left_out: int
    source_tokens: int
    target_tokens: int
    pairs_sha256: str
    ids_sha256: str
    offsets_sha256: str


@dataclass(frozen=True)
class Manifest(Settings):
    """What `shards.json` says of all shards together.

    `tokenizer_sha256` is the digest of the file `tokenizer.model`; `pairs_per_shard` counts pairs
    of text, of which some are left out.
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
    """What `shards.json` says. Raises ConfigError if there is none, or it has another form."""
    path = directory / SHARDS_MANIFEST
    try:
        content = read_bounded(path, MAX_MANIFEST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        missing = f"{directory} is not a directory of shards: it has no {SHARDS_MANIFEST}"
        raise ConfigError(missing) from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    try:
        manifest = Manifest.from_dict(json.loads(content.decode("utf-8")))
        require(
            manifest.format == SHARD_FORMAT, f"format must be {SHARD_FORMAT}, got {manifest.format}"
        )
        entries = [ShardEntry.from_dict(entry) for entry in manifest.shards]
        least = min((min(e.pairs, e.source_tokens, e.target_tokens) for e in entries), default=0)
        require(least >= 0, f"a shard's counts must not be negative, got {least}")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    return manifest.replace(shards=entries, corpus=without_folders(manifest.corpus))


class ArrayFile:
    """A one-dimensional array in a file of NumPy's format, of which pieces are read.

    Raises ConfigError, with the file's name, unless it has `size` numbers of this type.
    """

    def __init__(self, path: Path, size: int, dtype: str, sha256: str) -> None:
        self.path = path
        self.size = size
        self.sha256 = sha256
        self.dtype = np.dtype(dtype)
        # NumPy's own reader parses a header as Python, whatever stands there. Here it is only
        # compared with the header that NumPy writes before so many numbers of this type.
        header = io.BytesIO()
        form = {"descr": dtype, "fortran_order": False, "shape": (size,)}
        np.lib.format.write_array_header_1_0(header, form)
        self.header = header.getvalue()
        try:
            require_ordinary(path)
            self.file = open(path, "rb", buffering=0)  # noqa: SIM115, closed with the object
            start = self.file.read(len(self.header))
            n_bytes = os.fstat(self.file.fileno()).st_size
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        is_whole = n_bytes == len(self.header) + size * self.dtype.itemsize
        promised = f"{size} numbers of type {self.dtype}, as {SHARDS_MANIFEST} says"
        require(is_whole and start == self.header, f"{path} is damaged: it must hold {promised}")

    def numbers(self, start: int, stop: int) -> np.ndarray:
        """The numbers from `start` to `stop`."""
        n_bytes = (stop - start) * self.dtype.itemsize
        at = len(self.header) + start * self.dtype.itemsize
        # A forked process shares this one's position in the file, which `pread` does not use.
        if hasattr(os, "pread"):
            content = os.pread(self.file.fileno(), n_bytes, at)
        else:
            self.file.seek(at)
            content = self.file.read(n_bytes)
        if len(content) != n_bytes:
            raise LocalError(f"{self.path} was cut short while it was being read")
        return np.frombuffer(content, self.dtype)

    def verified(self) -> Iterator[np.ndarray]:
        """All numbers, some at a time. Raises ConfigError at the end for another SHA-256."""
        hashed = hashlib.sha256(self.header)
        for start in range(0, self.size, NUMBERS_AT_ONCE):
            block = self.numbers(start, min(start + NUMBERS_AT_ONCE, self.size))
            hashed.update(block.data)
            yield block
        is_same = hashed.hexdigest() == self.sha256
        require(is_same, f"{self.path} is damaged: its SHA-256 is not the one in {SHARDS_MANIFEST}")


class Shard:
    """The two files of one shard, as its entry describes them."""

    def __init__(self, directory: Path, number: int, entry: ShardEntry, id_type: str) -> None:
        ids, offsets = (directory / name for name in file_names(number))
        n_ids = entry.source_tokens + entry.target_tokens
        self.ids = ArrayFile(ids, n_ids, id_type, entry.ids_sha256)
        self.offsets = ArrayFile(offsets, 2 * entry.pairs + 1, "<i8", entry.offsets_sha256)

    def verify(self, vocab_size: int) -> None:
        """Raise ConfigError, with a file's name, unless all of it is as it was written.

        The checksums catch damage; the checks after them catch files forged with right checksums.
        """
        largest = 0
        for ids in self.ids.verified():
            largest = max(largest, int(ids.max()))
        last = -1
        is_growing = True
        for offsets in self.offsets.verified():
            is_growing &= bool((np.diff(offsets, prepend=last) > 0).all())
            last = int(offsets[-1])
        are_places = is_growing and self.offsets.numbers(0, 1)[0] == 0 and last == self.ids.size
        places = f"where sentences begin in {self.ids.size} ids"
        require(are_places, f"{self.offsets.path} does not say {places}")
        sizes = f"the id {largest}, and the vocabulary has {vocab_size} tokens"
        require(largest < vocab_size, f"{self.ids.path} has {sizes}")


def file_names(number: int) -> tuple[str, str]:
    """The names of a shard's files: ids and offsets."""
    return f"{number:05d}.ids.npy", f"{number:05d}.offsets.npy"


class Shards(EncodedCorpus):
    """The pairs of a directory of shards: a `batching.EncodedCorpus`.

    Opening it reads `shards.json` and the header of every file, and `verify` reads everything.
    Raises ConfigError, with a file's name, for what is missing, unfinished or damaged.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.manifest = read_manifest(self.directory)
        entries = self.manifest.shards
        id_type = self.manifest.id_type
        is_complete = self.manifest.complete and bool(entries)
        require(is_complete, f"{directory} is not finished: the same prepare --encode continues it")
        self.shards = [Shard(self.directory, i, e, id_type) for i, e in enumerate(entries)]
        self.firsts = np.cumsum([0, *(entry.pairs for entry in entries)])
        """The index of each shard's first pair, and the number of pairs."""

    @property
    def pairs_sha256(self) -> str:
        """The digest of the text: `parallel_text.pairs_sha256` of the same pairs in a list."""
        return str(self.manifest.shards[-1].pairs_sha256)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids. Raises ConfigError if the file holds another."""
        path = self.directory / TOKENIZER_FILE
        tokenizer = Tokenizer.load(path)
        is_ours = self.is_of(tokenizer) and tokenizer.vocab_size == self.manifest.vocab_size
        require(is_ours, f"{path} is not the vocabulary of these shards")
        return tokenizer

    def is_of(self, tokenizer: Tokenizer) -> bool:
        """Whether this tokenizer made the ids."""
        return tokenizer.sha256 == self.manifest.tokenizer_sha256

    def verify(self) -> None:
        """Read everything once, at about 1 GB per second, and compare it with its checksums."""
        for shard in self.shards:
            shard.verify(self.manifest.vocab_size)

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def lengths(self, indices: Int64[np.ndarray, "n"]) -> Int32[np.ndarray, "n 2"]:
        """Source and target tokens of many pairs: the offsets of each shard are read once."""
        result = np.empty((len(indices), 2), np.int32)
        shard_of = np.searchsorted(self.firsts, indices, side="right") - 1
        for number in np.unique(shard_of).tolist():
            here = np.flatnonzero(shard_of == number)
            offsets = self.shards[number].offsets
            lengths = np.diff(offsets.numbers(0, offsets.size)).reshape(-1, 2)
            result[here] = lengths[indices[here] - self.firsts[number]]
        return result

    def gather(self, indices: Int64[np.ndarray, "n"]) -> list[TokenPair]:
        """The pairs at these indices, in this order."""
        firsts = self.firsts.tolist()
        pairs: list[TokenPair] = []
        for index in indices.tolist():
            number = bisect.bisect_right(firsts, index) - 1
            shard = self.shards[number]
            place = 2 * (index - firsts[number])
            start, middle, stop = shard.offsets.numbers(place, place + 3).tolist()
            ids = array("i", shard.ids.numbers(start, stop).astype(np.intc).tobytes())
            pairs.append((ids[: middle - start], ids[middle - start :]))
        return pairs
