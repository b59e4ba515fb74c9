"""A vocabulary as Hugging Face's tokenizer.json, written from the SentencePiece file alone.

The library `tokenizers` splits text as SentencePiece does, with two known differences: where a
letter has several accents that were typed one by one, and where an accent follows a ligature. There
NFKC sorts and composes them, and SentencePiece's table of the same rule leaves them as they are.
"""

from __future__ import annotations

import re
from typing import Any

from annotated_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from annotated_transformer.data.paired_vocabulary import marian_files
from annotated_transformer.data.tokenizer import ALIKE, BACK, Tokenizer
from annotated_transformer.data.vocabulary_file import Vocabulary, read_vocabulary
from annotated_transformer.errors import require

SPACE = "\u2581"
NORMAL, USER_DEFINED = 1, 4  # types of piece
NFKC: list[dict[str, Any]] = [{"type": "NFKC"}]
AS_TYPED: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"Regex": f"[{alike}]"}, "content": normal}
    for normal, alike in ALIKE.items()
]
NORMALIZERS = {"nfkc": NFKC, "identity": [], "as_typed": AS_TYPED + NFKC}
NON_JOINER = "\u200c"
NO_NON_JOINER = {"type": "Replace", "pattern": {"String": NON_JOINER}, "content": ""}


def tokenizer_files(tokenizer: Tokenizer, max_length: int) -> dict[str, dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json, which AutoTokenizer and transformers.js read.

    `max_length` is the most tokens that a source may have. A pair of Marian's vocabularies needs no
    more than the second, beside its own files (`marian_files`). Raises ConfigError for one that
    is not as `Tokenizer.train` makes it (`read_vocabulary`), or has user-defined symbols, which
    split the text before anything else does.
    """
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    names = {name: pieces[i] for name, i in _SPECIAL.items()}
    if marian_files(tokenizer.model_bytes):
        config = {"tokenizer_class": "MarianTokenizer", "model_max_length": max_length, **names}
        return {"tokenizer_config.json": config}
    vocabulary = read_vocabulary(tokenizer.model_bytes)
    rule = "as_typed" if BACK in vocabulary.pieces else vocabulary.normalization
    wrong = f"tokenizer.json has no rule {rule!r:.60}: train the vocabulary with "
    require(rule in NORMALIZERS, wrong + " or ".join(NORMALIZERS))
    n_symbols = vocabulary.types.count(USER_DEFINED)
    require(
        not n_symbols,
        f"the vocabulary has {n_symbols} symbols of its own, which tokenizer.json cannot split as "
        "SentencePiece does: train one without symbols",
    )
    eos = names["eos_token"]
    is_bpe = vocabulary.kind == "bpe"
    to_mark, to_space = (
        {"type": "Replace", "pattern": {"String": before}, "content": after}
        for before, after in ((" ", SPACE), (SPACE, " "))
    )
    normalizers = [*NORMALIZERS[rule], {"type": "Prepend", "prepend": SPACE}, to_mark]
    # `Tokenizer.train(as_typed=True)` has kept it only since November 2026.
    if NON_JOINER not in tokenizer.decode(tokenizer.encode(f"a{NON_JOINER}b")):
        normalizers.insert(0, NO_NON_JOINER)
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    decoders = [to_space, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]
    texts = [{"Sequence": {"id": side, "type_id": 0}} for side in "AB"]
    end = {"SpecialToken": {"id": eos, "type_id": 0}}
    content = {
        "version": "1.0",
        "added_tokens": [_special(i, vocabulary.pieces[i]) for i in sorted(_SPECIAL.values())],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None if is_bpe else _names_apart(vocabulary),
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [texts[0], end],
            "pair": [*texts, end],
            "special_tokens": {eos: {"id": eos, "ids": [EOS_ID], "tokens": [eos]}},
        },
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(vocabulary) if is_bpe else _unigram(vocabulary),
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        # Without these names transformers 4 adds token types, which its Marian refuses.
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # else a user who types "</s>" ends the sentence
        **names,
    }
    return {"tokenizer.json": content, "tokenizer_config.json": config}


_SPECIAL = {"pad_token": PAD_ID, "bos_token": BOS_ID, "eos_token": EOS_ID, "unk_token": UNK_ID}


def _special(i: int, name: str) -> dict[str, Any]:
    sides = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": i, "content": name, **sides, "special": True}


def _bpe(vocabulary: Vocabulary) -> dict[str, Any]:
    """The merges are every way to put a piece together from two, in SentencePiece's order.

    SentencePiece merges by the score of the result, and the leftmost pair of equal ones.
    """
    ids = {piece: i for i, piece in enumerate(vocabulary.pieces)}
    is_normal = [kind == NORMAL for kind in vocabulary.types]
    merges = [
        (-score, i, ids[piece[:cut]], ids[piece[cut:]])
        for i, (piece, score) in enumerate(zip(vocabulary.pieces, vocabulary.scores, strict=True))
        if is_normal[i]
        for cut in range(1, len(piece))
        if is_normal[ids.get(piece[:cut], UNK_ID)] and is_normal[ids.get(piece[cut:], UNK_ID)]
    ]
    pieces = vocabulary.pieces
    pairs = [[pieces[left], pieces[right]] for *_, left, right in sorted(merges)]
    options = {"unk_token": pieces[UNK_ID], "fuse_unk": True, "byte_fallback": True}
    return {"type": "BPE", **options, "vocab": ids, "merges": pairs}


def _unigram(vocabulary: Vocabulary) -> dict[str, Any]:
    scored = zip(vocabulary.pieces, vocabulary.scores, strict=True)
    model = {"type": "Unigram", "unk_id": UNK_ID, "byte_fallback": True}
    return {**model, "vocab": [[piece, score] for piece, score in scored]}


def _names_apart(vocabulary: Vocabulary) -> dict[str, Any]:
    """Cut the names of special ids and of bytes in two where a text spells them.

    `tokenizers` would take such a text for the piece itself; SentencePiece never does.
    """
    kinds = zip(vocabulary.pieces, vocabulary.types, strict=True)
    rests = sorted(re.escape(piece[1:]) for piece, kind in kinds if kind != NORMAL)
    pattern = {"Regex": f"<(?={'|'.join(rests)})"}
    return {"type": "Split", "pattern": pattern, "behavior": "MergedWithPrevious", "invert": False}
