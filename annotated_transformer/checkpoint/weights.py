"""Weights in files: written atomically, read without running code, checked against the model.

The files are safetensors, so that weights from a stranger cannot run code. Each one that is written
here carries its own SHA-256 in its header, so that a changed byte is noticed. Files of other
programs have none and can be read. Equal tensors with equal metadata make equal files.
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
from annotated_transformer.errors import ConfigError, DamagedFileError, listed, require, shown
from annotated_transformer.files import require_ordinary, write_atomically
from annotated_transformer.model.transformer import Transformer

Shapes = Mapping[str, tuple[int, ...]]
CHECKSUM = "file_sha256"
"""Metadata key of the checksum. It also prefixes the value, so that either copy survives damage to
the other."""
CHECKSUM_PLACEHOLDER = "0" * 64
"""Stands for the checksum in the header while the checksum is computed."""
FORMAT = "format"
"""A metadata key without which transformers 4 refuses a file. Its value there is "pt"."""
MODEL, TOKENIZER = "model", "tokenizer"
"""Metadata keys of the model's settings and of the vocabulary's digest.

Files of other programs have neither.
"""
LEARNING_SETTINGS = "p_drop", "attention_dropout", "ffn_dropout", "initialization"
"""Settings that change how a model learns, but not what it computes from given weights."""
MAX_HEADER_BYTES = 2**23  # the big model's header has 40,000
MAX_LAYERS = 1024
WEIGHTS = "float32", "float16", "bfloat16", "float64"
"""The types of numbers that weights can have in a file."""


def save_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    before: Path | None = None,
) -> None:
    """Write named tensors, atomically. With `before`, the previous file at `path` is kept there."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # safetensors writes several metadata entries in an order that is drawn at random. So it gets
    # one, whose key becomes two entries when its quotation marks are replaced in the file.
    entry = f"{CHECKSUM}:{CHECKSUM_PLACEHOLDER}{json.dumps(dict(metadata or {}))}"
    keys = f"{FORMAT}':'pt','{CHECKSUM}"

    def write(temporary: Path) -> None:
        try:
            save_file(contiguous, temporary, {keys: entry})
        except SafetensorError as error:
            raise ConfigError(f"cannot write {path}: {error}") from None
        with temporary.open("rb+") as file:
            header = _header(temporary)
            file.write(header.replace(keys.encode(), keys.replace("'", '"').encode(), 1))
            file.flush()
            _, checksum, place = _checksums(temporary)
            file.seek(place)
            file.write(checksum.encode())

    write_atomically(path, write, before)


def _checksums(path: Path) -> tuple[str, str, int]:
    """The checksum in a file ("" if none), the one that it should have, and its offset."""
    header = _header(path)
    if CHECKSUM.encode() not in header:
        return "", "", 0
    found = re.search(rf'"{CHECKSUM}":"{CHECKSUM}:([0-9a-f]{{64}})'.encode(), header)
    if found is None:
        raise DamagedFileError(f"{path} is damaged: its checksum cannot be read")
    before, after = header[: found.start(1)], header[found.end(1) :]
    digest = hashlib.sha256(before + CHECKSUM_PLACEHOLDER.encode() + after)
    with path.open("rb") as file:
        file.seek(len(header))
        while chunk := file.read(2**20):
            digest.update(chunk)
    return found[1].decode(), digest.hexdigest(), found.start(1)


def _header(path: Path) -> bytes:
    """The bytes before the tensors: a length and a JSON text, which is bounded."""
    require_ordinary(path)
    with path.open("rb") as file:
        length = file.read(8)
        size = int.from_bytes(length, "little")
        if size > MAX_HEADER_BYTES:
            raise DamagedFileError(
                f"{path} is not a safetensors file or is damaged: its header would have "
                f"{size:,} bytes"
            )
        return length + file.read(size)


def require_undamaged(path: Path) -> None:
    """Raise DamagedFileError unless each byte of the file is the one that was written."""
    found, expected, _ = _checksums(path)
    if found != expected:
        raise DamagedFileError(
            f"{path} is damaged: its SHA-256 is {expected[:16]}..., it was written with "
            f"{found[:16]}..."
        )


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Named tensors and metadata, as `save_tensors` was given them.

    Raises ConfigError for a missing file, and DamagedFileError for one with a changed byte.
    """
    with _opened(path) as file:
        require_undamaged(path)
        metadata = _metadata(file, path)
        return {name: file.get_tensor(name) for name in file.keys()}, metadata


def require_float(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise ConfigError unless the weights in the file at `path` are of a type in `WEIGHTS`.

    The integers of a quantized file mean nothing without their scales.
    """
    rule = f"{path} must have weights in {', '.join(WEIGHTS)}"
    for name, tensor in tensors.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        require(kind in WEIGHTS, f"{rule}, got {kind} in {shown(name)}")


