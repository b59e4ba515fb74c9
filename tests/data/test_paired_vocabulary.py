"""Vocabularies of other makers, as one file: what is no pair is refused in a line."""

import json
import sys

import pytest

from annotated_transformer.data.paired_vocabulary import fairseq_vocabulary, marian_vocabulary
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import ConfigError
from toys import toy_tokenizer

PIECES = ["<pad>", "<begin>", "</s>", "<unk>", "th", "e</w>", "the</w>", ">>de<<", "c", "a"]
PIECES += ["t</w>"]
MERGES = b"t h 5\nth e</w> 4\n\nc a 3\n"


def of_fairseq():
    return Tokenizer(fairseq_vocabulary(MERGES, PIECES, ["en", "de"]))


class Moses:
    """Stands for sacremoses: splits at spaces."""

    def __init__(self, lang):
        self.lang = lang

    def normalize(self, text):
        return text

    def tokenize(self, text, aggressive_dash_splits):
        return text.split()

    def detokenize(self, words):
        return f"{self.lang}:{' '.join(words)}"


def test_words_are_merged_by_rank_and_joined_in_the_target_language(monkeypatch):
    library = {f"Moses{kind}": Moses for kind in ("PunctNormalizer", "Tokenizer", "Detokenizer")}
    monkeypatch.setitem(sys.modules, "sacremoses", type("library", (), library))
    tokenizer = of_fairseq()
    assert tokenizer.pieces(tokenizer.encode("the cat")) == ["the</w>", "<unk>", "t</w>"]
    assert tokenizer.pieces(tokenizer.encode("the\u0007")) == ["the</w>"]
    assert tokenizer.decode([1, 6, 3, 8, 9, 10, 2]) == "de:the \u2047 cat"
    assert tokenizer.sides[1].encode("the") == [6]


def of_marian():
    model = toy_tokenizer()
    pieces = [model.pieces([i])[0] for i in range(model.vocab_size)]
    return model, Tokenizer(
        marian_vocabulary(model.model_bytes, model.model_bytes, [*pieces, ">>de<<", ">"])
    )


@pytest.mark.parametrize("text", [">> the cat", ">>", ">>> >", "a >>de<< b", ">the<<"])
def test_two_signs_are_no_language_without_the_two_that_close_it(text):
    """A quoted e-mail begins so: it is split as its SentencePiece model splits it."""
    model, tokenizer = of_marian()
    assert tokenizer.encode(text) == model.encode(text)


def test_an_unknown_language_is_one_unknown_word(caplog):
    model, tokenizer = of_marian()
    assert tokenizer.encode(">>de<< cat") == [model.vocab_size, *model.encode(" cat")]
    assert not caplog.records
    assert tokenizer.encode(">>deu<< cat") == [3, *model.encode(" cat")]
    assert [record.getMessage() for record in caplog.records] == [
        "the model knows no language >>deu<<: it is read as an unknown word"
    ]


def test_without_sacremoses_a_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(ConfigError, match=r"pip install .annotated-transformer\[fairseq\]"):
        of_fairseq().encode("the")


def test_there_is_no_dropout():
    with pytest.raises(ConfigError, match="no bpe_dropout"):
        of_fairseq().encode_batch(["the"], dropout=0.1)


def test_there_is_no_way_back():
    with pytest.raises(ConfigError, match="has no <2source>: it was learned for one direction"):
        of_fairseq().back_id  # noqa: B018


MODEL = toy_tokenizer().model_bytes
GOOD = json.loads(fairseq_vocabulary(MERGES, PIECES, ["en", "de"]))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "KeyError"),
        ({"pieces": PIECES}, "is Marian's or fairseq's, got $"),
        ({**GOOD, "pieces": 5}, "TypeError"),
        ({**GOOD, "pieces": PIECES[:3]}, "needs one list of different pieces"),
        ({**GOOD, "pieces": [*PIECES, "a"]}, "needs one list of different pieces"),
        ({**GOOD, "pieces": [*PIECES, 7]}, "TypeError"),
        ({**GOOD, "pieces": [*PIECES, "\ud800"]}, "UnicodeEncodeError"),
        ({**GOOD, "merges": [["a"]]}, "ValueError"),
        ({**GOOD, "merges": 3}, "TypeError"),
        ({**GOOD, "languages": ["en"]}, "ValueError"),
        ({**GOOD, "languages": None}, "TypeError"),
        ({**GOOD, "more": 1}, "is Marian's or fairseq's, got merges, languages, more"),
        ({"pieces": PIECES, "source": "!", "target": ""}, "base64"),
        ({"pieces": PIECES, "source": 1, "target": 2}, "TypeError"),
        (json.loads(marian_vocabulary(b"", b"", PIECES)), "it has no pieces"),
        (json.loads(marian_vocabulary(MODEL, b"no model", PIECES)), "it is not a protocol buffer"),
    ],
    ids=range(16),
)
def test_what_is_no_pair_is_refused_in_a_line(content, words):
    with pytest.raises(ConfigError, match=words) as refused:
        Tokenizer(json.dumps(content).encode())
    assert "\n" not in str(refused.value)
