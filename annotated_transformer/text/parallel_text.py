r"""Parallel text (section 5.1): two files of one sentence a line, splits that share no sentence.

A line ends at "\n" alone, whatever else Unicode may call a line end, so that two files stay
parallel.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import os
import random
import unicodedata
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, zip_longest
from typing import Protocol, runtime_checkable

from annotated_transformer.errors import ConfigError, require, say

SPLITS = ("train", "valid", "test")
Pair = tuple[str, str]
PathLike = str | os.PathLike[str]
LONGEST_LINE = 2**20  # bytes: far beyond any sentence, far below any memory
BOMB_BYTES, BOMB_FACTOR = 2**22, 200  # text shrinks to a third or a fifth, not to a 200th


@runtime_checkable
class Lines(Protocol):
    """A binary file, plain or compressed, as far as it is needed here."""

    def readline(self, size: int, /) -> bytes: ...


def load_files(source_path: PathLike, target_path: PathLike) -> list[Pair]:
    """The pairs of two parallel files of one sentence a line.

    The files are in UTF-8, plain or compressed with gzip. Line i of one file is the translation of
    line i of the other. Pairs with a blank side are left out, with a word on standard error. Raises
    ConfigError for an empty file, unequal numbers of lines, or bytes that are not UTF-8.
    """
    sides = read_lines(source_path), read_lines(target_path)
    return parallel((source_path, target_path), sides)


def stream_files(source_path: PathLike, target_path: PathLike) -> Iterator[Pair]:
    """The pairs of `load_files` one by one, without the files in memory.

    That the numbers of lines differ is seen, and raised, at the end of the shorter file.
    """
    n_lines = n_pairs = 0
    sides = stream_lines(source_path), stream_lines(target_path)
    for source, target in zip_longest(*sides):
        if source is None or target is None:
            longer = n_lines + 1 + sum(1 for side in sides for _ in side)
            counts = (n_lines, longer) if source is None else (longer, n_lines)
            _require_as_many(counts, (source_path, target_path))
        n_lines += 1
        if source.strip() and target.strip():
            n_pairs += 1
            yield source, target
    require(
        n_pairs > 0,
        f"{source_path} and {target_path} have no pair of sentences without a blank side",
    )
    _say_how_many_are_blank(n_lines, n_pairs, (source_path, target_path))


def sample(pairs: Iterable[Pair], size: int, seed: int = 1) -> list[Pair]:
    """At most `size` of the pairs, each with the same chance, in their order.

    All of them where there are no more. Only the sample is kept in memory (Vitter 1985, algorithm
    R). The same pairs and seed give the same sample.
    """
    rest, chance = iter(pairs), random.Random(seed).random
    kept = list(enumerate(islice(rest, size)))
    for number, pair in enumerate(rest, size):
        place = int(chance() * (number + 1))
        if place < size:
            kept[place] = number, pair
    return [pair for _, pair in sorted(kept)]


class Fingerprint:
    """A SHA-256 of texts, of their order and of what stands opposite what, as they come."""

    def __init__(self) -> None:
        self.digest, self.rest = hashlib.sha256(), list[Pair]()

    def add(self, pairs: Iterable[Pair], at_once: int = 10_000) -> None:
        self.rest += pairs
        whole = len(self.rest) - len(self.rest) % at_once
        for first in range(0, whole, at_once):
            for part in _in_bytes(self.rest[first : first + at_once]):
                self.digest.update(part)
        del self.rest[:whole]

    def hexdigest(self) -> str:
        """That of all that was added; more may follow."""
        digest = self.digest.copy()
        for part in _in_bytes(self.rest):
            digest.update(part)
        return digest.hexdigest()


def _in_bytes(pairs: list[Pair]) -> Iterator[bytes]:
    for sides in zip(*pairs, strict=True):
        texts = [side.encode("utf-8", "surrogatepass") for side in sides]
        yield array("q", map(len, texts)).tobytes()
        yield b"".join(texts)


def read_lines(path: PathLike, see: Callable[[bytes], object] = len) -> list[str]:
    """All of `stream_lines`. Raises ConfigError for an empty file too."""
    lines = list(stream_lines(path, see))
    require(bool(lines), f"{path} is empty")
    return lines


def stream_lines(path: PathLike, see: Callable[[bytes], object] = len) -> Iterator[str]:
    r"""The lines of a UTF-8 text file or pipe, plain or gzip, without their ends.

    An end is "\n" or "\r\n". A byte order mark at the beginning is dropped. `see` is called with
    every line as it stands in the uncompressed file. Raises ConfigError for a file that cannot be
    read, for one that unpacks to far more than text can, and with the number of the line for bytes
    that are no text and for a line of more than `LONGEST_LINE` bytes.
    """
    number = size = 0
    try:
        with open(path, "rb") as raw:
            is_gzip = raw.peek(2)[:2] in (b"\x1f\x8b", b"\x1f")  # a pipe may give one byte first
            is_known = is_gzip and raw.seekable()  # a pipe does not say how much it gave
            file = gzip.GzipFile(fileobj=raw) if is_gzip else raw
            for number, (line, is_whole) in enumerate(bounded_lines(file, see), 1):
                require(
                    is_whole,
                    f"{path}, line {number} has more than {LONGEST_LINE:,} bytes: "
                    "text has one sentence a line",
                )
                size += len(line)
                require(
                    not is_known or size < BOMB_BYTES or size < BOMB_FACTOR * raw.tell(),
                    f"{path} unpacks to more than {BOMB_FACTOR} times its size: it is no text",
                )
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}, line {number}: byte 0x{error.object[error.start]:02x} is not UTF-8"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise ConfigError(f"{path} is a damaged gzip file") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def bounded_lines(
    file: Lines, see: Callable[[bytes], object] = len
) -> Iterator[tuple[bytes, bool]]:
    """The lines of a binary file with their ends, and whether each is whole.

    A byte order mark at the beginning, which Windows writes and no sentence begins with, is
    dropped. Of a line that is longer than `LONGEST_LINE` only so many bytes are kept, so that no
    file can take all memory. `see` is called with what is read as it stands in the file.
    """
    mark = codecs.BOM_UTF8
    while line := file.readline(LONGEST_LINE):
        see(line)
        is_cut = len(line) == LONGEST_LINE and line[-1:] != b"\n"
        rest = file.readline(LONGEST_LINE) if is_cut else b""
        if line != mark:  # a file of the mark alone is an empty one
            yield line.removeprefix(mark), not rest
        mark = b""
        while rest:
            see(rest)
            rest = b"" if rest[-1:] == b"\n" else file.readline(LONGEST_LINE)


def parallel(files: tuple[PathLike, PathLike], sides: tuple[list[str], list[str]]) -> list[Pair]:
    """The pairs of two lists of lines, without those that have a blank side.

    `files` are named in errors.
    """
    counts = len(sides[0]), len(sides[1])
    _require_as_many(counts, files)
    pairs = [
        (source, target)
        for source, target in zip(*sides, strict=True)
        if source.strip() and target.strip()
    ]
    require(
        bool(pairs), f"{files[0]} and {files[1]} have no pair of sentences without a blank side"
    )
    _say_how_many_are_blank(counts[0], len(pairs), files)
    return pairs


def _require_as_many(counts: tuple[int, int], files: tuple[PathLike, PathLike]) -> None:
    require(
        counts[0] == counts[1],
        f"parallel files must have equally many lines, got {counts[0]} in {files[0]} "
        f"and {counts[1]} in {files[1]}",
    )


def _say_how_many_are_blank(n_lines: int, n_pairs: int, files: tuple[PathLike, PathLike]) -> None:
    if n_pairs < n_lines:
        where = f"{files[0]} and {files[1]}"
        say(f"{n_lines - n_pairs} of {n_lines} pairs in {where} have a blank side: left out")


def split_by_group(pairs: Iterable[Pair], n_held_out: int = 1000) -> dict[str, list[Pair]]:
    """The pairs in three splits that share no sentence.

    `n_held_out` are for valid, as many for test, the rest for train. Two pairs are in one group if
    they share a sentence on either side, and so on through pairs of pairs; sentences count as one
    if they differ only in case, punctuation, symbols and spaces. A group is never divided. Which
    split it goes to hangs on a hash of its text, so neither on the order of the pairs nor on the
    machine. Repeated pairs are dropped; each split keeps the order of `pairs`.
    """
    pairs = list(dict.fromkeys(pairs))
    parents: dict[Pair, Pair] = {}

    def root(node: Pair) -> Pair:
        while parents.setdefault(node, node) != node:
            parents[node] = node = parents[parents[node]]
        return node

    nodes = [(("source", fold(source)), ("target", fold(target))) for source, target in pairs]
    for source, target in nodes:
        parents[root(source)] = root(target)
    groups: dict[Pair, list[int]] = {}
    for index, (source, _) in enumerate(nodes):
        groups.setdefault(root(source), []).append(index)

    def order(group: list[int]) -> bytes:
        return hashlib.sha256(min("\t".join(pairs[index]) for index in group).encode()).digest()

    chosen: dict[str, list[int]] = {split: [] for split in SPLITS}
    for group in sorted(groups.values(), key=order):
        room = (
            split for split in ("test", "valid") if len(chosen[split]) + len(group) <= n_held_out
        )
        chosen[next(room, "train")] += group
    return {split: [pairs[index] for index in sorted(indices)] for split, indices in chosen.items()}


def fold(sentence: str) -> str:
    """A sentence without case, punctuation and spaces.

    It is what two sentences share that are almost the same.
    """
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    return "".join(character for character in folded if character.isalnum()) or sentence
