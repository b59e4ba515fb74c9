r"""Parallel text (section 5.1): two files of one sentence a line, splits that share no sentence.

A line ends at "\n" alone, whatever else Unicode may call a line end, so that two files stay
parallel.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import unicodedata
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, zip_longest
from typing import Any, BinaryIO

from annotated_transformer.errors import ConfigError, require, say

SPLITS = ("train", "valid", "test")
Pair = tuple[str, str]
PathLike = str | os.PathLike[str]
MAX_LINE_BYTES = 2**20  # far beyond any sentence, far below any memory
BOMB_BYTES = 2**22  # a smaller file does no harm, whatever it unpacks to
BOMB_FACTOR = 200  # text shrinks to a third or a fifth, not to a 200th
ZERO_WIDTH = "\u200b\u200c\u200d\u2060\ufeff"
SIGNATURES = {
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"PK\x03\x04": "a zip archive",
}
"""How files begin that are not UTF-8 text."""
VOCABULARY_SAMPLE = 500_000
"""The most pairs that a vocabulary is learned from."""
HASHED_AT_ONCE = 10_000  # pairs; another number would give the same pairs another SHA-256


def load_files(source_path: PathLike, target_path: PathLike) -> list[Pair]:
    """The pairs of two parallel files of one sentence a line.

    The files are in UTF-8, plain or compressed with gzip. Line i of one file is the translation of
    line i of the other. Pairs with a blank side are left out, and one line on standard error says
    how many. Raises ConfigError for an empty file, unequal numbers of lines, or bytes that are not
    UTF-8.
    """
    sides = read_lines(source_path), read_lines(target_path)
    return list(parallel(*sides, source_path, target_path))


def stream_files(source_path: PathLike, target_path: PathLike) -> Iterator[Pair]:
    """The pairs of `load_files` one by one, without the files in memory.

    Unequal numbers of lines are an error at the end of the shorter file.
    """
    return parallel(stream_lines(source_path), stream_lines(target_path), source_path, target_path)


def parallel(sources: Iterable[str], targets: Iterable[str], *files: PathLike) -> Iterator[Pair]:
    """The pairs of two sequences of lines, without those that have a blank side.

    `files` are the names of the two, for errors.
    """
    n_lines = n_pairs = 0
    sides = iter(sources), iter(targets)
    for source, target in zip_longest(*sides):
        n_lines += 1
        if source is None or target is None:
            counts = [n_lines - 1, n_lines + sum(1 for side in sides for _ in side)]
            if target is None:
                counts.reverse()
            got = " and ".join(f"{n} in {file}" for n, file in zip(counts, files, strict=True))
            raise ConfigError(f"parallel files must have equally many lines, got {got}")
        if not (is_blank(source) or is_blank(target)):
            n_pairs += 1
            yield source, target
    where = f"{files[0]} and {files[1]}"
    require(n_pairs > 0, f"{where} have no pair with a sentence on both sides")
    if n_pairs < n_lines:
        say(f"{n_lines - n_pairs} of {n_lines} pairs in {where} have a blank side: left out")


def is_blank(text: str) -> bool:
    """Whether the text is invisible: it has only spaces and characters without width."""
    return all(character.isspace() or character in ZERO_WIDTH for character in text)


def read_lines(path: PathLike, see: Callable[[bytes], object] = len) -> list[str]:
    """All lines of `stream_lines`. Raises ConfigError for an empty file too."""
    lines = list(stream_lines(path, see))
    require(bool(lines), f"{path} is empty")
    return lines


def stream_lines(path: PathLike, see: Callable[[bytes], object] = len) -> Iterator[str]:
    """`decoded_lines` of the file or pipe at `path`."""
    try:
        with open(path, "rb") as file:
            yield from decoded_lines(file, path, see)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def decoded_lines(
    file: BinaryIO, name: PathLike, see: Callable[[bytes], object] = len, strict: bool = True
) -> Iterator[str]:
    r"""The lines of UTF-8 text, plain or gzip, without their ends and byte order marks.

    An end is "\n" or "\r\n". Gzip is recognised by its first bytes, whatever the file is called.
    Windows writes a byte order mark at the beginning of a file, and a file made of several such
    files has it at the beginning of other lines as well. `see` is called with every
    line as it stands in the unpacked file; the default, `len`, stands for doing nothing. Raises
    ConfigError, with the file's `name`, for text that is not UTF-8, for a line of more than
    `MAX_LINE_BYTES`, and for a file that unpacks to far more than text can. With `strict=False`,
    bytes that are not UTF-8 become U+FFFD, the first of them is named, and a line that is too long
    is cut there with a message.
    """
    number = 0
    n_bytes = 0
    is_said = False
    is_rest_of_line = False
    try:
        file = file if isinstance(file, io.BufferedReader) else io.BufferedReader(file)  # type: ignore[type-var]
        is_gzip = file.peek(2)[:2] in (b"\x1f\x8b", b"\x1f")  # a pipe may give one byte first
        plain = gzip.GzipFile(fileobj=file, mode="rb") if is_gzip else file
        while line := plain.readline(MAX_LINE_BYTES + 1):
            see(line)
            n_bytes += len(line)
            # A pipe cannot say how many packed bytes it gave.
            if is_gzip and n_bytes >= BOMB_BYTES and file.seekable():
                is_text = n_bytes < BOMB_FACTOR * file.tell()
                require(is_text, f"{name} unpacks to more than {BOMB_FACTOR} times its size")
            if is_rest_of_line:
                is_rest_of_line = not line.endswith(b"\n")
                continue
            number += 1
            if number == 1:
                _require_text(line, name)
            if len(line) > MAX_LINE_BYTES:
                too_long = f"{name}, line {number} has more than {MAX_LINE_BYTES:,} bytes"
                require(not strict, f"{too_long}: text has one sentence a line")
                say(f"{too_long}: it is cut there")
                is_rest_of_line = not line.endswith(b"\n")
                line = _cut(line)
            if line != b"\xef\xbb\xbf":  # a file of the byte order mark alone is an empty one
                text = line.removesuffix(b"\n").removesuffix(b"\r")
                try:
                    decoded = text.decode("utf-8")
                except UnicodeDecodeError as error:
                    byte = f"byte 0x{text[error.start]:02x} is not UTF-8; perhaps it is Latin-1"
                    if strict:
                        raise ConfigError(f"{name}, line {number}: {byte}") from None
                    if not is_said:
                        say(f"{name}, line {number}: {byte}. Such bytes become U+FFFD")
                    is_said = True
                    decoded = text.decode("utf-8", "replace")
                yield decoded.lstrip("\ufeff")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise ConfigError(f"{name} is a damaged gzip file") from None


def _cut(line: bytes) -> bytes:
    """The line's first `MAX_LINE_BYTES`, or up to 3 fewer, so that no character is cut in two."""
    ends = range(MAX_LINE_BYTES, MAX_LINE_BYTES - 4, -1)
    begins_character = (end for end in ends if line[end] & 0xC0 != 0x80)
    return line[: next(begins_character, MAX_LINE_BYTES)]


