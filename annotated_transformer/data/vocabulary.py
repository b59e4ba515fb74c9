"""What other programs need of a SentencePiece model: pieces, scores, types, normalisation.

The page and the exports read it; `vocabulary_file` reads the file.
"""

from __future__ import annotations

from dataclasses import dataclass

from annotated_transformer.data.vocabulary_file import (
    BYTES,
    NORMALIZER,
    PIECE,
    PIECE_TEXT,
    PIECE_TYPE,
    RULE_TABLE,
    TRAINER,
    VARINT,
    fields,
    piece_score,
)
from annotated_transformer.errors import require

KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
UNUSED = 5  # a type of piece


@dataclass(frozen=True)
class Vocabulary:
    """Pieces in the order of their ids, with scores and types, and what normalises a text.

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
