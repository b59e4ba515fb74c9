"""A SentencePiece file: its fields, whether C++ can read it without harm, and what it says.

The library builds a tree of the pieces, as deep as the longest piece is long, and follows offsets
in a table of characters. A malicious file can overflow its stack or lead it beyond its memory, and
the process dies without an exception that Python could catch. So the file is checked here first.

It is a protocol buffer of one level of messages. SentencePiece has a reader for Python, and that
was tried: it refuses every protobuf but the newest, which a process with TensorFlow cannot have.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from annotated_transformer.errors import ConfigError, require

MAX_MODEL_BYTES = 2**26
MAX_PIECES = 2**20
MAX_PIECE_BYTES = 512
VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5  # how a field is stored

# A tag is the number of a field and how it is stored.
PIECE, TRAINER, NORMALIZER, SELF_TEST, DENORMALIZER = (n << 3 | BYTES for n in range(1, 6))
PIECE_TEXT, PIECE_SCORE, PIECE_TYPE = 1 << 3 | BYTES, 2 << 3 | FIXED_32, 3 << 3 | VARINT
RULE_TABLE = 2 << 3 | BYTES  # in a normalizer
PATH_OF_RULES = 6 << 3 | BYTES
KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
UNUSED = 5  # a type of piece


def require_sound(model: bytes) -> None:
    """Raise ConfigError unless SentencePiece can read `model` without harm."""
    n_bytes = len(model)
    require(n_bytes <= MAX_MODEL_BYTES, f"it has {n_bytes:,} bytes, more than {MAX_MODEL_BYTES:,}")
    seen: set[bytes] = set()
    for tag, value in fields(model):
        require(tag >> 3 > 5 or tag & 7 == BYTES, "one of its parts has the wrong wire type")
        if tag == PIECE:
            _require_piece(value, seen)
        elif tag in (NORMALIZER, DENORMALIZER):
            for part, content in fields(value):
                if part >> 3 == RULE_TABLE >> 3:
                    # Stored in another way it is no table, which these bytes are not either.
                    _require_table(content if part == RULE_TABLE else b"no table")
    require(bool(seen), "it has no pieces")


def _require_piece(message: bytes, seen: set[bytes]) -> None:
    parts = dict(fields(message))  # of two fields with one tag the last counts, as in C++
    require(parts.keys() <= {PIECE_TEXT, PIECE_SCORE, PIECE_TYPE}, "a piece has an unknown field")
    text = parts.get(PIECE_TEXT, b"")
    require(0 < len(text) <= MAX_PIECE_BYTES, f"a piece has {len(text):,} bytes")
    require(b"\0" not in text, "a piece has a NUL")
    require(math.isfinite(piece_score(parts)), "a piece has a score that is not a number")
    require(text not in seen, "a piece occurs twice")
    seen.add(text)
    require(len(seen) <= MAX_PIECES, f"it has more than {MAX_PIECES:,} pieces")


def piece_score(piece: dict[int, Any]) -> float:
    """The score among the fields of a piece."""
    return float(struct.unpack("<f", piece.get(PIECE_SCORE, bytes(4)))[0])


def _require_table(table: bytes) -> None:
    """Check the table of what characters become: a tree in a "double array", then the texts.

    The children of a unit lie at its offset, with the next byte of a text XORed into the last eight
    bits; none may lie beyond the end of the array. A leaf is the place of a text that ends in NUL.
    """
    if not table:
        return
    (size,) = struct.unpack("<I", table[:4].ljust(4, b"\0"))
    is_right = size % 1024 == 0 and 0 < size <= len(table) - 4
    require(is_right, "its table of characters has the wrong size")
    units = np.frombuffer(table, "<u4", size // 4, offset=4).astype(np.int64)
    texts = table[4 + size :]
    is_inner = units >> 31 == 0
    offsets = (units >> 10) << ((units & 512) >> 6)
    children = np.arange(len(units)) ^ offsets
    reached = children[is_inner]
    require(bool(((reached | 255) < len(units)).all()), "its table of characters points outside it")
    leaves = units[children[is_inner & (units >> 8 & 1 == 1)]] & 0x7FFFFFFF
    in_texts = not len(leaves) or int(leaves.max()) < len(texts)
    require(in_texts and texts[-1:] == b"\0", "its table of characters has a text without end")


def without_path_of_rules(model: bytes) -> bytes:
    """The model without the path of the file of rules that it was trained with.

    So the same text gives the same file wherever that lay.
    """
    for tag, normalizer in fields(model):
        path = dict(fields(normalizer)).get(PATH_OF_RULES, b"") if tag == NORMALIZER else b""
        if path:
            kept = normalizer.replace(_field(PATH_OF_RULES, path), b"")
            return model.replace(_field(tag, normalizer), _field(tag, kept))
    return model


def _field(tag: int, content: bytes) -> bytes:
    """A field of bytes as it stands in a protocol buffer."""
    head = bytearray()
    for number in (tag, len(content)):
        while number > 127:
            head.append(number & 127 | 128)
            number >>= 7
        head.append(number)
    return bytes(head) + content


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Tag and value of the fields of a protocol buffer: an integer for a varint, else bytes.

    Raises ConfigError for anything else, and for groups, which nest.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        # C++ keeps 32 bits of a tag, and would see a field where this reader sees another.
        require(8 <= tag < 2**32, "it is not a protocol buffer")
        stored = tag & 7
        value: Any = 0
        end = at
        if stored in (VARINT, BYTES):
            value, end = _varint(message, at)
        if stored != VARINT:
            n_bytes = {BYTES: value, FIXED_64: 8, FIXED_32: 4}.get(stored, -1)
            require(n_bytes >= 0, "it is not a protocol buffer")
            at, end = end, end + n_bytes
            require(end <= len(message), "it is cut short")
            value = message[at:end]
        yield tag, value
        at = end


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """An integer in groups of seven bits, the lowest first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        require(at < len(message), "it is cut short")
        value |= (message[at] & 127) << shift
        at += 1
        if message[at - 1] < 128:
            return value, at
    raise ConfigError("it is not a protocol buffer")


