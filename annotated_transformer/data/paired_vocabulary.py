"""The vocabularies of models from elsewhere: Marian's (opus-mt) and fairseq's (wmt19).

Marian splits source and target by a SentencePiece model each, and looks the pieces up in one list.
fairseq splits the words and signs that Moses finds by byte-pair merges. Either is one JSON text,
which a checkpoint keeps as tokenizer.model, with the pieces in the order of our ids. `Tokenizer`
uses these classes as it uses SentencePiece's processor.
"""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

from annotated_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from annotated_transformer.data.vocabulary_file import MAX_PIECES
from annotated_transformer.errors import ConfigError, needs_extra, require

MARIAN = {"source", "target"}
"""What Marian's has beside its pieces."""
MARIAN_FILES = "source.spm", "target.spm", "vocab.json"
FAIRSEQ = {"merges", "languages"}
UNKNOWN = "\u2047"
END = "</w>"
SIGNS = str.maketrans(
    "，、”“∶：？《》）！（；」「～’━〈〉【】％０１２３４５６７８９",
    ',,""::?"")!(;""~\'-<>[]%0123456789',
) | {ord("…"): "..."}


def marian_vocabulary(source: bytes, target: bytes, pieces: list[str]) -> bytes:
    """From two serialized SentencePiece models and the pieces by id, ours first."""
    sides = {"source": source, "target": target}
    return _written(pieces, {name: b64encode(model).decode() for name, model in sides.items()})


def fairseq_vocabulary(merges: bytes, pieces: list[str], languages: Any) -> bytes:
    """From the text of merges.txt, the pieces by id, and the languages of source and target."""
    lines = (line.split() for line in merges.decode("utf-8", "replace").split("\n"))
    pairs = [line[:2] for line in lines if len(line) >= 2]
    return _written(pieces, {"merges": pairs, "languages": languages})


def marian_files(model_bytes: bytes) -> dict[str, bytes]:
    """What other programs read of a serialized pair of Marian's; nothing, where it is no pair.

    Raises ConfigError for fairseq's.
    """
    if model_bytes[:1] != b"{":
        return {}
    parts = json.loads(model_bytes)
    rule = "the words of this model are split as fairseq does, which has no form here"
    require(parts.keys() > MARIAN, rule)
    ids = {piece: i for i, piece in enumerate(parts["pieces"])}
    models = (b64decode(parts[side]) for side in ("source", "target"))
    return dict(zip(MARIAN_FILES, (*models, json.dumps(ids).encode()), strict=True))


def _written(pieces: list[str], parts: dict[str, Any]) -> bytes:
    return json.dumps({**parts, "pieces": pieces}).encode()


