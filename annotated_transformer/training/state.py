"""A training run on disk: what is saved, what is restored, what may change when a run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from annotated_transformer import checkpoint, weights
from annotated_transformer.config import ModelConfig, TrainConfig, require
from annotated_transformer.training import parts
from annotated_transformer.training.run import TrainingRun

CAN_CHANGE = (
    "train_steps",
    "log_every",
    "validate_every",
    "checkpoint_every",
    "keep_checkpoints",
    "compile",
)
"""The settings that may differ when a run is resumed; any other would make it another run."""
STATE_FILE = "training.safetensors"


def save(run: TrainingRun, out: Path, to_average: bool = True) -> None:
    """Save the weights to average, the weights to use, and the state to resume from.

    Each file is written atomically. The state comes last: a run that is killed in between goes back
    one checkpoint and writes the others again. Without `to_average` nothing is added to
    `checkpoints`, and the state comes first, so that not even a first save can leave weights alone.

    Of many processes all have to call this, and the first one writes. What each has a part of
    stands in a folder of `sharded`, which the state names, so that it counts from then on.
    """
    model, tensors, metadata = parts.whole_model(run.model), _tensors(run), _metadata(run)
    metadata |= parts.save_parts(out, run.steps, tensors, run.processes)
    run.saved_steps = run.steps
    if not run.processes.is_first:
        return
    if to_average:
        name = f"step-{run.steps:08d}.safetensors"
        checkpoint.save_weights(out / "checkpoints" / name, model)
        checkpoint.save_weights(out / "model.safetensors", model)
    checkpoint.save_tensors(out / STATE_FILE, tensors, metadata)
    if not to_average:
        checkpoint.save_weights(out / "model.safetensors", model)
    for old in checkpoint.step_checkpoints(out)[: -run.config.keep_checkpoints]:
        old.unlink()
    parts.remove_old_parts(out, run.steps)


def _tensors(run: TrainingRun) -> dict[str, Tensor]:
    parameters = dict(run.model.named_parameters())
    tensors: dict[str, Tensor] = {f"model.{name}": tensor for name, tensor in parameters.items()}
    for name, parameter in parameters.items():
        for key, value in run.optimizer.state[parameter].items():
            tensors[f"adam.{key}.{name}"] = value
    tensors["log.sums"] = run.sums
    states = {"random.cpu": torch.get_rng_state()}
    if run.device.type == "cuda":
        states["random.cuda"] = torch.cuda.get_rng_state(run.device)
    for name, state in states.items():
        for rank, of_process in enumerate(run.processes.gathered(state)):
            tensors[_of_process(name, rank)] = of_process
    return tensors


def _of_process(name: str, rank: int) -> str:
    """The name of a random state: that of the first process has no number."""
    return f"{name}.{rank}" if rank else name


def _metadata(run: TrainingRun) -> dict[str, str]:
    epoch, n_batches = run.position
    counters = {
        "step": run.steps,
        "epoch": epoch,
        "n_batches": n_batches,
        "multiple_of": run.multiple_of,
        "n_tokens": run.n_tokens,
    }
    return {
        "counters": json.dumps(counters),
        "train": json.dumps(run.config.to_dict()),
        "scaler": json.dumps(run.scaler.state_dict()),
        "pairs": run.fingerprint,
    }


def require_shapes(config: ModelConfig, out: Path) -> None:
    """Raise ConfigError unless what is to be resumed is there and has the shapes of this model.

    That is before there is memory for a model of any size that a config.json may promise.
    """
    path = out / STATE_FILE
    require(path.exists(), f"nothing to resume in {out}: it has no {STATE_FILE}")
    stored = ModelConfig.from_dict(checkpoint.read_config(out)["model"])
    if stored.to_dict() != config.to_dict():
        return  # `restore` says which settings are others
    shapes = {
        name.removeprefix("model."): shape
        for name, shape in {**weights.tensor_shapes(path), **parts.part_shapes(path)}.items()
        if name.startswith("model.")
    }
    weights.without_weights(config, shapes, path)


def restore(run: TrainingRun, out: Path) -> None:
    """What `save` wrote.

    Raises ConfigError where there is nothing, and for other settings or other training pairs.
    """
    path = out / STATE_FILE
    require(path.exists(), f"nothing to resume in {out}: it has no {STATE_FILE}")
    tensors, metadata = checkpoint.load_tensors(path)
    model_config = ModelConfig.from_dict(checkpoint.read_config(out)["model"])
    train_config = TrainConfig.from_dict(json.loads(metadata["train"]))
    before = {**model_config.to_dict(), **train_config.to_dict()}
    now = {**run.model.config.to_dict(), **run.config.to_dict()}
    changed = [name for name in now if now[name] != before[name] and name not in CAN_CHANGE]
    require(
        not changed,
        f"{out} was trained with another {', '.join(changed)}: it cannot go on with this one",
    )
    known = metadata.get("pairs")  # runs of version 0.1.0 have none
    require(
        not known or known == run.fingerprint,
        f"{out} was trained on other pairs, or in another order: it cannot go on with these",
    )
    counters = json.loads(metadata["counters"])
    require(
        counters["step"] <= run.config.train_steps,
        f"{out} has made {counters['step']} steps: train_steps must not be less, "
        f"got {run.config.train_steps}",
    )
    tensors |= parts.load_parts(path, metadata, tensors, run.model)
    of_model = {
        name.removeprefix("model."): tensor
        for name, tensor in tensors.items()
        if name.startswith("model.")
    }
    checkpoint.load_weights(run.model, of_model, path)
    names = [name for name, _ in run.model.named_parameters()]
    keys = ("step", "exp_avg", "exp_avg_sq")
    state = {
        i: {key: tensors[f"adam.{key}.{name}"] for key in keys} for i, name in enumerate(names)
    }
    run.optimizer.load_state_dict({**run.optimizer.state_dict(), "state": state})
    scaler = json.loads(metadata.get("scaler", "{}"))
    if scaler and run.scaler.is_enabled():  # "auto" may mean another type on this device
        run.scaler.load_state_dict(scaler)
    rank = run.processes.rank
    run.processes.seed(run.config.seed, counters["step"])  # unless there is a state to go on from
    if (name := _of_process("random.cpu", rank)) in tensors:
        torch.set_rng_state(tensors[name])
    if (name := _of_process("random.cuda", rank)) in tensors and run.device.type == "cuda":
        torch.cuda.set_rng_state(tensors[name], run.device)
    run.steps = run.saved_steps = counters["step"]
    run.position = run.epoch, run.n_batches = counters["epoch"], counters["n_batches"]
    run.multiple_of = counters.get("multiple_of", 1)
    run.n_tokens = counters.get("n_tokens", 0)
    run.sums.copy_(tensors.get("log.sums", torch.zeros(2)))
