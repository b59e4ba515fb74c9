"""The tokenizer loses nothing but what NFKC takes, always gives the same ids,
and says plainly what it cannot do."""

from __future__ import annotations

import io
import tempfile
import unicodedata

import pytest
import sentencepiece

from annotated_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from annotated_transformer.data.tokenizer import BACK, Tokenizer
from annotated_transformer.errors import ConfigError

SENTENCES = [
    "The old man reads the newspaper in the garden.", "Der alte Mann liest im Garten die Zeitung.",
    "She reads a long book about the sea.", "Sie liest ein langes Buch über das Meer.",
    "Where is the newspaper?", "Wo ist die Zeitung?", "The sea is cold.", "Das Meer ist kalt.",
    "He gives the book to the old man.", "Er gibt dem alten Mann das Buch.",
]  # fmt: skip
UNCHANGED = [
    "", " ", "  two  and   three ", "a\tb", "a\nb\n", "a\r\nb", "\x00", "a\x00b",
    "bell \x07, delete \x7f, \x85.", "😀 👨\u200d👩\u200d👧 🇩🇪", "\u200fمرحبا\u200e (بالعالم)",
    "שלום עולם", "漢字とかな", "a\u2028b\u2029c", "soft\u00adhyphen", "\ufeffmark",
    "<s> </s> <unk> <pad> <0x0A>", "\u10ff\U0010ffff", "\ufffd", "„Größe“ – ‘naïve’", "x" * 5000,
]  # fmt: skip
COMPATIBILITY = [
    "ﬁne", "x²", "½", "ｱｲｳ", "no\u00a0break", "\u3000", "e\u0301", "wait…", "\u212b", "㎏",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SENTENCES, vocab_size=340)


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_text_survives_a_round_trip(model_type):
    tokenizer = Tokenizer.train(SENTENCES, 300, model_type=model_type)
    for text in UNCHANGED + SENTENCES:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_nfkc_is_the_only_change(tokenizer):
    for text in COMPATIBILITY:
        normal = unicodedata.normalize("NFKC", text)
        assert normal != text
        assert tokenizer.decode(tokenizer.encode(text)) == normal
    assert tokenizer.decode(tokenizer.encode("under\u2581score")) == "under score"


@pytest.mark.slow
def test_every_character_survives_a_round_trip(tokenizer):
    """Every character of Unicode's first plane, alone between two letters,
    then every pair of accents on a letter.

    NFKD is Unicode's test of sameness: it takes characters apart and sorts the accents,
    which SentencePiece leaves.
    """
    codes = [code for code in range(0x10000) if not 0xD800 <= code < 0xE000 and code != 0x2581]
    texts = [f"a{chr(code)}b" for code in codes if unicodedata.category(chr(code)) != "Cn"]
    accents = [chr(code) for code in range(0x300, 0x370)]
    pairs = [f"a{first}{second}b" for first in accents for second in accents]
    normal = unicodedata.normalize
    every = texts + pairs
    back = [tokenizer.decode(ids) for ids in tokenizer.encode_batch(every)]
    lost = [x for x, y in zip(every, back, strict=True) if normal("NFKD", x) != normal("NFKD", y)]
    assert not lost, f"{len(lost)} texts, the first of them {lost[:5]!a}"
    changed = [text for text, again in zip(texts, back) if normal("NFKC", text) != again]
    assert changed == ["a\u0344b"]  # one character that is itself two accents


def test_special_ids_are_those_of_config(tokenizer):
    assert tokenizer.pieces([PAD_ID, BOS_ID, EOS_ID, UNK_ID]) == ["<pad>", "<s>", "</s>", "<unk>"]
    ids = tokenizer.encode("Where is the sea? </s> 😀")
    assert not {PAD_ID, BOS_ID, EOS_ID, UNK_ID} & set(ids)
    assert tokenizer.decode([BOS_ID, *ids, EOS_ID, PAD_ID]) == "Where is the sea? </s> 😀"


def test_pieces_join_to_the_text(tokenizer):
    ids = tokenizer.encode("The sea is cold.")
    assert "".join(tokenizer.pieces(ids)).replace("▁", " ") == " The sea is cold."
    assert len(ids) < len("The sea is cold.")