def _require_text(line: bytes, name: PathLike) -> None:
    """Raise ConfigError where the first line shows that a file is not UTF-8 text with LF ends."""
    kinds = [kind for start, kind in SIGNATURES.items() if line.startswith(start)]
    even, odd = line[:64:2], line[1:64:2]
    # Western text in UTF-16 without a mark: every other byte is zero, and no byte between is. Fewer
    # than 8 bytes may be so by chance, and more than 64 need not be looked at.
    if len(line) >= 8 and any(even) != any(odd) and all(even) != all(odd):
        kinds = ["UTF-16"]
    require(not kinds, f"{name} is not UTF-8 text: it looks like {kinds[0] if kinds else ''}")
    # A first line without LF is all of the file, or as much as `MAX_LINE_BYTES`.
    only_cr = b"\r" in line[:-1] and not line.endswith(b"\n")
    require(not only_cr, f"{name} has lines that end in CR alone, as on old Macs: make it LF")


def sample(pairs: Iterable[Pair], size: int = VOCABULARY_SAMPLE, seed: int = 1) -> list[Pair]:
    """`size` of the pairs, each with the same chance, in their order; all if there are fewer.

    Only the sample is kept in memory (Vitter 1985, algorithm R). The same pairs and seed give the
    same sample.
    """
    rest = iter(pairs)
    chance = random.Random(seed).random
    reservoir = list(enumerate(islice(rest, size)))
    for number, pair in enumerate(rest, size):
        place = int(chance() * (number + 1))
        if place < size:
            reservoir[place] = number, pair
    return [pair for _, pair in sorted(reservoir)]


def require_text_pairs(pairs: Iterable[Any]) -> None:
    """Raise ConfigError unless every pair is a tuple (or a list) of two strings.

    Python would unpack other rows as well: a dictionary into its keys, a string into its letters.
    """
    for pair in pairs:
        is_row = isinstance(pair, tuple | list) and len(pair) == 2
        if not (is_row and all(isinstance(side, str) for side in pair)):
            raise ConfigError(f"a pair must be (source, target), two strings, got {pair!r:.80}")


def pairs_sha256(pairs: Iterable[Pair]) -> str:
    """The `PairsSHA256` of these pairs."""
    total = PairsSHA256()
    total.add(pairs)
    return total.hexdigest()


class PairsSHA256:
    """A SHA-256 of pairs: of their texts, their order, and which text is whose translation."""

    def __init__(self) -> None:
        self.hashed = hashlib.sha256()
        self.rest: list[Pair] = []

    def add(self, pairs: Iterable[Pair]) -> None:
        more = chain(self.rest, pairs)
        while len(block := list(islice(more, HASHED_AT_ONCE))) == HASHED_AT_ONCE:
            _hash_block(self.hashed, block)
        self.rest = block

    def hexdigest(self) -> str:
        """The digest of all pairs added so far; more may follow."""
        hashed = self.hashed.copy()
        _hash_block(hashed, self.rest)
        return hashed.hexdigest()


def _hash_block(hashed: hashlib._Hash, block: list[Pair]) -> None:
    require_text_pairs(block)
    for side in zip(*block, strict=True):
        texts = [text.encode("utf-8", "surrogatepass") for text in side]
        hashed.update(array("q", map(len, texts)).tobytes())
        hashed.update(b"".join(texts))


def split_by_group(pairs: Iterable[Pair], n_held_out: int = 1000) -> dict[str, list[Pair]]:
    """The pairs in three splits that share no sentence.

    `n_held_out` are for valid, as many for test, the rest for train. Two pairs are in one group if
    they share a sentence on either side, or are linked by other pairs that do; sentences count as
    one if they differ only in case, punctuation, symbols and spaces. A group is never divided. Its
    split depends on a hash of its text, and so not on the order of the pairs or the machine.
    Repeated pairs are dropped; each split keeps the order of `pairs`.
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
    """A sentence without case, punctuation and spaces, so that those that hardly differ agree."""
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    return "".join(character for character in folded if character.isalnum()) or sentence
