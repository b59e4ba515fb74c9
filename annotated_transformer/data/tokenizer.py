"""Text to ids and back: one SentencePiece vocabulary for both languages (section 5.1).

The paper encodes both sides with one byte-pair vocabulary of about 37,000 tokens. Here
SentencePiece learns it, from raw text, so there is no separate word splitter and nothing to undo
after decoding.

**What survives a round trip.** Everything but what the normalisation NFKC changes: runs of spaces,
leading and trailing spaces, tabs, line feeds, NUL and other control characters, emoji with joiners,
marks of writing direction, soft hyphens, and text that looks like a special token ("</s>").
Characters outside the vocabulary become their bytes in UTF-8 (`byte_fallback`), so no text is ever
unknown. NFKC composes a letter and its accent, turns no-break and ideographic spaces into plain
ones, and replaces compatibility characters: a ligature "fi" by its two letters, a superscript two
by 2, half-width kana by full-width, "…" by three full stops. So `decode(encode(text))` is
`unicodedata.normalize("NFKC", text)` with two exceptions. SentencePiece's own mark for a space,
U+2581, comes back as a space. And where a letter carries several accents typed one by one,
SentencePiece does not sort them; the result looks and means the same.

**Two choices.** `remove_extra_whitespaces=False`, or the round trip would lose spaces.
`add_dummy_prefix=True` (the default) puts a space before the text and takes it away again, so that
a word has one spelling wherever it stands.
"""

from __future__ import annotations

import copy
import hashlib
import io
import os
import re
import unicodedata
from collections.abc import Iterable
from functools import cached_property
from itertools import chain
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import sentencepiece

from annotated_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from annotated_transformer.data.paired_vocabulary import PairedVocabulary
from annotated_transformer.data.vocabulary_file import (
    MAX_MODEL_BYTES,
    MAX_PIECES,
    require_sound,
    without_path_of_rules,
)
from annotated_transformer.errors import ConfigError, require, require_strings
from annotated_transformer.files import read_bounded

MODEL_TYPES = ("bpe", "unigram")
BACK = "<2source>"
"""The token before a text that is to be translated the other way, from the language of the targets
into that of the sources (Johnson et al. 2017 name every target language so). No text contains it:
what looks like it is encoded as other text."""
ALIKE = {
    "'": "‘’‚‛′`´ʼ‹›",
    '"': "“”„‟″«»〝〞〟",
    "-": "\u2010\u2011\u2012\u2212",
    # Not the joiners U+200C and U+200D, which spell words in Persian and in scripts of India.
    "": "\u00ad\u200b\u200e\u200f\u2060\ufeff",
}
"""What `Tokenizer.train(as_typed=True)` takes for one: apostrophes and quotation marks, hyphens,
and characters that nobody sees."""


