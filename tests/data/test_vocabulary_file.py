"""A SentencePiece file is looked through before C++ reads it."""

import io
import struct

import numpy as np
import pytest
import sentencepiece

from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.data.vocabulary_file import require_sound
from annotated_transformer.errors import ConfigError
from toys import text_pairs

SENTENCES = [side for pair in text_pairs(1, 300) for side in pair]


def varint(number):
    low = bytes([number & 127 | (128 if number > 127 else 0)])
    return low if number < 128 else low + varint(number >> 7)


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def piece(text, score=0.0, rest=b""):
    return field(1, field(1, text) + b"\x15" + struct.pack("<f", score) + rest)


def table(units, texts=b"a\0"):
    array = np.asarray(units, "<u4").tobytes()
    return field(3, field(2, struct.pack("<I", len(array)) + array + texts))


GOOD = piece(b"<pad>") + piece(b"<s>") + piece(b"</s>") + piece(b"<unk>", rest=b"\x18\x02")
UNITS = np.zeros(256, np.int64)
LEADS_OUT = UNITS.copy()
LEADS_OUT[0] = 1000 << 10
LEAF = UNITS.copy()
LEAF[0], LEAF[1 ^ 0] = 1 << 10 | 1 << 8, 1 << 31 | 50


@pytest.mark.parametrize("rule", ["nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf", "identity"])
@pytest.mark.parametrize("model_type", ["bpe", "unigram", "char", "word"])
def test_what_sentencepiece_writes_is_sound(rule, model_type):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=written, vocab_size=40,
        model_type=model_type, normalization_rule_name=rule, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    require_sound(written.getvalue())


def test_a_table_that_stays_within_its_bounds_is_sound():
    require_sound(GOOD + table(UNITS))
    require_sound(GOOD + table(np.where(LEAF >> 31, 1 << 31 | 1, LEAF)))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (GOOD + piece(b"a" * 200_000), "a piece has 200,000 bytes"),
        (GOOD + piece(b""), "a piece has 0 bytes"),
        (GOOD + piece(b"a\0b"), "a piece has a NUL"),
        (GOOD + piece(b"a", float("nan")), "a score that is not a number"),
        (GOOD + piece(b"a") + piece(b"a"), "a piece occurs twice"),
        (GOOD + field(1, b"\x0b" * 1000), "it is not a protocol buffer"),
        (GOOD + field(1, b"\x22\x01a"), "a piece has an unknown field"),
        (b"\x08\x01", "one of its parts has the wrong wire type"),
        (varint(2**32 | 10) + field(1, b"a" * 9)[1:], "it is not a protocol buffer"),
        (GOOD + varint(2**32 + 10) + field(1, b"")[1:], "it is not a protocol buffer"),
        (GOOD + field(1, varint(2**35 | 10) + b"\x01a"), "it is not a protocol buffer"),
        (GOOD + b"\x0b" * 100_000, "it is not a protocol buffer"),
        (GOOD + b"\x0a\xff\xff\xff\xff\x0f", "it is cut short"),
        (GOOD[:-2], "it is cut short"),
        (field(3, b""), "it has no pieces"),
        (GOOD + table(LEADS_OUT), "its table of characters points outside it"),
        (GOOD + table(LEAF), "its table of characters has a text without end"),
        (GOOD + table(UNITS, b"no end"), "its table of characters has a text without end"),
        (GOOD + table(UNITS[:100]), "its table of characters has the wrong size"),
        (GOOD + field(3, field(2, b"\xff" * 4)), "its table of characters has the wrong size"),
        (GOOD + field(5, field(2, b"\xff" * 4)), "its table of characters has the wrong size"),
        (GOOD + field(3, b"\x10\x01"), "its table of characters has the wrong size"),
    ],
)
def test_what_could_harm_the_process_is_one_line(content, words):
    with pytest.raises(ConfigError) as error:
        Tokenizer(content)
    assert str(error.value).startswith("this is not a SentencePiece model: ")
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_tag_that_c_would_cut_hides_no_piece():
    """C++ keeps the low 32 bits of a tag, so that this is a piece to it, of 200,000 letters."""
    hidden = varint(2**32 | 1 << 3 | 2) + piece(b"a" * 200_000)[1:]
    with pytest.raises(ConfigError, match="it is not a protocol buffer"):
        require_sound(GOOD + hidden)
    require_sound(GOOD + varint((2**29 - 1) << 3) + b"\0")  # the largest number of a field
