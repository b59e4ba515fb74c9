"""One training step (sections 5.2 to 5.4), and all that it changes.

A resumed run has to get all of that back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data.batching import Batch, PairStore, TokenPair, token_batches
from annotated_transformer.errors import ConfigError, naming_lack_of_memory, require
from annotated_transformer.fast.loss import linear_cross_entropy, smoothed_cross_entropy
from annotated_transformer.fast.packing import (
    Packings,
    can_pack,
    packed_decode,
    packings_where_they_pay,
    without_cudnn_attention,
)
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training.epochs import lower_for_the_largest_of, nothing_to_train_on
from annotated_transformer.training.loss import Criterion
from annotated_transformer.training.optimizer import (
    TYPES,
    gradient_scaler,
    make_optimizer,
    rate_of_step,
    require_all_weights,
    resolved_precision,
)
from annotated_transformer.training.processes import (
    ALONE,
    Processes,
    data_parallel,
    require_parallel,
)

PackingChoice = Literal["auto", "on", "off"]
PAPER_TRAINING = TrainConfig()


class TrainingLoss(nn.Module):
    """From a batch to its summed loss and nll, in nats.

    The model and the loss of section 5.4 are one module. It is what `TrainingRun` calls, so that
    whatever wraps a module (a compiler, data parallelism) can wrap the step. A `criterion` takes
    the place of that loss.
    """

    def __init__(
        self,
        model: Transformer,
        eps_ls: float,
        blockwise: bool = False,
        criterion: Criterion | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.eps_ls = eps_ls
        self.blockwise = blockwise
        self.criterion = criterion

    def forward(self, batch: Batch, packings: Packings | None = None) -> tuple[Tensor, Tensor]:
        """With `packings`, nothing is computed at the padding that they leave out.

        If the loss is `blockwise` too, the logits of all positions never exist at once.
        """
        model = self.model
        pad_id = self.model.config.pad_id
        if packings is None:
            logits = model(batch.source, batch.target_in)
            if self.criterion is not None:
                return self.criterion(logits, batch.target_out)
            return smoothed_cross_entropy(logits, batch.target_out, self.eps_ls, pad_id)
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

    `model`, `optimizer` and `loss` take the place of those that the settings describe. The modules
    of a model may be replaced before the run is made, not later. An `optimizer` keeps its own
    learning rates, and frozen weights stay as they are. A `loss` is a `Criterion`; the run then
    computes padding as well.

    >>> run = TrainingRun(ModelConfig.tiny(vocab_size=100), TrainConfig(warmup_steps=400))
    >>> batch = make_batch([([5, 6], [7]), ([8], [9])])
    >>> loss, nll, n_tokens = run.step([batch])
    >>> n_tokens, run.steps
    (4, 1)
    """

    def __init__(
        self,
        model_config: ModelConfig | None = None,
        config: TrainConfig = PAPER_TRAINING,
        device: torch.device | str = "cpu",
        packing: PackingChoice = "auto",
        processes: Processes = ALONE,
        *,
        model: Transformer | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        loss: Criterion | None = None,
    ) -> None:
        """Weights are drawn from `config.seed`, unless the model is there already.

        A precision of "auto" is resolved here, by rank 0 for all: `self.config` says to what.
        Raises ConfigError for settings that do not go with several processes, unless there is one
        of `model_config` and `model`, and for an optimizer that lacks a weight.
        """
        if (model is None) == (model_config is None):
            raise ConfigError("give the configuration of a model, or model=, and not both")
        model_config = model_config or cast(Transformer, model).config
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
        self._model = model or _new_model(model_config, self.device)
        self._model.to(self.device).train()
        processes.seed(config.seed)
        self.scaler = gradient_scaler(self.dtype, self.device)
        self.on_eager_cpu = self.device.type == "cpu" and not config.compile
        self.packs = packing == "on" or packing == "auto" and self.on_eager_cpu
        self.packs = self.packs and loss is None
        # Blocks suit a CPU's cache. A compiled step keeps the logits once, in 16 bits (LOG.md, "The
        # loss of training").
        own_loss = TrainingLoss(self.model, config.eps_ls, self.on_eager_cpu, criterion=loss)
        self.loss: nn.Module = own_loss
        if config.compile:
            # Nearly every batch has a shape of its own, so shapes are dynamic and nothing is
            # recorded as CUDA graphs (LOG.md, "Training as CUDA graphs").
            self.loss = torch.compile(own_loss, dynamic=True)  # type: ignore[assignment]
        if processes.n > 1:
            self.loss = data_parallel(self.loss)
        self.sets_rate = optimizer is None
        """Whether the rate is the schedule's; an optimizer that was given has its own."""
        self.optimizer = optimizer or make_optimizer(self.model, config)
        require_all_weights(self.optimizer, self.model)
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
    def model(self) -> Transformer:
        """The model that is trained. Another one needs another run: TrainingRun(model=...)."""
        return self._model

    @model.setter
    def model(self, other: Transformer) -> None:
        raise ConfigError("a run keeps its model: make another one, TrainingRun(model=...)")

    @property
    def rate(self) -> float:
        """The learning rate of the last step."""
        if not self.sets_rate:
            return float(self.optimizer.param_groups[0]["lr"])
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
        require_all_weights(self.optimizer, self.model)
        with naming_lack_of_memory(partial(lower_for_the_largest_of, batches, self.config)):
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
            for group in self.optimizer.param_groups if self.sets_rate else ():
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
        counts = (state["step"] for state in self.optimizer.state.values() if "step" in state)
        return next(counts, torch.zeros((), device=self.device))


def _new_model(config: ModelConfig, device: torch.device) -> Transformer:
    """A model in training mode. Raises ConfigError where memory does not suffice for it."""
    sizes = f"d_model {config.d_model:,}, d_ff {config.d_ff:,}, N {config.N}"
    vocabulary = f"vocab_size {config.vocab_size:,}"
    with naming_lack_of_memory(lambda: f"for a model of {sizes}, {vocabulary}"):
        return Transformer(config).to(device).train()