class Tokenizer:
    """Encodes and decodes with a SentencePiece model.

    Make one with `train`, `load` or `from_bytes`. `encode` adds no special ids; batching puts bos
    and eos where they belong. `config` has the special ids. A model from elsewhere may split its
    two languages in different ways (`paired_vocabulary`): then `sides` are two.

    >>> tokenizer = Tokenizer.train(["a cab fed a bee", "a bad bee"] * 20, vocab_size=280)
    >>> tokenizer.decode(tokenizer.encode("a bad cab"))
    'a bad cab'
    """

    def __init__(self, model_bytes: bytes) -> None:
        """Read a serialized SentencePiece model, which may come from a stranger.

        Raises ConfigError if it is not such a model, has other special ids, or could do harm
        (`vocabulary_file`).
        """
        try:
            require(bool(model_bytes), "it is empty")
            is_pair = model_bytes[:1] == b"{"  # no SentencePiece file begins so
            self._processor: Any = (
                PairedVocabulary(model_bytes, _processor) if is_pair else _processor(model_bytes)
            )
        except ConfigError as error:
            raise ConfigError(f"this is not a SentencePiece model: {error}") from None
        except (RuntimeError, UnicodeDecodeError):  # whose own message may hold a piece's bytes
            raise ConfigError("this is not a SentencePiece model") from None
        self.model_bytes = model_bytes
        """The serialized model, byte for byte what `train` made: a checkpoint stores it."""
        if not is_pair:  # whose special ids are ours, as it was written
            p: Any = self._processor
            ids = p.pad_id(), p.bos_id(), p.eos_id(), p.unk_id()
            expected = PAD_ID, BOS_ID, EOS_ID, UNK_ID
            wrong = f"the tokenizer's ids for pad, bos, eos, unk must be {expected}, got {ids}"
            require(ids == expected, wrong)

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        vocab_size: int,
        path: str | os.PathLike[str] | None = None,
        model_type: str = "bpe",
        symbols: Iterable[str] = (),
        as_typed: bool = False,
    ) -> Tokenizer:
        """A tokenizer learned from `sentences`, written to `path` if one is given.

        The usual name is tokenizer.model. For the shared vocabulary of the paper, pass the
        sentences of both languages, of the training split only. `vocab_size` counts everything: 4
        special ids, 256 bytes, the characters and the merges. The result depends on the sentences
        and their order alone. Sentences of more than 4,192 bytes are skipped in training (they are
        encoded like any other). Each of `symbols`, say the brackets of trees (section 6.3), is one
        id wherever it follows a space or begins a text, even where it is part of a longer word.
        With `as_typed` every digit is a token of its own and every character of ASCII is in the
        vocabulary, so that a model can copy numbers and addresses; besides NFKC, the characters of
        `ALIKE` are taken for one, and `decode` gives them back as one; and there is a `back_id`.
        Raises ConfigError when the text cannot fill, or does not fit into, `vocab_size`.
        """
        require(model_type in MODEL_TYPES, f"model_type must be bpe or unigram, got {model_type}")
        is_size = 1 <= vocab_size <= MAX_PIECES
        require(is_size, f"vocab_size must be between 1 and {MAX_PIECES:,}, got {vocab_size:,}")
        sentences = _strings(sentences)
        written = io.BytesIO()
        options: dict[str, Any] = {"normalization_rule_name": "nfkc"}
        rules = Path(mkdtemp()) / "rules.tsv" if as_typed else None
        if rules:
            rules.write_text(_rules_with_alike(), encoding="ascii")
            options = {
                "split_digits": True,
                "required_chars": "".join(map(chr, range(ord("!"), 127))),
                "normalization_rule_tsv": str(rules),
                "control_symbols": [BACK],
            }
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=map(without_surrogates, filter(str.strip, sentences)),
                model_writer=written,
                vocab_size=vocab_size,
                model_type=model_type,
                byte_fallback=True,
                remove_extra_whitespaces=False,
                character_coverage=0.9999,
                pad_id=PAD_ID,
                bos_id=BOS_ID,
                eos_id=EOS_ID,
                unk_id=UNK_ID,
                user_defined_symbols=[f"\u2581{symbol}" for symbol in _strings(symbols)],
                num_threads=1,
                minloglevel=2,
                **options,
            )
        except RuntimeError as error:
            raise ConfigError(_explain(str(error), vocab_size)) from None
        finally:
            if rules:
                rmtree(rules.parent)
        tokenizer = cls(without_path_of_rules(written.getvalue()))
        if path is not None:
            tokenizer.save(path)
        return tokenizer

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """The tokenizer in file `path`. Raises ConfigError, with the path, if there is none."""
        try:
            return cls(read_bounded(Path(path), MAX_MODEL_BYTES))
        except OSError as error:
            raise ConfigError(f"cannot read the tokenizer {path}: {error.strerror}") from None
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def from_bytes(cls, model_bytes: bytes) -> Tokenizer:
        """The tokenizer whose `model_bytes` these are."""
        return cls(model_bytes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to `path`, making its directory if need be."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.model_bytes)

    @cached_property
    def sides(self) -> tuple[Tokenizer, Tokenizer]:
        """What encodes source and target: twice this tokenizer, save for a pair of vocabularies."""
        if not isinstance(self._processor, PairedVocabulary):
            return self, self
        target = copy.copy(self)
        vars(target)["_processor"] = self._processor.target
        return self, target

    @property
    def sha256(self) -> str:
        """SHA-256 of `model_bytes`, in hexadecimal: files that go with a vocabulary carry it."""
        return hashlib.sha256(self.model_bytes).hexdigest()

    @property
    def vocab_size(self) -> int:
        """V, the number of pieces, special ids and bytes included.

        It is what `ModelConfig.vocab_size` must be.
        """
        return int(self._processor.get_piece_size())

    @property
    def back_id(self) -> int:
        """The id of `BACK`. Raises ConfigError where the vocabulary has none."""
        piece_id = int(self._processor.piece_to_id(BACK))
        is_marker = self._processor.is_control(piece_id)
        require(is_marker, f"the vocabulary has no {BACK}: it was learned for one direction")
        return piece_id

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without bos and eos. Empty text has none.

        Half of a surrogate pair, which is no character, becomes U+FFFD.
        """
        # A batch, even of one, has a thread of its own, which takes ten times as long as a word.
        (text,) = _strings([text])
        return self._processor.encode_as_ids(without_surrogates(text))

    def encode_batch(
        self, texts: Iterable[str], dropout: float = 0.0, seed: int = 0, threads: int = 1
    ) -> list[list[int]]:
        """`encode` of each text, in order, in one call of the library.

        One thread encodes about 100,000 short sentences a second. With `dropout`, each merge is
        left out with this probability, so that one word is split in many ways (BPE-dropout,
        Provilkov et al. 2020): a regulariser for training text, not in the paper and of no help to
        our models (LOG.md, "The book/model of the first edition"). A unigram model samples a
        segmentation instead. Whatever is drawn decodes to the text. With one thread, the same texts
        and `seed` give the same ids within one process; another process draws others, since
        SentencePiece mixes in entropy of its own. Raises ConfigError for anything but strings.
        """
        require(0.0 <= dropout < 1.0, f"dropout must be in [0, 1), got {dropout}")
        texts = _strings(texts)
        options: dict[str, Any] = {"num_threads": threads}
        if dropout:
            # To SentencePiece 2**32 - 1 means no seed; nbest_size -1 draws from all segmentations.
            sentencepiece.set_random_generator_seed(seed % (2**32 - 1))
            options.update(enable_sampling=True, alpha=dropout, nbest_size=-1)
        try:
            return self._processor.encode(texts, **options)
        except TypeError:  # SentencePiece takes no half of a surrogate pair
            return self._processor.encode([without_surrogates(text) for text in texts], **options)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`.

        The special ids give no text, save unk, which `encode` never makes: it gives " ⁇ ". A line
        feed that was encoded comes back, and a model may generate one, as it may any character: a
        caller that writes one sentence a line must replace it. Bytes that are not UTF-8 come back
        as U+FFFD. Raises ConfigError for an id outside the vocabulary.
        """
        return self._processor.decode(self._in_vocabulary(ids))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """What each id stands for, to label an axis with.

        For example "▁house" (▁ is a space), "<0xF0>" (a byte), "</s>". Raises ConfigError for an id
        outside the vocabulary.
        """
        return [self._processor.id_to_piece(i) for i in self._in_vocabulary(ids)]

    def _in_vocabulary(self, ids: Iterable[int]) -> list[int]:
        require(not isinstance(ids, str | bytes), f"token ids must be integers, got {ids!r:.60}")
        ids = [int(i) for i in ids]
        vocabulary = range(self.vocab_size)
        if wrong := [i for i in ids if i not in vocabulary]:
            rule = f"at least 0 and below vocab_size {len(vocabulary)}"
            raise ConfigError(f"a token id must be {rule}, got {wrong[0]}")
        return ids


def _processor(model: bytes) -> Any:
    require_sound(model)
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def _strings(texts: Iterable[str]) -> list[str]:
    listed = texts if isinstance(texts, str) else list(texts)
    require_strings(listed, "texts must be a list of strings")
    return list(listed)


def _rules_with_alike() -> str:
    """NFKC and `ALIKE` as SentencePiece reads rules: code points, a tab, what they become."""
    rules: dict[str, str] = {}
    for character in map(chr, chain(range(1, 0xD800), range(0xE000, 0x110000))):
        normal = unicodedata.normalize("NFKC", character)
        apart = unicodedata.normalize("NFD", character)
        if normal != character:
            rules[character] = normal
        if apart != character and unicodedata.normalize("NFC", apart) == character:
            rules[apart] = normal
    rules |= {character: one for one, alike in ALIKE.items() for character in alike}
    sides = ([" ".join(f"{ord(c):X}" for c in side) for side in rule] for rule in rules.items())
    return "".join(f"{before}\t{after}\n" for before, after in sides)


def without_surrogates(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _explain(error: str, vocab_size: int) -> str:
    """SentencePiece's complaint about its training text, as one line for the user."""
    got = f"for this text, got {vocab_size}"
    if match := re.search(r"Vocabulary size too high .* <= (\d+)", error):
        return f"vocab_size must be at most {match[1]} {got}: there is too little to learn from"
    if match := re.search(r"smaller than required_chars. \d+ vs (\d+)", error):
        needs = "4 special ids, 256 bytes and every common character need a place"
        return f"vocab_size must be at least {match[1]} {got}: {needs}"
    if "sentences_.empty()" in error:
        return "cannot train a tokenizer: the text has no sentences"
    return f"cannot train a tokenizer: {error}"