class PairedVocabulary:
    """One list of pieces, and two ways to split a text into them: the source's, and `target`'s.

    What no piece has becomes the unknown token, whose text is "⁇".
    """

    def __init__(self, content: bytes, processor: Callable[[bytes], Any]) -> None:
        """Read what a function above wrote, which may come from a stranger.

        `processor` makes SentencePiece's of a model. Raises ConfigError for anything else.
        """
        try:
            parts = json.loads(content)
            self._pieces: list[str] = parts.pop("pieces")
            require(
                parts.keys() in (MARIAN, FAIRSEQ),
                f"a pair of vocabularies is Marian's or fairseq's, got {', '.join(parts):.60}",
            )
            "".join(self._pieces).encode()  # text, and no half of a surrogate pair
            self._splitters = _splitters(parts, processor)
        except ConfigError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ConfigError(f"this is no pair of vocabularies: {error!r:.60}") from None
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        is_list = UNK_ID < len(self._ids) == len(self._pieces) <= MAX_PIECES
        require(is_list, "a pair of vocabularies needs one list of different pieces")
        self._side = 0

    @cached_property
    def target(self) -> Self:
        """The same vocabulary, which splits a text as one in the target's language."""
        target = object.__new__(type(self))
        vars(target).update(vars(self), _side=1)
        return target

    def get_piece_size(self) -> int:
        return len(self._pieces)

    def id_to_piece(self, i: int) -> str:
        return self._pieces[i]

    def piece_to_id(self, piece: str) -> int:
        return self._ids.get(piece, UNK_ID)

    def is_control(self, i: int) -> bool:
        return i in (PAD_ID, BOS_ID, EOS_ID)

    def encode(self, texts: list[str], enable_sampling: bool = False, **_: Any) -> list[list[int]]:
        require(not enable_sampling, "this vocabulary has no bpe_dropout: set it to 0")
        return [self.encode_as_ids(text) for text in texts]

    def encode_as_ids(self, text: str) -> list[int]:
        pieces = self._splitters[self._side].split(text)
        if pieces and re.match(">>.*<<$", pieces[0], re.DOTALL) and pieces[0] not in self._ids:
            message = "the model knows no language %.40s: it is read as an unknown word"
            logging.getLogger(__name__).warning(message, pieces[0])
        return [self.piece_to_id(piece) for piece in pieces]

    def decode(self, ids: list[int]) -> str:
        text_ids = [i for i in ids if not self.is_control(i)]
        pieces = [f" {UNKNOWN} " if i == UNK_ID else self._pieces[i] for i in text_ids]
        return self._splitters[1].join(pieces)


def _splitters(parts: dict[str, Any], processor: Callable[[bytes], Any]) -> list[Any]:
    """The source's and the target's."""
    if "merges" in parts:
        ranks = {(str(left), str(right)): i for i, (left, right) in enumerate(parts["merges"])}
        source, target = parts["languages"]
        return [_Moses(ranks, str(language)) for language in (source, target)]
    models = (b64decode(parts[side], validate=True) for side in ("source", "target"))
    return [_SentencePiece(processor(model)) for model in models]


class _SentencePiece:
    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def split(self, text: str) -> list[str]:
        """A text may begin with a language, such as >>fra<<, which is one piece, known or not."""
        language = re.match(">>.*?<<", text, re.DOTALL)
        start = language.end() if language else 0
        codes = [text[:start]] if language else []
        return codes + self.processor.encode(text[start:], out_type=str)

    def join(self, pieces: list[str]) -> str:
        # A piece that the source alone has keeps its mark of a space.
        return self.processor.decode_pieces(pieces).replace("\u2581", " ").strip()


class _Moses:
    """Words and signs as Moses splits them (sacremoses), each cut by byte-pair merges."""

    def __init__(self, ranks: dict[tuple[str, str], int], language: str) -> None:
        self.ranks = ranks
        self.language = language

    @cached_property
    def moses(self) -> Any:
        with needs_extra("fairseq"):
            import sacremoses
        return sacremoses

    @cached_property
    def words_of(self) -> Callable[[str], list[str]]:
        normalize = self.moses.MosesPunctNormalizer(lang=self.language).normalize
        tokenize = self.moses.MosesTokenizer(lang=self.language).tokenize
        return lambda text: tokenize(
            "".join(c for c in normalize(text) if unicodedata.category(c)[0] != "C"),
            aggressive_dash_splits=True,
        )

    @cached_property
    def joined(self) -> Callable[[list[str]], str]:
        return self.moses.MosesDetokenizer(lang=self.language).detokenize

    def split(self, text: str) -> list[str]:
        text = re.sub(r"[。．]\s*", ". ", text).translate(SIGNS)
        return [piece for word in self.words_of(text) if word for piece in self._merged(word)]

    def _merged(self, word: str) -> list[str]:
        """The word's letters, put together by the best merge that there is as long as there is."""
        parts = [*word[:-1], word[-1] + END]
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            merged: list[str] = []
            for part in parts:
                if merged and (merged[-1], part) == best:
                    merged[-1] += part
                else:
                    merged.append(part)
            parts = merged
        return parts

    def join(self, pieces: list[str]) -> str:
        return self.joined("".join(pieces).replace(END, " ").split())
