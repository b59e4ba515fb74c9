"""Checkpoints and their average (section 6.1): one directory holds all that `translate` and `train --resume` need.

    config.json                          {"model": ..., "train": ..., "corpus": ...}
    tokenizer.model                      the SentencePiece model
    model.safetensors                    the weights that are used
    checkpoints/step-00001000.safetensors  weights to average
    training.safetensors                 weights, Adam's moments, random state and counters, to resume from
    log.jsonl                            what was measured

Every file is written beside its place and moved there, so a crash leaves the old one or the new one. Nothing is
pickled: weights from a stranger cannot run code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from annotated_transformer.config import ConfigError, ModelConfig, require
from annotated_transformer.transformer import Transformer

if TYPE_CHECKING:
    from annotated_transformer.tokenizer import Tokenizer


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, flush it to disk and move it to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # safetensors makes files that only their owner can read
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write named tensors, atomically."""
    from safetensors.torch import save_file

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, lambda temporary: save_file(contiguous, temporary, dict(metadata or {})))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Named tensors and metadata. Raises ConfigError when the file is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except SafetensorError as error:
        raise ConfigError(f"{path} is not a safetensors file or is damaged: {error}") from None


def save_weights(path: Path, model: nn.Module, dtype: torch.dtype | None = None) -> None:
    """Write a model's weights, in `dtype` if given (float16 halves the file)."""
    save_tensors(path, {name: tensor.to(dtype or tensor.dtype) for name, tensor in model.state_dict().items()})


def write_directory(
    directory: str | Path, model_config: ModelConfig, tokenizer: Tokenizer, extra: Mapping[str, Any] | None = None
) -> Path:
    """Start a checkpoint directory: config.json (the model's, then `extra`) and the tokenizer."""
    directory = Path(directory)
    config = json.dumps({"model": model_config.to_dict(), **(extra or {})}, indent=2) + "\n"
    write_atomically(directory / "config.json", lambda temporary: temporary.write_text(config, encoding="utf-8"))
    write_atomically(directory / "tokenizer.model", lambda temporary: temporary.write_bytes(tokenizer.model_bytes))
    return directory


def read_config(directory: str | Path) -> dict[str, Any]:
    """config.json as a dictionary. Raises ConfigError when the directory is not a checkpoint."""
    path = Path(directory) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{directory} is not a checkpoint directory: it has no config.json") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    require(isinstance(config, dict) and "model" in config, f"{path} does not describe a model: it has no entry model")
    return config


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy weights into a model of the same shape. Raises ConfigError when they do not fit."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    require(not different, f"{path} does not fit its config.json: {', '.join(different[:3])} differ")
    model.load_state_dict(dict(tensors))


def load_model(directory: str | Path, device: torch.device | str = "cpu") -> tuple[Transformer, Tokenizer]:
    """The model (float32, ready to decode) and the tokenizer of a checkpoint directory."""
    from annotated_transformer.tokenizer import Tokenizer

    directory = Path(directory)
    config = ModelConfig.from_dict(read_config(directory)["model"])
    model = Transformer(config)
    path = directory / "model.safetensors"
    load_weights(model, load_tensors(path)[0], path)
    return model.to(device).eval(), Tokenizer.load(directory / "tokenizer.model")


def step_checkpoints(directory: str | Path) -> list[Path]:
    """The saved weights of a run, oldest first."""
    return sorted((Path(directory) / "checkpoints").glob("step-*.safetensors"))


def average(paths: list[Path]) -> dict[str, Tensor]:
    """The arithmetic mean of several files of weights, summed in float64."""
    total: dict[str, Tensor] = {}
    for path in paths:
        tensors = load_tensors(path)[0]
        same = {name: t.shape for name, t in total.items()} == {name: t.shape for name, t in tensors.items()}
        require(not total or same, f"{path} has other weights than {paths[0]}")
        for name, tensor in tensors.items():
            total[name] = total.get(name, 0.0) + tensor.double()
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}


def average_checkpoints(directory: str | Path, last: int = 5, out: str | Path | None = None,
                        others: Sequence[str | Path] = ()) -> Path:
    """A new directory whose weights are the mean of a run's `last` checkpoints (section 6.1: 5 for base, 20 for big).

    `out` defaults to the run's name with "-averaged". `others` are runs whose `last` checkpoints are to count as well:
    runs that went on from the same weights, with other seeds, have a good mean (Wortsman et al. 2022, "Model soups").
    Raises ConfigError when a run has fewer checkpoints, other shapes, or another vocabulary.
    """
    from annotated_transformer.tokenizer import Tokenizer

    runs = [Path(directory), *map(Path, others)]
    out = Path(out) if out else runs[0].with_name(runs[0].name + "-averaged")
    config, tokenizer = read_config(runs[0]), Tokenizer.load(runs[0] / "tokenizer.model")
    require(last >= 1, f"the number of checkpoints to average must be at least 1, got {last}")
    paths: list[Path] = []
    for run in runs:
        read_config(run)
        found = step_checkpoints(run)
        require(len(found) >= last, f"{run} has {len(found)} checkpoints, cannot average the last {last}")
        require(out.resolve() != run.resolve(), f"the average needs a directory of its own, got {out}")
        same = (run / "tokenizer.model").read_bytes() == tokenizer.model_bytes
        require(same, f"{run} has another vocabulary than {runs[0]}: their weights have no mean")
        paths += found[-last:]
    names = [f"{path.parent.parent.name}/{path.stem}" if others else path.stem for path in paths]
    averaged = average(paths)
    write_directory(out, ModelConfig.from_dict(config.pop("model")), tokenizer, {**config, "averaged": names})
    save_tensors(out / "model.safetensors", averaged)
    return out
