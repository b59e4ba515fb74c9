"""Weights in files: written whole, read without running code, and held to the model's shapes.

The files are safetensors, so that weights from a stranger can run nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from annotated_transformer.config import ModelConfig
from annotated_transformer.errors import ConfigError, require
from annotated_transformer.files import write_atomically
from annotated_transformer.model.transformer import Transformer

Shapes = Mapping[str, tuple[int, ...]]


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors, atomically."""
    from safetensors.torch import save_file

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, lambda temporary: save_file(contiguous, temporary, dict(metadata or {})))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Named tensors and metadata. Raises ConfigError when the file is missing or damaged."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}


def tensor_shapes(path: Path) -> Shapes:
    """The shapes that the head of the file promises, with nothing of the rest read.

    Raises ConfigError as `load_tensors` does.
    """
    with _opened(path) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}


def read_metadata(path: Path) -> dict[str, str]:
    """The text in the head of the file. Raises ConfigError as `load_tensors` does."""
    with _opened(path) as file:
        return file.metadata() or {}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except SafetensorError as error:
        raise ConfigError(f"{path} is not a safetensors file or is damaged: {error}") from None


def save_weights(path: Path, model: nn.Module, dtype: torch.dtype | None = None) -> None:
    """Write a model's weights, in `dtype` if given (float16 halves the file)."""
    weights = model.state_dict()
    save_tensors(path, {name: tensor.to(dtype or tensor.dtype) for name, tensor in weights.items()})


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy weights into a model of the same shape. Raises ConfigError when they do not fit."""
    _require_fit(model, shapes_of(tensors), path)
    model.load_state_dict(dict(tensors))


def shapes_of(tensors: Mapping[str, Tensor]) -> Shapes:
    """The shape of each tensor by its name."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _require_fit(model: nn.Module, found: Shapes, path: Path) -> None:
    expected = shapes_of(model.state_dict())
    names = expected.keys() | found.keys()
    different = sorted(name for name in names if expected.get(name) != found.get(name))
    named = ", ".join(different[:3])
    require(not different, f"{path} does not fit its config.json: {named} differ")


def without_weights(config: ModelConfig, shapes: Shapes, path: Path) -> Transformer:
    """The model whose weights have these shapes, without memory for them.

    Raises ConfigError if it has others. A config.json of a few bytes can promise a model of any
    size; the file of weights has the one it has.
    """
    layers = {match[0] for name in shapes if (match := re.match(r"encoder\.layers\.\d+\.", name))}
    require(
        len(layers) == config.N,
        f"{path} does not fit its config.json: it has {len(layers)} layers in the encoder, "
        f"N is {config.N}",
    )
    with torch.device("meta"):
        model = Transformer(config)
    _require_fit(model, shapes, path)
    return model


def average(paths: list[Path]) -> dict[str, Tensor]:
    """The arithmetic mean of several files of weights, summed in float64."""
    total: dict[str, Tensor] = {}
    for path in paths:
        tensors = load_tensors(path)[0]
        same = shapes_of(tensors) == shapes_of(total)
        require(not total or same, f"{path} has other weights than {paths[0]}")
        for name, tensor in tensors.items():
            total[name] = total.get(name, 0.0) + tensor.double()
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}
