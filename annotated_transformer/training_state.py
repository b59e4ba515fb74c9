"""All that a training run has to get back when it is resumed: kept in memory, saved and restored."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from annotated_transformer import checkpoint
from annotated_transformer.config import ModelConfig, TrainConfig, require
from annotated_transformer.optimizer import make_adam, noam_learning_rate
from annotated_transformer.precision import gradient_scaler, product_type
from annotated_transformer.transformer import Transformer

CAN_CHANGE = ("train_steps", "log_every", "validate_every", "checkpoint_every", "keep_checkpoints",
              "compile")
"""The settings that may differ when a run is resumed; any other would make it another run."""


class RunState:
    """Model, optimizer, scaler, random state, place in the data, and sums that are not logged yet.

    `step` counts what was tried: the rate, the log, checkpoints and the end of the run go by it, so
    that nobody has to ask a GPU whether float16 overflowed. Adam counts the steps that it made, for
    its own means; the difference is the number of skipped ones.
    """

    def __init__(
        self, model_config: ModelConfig, config: TrainConfig, out: Path, device: torch.device
    ) -> None:
        torch.manual_seed(config.seed)
        self.config, self.out, self.device = config, out, device
        self.dtype = product_type(config.precision, device)
        self.model = Transformer(model_config).to(device).train()
        self.optimizer = make_adam(self.model, config)
        self.scaler = gradient_scaler(self.dtype, device)
        self.step = self.epoch = self.n_batches = 0
        self.position = (0, 0)
        """Epoch and number of its batches after the last step; batches that were only drawn count not."""
        ends = model_config.positions == "learned" and model_config.max_len % 8 > 0
        self.multiple_of = 8 if device.type == "cuda" and not ends else 1
        self.sums, self.n_tokens = torch.zeros(2, device=device), 0
        """Loss and nll, and real target tokens, since the last line of the log."""
        self.saved_step = 0
        self.fingerprint = ""

    @property
    def rate(self) -> float:
        """The learning rate of step `step` (equation 3), or its peak from the start without a warm-up."""
        warmup_steps = self.config.warmup_steps
        step = self.step if self.config.warm_up else max(self.step, warmup_steps)
        d_model, factor = self.model.config.d_model, self.config.lr_factor
        return noam_learning_rate(step, d_model, warmup_steps, factor)

    def adam_steps(self) -> Tensor:
        """How many steps Adam has made, on the device: each parameter has the same count."""
        states = self.optimizer.state.values()
        return next((state["step"] for state in states), torch.zeros((), device=self.device))

    def save(self, path: Path, to_average: bool = True) -> None:
        """The weights to average, the weights to use, and the state to resume from, each file atomically.

        The state comes last: a run that is killed in between goes back one checkpoint and writes the
        others again. Without `to_average` nothing is added to `checkpoints`.
        """
        if to_average:
            name = f"step-{self.step:08d}.safetensors"
            checkpoint.save_weights(self.out / "checkpoints" / name, self.model)
        checkpoint.save_weights(self.out / "model.safetensors", self.model)
        checkpoint.save_tensors(path, self._tensors(), self._metadata())
        self.saved_step = self.step
        for old in checkpoint.step_checkpoints(self.out)[: -self.config.keep_checkpoints]:
            old.unlink()

    def _tensors(self) -> dict[str, Tensor]:
        parameters = dict(self.model.named_parameters())
        tensors: dict[str, Tensor] = {f"model.{name}": tensor for name, tensor in parameters.items()}
        for name, parameter in parameters.items():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"adam.{key}.{name}"] = value
        tensors["log.sums"] = self.sums
        tensors["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        return tensors

    def _metadata(self) -> dict[str, str]:
        epoch, n_batches = self.position
        counters = {"step": self.step, "epoch": epoch, "n_batches": n_batches,
                    "multiple_of": self.multiple_of, "n_tokens": self.n_tokens}
        return {"counters": json.dumps(counters), "train": json.dumps(self.config.to_dict()),
                "scaler": json.dumps(self.scaler.state_dict()), "pairs": self.fingerprint}

    def restore(self, path: Path) -> None:
        """What `save` wrote. Raises ConfigError for other settings or other training pairs."""
        tensors, metadata = checkpoint.load_tensors(path)
        model_config = ModelConfig.from_dict(checkpoint.read_config(self.out)["model"])
        train_config = TrainConfig.from_dict(json.loads(metadata["train"]))
        before = {**model_config.to_dict(), **train_config.to_dict()}
        now = {**self.model.config.to_dict(), **self.config.to_dict()}
        changed = [name for name in now if now[name] != before[name] and name not in CAN_CHANGE]
        require(not changed, f"{self.out} was trained with another {', '.join(changed)}: "
                "it cannot go on with this one")
        known = metadata.get("pairs")  # runs of version 0.1.0 have none
        require(not known or known == self.fingerprint,
                f"{self.out} was trained on other pairs, or in another order: it cannot go on with these")
        counters = json.loads(metadata["counters"])
        require(counters["step"] <= self.config.train_steps,
                f"{self.out} has made {counters['step']} steps: train_steps must not be less, "
                f"got {self.config.train_steps}")
        weights = {name.removeprefix("model."): tensor for name, tensor in tensors.items()
                   if name.startswith("model.")}
        checkpoint.load_weights(self.model, weights, path)
        names = [name for name, _ in self.model.named_parameters()]
        keys = ("step", "exp_avg", "exp_avg_sq")
        state = {i: {key: tensors[f"adam.{key}.{name}"] for key in keys}
                 for i, name in enumerate(names)}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        scaler = json.loads(metadata.get("scaler", "{}"))
        if scaler and self.scaler.is_enabled():  # "auto" may mean another type on this device
            self.scaler.load_state_dict(scaler)
        torch.set_rng_state(tensors["random.cpu"])
        if "random.cuda" in tensors and self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random.cuda"], self.device)
        self.step = self.saved_step = counters["step"]
        self.position = self.epoch, self.n_batches = counters["epoch"], counters["n_batches"]
        self.multiple_of = counters.get("multiple_of", 1)
        self.n_tokens = counters.get("n_tokens", 0)
        self.sums.copy_(tensors.get("log.sums", torch.zeros(2)))
