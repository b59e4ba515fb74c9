"""One training step (sections 5.2 to 5.4), and all that it changes.

A resumed run has to get all of that back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data.batching import Batch, PairStore, TokenPair, token_batches
from annotated_transformer.errors import naming_lack_of_memory, require
from annotated_transformer.fast.loss import linear_cross_entropy, smoothed_cross_entropy
from annotated_transformer.fast.packing import (
    Packings,
    can_pack,
    packed_decode,
    packings_where_they_pay,
    without_cudnn_attention,
)
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training.epochs import nothing_to_train_on
from annotated_transformer.training.optimizer import (
    TYPES,
    gradient_scaler,
    make_optimizer,
    noam_learning_rate,
    resolved_precision,
    stable_learning_rate,
)
from annotated_transformer.training.processes import (
    ALONE,
    Processes,
    data_parallel,
    require_parallel,
)

PackingChoice = Literal["auto", "on", "off"]


class TrainingLoss(nn.Module):
    """From a batch to its summed loss and nll, in nats.

    The model and the loss of section 5.4 are one module. It is what `TrainingRun` calls, so that
    whatever wraps a module (a compiler, data parallelism) can wrap the step.
    """

    def __init__(self, model: Transformer, eps_ls: float, blockwise: bool = False) -> None:
        super().__init__()
        self.model = model
        self.eps_ls = eps_ls
        self.blockwise = blockwise

    def forward(self, batch: Batch, packings: Packings | None = None) -> tuple[Tensor, Tensor]:
        """With `packings`, nothing is computed at the padding that they leave out.

        If the loss is `blockwise` too, the logits of all positions never exist at once.
        """
        model = self.model
        pad_id = self.model.config.pad_id
        if packings is None:
            logits = model(batch.source, batch.target_in)
            target_out = batch.target_out
            return smoothed_cross_entropy(logits, target_out, self.eps_ls, pad_id)
        x_RD, positions_R = packed_decode(model, batch.source, batch.target_in, packings)
        target_R = batch.target_out.flatten()[positions_R]
        if self.blockwise and model.embedding.bias is None:
            return linear_cross_entropy(x_RD, model.embedding.weight, target_R, self.eps_ls, pad_id)
        return smoothed_cross_entropy(model.logits(x_RD), target_R, self.eps_ls, pad_id)


class TrainingRun:
    """A model in training: `step` after `step`, in memory, without a directory.

    `training.state` saves and restores it.

    `packing` says whether padding is left out of what is computed, where it pays, on a CPU: "auto"
    does so without `compile`, "on" with it as well. The values are the same, save for what dropout
    draws. A model whose attention a user has replaced stays padded. `steps` counts attempted steps:
    the rate, the log, checkpoints and the end of a run go by it, so that with Adam the host never
    waits for a GPU to say whether float16 overflowed. Adam counts the steps that it made; the
    difference is the number of skipped ones.

    With `processes` of `training.processes` this is one of several processes of the same run:
    all are given the same batches, and each takes its share.

    >>> run = TrainingRun(ModelConfig.tiny(vocab_size=100), TrainConfig(warmup_steps=400))
    >>> batch = make_batch([([5, 6], [7]), ([8], [9])])
    >>> loss, nll, n_tokens = run.step([batch])
    >>> n_tokens, run.steps
    (4, 1)
    """

    def __init__(
        self,
        model_config: ModelConfig,
        config: TrainConfig,
        device: torch.device | str = "cpu",
        packing: PackingChoice = "auto",
        processes: Processes = ALONE,
    ) -> None:
        """Weights are drawn from `config.seed`.

        A precision of "auto" is resolved here, by rank 0 for all: `self.config` says to what.
        Raises ConfigError for settings that do not go with several processes.
        """
        require(packing in ("auto", "on", "off"), f"packing must be auto, on or off, got {packing}")
        is_cpu = torch.device(device).type == "cpu"
        require(packing != "on" or is_cpu, f"packing=on is for a CPU, got {device}: leave it out")
        require_parallel(config, processes)
        torch.manual_seed(config.seed)
        self.processes = processes
        self.device = torch.device(device)
        if config.precision == "auto":
            best = resolved_precision("auto", self.device, model_config.d_model)
            config = config.replace(precision=processes.from_first(best.encode).decode())
        self.config = config
        self.dtype = TYPES[config.precision]
        self.model = _new_model(model_config, self.device)
        processes.seed(config.seed)
        self.scaler = gradient_scaler(self.dtype, self.device)
        self.on_eager_cpu = self.device.type == "cpu" and not config.compile
        self.packs = packing == "on" or packing == "auto" and self.on_eager_cpu
        # Blocks suit a CPU's cache. A compiled step keeps the logits once, in 16 bits (LOG.md, "The
        # loss of training").
        loss = TrainingLoss(self.model, config.eps_ls, blockwise=self.on_eager_cpu)
        self.loss: nn.Module = loss
        if config.compile:
            # Nearly every batch has a shape of its own, so shapes are dynamic and nothing is
            # recorded as CUDA graphs (LOG.md, "Training as CUDA graphs").
            self.loss = torch.compile(loss, dynamic=True)  # type: ignore[assignment]
        if processes.n > 1:
            self.loss = data_parallel(self.loss)
        self.optimizer = make_optimizer(self.model, config)
        self.steps = self.epoch = self.n_batches = 0
        self.position = (0, 0)
        """Epoch and number of its batches after the last step; batches only drawn do not count."""
        ends = model_config.positions == "learned" and model_config.max_len % 8 > 0
        self.multiple_of = 8 if self.device.type == "cuda" and not ends else 1
        self.sums = torch.zeros(2, device=self.device)
        self.n_tokens = 0
        """Real target tokens since the last line of the log, as `sums` are its loss and nll."""
        self.saved_steps = 0
        self.fingerprint = ""
        """The digest of the training pairs, which must be the same when the run is resumed."""
        self.vocabulary = ""
        """The digest of the run's tokenizer."""

    @property
    def rate(self) -> float:
        """The learning rate of the last step."""
        return rate_of_step(self.steps, self.config, self.model.config.d_model)

    def batches(
        self, epoch_pairs: Callable[[int], PairStore | Sequence[TokenPair]]
    ) -> Iterator[Batch]:
        """The batches of epoch after epoch, from where the counters stand.

        `epoch_pairs` gives an epoch's pairs. Of a batch that another process takes, only the number
        of tokens is there (`placeholder_batch`). Raises ConfigError for an epoch without batches.
        """
        config = self.config
        numbers = count()

        def is_wanted() -> bool:
            return self.processes.takes(next(numbers) % config.accumulate)

        while True:
            batches = token_batches(
                epoch_pairs(self.epoch),
                config.max_tokens,
                seed=config.seed,
                epoch=self.epoch,
                max_length=config.max_length,
                window=config.window,
                start=self.n_batches,
                ids=self.model.config.special_ids,
                multiple_of=self.multiple_of,
                is_wanted=is_wanted,
            )
            for batch in batches:
                self.n_batches += 1
                yield batch
            require(self.n_batches > 0, nothing_to_train_on(config))
            self.epoch += 1
            self.n_batches = 0

    def step(self, batches: list[Batch]) -> tuple[Tensor, Tensor, int]:
        """One Adam step on the mean loss over all real target tokens of `batches`.

        Returns their summed loss, nll, and number of tokens. The rate is set before the step, and
        the first step is step 1 (section 5.3). In float16 the loss is scaled, and a step whose
        gradients overflow changes neither weights nor Adam's state. Raises ConfigError where memory
        runs out, with the largest batch and what to lower, and for no batch.
        """
        require(bool(batches), "a step needs at least one batch, got none")
        with naming_lack_of_memory(partial(_for_the_largest_of, batches, self.config)):
            n_tokens = sum(batch.n_tokens for batch in batches)
            sums = torch.zeros(2, device=self.device)
            half = self.dtype != torch.float32
            with self._kernels(half):
                for batch in self.processes.share_of_step(batches, self.loss):
                    with torch.autocast(self.device.type, dtype=self.dtype, enabled=half):
                        loss, nll = self.loss(batch.to(self.device), self.packings_of(batch))
                    # DDP averages gradients over the processes: the factor n makes that the sum.
                    self.scaler.scale(loss * self.processes.n / n_tokens).backward()
                    sums += torch.stack([loss.detach(), nll.detach()])
            self.processes.total(sums)
            self.steps += 1
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate
            if self.config.clip_norm:
                self.scaler.unscale_(self.optimizer)
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.position = self.epoch, self.n_batches
            return sums[0], sums[1], n_tokens

    def _kernels(self, half: bool) -> AbstractContextManager[object]:
        """Which attention kernels a step may take."""
        if self.device.type == "cuda":
            return without_cudnn_attention()
        # In 16 bits the fused kernel of a CPU is slow with short sentences: a step of 1,024 tokens
        # takes 0.37 s of a core, and 0.27 with plain products (LOG.md, "A model for visitors").
        return sdpa_kernel(SDPBackend.MATH) if half else nullcontext()

    def packings_of(self, batch: Batch) -> Packings | None:
        """The packings of a batch, or None for one that stays padded.

        They are made outside of the compiled graph, which cannot ask where the padding is.
        """
        if not (self.packs and can_pack(self.model)):
            return None
        return packings_where_they_pay(self.model, batch.source, batch.target_in)

    def adam_steps(self) -> Tensor:
        """The number of steps that Adam has made, on the device; all parameters count the same."""
        states = self.optimizer.state.values()
        return next((state["step"] for state in states), torch.zeros((), device=self.device))


