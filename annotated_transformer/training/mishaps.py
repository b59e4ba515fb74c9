"""What goes wrong in a step of training, in one line that says what to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from annotated_transformer.config import TrainConfig
from annotated_transformer.errors import ConfigError
from annotated_transformer.text.batching import Batch

MOST_SKIPPED = 50
"""So many steps in a row may be left out: float16 finds its scale in fewer."""


@contextmanager
def out_of_memory(batches: list[Batch], config: TrainConfig) -> Iterator[None]:
    """Turn a lack of memory into a ConfigError that names the largest batch and what to lower."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if type(error) is RuntimeError and "t allocate memory" not in str(error):
            raise  # PyTorch has no class for it on a CPU
        sizes = [(*batch.source.shape, batch.target_in.size(1)) for batch in batches]
        rows, source, target = max(sizes, key=lambda size: size[0] * (size[1] + size[2]))
        raise ConfigError(
            f"out of memory on a batch of {rows} sentences of up to {source} source and {target} "
            f"target tokens: lower max_tokens, now {config.max_tokens:,} (with a higher accumulate "
            f"a step is as large), or max_length, now {config.max_length:,}"
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
