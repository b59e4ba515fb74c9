"""Checks of a saved state before a run goes on from it: its tensors, their values, its counters."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from annotated_transformer.checkpoint import weights
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.errors import DamagedFileError, require
from annotated_transformer.training.optimizer import is_hidden_matrix

ADAM = ("step", "exp_avg", "exp_avg_sq")
COUNTERS = {"step", "epoch", "n_batches", "multiple_of", "n_tokens"}


def require_state(config: ModelConfig, path: Path) -> None:
    """Raise DamagedFileError for a file that is no state, ConfigError for that of another model."""
    weights.require_undamaged(path)
    metadata = weights.read_metadata(path)
    shapes = weights.tensor_shapes(path)
    if not metadata.keys() >= {"counters", "train"}:
        raise DamagedFileError(f"{path} is not the state of a training run")
    of_model = with_prefix("model.", shapes)
    weights.without_weights(config, of_model, path)
    # 12 bytes a weight: itself and two moments in float32.
    weights.require_memory(12 * sum(torch.Size(s).numel() for s in of_model.values()), path)
    expected: dict[str, tuple[int, ...]] = {f"model.{name}": s for name, s in of_model.items()}
    optimizer = from_json(path, metadata, "train").get("optimizer", "adam")
    for name, shape in of_model.items():
        keys = moments(optimizer, name, shape)
        expected |= {f"adam.{key}.{name}": () if key == "step" else shape for key in keys}
    expected["random.cpu"] = tuple(torch.get_rng_state().shape)
    expected["log.sums"] = (2,)
    # PyTorch's state of a GPU's generator is two numbers of 8 bytes, the seed and the offset.
    allowed = expected | {"random.cuda": (16,)}
    for name in shapes:
        base, _, rank = name.rpartition(".")
        if base in ("random.cpu", "random.cuda") and rank.isdecimal():
            allowed[name] = allowed[base]
    is_complete = expected.keys() <= shapes.keys()
    is_state = is_complete and all(allowed.get(name) == shapes[name] for name in shapes)
    require(is_state, f"{path} has other tensors than the state of this model")


def moments(optimizer: str, name: str, shape: Sequence[int]) -> tuple[str, ...]:
    """What an optimizer keeps for a parameter; Muon keeps no second moment for a stack's matrix."""
    return ADAM[:2] if optimizer == "muon" and is_hidden_matrix(name, shape) else ADAM


def with_prefix(prefix: str, named: Any) -> dict[str, Any]:
    """The entries whose names begin with `prefix`, without it."""
    return {
        name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)
    }


def from_json(path: Path, metadata: dict[str, str], name: str) -> dict[str, Any]:
    """An entry of the state's metadata. Raises DamagedFileError for what `save` cannot write."""
    try:
        value = json.loads(metadata.get(name, "{}"))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DamagedFileError(f"{path} is damaged: its {name} entry is not JSON")
    return value


def require_counters(path: Path, metadata: dict[str, str], config: TrainConfig) -> dict[str, int]:
    """The counters of a state. Raises DamagedFileError for counters that no run can produce."""
    counters = from_json(path, metadata, "counters")
    numbers = all(type(value) is int and 0 <= value < 2**63 for value in counters.values())
    if not numbers or not counters.keys() >= COUNTERS:
        raise DamagedFileError(f"{path} is damaged: its counters are not whole numbers")
    n_drawn = counters["epoch"] + counters["n_batches"]  # at least: every epoch has a batch
    if n_drawn > counters["step"] * config.accumulate or counters["multiple_of"] not in (1, 8):
        raise DamagedFileError(f"{path} is damaged: its counters contradict each other")
    return counters


def require_values(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise DamagedFileError for values that no run can produce.

    They have the wrong dtype, are not finite, or are negative where a square or a count must be.
    """
    for name, tensor in tensors.items():
        is_random = name.startswith("random.")
        wrong = tensor.dtype != (torch.uint8 if is_random else torch.float32)
        if not (wrong or is_random or name == "log.sums"):  # a loss may be infinite
            is_below = name.startswith(("adam.step.", "adam.exp_avg_sq.")) and (tensor < 0).any()
            wrong = bool(is_below or not tensor.isfinite().all())
        if wrong:
            raise DamagedFileError(f"{path} is damaged: {name} has values that no run can produce")


def require_scaler(path: Path, scaler: Mapping[str, Any], like: Mapping[str, Any]) -> None:
    """Raise DamagedFileError unless `scaler` has the keys of `like`, with finite numbers."""
    numbers = all(type(n) in (int, float) and math.isfinite(n) for n in scaler.values())
    if not numbers or scaler.keys() != like.keys():
        raise DamagedFileError(f"{path} is damaged: its scaler state is not numeric")
