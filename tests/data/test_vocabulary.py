"""The reader of a SentencePiece model, against the library itself."""

from pathlib import Path

import pytest
import sentencepiece

from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.data.vocabulary_file import read_vocabulary
from annotated_transformer.errors import ConfigError
from toys import text_pairs

BOOK = Path(__file__).parents[2] / "book" / "model" / "tokenizer.model"
TEXT = [side for pair in text_pairs(0, 200) for side in pair]


@pytest.mark.parametrize("model_type", ["book", "bpe", "unigram"])
def test_pieces_scores_and_types_are_the_librarys(model_type):
    content = BOOK.read_bytes()
    if model_type != "book":
        symbols = ["tea", "ebb"]
        content = Tokenizer.train(TEXT, 285, model_type=model_type, symbols=symbols).model_bytes
    vocabulary = read_vocabulary(content)
    library = sentencepiece.SentencePieceProcessor(model_proto=content)
    ids = range(library.get_piece_size())
    assert vocabulary.kind == ("bpe" if model_type == "book" else model_type)
    assert vocabulary.pieces == [library.id_to_piece(i) for i in ids]
    assert vocabulary.scores == [library.get_score(i) for i in ids]
    kinds = {1: "normal", 2: "unknown", 3: "control", 4: "symbol", 6: "byte"}
    said = [
        "unknown" if library.is_unknown(i) else "control" if library.is_control(i)
        else "byte" if library.is_byte(i) else "normal" for i in ids
    ]  # fmt: skip
    ours = [kinds[one] for one in vocabulary.types]
    assert [one if one != "symbol" else "normal" for one in ours] == said
    assert ours.count("symbol") == (0 if model_type == "book" else 2)
    assert len(vocabulary.rule) > 100_000


@pytest.mark.parametrize(
    "changes",
    [
        {"byte_fallback": False},
        {"add_dummy_prefix": False},
        {"remove_extra_whitespaces": True},
        {"treat_whitespace_as_suffix": True},
        {"model_type": "char"},
        {"model_type": "word", "hard_vocab_limit": False},
    ],
    ids=str,
)
def test_a_tokenizer_of_another_making_is_refused(tmp_path, changes):
    (tmp_path / "text").write_text("\n".join(TEXT))
    settings = {"byte_fallback": True, "remove_extra_whitespaces": False, "model_type": "bpe"}
    settings |= changes
    vocab_size = 280 if settings["byte_fallback"] else 20
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "it"), vocab_size=vocab_size,
        pad_id=0, bos_id=1, eos_id=2, unk_id=3, minloglevel=2, **settings,
    )  # fmt: skip
    content = (tmp_path / "it.model").read_bytes()
    with pytest.raises(ConfigError, match="as Tokenizer.train makes it"):
        read_vocabulary(content)
