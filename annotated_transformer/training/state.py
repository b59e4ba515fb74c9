"""A training run on disk: what is saved, what is restored, what may change when a run goes on.

The last two states are kept. A run goes on from the newest undamaged one. A damaged state is set
aside as `training.damaged.safetensors`, until the next save makes two good ones again.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from annotated_transformer.checkpoint import directory as checkpoint, weights
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.errors import (
    ConfigError,
    DamagedFileError,
    naming_lack_of_memory,
    require,
    say,
)
from annotated_transformer.files import flush_to_disk, write_bytes
from annotated_transformer.training.optimizer import rate_of_step
from annotated_transformer.training.processes import Processes
from annotated_transformer.training.run import TrainingRun
from annotated_transformer.training.state_checks import (
    from_json,
    moments,
    require_counters,
    require_scaler,
    require_state,
    require_values,
    with_prefix,
)

CAN_CHANGE = (
    "train_steps",
    "log_every",
    "validate_every",
    "checkpoint_every",
    "keep_checkpoints",
    "patience",
    "compile",
)
"""The settings that may differ when a run is resumed; any other would make it another run."""
BEST = "best"
"""The directory, inside a run's, of the weights that were best in validation."""
STATE_FILE, PREVIOUS_FILE = checkpoint.STATE_FILES
DAMAGED_FILE = "training.damaged.safetensors"


def save_state(run: TrainingRun, out: Path, to_average: bool = True) -> None:
    """Save the weights to average, the weights to use, and the state to resume from.

    Each file is written atomically. The state is written last: a run killed in between goes back
    one checkpoint and writes the others again. Without `to_average` nothing is added to
    `checkpoints`, and the state is written first, so that a run killed in its first save leaves no
    weights without a state. The previous state is kept in case the new one is damaged later.

    All processes of a run must call this; rank 0 writes.
    """
    saved = f"step {run.saved_steps} is saved, and --resume goes on from there"
    remedy = f"{saved if run.saved_steps else 'no step is saved'}; other programs may use memory"
    with naming_lack_of_memory(lambda: f"while step {run.steps} was saved in {out}: {remedy}"):
        tensors = _state_tensors(run)
        if run.processes.is_first:
            _write_files(run, out, to_average, tensors)
    run.saved_steps = run.steps


def save_best(run: TrainingRun, out: Path) -> None:
    """Write the weights of this step as a checkpoint of their own, into `out`/best."""
    best = out / BEST
    for name in ("config.json", "tokenizer.model"):
        write_bytes(best / name, (out / name).read_bytes())
    about = weights.belongs_to(run.model.config, run.vocabulary)
    weights.save_weights(best / "model.safetensors", run.model, metadata=about)


def _write_files(run: TrainingRun, out: Path, to_average: bool, tensors: dict[str, Tensor]) -> None:
    about = weights.belongs_to(run.model.config, run.vocabulary)
    if (out / "log.jsonl").exists():
        flush_to_disk(out / "log.jsonl")  # after a power cut the log must reach as far as the state
    if to_average:
        name = f"step-{run.steps:08d}.safetensors"
        weights.save_weights(out / "checkpoints" / name, run.model, metadata=about)
        weights.save_weights(out / "model.safetensors", run.model, metadata=about)
    weights.save_tensors(out / STATE_FILE, tensors, _state_metadata(run), out / PREVIOUS_FILE)
    if not to_average:
        weights.save_weights(out / "model.safetensors", run.model, metadata=about)
    for old in checkpoint.step_checkpoints(out)[: -run.config.keep_checkpoints]:
        old.unlink()
    (out / DAMAGED_FILE).unlink(missing_ok=True)


def _state_tensors(run: TrainingRun) -> dict[str, Tensor]:
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
    """The name of a process's random state; that of rank 0 has no number."""
    return f"{name}.{rank}" if rank else name


def _state_metadata(run: TrainingRun) -> dict[str, str]:
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
        "model": json.dumps(run.model.config.to_dict()),
        "train": json.dumps(run.config.to_dict()),
        "scaler": json.dumps(run.scaler.state_dict() if run.dtype == torch.float16 else {}),
        "pairs": run.fingerprint,
        "tokenizer": run.vocabulary,
    }


def with_precision_of_run(config: TrainConfig, out: Path) -> TrainConfig:
    """The settings with which the run in `out` goes on: "auto" means there what it has meant."""
    if config.precision != "auto":
        return config
    stored = TrainConfig.from_dict(checkpoint.read_config(out).get("train"))
    return config.replace(precision=stored.precision)


