"""A SentencePiece file, looked through before C++ reads it: it may come from a stranger.

The library builds a tree of the pieces, as deep as the longest piece is long, and follows offsets
in a table of characters. A file made with malice can have it overflow its stack or read beyond its
memory, and such a death of the process is no exception that Python could catch. So the file is
walked here first: it is a protocol buffer, of one level of messages.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

import numpy as np

from annotated_transformer.errors import ConfigError, require

MOST_BYTES, MOST_PIECES, LONGEST_PIECE = 2**26, 2**20, 512
VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
PIECE, NORMALIZER, DENORMALIZER, TABLE = 1, 3, 5, 2  # numbers of fields; the last of a normalizer
MESSAGES = {PIECE, 2, NORMALIZER, 4, DENORMALIZER}  # 2 is the trainer, 4 a test of its own
Field = tuple[int, int, int | bytes]


def require_sound(model: bytes) -> None:
    """Raise ConfigError unless SentencePiece can read `model` without harm."""
    try:
        _walk(model)
    except ConfigError as error:
        raise ConfigError(f"this is not a SentencePiece model: {error}") from None


def _walk(model: bytes) -> None:
    require(len(model) <= MOST_BYTES, f"it has {len(model):,} bytes, more than {MOST_BYTES:,}")
    seen: set[bytes] = set()
    for number, kind, value in _fields(model):
        if number not in MESSAGES:
            continue
        if kind != BYTES or not isinstance(value, bytes):
            raise ConfigError("a part of it has another type")
        if number == PIECE:
            _require_piece(value, seen)
            continue
        for part, _, content in _fields(value):
            if part == TABLE and number in (NORMALIZER, DENORMALIZER):
                _require_table(content if isinstance(content, bytes) else b"no table")
    require(bool(seen), "it has no pieces")


def _require_piece(message: bytes, seen: set[bytes]) -> None:
    piece, score = b"", 0.0
    for number, kind, value in _fields(message):
        if number == 1 and isinstance(value, bytes) and kind == BYTES:
            piece = value
        elif number == 2 and isinstance(value, bytes) and kind == FIXED_32:
            (score,) = struct.unpack("<f", value)
        else:
            require(number == 3 and kind == VARINT, "a piece has a part that is none")
    require(0 < len(piece) <= LONGEST_PIECE, f"a piece has {len(piece):,} bytes")
    require(b"\0" not in piece, "a piece has a NUL")
    require(math.isfinite(score), "a piece has a score that is no number")
    require(piece not in seen, "a piece stands there twice")
    seen.add(piece)
    require(len(seen) <= MOST_PIECES, f"it has more than {MOST_PIECES:,} pieces")


def _require_table(table: bytes) -> None:
    """What characters become: a tree in an array of numbers ("double array"), then the texts.

    From a unit of the tree one goes to its offset, changed in the last eight bits by the next byte
    of a text; none may lie beyond the end. A leaf is the place of a text, which a NUL ends.
    """
    if not table:
        return
    (size,) = struct.unpack("<I", table[:4].ljust(4, b"\0"))
    require(
        size % 1024 == 0 and 0 < size <= len(table) - 4, "its table of characters has another size"
    )
    units = np.frombuffer(table, "<u4", size // 4, offset=4).astype(np.int64)
    texts = table[4 + size :]
    inner = units >> 31 == 0
    offsets = (units >> 10) << ((units & 512) >> 6)
    blocks = np.arange(len(units)) ^ offsets
    reached = blocks[inner]
    require(bool(((reached | 255) < len(units)).all()), "its table of characters leads nowhere")
    leaves = units[blocks[inner & (units >> 8 & 1 == 1)]] & 0x7FFFFFFF
    in_texts = not len(leaves) or int(leaves.max()) < len(texts)
    require(in_texts and texts[-1:] == b"\0", "its table of characters has no end")


def _fields(message: bytes) -> Iterator[Field]:
    """Number, kind and value of the fields of a protocol buffer; of groups, which nest, none."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        require(tag < 2**32, "it is no protocol buffer")  # C++ would drop what is above
        number, kind = tag >> 3, tag & 7
        value: int | bytes
        if kind == VARINT:
            value, at = _varint(message, at)
        else:
            length = {FIXED_64: 8, FIXED_32: 4}.get(kind, 0)
            if kind == BYTES:
                length, at = _varint(message, at)
            require(kind in (BYTES, FIXED_64, FIXED_32), "it is no protocol buffer")
            value, at = message[at : at + length], at + length
            require(at <= end, "it is cut short")
        require(number > 0, "it is no protocol buffer")
        yield number, kind, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ConfigError("it is cut short")
        value |= (message[at] & 127) << shift
        at += 1
        if message[at - 1] < 128:
            return value, at
    raise ConfigError("it is no protocol buffer")
