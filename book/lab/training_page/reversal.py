"""A model learns to reverse words: what the training page does, in PyTorch.

The page (`page`) draws initial values and words from a seed, in JavaScript, and so
does this module, with the same generator. The two loss curves can be laid over each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from annotated_transformer.checkpoint.directory import require_room_for_result
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data.batching import Batch, make_batch
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training.run import TrainingRun
from lab.training_page.page import write_training_page

FIRST_LETTER, N_LETTERS, LONGEST_WORD = 3, 26, 8
N_WORDS = 64
"""Words of a step."""
N_COMPARED = 200
"""Steps of the curve that the page shows beside its own."""
MODEL = ModelConfig(
    FIRST_LETTER + N_LETTERS,
    N=1,
    d_model=32,
    d_ff=64,
    h=2,
    p_drop=0.0,
    initialization="scaled",
)
# Rate and norm were tried out: LOG.md, "A model that learns in the page".
TRAINING = TrainConfig(warmup_steps=100, lr_factor=0.3, clip_norm=1.0, eps_ls=0.0, precision="fp32")
Word = list[int]


class Generator:
    """Numbers that look random, from a seed of 32 bits: Mulberry32, as words.js has it."""

    def __init__(self, seed: int) -> None:
        self.state = seed & 0xFFFFFFFF

    def next(self) -> float:
        """Uniform in [0, 1)."""
        self.state = (self.state + 0x6D2B79F5) & 0xFFFFFFFF
        x = (self.state ^ self.state >> 15) * (self.state | 1) & 0xFFFFFFFF
        x ^= x + (x ^ x >> 7) * (x | 61) & 0xFFFFFFFF
        return (x ^ x >> 14) / 2**32

    def below(self, n: int) -> int:
        """A whole number from 0 to n - 1, each as likely as the others."""
        return math.floor(self.next() * n)

    def normal(self) -> float:
        """Normal, mean 0 and variance 1 (Box and Muller 1958)."""
        radius = math.sqrt(-2 * math.log(1 - self.next()))
        return radius * math.cos(2 * math.pi * self.next())


def is_held_out(word: Sequence[int]) -> bool:
    """Whether a word is one of the eighth that is never trained on."""
    remainder = 0
    for token in word:
        remainder = (31 * remainder + token) % 65521
    return remainder % 8 == 0


def draw_word(generator: Generator, held_out: bool, length: int = 0) -> Word:
    """The ids of a word of `length` letters, or else of 1 to 8.

    That is the larger of two draws, since there is more to learn of long words.
    """
    while True:
        n = length or 1 + max(generator.below(LONGEST_WORD), generator.below(LONGEST_WORD))
        word = [FIRST_LETTER + generator.below(N_LETTERS) for _ in range(n)]
        if is_held_out(word) == held_out:
            return word


def reversal_batch(words: Sequence[Word]) -> Batch:
    """The words, and what the decoder is to make of them."""
    return make_batch([(word, word[::-1]) for word in words])


def initialize(model: Transformer, generator: Generator) -> None:
    """Draw the matrices of a model anew, in the order of its parameters.

    They are distributed as `Transformer.initialize` has them with `initialization="scaled"`; the
    other values stay.
    """
    small = (8 * model.config.N) ** -0.25
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        rows, columns = parameter.shape
        if name == "embedding.weight":
            drawn = [generator.normal() / math.sqrt(columns) for _ in range(rows * columns)]
        else:
            gain = 1.0 if name.split(".")[-2] in ("W_Q", "W_K") else small
            limit = gain * math.sqrt(6 / (rows + columns))
            drawn = [limit * (2 * generator.next() - 1) for _ in range(rows * columns)]
        with torch.no_grad():
            parameter.copy_(torch.tensor(drawn, dtype=torch.float64).view(rows, columns))


def losses(
    seed: int = 1, n_steps: int = N_COMPARED, dtype: torch.dtype = torch.float64
) -> list[float]:
    """PyTorch's loss before each of the first steps, in nats a token.

    JavaScript computes in 64 bits. In 32 bits the curve is another one after some hundred steps:
    what is rounded away grows with every step, and reaches the second digit.
    """
    generator, run = Generator(seed), TrainingRun(MODEL, TRAINING)
    run.model.to(dtype)
    initialize(run.model, generator)
    found = []
    for _ in range(n_steps):
        words = [draw_word(generator, held_out=False) for _ in range(N_WORDS)]
        loss, _, n_tokens = run.step([reversal_batch(words)])
        found.append(loss.item() / n_tokens)
    return found


def page_settings() -> dict[str, Any]:
    """What the page needs to train the same model in the same way."""
    return {
        **{name: getattr(MODEL, name) for name in ("N", "d_model", "d_ff", "h")},
        "nWords": N_WORDS,
        "warmupSteps": TRAINING.warmup_steps,
        "factor": TRAINING.lr_factor,
        "clipNorm": TRAINING.clip_norm,
    }


def write_page_beside_pytorch(out: str | Path, book: str = "") -> Path:
    """Write the training page, with PyTorch's losses computed now, into the directory `out`."""
    require_room_for_result(Path(out), ())
    return write_training_page(out, page_settings(), 1, losses(seed=1), book)
