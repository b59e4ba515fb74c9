"""Models to export, at random and the book's, and what our own search finds."""

import functools
import os
import random
from pathlib import Path

import torch

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint.weights import save_weights
from annotated_transformer.config import ModelConfig
from annotated_transformer.data import corpus
from annotated_transformer.data.batching import pad_source
from annotated_transformer.decoding.search import beam_search, greedy_search
from annotated_transformer.decoding.translator import batches_by_length
from annotated_transformer.model.transformer import Transformer
from toys import SMALL, random_tokens, toy_tokenizer

BOOK = Path(__file__).parents[2] / "book" / "model"
MODEL, VOCABULARY = checkpoint.load_model(BOOK)
N_TEST = 1000
N_SENTENCES = int(os.environ.get("READERS_SENTENCES", "200"))
"""Of the test split, which has N_TEST: as many as ONNX's readers translate in `make readers`."""


def random_configuration(seed):
    """Any that has a home in Hugging Face."""
    draw = random.Random(seed)
    norm = draw.choice(["post", "pre"])
    h, d_k = draw.choice([(1, 16), (2, 4), (4, 16), (2, 10), (3, 6)])
    positions = draw.choice(["sinusoidal", "learned", "concatenated", "none"])
    return {
        "N": draw.randint(1, 3),
        "h": h,
        "d_model": h * d_k,
        "d_ff": draw.randint(5, 40),
        "norm": norm,
        "positions": positions if norm == "pre" else "sinusoidal",
        "first_position": draw.choice([0, 2])
        if norm == "pre" and positions == "concatenated"
        else 0,
        "activation": draw.choice(["relu", "gelu", "silu"]),
        "bias": draw.random() < 0.5,
        "output_bias": draw.random() < 0.3,
        "scaled_attention": d_k not in (4, 16) or draw.random() < 0.5,
        "max_len": 40,
    }


def checkpoint_of(folder, seed=0, **changes):
    """A model as it begins, whose biases and gains are random, so that none hides a mistake."""
    tokenizer = toy_tokenizer()
    torch.manual_seed(seed)
    model = Transformer(ModelConfig(**{**SMALL, "vocab_size": tokenizer.vocab_size, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    checkpoint.write_directory(folder, model.config, tokenizer, {"corpus": "reverse"})
    save_weights(folder / "model.safetensors", model)
    return model.eval()


def inputs():
    source, target = random_tokens(1, 3, 9, high=280), random_tokens(2, 3, 7, high=280)
    source[1, 4:], target[:, 0] = 0, 1
    return source, target


def sentences(n):
    return [source for source, _ in corpus.load("tatoeba-en-de", "test")[:n]]


def searched(search, sources):
    found = [None] * len(sources)
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for batch in batches_by_length(order, sources, 2000):
        source = pad_source([sources[i][:-1] for i in batch], MODEL.config.special_ids)
        for i, one in zip(batch, search(MODEL, source), strict=True):
            found[i] = one
    return found


def sources(n):
    """Ids of the first `n` test sentences."""
    return [[*ids, 2] for ids in VOCABULARY.encode_batch(sentences(n))]


@functools.cache
def greedy_ids(n):
    """What greedy search makes of them."""
    return searched(greedy_search, sources(n))


@functools.cache
def beam_ids(n):
    """What a beam of 4 makes of them."""
    return [best[0].tokens for best in searched(beam_search, sources(n))]


def same(ours, theirs):
    return sum(a == b for a, b in zip(ours, theirs, strict=True))
