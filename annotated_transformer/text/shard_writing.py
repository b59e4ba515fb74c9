"""Writing shards (section 5.1): a corpus is encoded once, by several processes, killed or not.

A shard is two files and then its entry in `shards.json`, each written beside its place and moved
there. So a file without an entry is of a run that was killed: it is written again. A shard with an
entry is not, as long as its files are whole and the text is the same.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, islice
from multiprocessing.connection import Connection as Link
from pathlib import Path
from typing import NamedTuple

import numpy as np

from annotated_transformer.errors import ConfigError, require, say
from annotated_transformer.files import read_bounded, write_atomically
from annotated_transformer.text.parallel_text import Fingerprint, Pair
from annotated_transformer.text.shards import (
    FORMAT,
    LONGEST,
    MANIFEST,
    TOKENIZER,
    Manifest,
    Shard,
    ShardEntry,
    file_names,
    read_manifest,
)
from annotated_transformer.text.tokenizer import Tokenizer
from annotated_transformer.text.vocabulary_file import MOST_BYTES

PAIRS_PER_SHARD = 500_000
"""Half a minute of work, which is what a kill can cost; English-French has 82 shards."""
AT_ONCE = 5_000  # pairs that a process encodes at a time


class Encoded(NamedTuple):
    """Some pairs as ids end to end, and the lengths of their sides in the same order."""

    ids: np.ndarray
    lengths: np.ndarray
    left_out: int


def encode_some(tokenizer: Tokenizer, pairs: list[Pair]) -> Encoded:
    """Pairs with an empty side, or one of more than `LONGEST` tokens, are left out."""
    sides = [tokenizer.encode_batch(texts) for texts in zip(*pairs, strict=True)]
    kept = [
        side
        for pair in zip(*sides, strict=True)
        if min(map(len, pair)) > 0 and max(map(len, pair)) <= LONGEST
        for side in pair
    ]
    lengths = np.fromiter(map(len, kept), np.int64, len(kept))
    ids = np.fromiter(chain.from_iterable(kept), np.uint32, int(lengths.sum()))
    return Encoded(ids, lengths, len(pairs) - len(kept) // 2)


def encode(
    tokenizer: Tokenizer,
    pairs: Iterable[Pair],
    directory: str | Path,
    *,
    corpus: str = "",
    split: str = "train",
    revision: str = "",
    processes: int = 1,
    pairs_per_shard: int = PAIRS_PER_SHARD,
    n_expected: int | None = None,
    progress: bool = True,
) -> Manifest:
    """Write the pairs as shards into `directory`, or go on with what a killed run has left there.

    The files are the same for any number of `processes`. Going on reads the text again, which is
    quick, and encodes what has no finished shard. Raises ConfigError where the directory holds
    shards of other text or another size, or another vocabulary, and when there is nothing to
    encode.
    `n_expected` is for the progress bar.
    """
    from tqdm import tqdm

    require(processes >= 1, f"the number of processes must be at least 1, got {processes}")
    require(pairs_per_shard >= 1, f"pairs_per_shard must be at least 1, got {pairs_per_shard}")
    directory = Path(directory)
    vocabulary = tokenizer.digest, tokenizer.vocab_size
    head = Manifest(FORMAT, False, corpus, split, revision, *vocabulary, pairs_per_shard, [])
    before = _finished(directory, head)
    if not before:
        _write_vocabulary(directory / TOKENIZER, tokenizer.model_bytes)
    seen, rest, entries = Fingerprint(), iter(pairs), list[ShardEntry]()
    bar = tqdm(
        total=n_expected, unit="pair", unit_scale=True, disable=not progress, file=sys.stderr
    )
    with bar, _workers(tokenizer, processes) as encode_all:
        while chunks := _Chunks(rest, pairs_per_shard, seen, bar.update):
            number = len(entries)
            known = before[number] if number < len(before) else None
            if known and _is_whole(directory, number, known, head):
                chunks.read_on()
                _require_same_text(directory, number, known, seen)
                entries.append(known)
                continue
            entries.append(_write(directory, number, encode_all(chunks), head, seen))
            if known:
                _require_same_text(directory, number, known, seen)
            _store(directory, head, [*entries, *before[len(entries) :]])
    n_pairs = sum(entry.pairs for entry in entries)
    require(n_pairs > 0, "there is nothing to encode: no pair has tokens on both sides")
    require(
        len(entries) >= len(before),
        f"{directory} holds shards of a longer text: name another directory",
    )
    return _store(directory, head, entries, complete=True)


class _Chunks:
    """The text of one shard, some pairs at a time; false where there is no more text."""

    def __init__(
        self, rest: Iterator[Pair], n: int, seen: Fingerprint, note: Callable[[int], object]
    ) -> None:
        self.pairs, self.seen, self.note = islice(rest, n), seen, note
        self.first = list(islice(self.pairs, AT_ONCE))

    def __bool__(self) -> bool:
        return bool(self.first)

    def __iter__(self) -> Iterator[list[Pair]]:
        some = self.first
        while some:
            self.seen.add(some)
            yield some
            self.note(len(some))
            some = list(islice(self.pairs, AT_ONCE))

    def read_on(self) -> None:
        for _ in self:
            pass


def _finished(directory: Path, head: Manifest) -> list[ShardEntry]:
    """The entries that a run with the same settings has left."""
    if not (directory / MANIFEST).exists():
        return []
    stored = read_manifest(directory)
    changed = [
        name
        for name in ("tokenizer_sha256", "vocab_size", "pairs_per_shard")
        if getattr(stored, name) != getattr(head, name)
    ]
    require(
        not changed,
        f"{directory} holds shards with another {', '.join(changed)}: name another directory",
    )
    return list(stored.shards)


def _write_vocabulary(path: Path, model_bytes: bytes) -> None:
    require(
        not path.exists() or read_bounded(path, MOST_BYTES) == model_bytes,
        f"{path} is another vocabulary, without shards: name another directory",
    )
    write_atomically(path, lambda new: new.write_bytes(model_bytes))


def _is_whole(directory: Path, number: int, entry: ShardEntry, head: Manifest) -> bool:
    try:
        Shard(directory, number, entry, head.id_type).verify(head.vocab_size)
    except ConfigError as error:
        say(f"{error}; it is encoded again")
        return False
    return True


def _require_same_text(directory: Path, number: int, known: ShardEntry, seen: Fingerprint) -> None:
    require(
        known.fingerprint == seen.hexdigest(),
        f"{directory} holds shards of other text, up to shard {number}: name another directory",
    )


def _write(
    directory: Path, number: int, parts: Iterable[Encoded], head: Manifest, seen: Fingerprint
) -> ShardEntry:
    """Write both files of a shard, and make its entry."""
    ids, lengths, left_out = [], [np.zeros(1, np.int64)], 0
    for part in parts:
        ids.append(part.ids.astype(head.id_type))
        lengths.append(part.lengths)
        left_out += part.left_out
    all_lengths = np.concatenate(lengths)
    arrays = np.concatenate(ids), np.cumsum(all_lengths).astype("<i8")
    paths = [directory / name for name in file_names(number)]
    for path, numbers in zip(paths, arrays, strict=True):
        write_atomically(path, lambda new, numbers=numbers: _save(new, numbers))  # type: ignore[misc]
    digests = [_sha256(path) for path in paths]
    n_source, n_target = int(all_lengths[1::2].sum()), int(all_lengths[2::2].sum())
    n_pairs = len(all_lengths) // 2
    return ShardEntry(n_pairs, left_out, n_source, n_target, seen.hexdigest(), *digests)


def _save(path: Path, numbers: np.ndarray) -> None:
    with open(path, "wb") as file:  # by its name, numpy.save would add an ending
        np.save(file, numbers)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _store(
    directory: Path, head: Manifest, entries: list[ShardEntry], complete: bool = False
) -> Manifest:
    manifest = Manifest(**{**vars(head), "complete": complete, "shards": entries})
    text = json.dumps(manifest.to_dict(), indent=1) + "\n"
    write_atomically(directory / MANIFEST, lambda new: new.write_text(text, encoding="utf-8"))
    return manifest


# The processes

EncodeAll = Callable[[Iterable[list[Pair]]], Iterator[Encoded]]


@contextmanager
def _workers(tokenizer: Tokenizer, processes: int) -> Iterator[EncodeAll]:
    """What encodes chunks and gives them in their order.

    A process ends when its link does, so none is left where this one was killed.
    """
    if processes == 1:
        yield lambda chunks: (encode_some(tokenizer, chunk) for chunk in chunks)
        return
    spawn, links, children = multiprocessing.get_context("spawn"), list[Link](), []
    try:
        for _ in range(processes):
            ours, theirs = spawn.Pipe()
            links.append(ours)
            child = spawn.Process(target=_work, args=(tokenizer.model_bytes, theirs), daemon=True)
            child.start()
            children.append(child)
            theirs.close()
        yield partial(_in_turn, links)
    finally:
        for link in links:
            link.close()
        for child in children:
            child.join()


def _work(model_bytes: bytes, link: Link) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process at the other end
    tokenizer = Tokenizer.from_bytes(model_bytes)
    with suppress(EOFError, ConnectionError):
        while True:
            link.send(encode_some(tokenizer, link.recv()))


def _in_turn(links: list[Link], chunks: Iterable[list[Pair]]) -> Iterator[Encoded]:
    """Each process has one chunk at a time: so none can wait for another to read."""
    idle, busy = list(links), deque[Link]()
    for chunk in chunks:
        done = None
        with _death_is_told():
            if not idle:
                idle.append(busy.popleft())
                done = idle[0].recv()
            busy.append(idle.pop())
            busy[-1].send(chunk)
        if done is not None:
            yield done
    for link in busy:
        with _death_is_told():
            done = link.recv()
        yield done


@contextmanager
def _death_is_told() -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError):
        raise ConfigError(
            "a process that encodes was killed, perhaps for want of memory: give the same command "
            "again, with fewer --jobs; finished shards are kept"
        ) from None
