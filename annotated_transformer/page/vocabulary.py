"""What is in a SentencePiece model: pieces, scores, kinds and the rule that normalises text.

The file is a message of protocol buffers, and a few of its fields are enough for a page. Reading
them takes less than the library for it would.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from annotated_transformer.errors import require

KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
UNUSED = 5  # a type of piece


@dataclass(frozen=True)
class Vocabulary:
    """Pieces in the order of their ids, with scores and types, and what normalises a text.

    `types` are SentencePiece's numbers: 1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte.
    `rule` is its compiled table of replacements, empty where text stays as it is.
    """

    kind: str
    pieces: list[str]
    scores: list[float]
    types: list[int]
    rule: bytes


def read_vocabulary(model_bytes: bytes) -> Vocabulary:
    """The vocabulary in a serialized SentencePiece model.

    Raises ConfigError for one that is made in another way than `Tokenizer.train` makes it, with
    bytes for unknown characters and a space before each text, since the page knows no other.
    """
    model = _Message(model_bytes)
    pieces = [_Message(piece) for piece in model.all(1)]
    training, normalizing = model.message(2), model.message(3)
    vocabulary = Vocabulary(
        kind=KINDS.get(training.number(3, default=1), "another kind"),
        pieces=[piece.text(1) for piece in pieces],
        scores=[piece.real(2) for piece in pieces],
        types=[piece.number(3, default=1) for piece in pieces],
        rule=normalizing.bytes(2),
    )
    is_ours = (
        training.number(35, default=0) == 1  # byte_fallback
        and training.number(24, default=0) == 0  # treat_whitespace_as_suffix
        and normalizing.number(3, default=1) == 1  # add_dummy_prefix
        and normalizing.number(4, default=1) == 0  # remove_extra_whitespaces
        and normalizing.number(5, default=1) == 1  # escape_whitespaces
        and vocabulary.kind in ("bpe", "unigram")
        and UNUSED not in vocabulary.types
    )
    require(
        is_ours,
        "a page needs a tokenizer of kind bpe or unigram as Tokenizer.train makes it: with "
        "byte_fallback, a space before the text and no spaces removed",
    )
    return vocabulary


class _Message:
    """The fields of a protocol buffer by their numbers: integers, and strings of bytes."""

    def __init__(self, encoded: bytes) -> None:
        self.fields: dict[int, list[int | bytes]] = {}
        for number, value in _fields(encoded):
            self.fields.setdefault(number, []).append(value)

    def all(self, number: int) -> list[bytes]:
        return [value for value in self.fields.get(number, []) if isinstance(value, bytes)]

    def bytes(self, number: int) -> bytes:
        return (self.all(number) or [b""])[-1]

    def text(self, number: int) -> str:
        return self.bytes(number).decode("utf-8")

    def real(self, number: int) -> float:
        return float(struct.unpack("<f", self.bytes(number) or bytes(4))[0])

    def number(self, number: int, default: int) -> int:
        value = self.fields.get(number, [default])[-1]
        return value if isinstance(value, int) else default

    def message(self, number: int) -> _Message:
        return _Message(self.bytes(number))


def _fields(encoded: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field.

    An integer comes in groups of seven bits, the lowest first; what has a length comes after it.
    """
    place = 0

    def integer() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = encoded[place]
            place, value, shift = place + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while place < len(encoded):
        key = integer()
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            yield number, integer()
        else:
            size = {1: 8, 5: 4}.get(wire_type) or integer()
            yield number, encoded[place : place + size]
            place += size
