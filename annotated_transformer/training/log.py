"""The log of a training run: log.jsonl, the progress bar and TensorBoard."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from annotated_transformer.config import TrainConfig
from annotated_transformer.errors import ConfigError, say
from annotated_transformer.files import read_bounded, write_text
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training import state
from annotated_transformer.training.outlook import Outlook
from annotated_transformer.training.run import TrainingRun

Callback = Callable[[int, Transformer, dict[str, float]], Mapping[str, float] | None]
"""What is called with the step, the model and the figures of each line of the log; the figures
that it returns, if any, are added to the line."""
LOG_FILE = "log.jsonl"
MAX_LOG_BYTES = 2**30  # a run of millions of steps, each with a line
MAX_SKIPPED = 50
"""A run ends when so many steps in a row were skipped.

The scale of float16 begins at 2^16 and is halved by each, so a run that can go on skips fewer.
"""


def read_log(directory: str | Path) -> list[dict[str, Any]]:
    """The records in the log of a run, oldest first: each has `step`, and what was measured there.

    A line that was cut short, as on a full disk, is left out.
    """
    records = []
    for line in read_bounded(Path(directory) / LOG_FILE, MAX_LOG_BYTES).splitlines(keepends=True):
        try:
            record = json.loads(line.decode())
        except (ValueError, RecursionError):
            continue
        complete = line.endswith(b"\n") and isinstance(record, dict)
        if complete and isinstance(record.get("step"), int):
            records.append(record)
    return records


class TrainingLog:
    """Writes the log. Sums stay on the device, and the host waits for them once per line.

    Of several processes, rank 0 writes.
    """

    def __init__(
        self,
        run: TrainingRun,
        out: Path,
        tensorboard: str | Path | None,
        progress: bool,
        callback: Callback | None = None,
    ) -> None:
        self.callback = callback
        self.writes = run.processes.is_first
        self.run = run
        self.progress = progress and self.writes
        self.outlook = Outlook(run, out)
        self.tensorboard = tensorboard if self.writes else None
        self.path = out / LOG_FILE
        self.validated = 0
        """The step of the last validation that the log holds."""
        self.valid_nlls: list[float] = []
        """Those of the validations so far, to know the best."""
        self.adam_steps = run.adam_steps().item()
        self.moved = run.steps
        """When `adam_steps` last grew: its value, and in `moved` the run's step."""
        if self.writes and self.path.exists():
            self._forget_what_comes_after(run.steps)
        self.validated = int(run.processes.total(torch.tensor(self.validated)))

    def _forget_what_comes_after(self, steps: int) -> None:
        """Drop the lines of a killed run that are newer than its last checkpoint.

        Lines that a full disk cut short, or a power cut left as zeros, go as well.
        """
        records: dict[tuple[int, bool], dict[str, Any]] = {}
        for record in read_log(self.path.parent):
            if record["step"] <= steps:
                records.setdefault((record["step"], "loss" in record), record)
        write_text(self.path, "".join(json.dumps(record) + "\n" for record in records.values()))
        self.validated = max((step for step, is_loss in records if not is_loss), default=0)
        measured = (record.get("valid_nll") for record in records.values())
        self.valid_nlls = [nll for nll in measured if nll is not None]

    def __enter__(self) -> TrainingLog:
        self.writer = None
        if self.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.tensorboard))
        self.bar: tqdm[Any] | None = None
        self.since = time.perf_counter()
        self.tokens_before = self.run.n_tokens
        return self

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.close()
        if self.writer:
            self.writer.close()

    def add(self, loss: Tensor, nll: Tensor, n_tokens: int) -> None:
        """Count a step.

        Its sums are part of the run's state, so that a resumed run logs the same.
        """
        self.run.sums += torch.stack([loss, nll])
        self.run.n_tokens += n_tokens
        if self.progress:
            is_estimated = self.outlook.step(n_tokens)
            if self.bar is not None:
                self.bar.update()
            elif is_estimated:
                self.bar = self._new_bar()

    def _new_bar(self) -> tqdm[Any]:
        """The bar begins below the plan and the first estimate."""
        return tqdm(
            total=self.run.config.train_steps,
            initial=self.run.steps,
            file=sys.stderr,
            unit="step",
            mininterval=1.0,
            dynamic_ncols=True,
        )

    def write_validation(self, validate: Callable[[Transformer], dict[str, float]]) -> None:
        """Write a line with what `validate` measures; its time does not count as training."""
        began = time.perf_counter()
        figures = validate(self.run.model)
        nll = figures.get("valid_nll", math.nan)
        is_best = nll < min(self.valid_nlls, default=math.inf)
        if is_best and self.writes:
            state.save_best(self.run, self.path.parent)
        if math.isfinite(nll):
            self.valid_nlls.append(nll)
        self.write(figures)
        if self.progress and figures:
            values = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
            say(f"step {self.run.steps:,}: {values}{', the best so far' * is_best}")
        self.since += time.perf_counter() - began

    def is_out_of_patience(self) -> bool:
        """Whether the last `patience` validations have not been better than one before them."""
        patience = self.run.config.patience
        before, last = self.valid_nlls[:-patience], self.valid_nlls[-patience:]
        return patience > 0 and bool(before) and min(last) >= min(before)

    def write_means(self) -> None:
        """Write the means since the last line; in float16 also skipped steps and the scale."""
        run = self.run
        seconds = time.perf_counter() - self.since
        values = [*run.sums, run.adam_steps()]
        if run.dtype == torch.float16:
            values.append(run.scaler.scale(torch.ones((), device=run.device)))
        loss, nll, adam_steps, *scale = torch.stack(values).tolist()  # the one wait
        loss, nll = loss / run.n_tokens, nll / run.n_tokens
        n_tokens = run.n_tokens - self.tokens_before
        speed = n_tokens / seconds if seconds > 0 else math.inf  # a clock may stand still
        record = {"loss": loss, "nll": nll, "rate": run.rate, "tokens_per_s": speed}
        on_the_bar = {"loss": f"{loss:.3f}", "rate": f"{run.rate:.1e}", "tokens/s": f"{speed:.0f}"}
        skipped = run.steps - round(adam_steps)
        if scale or skipped:
            record |= {"skipped": skipped, **({"scale": scale[0]} if scale else {})}
            on_the_bar["skipped"] = str(skipped)
        if self.bar is not None:
            self.bar.set_postfix(on_the_bar)
        if self.progress:
            self.outlook.mean(nll)
        self.write(record)
        run.sums = torch.zeros_like(run.sums)
        run.n_tokens = 0
        self.since = time.perf_counter()
        self.tokens_before = 0
        if adam_steps > self.adam_steps:
            self.adam_steps = adam_steps
            self.moved = run.steps
        _require_progress(run.steps - self.moved, run.config)

    def write(self, record: dict[str, float]) -> None:
        """Write a line of JSON, where NaN and infinity, which JSON lacks, are null."""
        if not record or not self.writes:
            return
        if self.callback is not None:
            record |= self.callback(self.run.steps, self.run.model, dict(record)) or {}
        finite = {name: value if math.isfinite(value) else None for name, value in record.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": self.run.steps, **finite}, allow_nan=False) + "\n")
        for name, value in record.items() if self.writer else ():
            self.writer.add_scalar(name, value, self.run.steps)  # type: ignore[union-attr]


def _require_progress(skipped: int, config: TrainConfig) -> None:
    """Raise ConfigError if `skipped`, the number of steps just skipped in a row, is too large."""
    if skipped >= MAX_SKIPPED:
        name = "lr_factor" if config.peak_rate is None else "peak_rate"
        rate = f"{name} (now {getattr(config, name)})"
        raise ConfigError(
            f"the last {skipped} steps were skipped, because gradients overflowed or were NaN: "
            f"begin again in another directory, with a smaller {rate}, more warmup_steps (now "
            f"{config.warmup_steps:,}) or clip_norm=1, or from earlier weights with --init"
        )