def newest_state(config: ModelConfig, out: Path) -> Path:
    """The file to go on from: the newest undamaged state with the shapes of this model.

    It is found from checksums and headers, before memory is taken for a model whose size a
    config.json may exaggerate. Raises ConfigError where there is none, and says for each file
    whether it is damaged, unreadable or of another model.
    """
    paths = checkpoint.state_files(out)
    failures = []
    require(bool(paths), f"nothing to resume in {out}: it has no {STATE_FILE}")
    if checkpoint.read_model_config(out) != config:
        return paths[0]  # `restore` names the settings that differ
    for path in paths:
        try:
            require_state(config, path)
        except ConfigError as error:
            failures.append(str(error))
        except OSError as error:
            failures.append(f"cannot read {error.filename or path}: {error.strerror}")
        else:
            return path
    raise DamagedFileError(f"nothing to resume in {out}: {'; '.join(failures)}")


def agreed_state(config: ModelConfig, out: Path, processes: Processes) -> Path:
    """`newest_state` as rank 0 finds it, so that all processes go on from the same one."""
    return out / processes.from_first(lambda: newest_state(config, out).name.encode()).decode()


def restore(run: TrainingRun, out: Path, path: Path | None = None) -> None:
    """Put the run where `save` left it, from `path` (by default `newest_state`).

    Raises ConfigError where there is no state, and for other settings, other training pairs or
    another vocabulary. A newer state that is damaged is set aside with a message.
    """
    if run.processes.is_first:
        checkpoint.remove_temporaries(out)
    path = path or newest_state(run.model.config, out)
    tensors, metadata = weights.load_tensors(path)
    train_config = TrainConfig.from_dict(from_json(path, metadata, "train"))
    model_config = ModelConfig.from_dict(from_json(path, metadata, "model"))
    before = {**model_config.to_dict(), **train_config.to_dict()}
    now = {**run.model.config.to_dict(), **run.config.to_dict()}
    changed = [name for name in now if now[name] != before[name] and name not in CAN_CHANGE]
    require(
        not changed,
        f"{out} was trained with another {', '.join(changed)}: it cannot go on with this one",
    )
    require(
        metadata.get("pairs") == run.fingerprint,
        f"{out} was trained on other pairs, or in another order: it cannot go on with these",
    )
    require(
        metadata.get("tokenizer") == run.vocabulary,
        f"{out} was trained with another tokenizer: its weights belong to that vocabulary",
    )
    counters = require_counters(path, metadata, train_config)
    require(
        counters["step"] <= run.config.train_steps,
        f"{out} has made {counters['step']} steps: train_steps must not be less, "
        f"got {run.config.train_steps}",
    )
    require_values(path, tensors)
    weights.load_weights(run.model, with_prefix("model.", tensors), path)
    state = {
        i: {
            key: tensors[f"adam.{key}.{name}"]
            for key in moments(run.config.optimizer, name, parameter.shape)
        }
        for i, (name, parameter) in enumerate(run.model.named_parameters())
    }
    run.optimizer.load_state_dict({**run.optimizer.state_dict(), "state": state})
    scaler = from_json(path, metadata, "scaler")
    if run.dtype == torch.float16:
        require_scaler(path, scaler, run.scaler.state_dict())
        run.scaler.load_state_dict(scaler)
    rank = run.processes.rank
    # For a process without a saved random state, as when there were fewer processes before.
    run.processes.seed(run.config.seed, counters["step"])
    try:
        if (name := _of_process("random.cpu", rank)) in tensors:
            torch.set_rng_state(tensors[name])
        if (name := _of_process("random.cuda", rank)) in tensors and run.device.type == "cuda":
            torch.cuda.set_rng_state(tensors[name], run.device)
    except RuntimeError:
        raise DamagedFileError(f"{path} is damaged: {name} is no random state") from None
    run.steps = run.saved_steps = counters["step"]
    if run.processes.is_first:
        _say_if_replanned(run, out, train_config)
    run.position = run.epoch, run.n_batches = counters["epoch"], counters["n_batches"]
    run.multiple_of = counters["multiple_of"]
    run.n_tokens = counters["n_tokens"]
    run.sums.copy_(tensors["log.sums"])
    run.processes.wait()  # until all have read it
    if run.processes.is_first:
        _set_aside(out, path, run.steps)


def _say_if_replanned(run: TrainingRun, out: Path, stored: TrainConfig) -> None:
    """Say so where another `train_steps` moves the schedule's decay, and with it the rate."""
    plans = stored, run.config
    before, after = (rate_of_step(run.steps, c, run.model.config.d_model) for c in plans)
    if before != after:
        now = run.config.train_steps
        say(
            f"{out} was planned for {stored.train_steps:,} steps, and its rate at step "
            f"{run.steps:,} was {before:.2g}: for {now:,} steps it is {after:.2g} there, so that "
            "the weights will be those of neither plan in one run"
        )


def _set_aside(out: Path, path: Path, step: int) -> None:
    """After falling back, make the good state the newest file, so that the next resume finds it."""
    newest = out / STATE_FILE
    if path == newest:
        return
    if newest.exists():
        newest.replace(out / DAMAGED_FILE)
        say(
            f"{newest} is damaged or of another model: it is {DAMAGED_FILE} until the next save, "
            f"and the run goes on from step {step}"
        )
    path.replace(newest)