def test_batch_equals_single(tokenizer):
    texts = UNCHANGED + SENTENCES
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.encode_batch(iter(["", "sea"])) == [[], tokenizer.encode("sea")]
    assert tokenizer.encode_batch(texts * 9, threads=3) == tokenizer.encode_batch(texts * 9)


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_dropout_varies_the_ids_and_never_the_text(model_type):
    tokenizer = Tokenizer.train(SENTENCES, 300, model_type=model_type)
    texts = UNCHANGED[:-1] + SENTENCES * 5
    plain = tokenizer.encode_batch(texts)
    first = tokenizer.encode_batch(texts, dropout=0.2, seed=1)
    assert [tokenizer.decode(ids) for ids in first] == texts
    tokenizer.encode_batch(texts[:7], dropout=0.5, seed=9)
    assert tokenizer.encode_batch(texts, dropout=0.2, seed=1) == first != plain
    for seed in (2**40, 2**32 - 1, -1):  # the library takes 32 bits, and all of them set for "none"
        drawn = tokenizer.encode_batch(texts, dropout=0.2, seed=seed)
        tokenizer.encode_batch(texts[:7], dropout=0.5, seed=9)
        assert tokenizer.encode_batch(texts, dropout=0.2, seed=seed) == drawn
    assert tokenizer.encode_batch(texts, dropout=0.2, seed=2) != first
    assert tokenizer.encode_batch(texts) == plain
    assert tokenizer.decode(tokenizer.encode_batch(["a\ud83d b"], dropout=0.2)[0]) == "a\ufffd b"


def test_bpe_dropout_leaves_out_merges(tokenizer):
    """The more is left out the more pieces there are, up to one a character."""
    encode, dropouts = tokenizer.encode_batch, (0.0, 0.1, 0.4, 0.99)
    lengths = [sum(map(len, encode(SENTENCES * 9, dropout=p, seed=1))) for p in dropouts]

    assert lengths == sorted(set(lengths))

    # And the space put before each.
    n_characters = sum(len(sentence) + 1 for sentence in SENTENCES * 9)
    assert lengths[-1] == pytest.approx(n_characters, rel=0.02)


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_dropout_is_a_probability(tokenizer, dropout):
    with pytest.raises(ConfigError, match=r"^dropout must be in \[0, 1\), got "):
        tokenizer.encode_batch(["sea"], dropout=dropout)


def test_half_a_surrogate_pair_becomes_the_replacement_character(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a\ud83d b")) == "a\ufffd b"
    assert Tokenizer.train([*SENTENCES, "a\udcff"], 340).vocab_size == 340


def test_bytes_that_are_no_text_decode_to_the_replacement_character(tokenizer):
    first_byte_of_four = tokenizer.encode("😀")[1]
    assert tokenizer.pieces([first_byte_of_four]) == ["<0xF0>"]
    assert tokenizer.decode([first_byte_of_four]) == "\ufffd"


def test_training_is_deterministic_and_quiet(tokenizer, capfd):
    again = Tokenizer.train(iter(SENTENCES), 340)
    assert again.model_bytes == tokenizer.model_bytes
    assert capfd.readouterr() == ("", "")


def test_file_and_bytes_give_the_same_tokenizer(tokenizer, tmp_path):
    path = tmp_path / "new" / "tokenizer.model"
    trained = Tokenizer.train(SENTENCES, 340, path)
    assert path.read_bytes() == trained.model_bytes
    for other in (Tokenizer.load(path), Tokenizer.from_bytes(trained.model_bytes)):
        assert other.encode_batch(SENTENCES) == tokenizer.encode_batch(SENTENCES)


@pytest.mark.parametrize(
    ("sentences", "vocab_size", "model_type", "words"),
    [
        (SENTENCES, 8000, "bpe", r"^vocab_size must be at most \d+ for this text, got 8000"),
        (SENTENCES, 8000, "unigram", r"^vocab_size must be at most \d+ for this text, got 8000"),
        (SENTENCES, 260, "bpe", r"^vocab_size must be at least \d+ for this text, got 260"),
        ([], 300, "bpe", "the text has no sentences"),
        (["", " ", "\t"], 300, "bpe", "the text has no sentences"),
        (SENTENCES, 0, "bpe", "^vocab_size must be between 1 and 1,048,576, got 0$"),
        (SENTENCES, 3 * 10**9, "bpe", "^vocab_size must be between 1 and 1,048,576, got 3,000"),
        (SENTENCES, 300, "word", "^model_type must be bpe or unigram, got word$"),
    ],
)
def test_what_cannot_be_trained_is_one_clear_line(sentences, vocab_size, model_type, words):
    with pytest.raises(ConfigError, match=words) as caught:
        Tokenizer.train(sentences, vocab_size, model_type=model_type)
    assert "\n" not in str(caught.value) and ".cc" not in str(caught.value)


def test_largest_size_named_in_the_error_works():
    with pytest.raises(ConfigError) as caught:
        Tokenizer.train(SENTENCES, 8000)
    largest = int(str(caught.value).split("at most ")[1].split()[0])
    assert Tokenizer.train(SENTENCES, largest).vocab_size == largest


def test_symbols_are_one_id_each():
    symbols = ["(NP", ")NP", "(N", "Zeitung.", "$"]
    tokenizer = Tokenizer.train(SENTENCES, 345, symbols=symbols)
    text = "(NP (N $ )NP Zeitung. )NP (NP"
    expected = [f"\u2581{symbol}" for symbol in text.split()]
    assert tokenizer.pieces(tokenizer.encode(text)) == expected
    assert tokenizer.decode(tokenizer.encode(text)) == text
    for other in (*UNCHANGED, *SENTENCES, "(NPs of (N)P)NP", "a(NP", "  $$ "):
        assert tokenizer.decode(tokenizer.encode(other)) == other


@pytest.mark.parametrize("texts", ["abc", ["abc", 3], [["abc"]], [b"abc"], [None]])
def test_what_is_no_list_of_strings_is_refused(tokenizer, texts):
    for read in (
        tokenizer.encode_batch,
        lambda texts: Tokenizer.train(texts, 300),
        lambda texts: Tokenizer.train(SENTENCES, 300, symbols=texts),
    ):
        with pytest.raises(ConfigError, match=r"^texts must be a list of strings, got "):
            read(texts)


def test_what_is_no_id_of_the_vocabulary_is_refused(tokenizer):
    with pytest.raises(ConfigError, match=r"^token ids must be integers, got '12'$"):
        tokenizer.decode("12")
    for read in (tokenizer.decode, tokenizer.pieces):
        for wrong in (340, -1):
            with pytest.raises(ConfigError, match=f"below vocab_size 340, got {wrong}$"):
                read([5, wrong])


def test_file_that_is_no_tokenizer_is_refused(tmp_path, capfd):
    path = tmp_path / "other.model"
    with pytest.raises(ConfigError, match=r"cannot read the tokenizer .*\.model: No such file"):
        Tokenizer.load(path)
    for content, words in ((b"", "is empty"), (b"not a model", "is not a protocol buffer")):
        path.write_bytes(content)
        said = rf"other\.model: .*not a SentencePiece model: it {words}$"
        with pytest.raises(ConfigError, match=said):
            Tokenizer.load(path)
    assert capfd.readouterr() == ("", "")


def test_model_with_other_special_ids_is_refused():
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=written, vocab_size=60, minloglevel=2
    )
    with pytest.raises(ConfigError, match="ids for pad, bos, eos, unk must be"):
        Tokenizer.from_bytes(written.getvalue())