@dataclass(frozen=True)
class Vocabulary:
    """What the page and the exports need: pieces in the order of their ids, and the normalization.

    `types` are SentencePiece's numbers: 1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte.
    `rule` is its compiled table of replacements, empty where text stays as it is, and
    `normalization` the name of the rule, such as "nfkc".
    """

    kind: str
    pieces: list[str]
    scores: list[float]
    types: list[int]
    rule: bytes
    normalization: str


def read_vocabulary(model_bytes: bytes) -> Vocabulary:
    """The vocabulary in a serialized SentencePiece model.

    Raises ConfigError for one that is made in another way than `Tokenizer.train` makes it, with
    bytes for unknown characters and a space before each text.
    """
    is_pair = model_bytes[:1] == b"{"
    require(not is_pair, "the model has two vocabularies of another maker, which have no form here")
    model = list(fields(model_bytes))
    pieces = [dict(fields(message)) for tag, message in model if tag == PIECE]
    training, normalizing = (
        dict(fields(dict(model).get(tag, b""))) for tag in (TRAINER, NORMALIZER)
    )
    vocabulary = Vocabulary(
        kind=KINDS.get(training.get(3 << 3 | VARINT, 1), "another kind"),
        pieces=[piece[PIECE_TEXT].decode("utf-8") for piece in pieces],
        scores=[piece_score(piece) for piece in pieces],
        types=[piece.get(PIECE_TYPE, 1) for piece in pieces],
        rule=normalizing.get(RULE_TABLE, b""),
        normalization=normalizing.get(1 << 3 | BYTES, b"").decode("utf-8", "replace"),
    )
    is_ours = (
        training.get(35 << 3 | VARINT, 0) == 1  # byte_fallback
        and training.get(24 << 3 | VARINT, 0) == 0  # treat_whitespace_as_suffix
        and normalizing.get(3 << 3 | VARINT, 1) == 1  # add_dummy_prefix
        and normalizing.get(4 << 3 | VARINT, 1) == 0  # remove_extra_whitespaces
        and normalizing.get(5 << 3 | VARINT, 1) == 1  # escape_whitespaces
        and vocabulary.kind in ("bpe", "unigram")
        and UNUSED not in vocabulary.types
    )
    require(
        is_ours,
        "a page or an export needs a tokenizer of kind bpe or unigram as Tokenizer.train makes "
        "it: with byte_fallback, a space before the text and no spaces removed",
    )
    return vocabulary