def rate_of_step(step: int, config: TrainConfig, d_model: int) -> float:
    """The learning rate of a step (equation 3, or `config.schedule`).

    Without a warm-up it is at its peak from the start.
    """
    n = config.warmup_steps
    if config.schedule == "noam":
        counted = step if config.warm_up else max(step, n)
        return noam_learning_rate(counted, d_model, n, _factor(config, d_model))
    rise = n if config.warm_up else 1
    peak = peak_rate(config, d_model)
    return stable_learning_rate(step, config.train_steps, peak, rise, config.decay_share)


def peak_rate(config: TrainConfig, d_model: int) -> float:
    """The highest learning rate of either schedule, that of equation 3 at step `warmup_steps`."""
    n = config.warmup_steps
    return noam_learning_rate(n, d_model, n, _factor(config, d_model))


def _factor(config: TrainConfig, d_model: int) -> float:
    """The factor of equation 3 that `lr_factor` or `peak_rate` sets."""
    n = config.warmup_steps
    if config.peak_rate is None:
        return config.lr_factor
    return config.peak_rate / noam_learning_rate(n, d_model, n)


def _for_the_largest_of(batches: list[Batch], config: TrainConfig) -> str:
    """What a step had no memory for, and what to lower."""
    sizes = [(*batch.source.shape, batch.target_in.size(1)) for batch in batches]
    rows, source, target = max(sizes, key=lambda size: size[0] * (size[1] + size[2]))
    return (
        f"on a batch of {rows} sentences of up to {source} source and {target} target tokens: "
        f"lower max_tokens, now {config.max_tokens:,} (a higher accumulate keeps a step as large), "
        f"or max_length, now {config.max_length:,}"
    )


def _new_model(config: ModelConfig, device: torch.device) -> Transformer:
    """A model in training mode. Raises ConfigError where memory does not suffice for it."""
    sizes = f"d_model {config.d_model:,}, d_ff {config.d_ff:,}, N {config.N}"
    vocabulary = f"vocab_size {config.vocab_size:,}"
    with naming_lack_of_memory(lambda: f"for a model of {sizes}, {vocabulary}"):
        return Transformer(config).to(device).train()
