"""A vocabulary with more tokens than the model has rows: on a GPU the process is lost."""

import torch

from annotated_transformer.data.tokenizer import Tokenizer
from toys import text_pairs


def make(folder):
    Tokenizer.train([s for pair in text_pairs(0, 200) for s in pair], 283).save(
        folder / "tokenizer.model"
    )


def trusting(folder):
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    torch.nn.Embedding(280, 8)(torch.tensor([tokenizer.vocab_size - 1]))
