"""Weights in files: written whole, read without running code, and held to the model's shapes.

The files are safetensors, so that weights from a stranger can run nothing. Each one that is written
here carries its own SHA-256 in its head, so that a byte that changed is noticed. Files of version
0.1.0 have none, and are read all the same.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from annotated_transformer.config import ModelConfig
from annotated_transformer.errors import ConfigError, DamagedFileError, require
from annotated_transformer.files import require_ordinary, write_atomically
from annotated_transformer.model.transformer import Transformer

Shapes = Mapping[str, tuple[int, ...]]
SEAL = "file_sha256"
"""The name of the checksum, which stands twice: with one of them changed the other is left."""
UNSEALED = "0" * 64
"""What stands in the checksum's place while it is computed."""
MODEL, TOKENIZER = "model", "tokenizer"
"""The entries that say what weights belong to: their model's settings, their vocabulary's digest.

Files of version 0.1.0 have neither, and later ones may have the digest alone.
"""
NOT_COMPUTED = "p_drop", "attention_dropout", "ffn_dropout", "initialization"
"""The settings that change how a model learns, and not what it computes from its weights."""
MAX_HEAD = 2**23  # bytes: the big model's head has 40,000
MAX_LAYERS = 1024


def save_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    before: Path | None = None,
) -> None:
    """Write named tensors, atomically. What was at `path` stays at `before`, if that is given."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    sealed = {**(metadata or {}), SEAL: f"{SEAL}:{UNSEALED}"}

    def write(temporary: Path) -> None:
        try:
            save_file(contiguous, temporary, sealed)
        except SafetensorError as error:
            raise ConfigError(f"cannot write {path}: {error}") from None
        _, digest, place = _seal(temporary)
        with temporary.open("rb+") as file:
            file.seek(place)
            file.write(digest.encode())

    write_atomically(path, write, before)


def _seal(path: Path) -> tuple[str, str, int]:
    """The digest that a file carries ("" if none), the one that it should carry, and its place."""
    head = _head(path)
    if SEAL.encode() not in head:
        return "", "", 0
    found = re.search(rf'"{SEAL}":"{SEAL}:([0-9a-f]{{64}})"'.encode(), head)
    if found is None:
        raise DamagedFileError(f"{path} is damaged: its checksum cannot be read")
    digest = hashlib.sha256(head[: found.start(1)] + UNSEALED.encode() + head[found.end(1) :])
    with path.open("rb") as file:
        file.seek(len(head))
        while chunk := file.read(2**20):
            digest.update(chunk)
    return found[1].decode(), digest.hexdigest(), found.start(1)


def _head(path: Path) -> bytes:
    """What stands before the numbers, which has a bound, so that nobody's table is too large."""
    require_ordinary(path)
    with path.open("rb") as file:
        length = file.read(8)
        size = int.from_bytes(length, "little")
        if size > MAX_HEAD:
            raise DamagedFileError(
                f"{path} is not a safetensors file or is damaged: its head would have "
                f"{size:,} bytes"
            )
        return length + file.read(size)


def require_whole(path: Path) -> None:
    """Raise DamagedFileError unless each byte of the file is the one that was written."""
    found, expected, _ = _seal(path)
    if found != expected:
        raise DamagedFileError(
            f"{path} is damaged: its SHA-256 is {expected[:16]}..., it was written with "
            f"{found[:16]}..."
        )


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Named tensors and metadata.

    Raises ConfigError when the file is missing, and DamagedFileError when it is not what was
    written.
    """
    with _opened(path) as file:
        require_whole(path)
        metadata = file.metadata() or {}
        metadata.pop(SEAL, None)
        return {name: file.get_tensor(name) for name in file.keys()}, metadata


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
        _head(path)
        require_memory(path.stat().st_size, path)
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except SafetensorError as error:
        raise DamagedFileError(f"{path} is not a safetensors file or is damaged: {error}") from None


def save_weights(
    path: Path,
    model: nn.Module,
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a model's weights, in `dtype` if given (float16 halves the file)."""
    weights = model.state_dict()
    of_type = {name: tensor.to(dtype or tensor.dtype) for name, tensor in weights.items()}
    save_tensors(path, of_type, metadata)


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


def belongs_to(config: ModelConfig, vocabulary: str) -> dict[str, str]:
    """What the head of a file of weights says of their model and the digest of their vocabulary."""
    return {MODEL: json.dumps(config.to_dict()), TOKENIZER: vocabulary}


def require_belongs(
    metadata: Mapping[str, str], config: ModelConfig, vocabulary: str, path: Path
) -> None:
    """Raise ConfigError unless weights at `path` belong to this model and this vocabulary.

    Equal shapes are not yet equal models: an activation or a position has none.
    """
    require(
        metadata.get(TOKENIZER) in (None, "", vocabulary),
        f"{path.parent}: the weights were trained with another tokenizer than tokenizer.model",
    )
    if MODEL not in metadata:
        return
    try:
        trained = ModelConfig.from_dict(json.loads(metadata[MODEL]))
    except (ValueError, RecursionError) as error:  # a ConfigError is a ValueError
        raise DamagedFileError(f"{path} is damaged: its model is none: {error}") from None
    different = different_settings(trained, config)
    require(
        not different,
        f"{path.parent}: the weights were trained with another {', '.join(different)} than "
        "config.json has",
    )


def different_settings(one: ModelConfig, other: ModelConfig) -> list[str]:
    """The settings by which two models compute something else from equal weights."""
    ours, theirs = one.to_dict(), other.to_dict()
    return [name for name in ours if ours[name] != theirs[name] and name not in NOT_COMPUTED]


def without_weights(config: ModelConfig, shapes: Shapes, path: Path) -> Transformer:
    """The model whose weights have these shapes, without memory for them.

    Raises ConfigError if it has others. A config.json of a few bytes can promise a model of any
    size; the file of weights has the one it has.
    """
    require_memory(4 * sum(math.prod(shape) for shape in shapes.values()), path)
    layers = {match[0] for name in shapes if (match := re.match(r"encoder\.layers\.\d+\.", name))}
    require(
        len(layers) == config.N,
        f"{path} does not fit its config.json: it has {len(layers)} layers in the encoder, "
        f"N is {config.N}",
    )
    require(
        len(layers) <= MAX_LAYERS,
        f"{path}: a model of more than {MAX_LAYERS:,} layers is not built",
    )
    with torch.device("meta"):
        model = Transformer(config)
    _require_fit(model, shapes, path)
    return model


def require_memory(n_bytes: int, path: Path) -> None:
    """Raise ConfigError unless this machine could hold so many bytes, whatever else it does."""
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a system that does not say
        return
    require(
        n_bytes <= there,
        f"{path} holds weights of {n_bytes / 2**30:,.1f} GiB, this machine has memory of "
        f"{there / 2**30:,.1f}",
    )


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
