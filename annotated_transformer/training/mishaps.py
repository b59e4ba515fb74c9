"""What goes wrong in a step of training, in one line that says what to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from annotated_transformer.config import TrainConfig
from annotated_transformer.errors import ConfigError, LocalError
from annotated_transformer.text.batching import Batch
from annotated_transformer.training.run import TrainingRun

MOST_SKIPPED = 50
"""So many steps in a row may be left out: float16 finds its scale in fewer."""


def _is_lack_of_memory(error: BaseException) -> bool:
    if type(error) is RuntimeError:  # PyTorch has no class for it on a CPU
        return "t allocate memory" in str(error)
    return isinstance(error, (torch.OutOfMemoryError, MemoryError))


@contextmanager
def out_of_memory(batches: list[Batch], config: TrainConfig) -> Iterator[None]:
    """Turn a lack of memory into a LocalError that names the largest batch and what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_lack_of_memory(error):
            raise
        sizes = [(*batch.source.shape, batch.target_in.size(1)) for batch in batches]
        rows, source, target = max(sizes, key=lambda size: size[0] * (size[1] + size[2]))
        raise LocalError(
            f"out of memory on a batch of {rows} sentences of up to {source} source and {target} "
            f"target tokens: lower max_tokens, now {config.max_tokens:,} (with a higher accumulate "
            f"a step is as large), or max_length, now {config.max_length:,}"
        ) from None


@contextmanager
def out_of_memory_in_a_save(out: Path, run: TrainingRun) -> Iterator[None]:
    """Turn a lack of memory into a LocalError that says what is saved: no batch is to blame."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_lack_of_memory(error):
            raise
        saved = f"step {run.saved_steps} is, and --resume goes on from there"
        raise LocalError(
            f"out of memory while step {run.steps} was saved in {out}: "
            f"{saved if run.saved_steps else 'nothing is'}; other programs may have taken it"
        ) from None


def require_progress(skipped: int, config: TrainConfig) -> None:
    """Raise ConfigError when the last `skipped` steps, all skipped, are too many."""
    if skipped >= MOST_SKIPPED:
        raise ConfigError(
            f"the last {skipped} steps were skipped, for their gradients overflowed or were no "
            f"numbers: begin again with a smaller lr_factor (now {config.lr_factor}), more "
            f"warmup_steps (now {config.warmup_steps:,}) or clip_norm=1, or from weights of before "
            "with --init"
        )
