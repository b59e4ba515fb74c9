"""What a run says on the terminal: its plan and its cost before the bar, and what looks wrong.

Time is measured on steps of this run, on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from annotated_transformer.config import ModelConfig, count_parameters
from annotated_transformer.data.batching import Ids, PairStore, TokenPair
from annotated_transformer.errors import say
from annotated_transformer.training.optimizer import peak_rate
from annotated_transformer.training.plan import PEAK_TIMES_WIDTH
from annotated_transformer.training.run import TrainingRun

N_WARM, N_MEASURED = 2, 8
"""Steps that are too slow to count, and steps behind the first estimate."""
REFINED = 0.02
"""The share of the steps after which the estimate is made again."""
AFTER_WARM_UP = 100
"""Steps after the warm-up in which a model has left the frequencies of its tokens behind."""
N_SAMPLED = 20_000
"""Pairs from which frequencies are counted."""


class Outlook:
    """Lines about a run, each said once. `step` is called after each step, `mean` with each nll."""

    def __init__(self, run: TrainingRun, out: Path) -> None:
        self.run = run
        self.out = out
        self.first = run.steps
        self.n_tokens = 0
        """Target tokens of the steps since the first."""
        self.began = (0.0, 0.0)
        self.entropy = 0.0
        n_left = run.config.train_steps - run.steps
        self.refined = self.first + max(N_WARM + 2 * N_MEASURED, round(REFINED * n_left))

    def plan(self, store: PairStore, valid: Sequence[TokenPair]) -> None:
        """Say what is trained on, what is trained, and whether `valid` looks turned round."""
        config, model = self.run.config, self.run.model.config
        sampled = store.gather(np.arange(0, len(store), 1 + len(store) // N_SAMPLED))
        source, target = (_counts(side, model) for side in zip(*sampled, strict=True))
        self.n_target_tokens = round(target.sum() * len(store) / len(sampled))
        say(
            f"{len(store):,} training pairs with {self.n_target_tokens:,} target tokens, "
            f"{len(valid):,} for validation; {model.vocab_size:,} tokens in the vocabulary"
        )
        say(
            f"N={model.N}, d_model={model.d_model}, {count_parameters(model):,} parameters; "
            f"{config.train_steps:,} steps, peak learning rate {self._peak():.2g}"
        )
        shares = target[target > 0] / target.sum()
        self.entropy = -float(shares @ np.log(shares))
        if not config.both_ways and _is_turned(valid, source, target):
            say(
                "the validation pairs look turned round: their sources are like the targets of "
                "training; give both files in the order of --train"
            )

    def step(self, n_tokens: int) -> bool:
        """Count a step and its target tokens; whether the first estimate has been said."""
        run = self.run
        n = run.steps - self.first
        if n == N_WARM:
            self.began = time.perf_counter(), time.process_time()
        elif n > N_WARM:
            self.n_tokens += n_tokens
            if n == N_WARM + N_MEASURED:
                epochs = run.config.train_steps * self.n_tokens / N_MEASURED / self.n_target_tokens
                say(f"{epochs:,.1f} epochs; {self._cost()}, {self._disk()} in {self.out}")
            elif run.steps == self.refined:
                say(f"step {run.steps:,}: {self._cost()}")
        return n >= N_WARM + N_MEASURED

    def mean(self, nll: float) -> None:
        """Say that nothing is learned, where nll is still what frequencies alone would give."""
        config = self.run.config
        if self.run.steps < config.warmup_steps + AFTER_WARM_UP:
            return
        if nll > 0.98 * self.entropy > 0.0:
            rule = PEAK_TIMES_WIDTH / self.run.model.config.d_model
            peak = self._peak()
            advice = f"begin again with peak_rate={min(rule, peak / 3):.2g}"
            if peak <= rule:
                advice += ", or see whether sources and targets belong together"
            say(
                f"nothing is learned: at step {self.run.steps:,} nll is {nll:.2f}, and the tokens' "
                f"frequencies alone give {self.entropy:.2f}; the peak learning rate is {peak:.2g}: "
                f"{advice}"
            )
        self.entropy = 0.0  # once

    def _peak(self) -> float:
        return peak_rate(self.run.config, self.run.model.config.d_model)

    def _cost(self) -> str:
        clock, cpu = (
            (now - began) / (self.run.steps - self.first - N_WARM)
            for now, began in zip(
                (time.perf_counter(), time.process_time()), self.began, strict=True
            )
        )
        n_left = self.run.config.train_steps - self.run.steps
        return f"about {_span(n_left * clock)} to go, {_span(n_left * cpu)} of it CPU time"

    def _disk(self) -> str:
        """Checkpoints, the best one and the weights in use; two states of three tensors each."""
        n_copies = self.run.config.keep_checkpoints + 2 + 2 * 3
        return f"{4e-6 * n_copies * count_parameters(self.run.model.config):,.0f} MB"


def _span(seconds: float) -> str:
    """A time as people say it.

    >>> _span(42), _span(600), _span(10_000), _span(400_000)
    ('42 s', '10 min', '2.8 h', '4.6 days')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:,.1f} days"


def _counts(sentences: Sequence[Ids], config: ModelConfig) -> np.ndarray:
    """How often each id of the vocabulary occurs, the end of each sentence counted."""
    ids = np.concatenate([np.asarray(sentence, np.int64) for sentence in sentences])
    counts = np.bincount(ids, minlength=config.vocab_size)
    counts[config.eos_id] += len(sentences)
    return counts


def _is_turned(valid: Sequence[TokenPair], source: np.ndarray, target: np.ndarray) -> bool:
    """Whether exchanging the sides makes the pairs more probable, by the counts of training."""
    log_source, log_target = (
        np.log((counts + 1) / (counts + 1).sum()) for counts in (source, target)
    )
    ratio = log_source - log_target
    surplus = [
        ratio[np.asarray(x, np.int64)].sum() - ratio[np.asarray(y, np.int64)].sum()
        for x, y in valid
    ]
    return sum(surplus) < 0.0
