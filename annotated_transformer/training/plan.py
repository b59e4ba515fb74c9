"""What to train on so many pairs: the sizes of its splits, of the model and of the training.

Nothing here looks at a clock, so that the same file gives the same model on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from string import printable

from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data.parallel_text import Pair, sample
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import ConfigError
from annotated_transformer.settings import Settings

MAX_HELD_OUT = 500
PEAK_TIMES_WIDTH = 0.42
"""A peak learning rate times d_model. The paper's are 0.36 (base) and 0.50 (big)."""


@dataclass(frozen=True)
class Plan(Settings):
    """Sizes of a model and of its training, by the letters of Table 3.

    `n_merges` counts the tokens besides the special ids, the bytes and the characters of the text;
    `augment` is `TrainConfig`'s;
    `average` is the number of checkpoints that are averaged at the end.
    """

    n_merges: int
    N: int
    d_model: int
    d_ff: int
    h: int
    train_steps: int
    p_drop: float = 0.3
    max_tokens: int = 1024
    warmup_steps: int = 600
    lr_factor: float = 0.9
    average: int = 5
    augment: bool = False

    def model_config(self, vocab_size: int) -> ModelConfig:
        sizes = {name: getattr(self, name) for name in ("N", "d_model", "d_ff", "h", "p_drop")}
        # As in the presets for small corpora: it learns sooner (`Transformer.initialize`).
        return ModelConfig(vocab_size, **sizes, initialization="scaled")

    def train_config(self) -> TrainConfig:
        names = ("train_steps", "max_tokens", "warmup_steps", "lr_factor")
        every = max(1, self.train_steps // 40)
        return TrainConfig(
            **{name: getattr(self, name) for name in names},
            log_every=min(50, every),
            checkpoint_every=every,
            validate_every=5 * every,
            augment=self.augment,
            keep_checkpoints=self.average,
        )


def plan_for(n_pairs: int) -> Plan:
    """The plan for so many training pairs: more of them need, and feed, a larger model."""
    n_merges = min(max(n_pairs // 8, 100), 4000)
    if n_pairs < 3_000:
        return Plan(n_merges, N=2, d_model=64, d_ff=256, h=4, train_steps=2_000, warmup_steps=300)
    if n_pairs < 60_000:
        return Plan(n_merges, N=3, d_model=128, d_ff=512, h=4, train_steps=6_000)
    # With 2,800 pairs such pairs as people type cost half of the BLEU (LOG.md).
    return Plan(
        n_merges, N=3, d_model=192, d_ff=768, h=6, train_steps=24_000, p_drop=0.1, augment=True
    )


def planned_training(n_pairs: int, d_model: int, goes_on: bool = False) -> TrainConfig:
    """How to train a model of this width on so many pairs, by the plan for these.

    The peak rate is `PEAK_TIMES_WIDTH` / d_model. A model that is trained already and `goes_on`
    takes a quarter of that rate, for a quarter of the steps.
    """
    plan = plan_for(n_pairs)
    share = 4 if goes_on else 1
    plan = plan.replace(
        train_steps=plan.train_steps // share,
        warmup_steps=plan.warmup_steps // share,
        lr_factor=1.0,
        augment=False,  # by the rules of an extra
    )
    return plan.train_config().replace(peak_rate=PEAK_TIMES_WIDTH / d_model / share)


def n_held_out(n_pairs: int) -> int:
    """The number of pairs for validation, and the same for the test: 2 %, from 10 to 500."""
    return min(max(n_pairs // 50, 10), MAX_HELD_OUT)


def learn_vocabulary(pairs: list[Pair], n_merges: int, as_typed: bool = True) -> Tokenizer:
    """One vocabulary for both sides: special ids, bytes, characters and `n_merges` more.

    It is for what people type, unless `as_typed` is False (`Tokenizer.train`).

    Where the text is too small for `n_merges`, half as many are tried, and so on. Raises
    ConfigError when fewer than 10 are too many.
    """
    sentences = list(chain.from_iterable(sample(pairs)))
    typed = printable if as_typed else ""
    n_characters = len(set(chain(typed, chain.from_iterable(sentences))))
    while True:
        try:
            return Tokenizer.train(sentences, 261 + n_characters + n_merges, as_typed=as_typed)
        except ConfigError:
            if n_merges < 10:
                raise
            n_merges //= 2
