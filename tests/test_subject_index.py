"""What a reader looks up is in the subject index, and the first page that it names tells of it."""

import random
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "book"
subject_index = SimpleNamespace(**runpy.run_path(str(ROOT / "tools/sphinx/subject_index.py")))
PLACES = subject_index.places()
GLOSSARY = re.findall(r"^([^\n:|]+)\n: ", (BOOK / "notation.md").read_text("utf-8"), re.M)
# What walkthroughs of the paper have, and their readers ask about, as they would type it.
ASKED = [
    "query", "key", "value", "residual", "softmax", "masked attention", "causal mask", "padding",
    "teacher forcing", "exposure bias", "anaphora", "restricted self-attention", "path length",
    "GRU", "LSTM", "GNMT", "Extended Neural GPU", "ByteNet", "ConvS2S", "memory network", "GPT-2",
    "GPT-3", "BERT", "RoBERTa", "ALBERT", "DistilBERT", "XLNet", "T5", "MarianMT", "ViT", "LLaMA",
    "Flamingo", "PaLM", "Longformer", "BigBird", "mixture of experts", "scaling law", "dropout",
    "in-context learning", "label smoothing", "beam search", "length penalty", "warm-up", "Adam",
    "learning rate", "weight tying", "positional encoding", "wavelength", "epsilon", "averaging",
    "ensemble", "cache", "BLEU", "chrF", "COMET", "perplexity", "layer norm", "post-norm", "Bessel",
    "byte-pair encoding", "newstest2014", "tensor2tensor", "EVALB", "F1", "Penn Treebank", "LoRA",
    "FlashAttention", "mixed precision", "gradient clipping", "resume", "bootstrap", "AdamW",
    "Muon", "attention sink", "activation patching", "back-translation", "minimum Bayes risk",
]  # fmt: skip


def text_of(page):
    path = BOOK / f"{page}.md"
    return (path if path.exists() else BOOK / f"{page}.py").read_text(encoding="utf-8")


def found(asked):
    """Whether the index has the words, and its first page tells of them."""
    wanted = {word.lower() for word in re.findall(r"\w[\w-]*", asked)}
    for term, pages in PLACES.items():
        has = {word.lower() for word in re.findall(r"\w[\w-]*", term)}
        is_told = subject_index.words(term).search(text_of(pages[0]))
        if is_told and (wanted <= has or wanted <= {word.rstrip("s") for word in has}):
            return True
    return False


@pytest.mark.parametrize("term", PLACES)
def test_every_page_that_is_named_has_the_term(term):
    pattern = subject_index.words(term)
    assert [page for page in PLACES[term] if not pattern.search(text_of(page))] == []


def test_a_hundred_look_ups_are_found():
    drawn = random.Random(36).sample(sorted({*GLOSSARY, *ASKED}), 100)
    missed = [asked for asked in drawn if not found(asked)]
    assert len(missed) <= 5, missed


def test_a_term_that_nobody_tells_is_not_found():
    assert not found("eigenvalue of the Hessian")
    ring = subject_index.words("ring, of GPUs")
    assert ring.search("a ring") and not ring.search("string")