@pytest.fixture(scope="module")
def as_typed():
    return Tokenizer.train(SENTENCES, vocab_size=420, as_typed=True)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("‘I don`t‛ „know“ «it»", '\'I don\'t\' "know" "it"'),
        ("\ufeffWhere\u200b is\u00ad it", "Where is it"),
        ("e\u0301 ﬁ… x\u2010y", "é fi... x-y"),
    ],
)
def test_marks_that_look_alike_are_read_as_one(as_typed, text, read):
    assert as_typed.encode(text) == as_typed.encode(read)
    assert as_typed.decode(as_typed.encode(text)) == read


@pytest.mark.parametrize("word", ["می\u200cخواهم", "क्\u200dष"])
def test_joiners_that_spell_a_word_are_kept(as_typed, word):
    """In Persian the zero-width non-joiner stands within words: without it they are misspelt."""
    assert as_typed.decode(as_typed.encode(word)) == word


def test_otherwise_what_is_typed_is_changed_as_nfkc_changes_it(as_typed, tokenizer):
    for text in COMPATIBILITY + SENTENCES:
        assert as_typed.decode(as_typed.encode(text)) == tokenizer.decode(tokenizer.encode(text))


def test_digits_are_tokens_and_ascii_is_known():
    numbers = [f"{sentence} 1984 2024" for sentence in SENTENCES] * 9
    tokenizer = Tokenizer.train(numbers, 440, as_typed=True)
    assert tokenizer.pieces(tokenizer.encode("1984")) == ["▁", *"1984"]
    assert "▁1984" in Tokenizer.train(numbers, 440).pieces(range(440))
    known = tokenizer.pieces(range(440))
    assert all(chr(code) in known for code in range(ord("!"), 127))


def test_no_text_is_the_token_that_turns_a_model_round(as_typed, tokenizer):
    assert as_typed.pieces([as_typed.back_id]) == [BACK]
    assert as_typed.back_id not in as_typed.encode(f"{BACK} {BACK}x <2source")
    assert as_typed.decode([as_typed.back_id, *as_typed.encode("Das")]) == "Das"
    with pytest.raises(ConfigError, match="the vocabulary has no <2source>"):
        tokenizer.back_id  # noqa: B018


def test_the_place_of_the_rules_is_not_in_the_file(as_typed, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    again = Tokenizer.train(SENTENCES, vocab_size=420, as_typed=True)
    assert again.model_bytes == as_typed.model_bytes
    assert b"rules.tsv" not in again.model_bytes and not list(tmp_path.iterdir())