def as_float32(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Copies of the weights in the file at `path`, in float32.

    Raises ConfigError where `require_float` does, and for a value that is not finite.
    """
    require_float(tensors, path)
    converted = {name: tensor.to(torch.float32, copy=True) for name, tensor in tensors.items()}
    infinite = [name for name, tensor in converted.items() if not tensor.isfinite().all()]
    require(not infinite, f"{path} has values that are not finite, in {listed(infinite)}")
    return converted


def tensor_shapes(path: Path) -> Shapes:
    """The shapes in the header of a file, whose tensors are not read.

    Raises ConfigError as `load_tensors` does.
    """
    with _opened(path) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata in the header of a file. Raises ConfigError as `load_tensors` does."""
    with _opened(path) as file:
        return _metadata(file, path)


def _metadata(file: Any, path: Path) -> dict[str, str]:
    """The metadata of an open file, whose earlier versions have a key of safetensors for each."""
    metadata: dict[str, str] = dict(file.metadata() or {})
    metadata.pop(FORMAT, None)
    text = metadata.pop(CHECKSUM, "").removeprefix(f"{CHECKSUM}:")[len(CHECKSUM_PLACEHOLDER) :]
    try:
        joined = json.loads(text or "{}")
    except (ValueError, RecursionError):
        joined = None
    if not isinstance(joined, dict) or not all(isinstance(one, str) for one in joined.values()):
        raise DamagedFileError(f"{path} is damaged: its metadata is not JSON text")
    return metadata | joined


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        _header(path)
        require_memory(path.stat().st_size, path)
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except SafetensorError as error:
        reason = shown(error, most=200)  # it repeats what stands in the file
        raise DamagedFileError(
            f"{path} is not a safetensors file or is damaged: {reason}"
        ) from None


def save_weights(
    path: Path,
    model: nn.Module,
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a model's weights, in `dtype` if given (float16 halves the file)."""
    tensors = model.state_dict().items()
    converted = {name: tensor.to(dtype or tensor.dtype) for name, tensor in tensors}
    save_tensors(path, converted, metadata)


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy weights into a model. Raises ConfigError for other shapes, and for integers."""
    require_float(tensors, path)
    _require_fit(model, shapes_of(tensors), path)
    model.load_state_dict(dict(tensors))


def shapes_of(tensors: Mapping[str, Tensor]) -> Shapes:
    """The shape of each tensor by its name."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _require_fit(model: nn.Module, found: Shapes, path: Path) -> None:
    expected = shapes_of(model.state_dict())
    names = expected.keys() | found.keys()
    different = sorted(name for name in names if expected.get(name) != found.get(name))
    rule = f"{path} does not fit its config.json"
    require(not different, f"{rule}: {listed(different)} differ")


def belongs_to(config: ModelConfig, vocabulary: str) -> dict[str, str]:
    """The metadata that ties weights to their model and to the digest of their vocabulary."""
    return {MODEL: json.dumps(config.to_dict()), TOKENIZER: vocabulary}


def require_belongs(
    metadata: Mapping[str, str], config: ModelConfig, vocabulary: str, path: Path
) -> None:
    """Raise ConfigError unless weights at `path` belong to this model and this vocabulary.

    Shapes alone do not tell: models that differ in their activation have the same ones.
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
        raise DamagedFileError(
            f"{path} is damaged: its entry {MODEL} is no ModelConfig: {error}"
        ) from None
    different = different_settings(trained, config)
    require(
        not different,
        f"{path.parent}: the weights were trained with another {', '.join(different)} than "
        "config.json has",
    )


def different_settings(one: ModelConfig, other: ModelConfig) -> list[str]:
    """The settings that make two models compute different things from equal weights."""
    ours, theirs = one.to_dict(), other.to_dict()
    return [name for name in ours if ours[name] != theirs[name] and name not in LEARNING_SETTINGS]


def without_weights(config: ModelConfig, shapes: Shapes, path: Path) -> Transformer:
    """The model of a config, on PyTorch's meta device, where its weights take no memory.

    Raises ConfigError unless its weights have the shapes of those in the file at `path`: a
    config.json of a few bytes can promise a model of any size, a file of weights cannot.
    """
    require_memory(4 * sum(math.prod(shape) for shape in shapes.values()), path)
    require_layers(config, shapes, path)
    with torch.device("meta"):
        model = Transformer(config)
    _require_fit(model, shapes, path)
    return model


def require_layers(config: ModelConfig, shapes: Shapes, path: Path) -> None:
    """Raise ConfigError unless the weights have N layers in the encoder, and not too many.

    It is asked before a model of N layers is built, even without its weights.
    """
    layers = {m[1] for name in shapes if (m := re.search(r"encoder\.layers\.(\d+)\.", name))}
    require(
        len(layers) == config.N <= MAX_LAYERS,
        f"{path} does not fit its config.json: it has {len(layers)} layers in the encoder, "
        f"N is {config.N}, at most {MAX_LAYERS:,}",
    )


def require_memory(n_bytes: int, what: object) -> None:
    """Raise ConfigError unless this machine has so many bytes of memory, free or not."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows does not say
        return
    require(
        n_bytes <= memory,
        f"{what} needs {n_bytes / 2**30:,.1f} GiB of memory, "
        f"this machine has {memory / 2**30:,.1f}",
    )


def average(paths: list[Path]) -> dict[str, Tensor]:
    """The arithmetic mean of several files of weights, summed in float64."""
    total: dict[str, Tensor] = {}
    for path in paths:
        tensors = load_tensors(path)[0]
        same = shapes_of(tensors) == shapes_of(total)
        require(not total or same, f"{path} has other weights than {paths[0]}")
        require_float(tensors, path)
        for name, tensor in tensors.items():
            total[name] = total.get(name, 0.0) + tensor.double()
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}
