"""Tensors of which each process has a part (FSDP2), on disk and put together.

A run whose weights are in parts saves its state in parts: PyTorch's distributed checkpoint writes a
file for each process, as safetensors. Such a state is read by any number of processes, and by one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from annotated_transformer.errors import ConfigError, require
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training.distributed import Processes
from annotated_transformer.weights import read_metadata, tensor_shapes

PARTS = "sharded"
"""The folder of the states in parts; in a state's metadata, the name of its own."""


def is_part(tensor: Tensor) -> bool:
    """Whether each process has a part of the tensor."""
    return hasattr(tensor, "full_tensor")  # a DTensor, whose module takes a second to import


def whole(tensor: Any) -> Tensor:
    """All of a tensor of which each process may have a part; all processes have to ask."""
    return tensor.full_tensor() if is_part(tensor) else tensor


def whole_model(model: Transformer) -> Transformer:
    """The model itself, or a whole copy of one whose weights are in parts."""
    state = model.state_dict()
    if not any(map(is_part, state.values())):
        return model
    with torch.device("meta"):
        copied = Transformer(model.config)
    copied.load_state_dict({name: whole(tensor) for name, tensor in state.items()}, assign=True)
    if model.config.positions != "learned":
        copied.positions = model.positions  # a table that is computed and no weight
    return copied.train(model.training)


def save_parts(
    out: Path, steps: int, tensors: dict[str, Tensor], processes: Processes
) -> dict[str, str]:
    """Take the tensors that are in parts out of `tensors`, and let each process write its own.

    PyTorch's distributed checkpoint writes them, as safetensors. What is returned belongs to the
    metadata of the state. Raises ConfigError where one of the processes cannot write.
    """
    parts = {name: t for name, t in tensors.items() if is_part(t)}
    if not parts:
        return {}
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    folder = out / PARTS / f"step-{steps:08d}"
    if processes.is_first:
        shutil.rmtree(folder, ignore_errors=True)  # what a killed run may have left there
    processes.any(False)  # the others wait for that
    for name in parts:
        parts[name] = tensors.pop(name).detach()
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        save(parts, storage_writer=writer)
    except CheckpointException as error:
        failure, _ = next(iter(error.failures.values()))
        raise ConfigError(f"cannot write {folder}: {failure}") from None
    return {PARTS: folder.name}


def remove_old_parts(out: Path, steps: int, keep: int = 2) -> None:
    """Remove the parts of all states but the last ones, and what a killed run left beyond them."""
    folders = sorted((out / PARTS).glob("step-*"))
    made = [folder for folder in folders if folder.name <= f"step-{steps:08d}"]
    for old in {*folders} - {*made[-keep:]}:
        shutil.rmtree(old)


def part_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that the state at `path` has in parts, none if it has no parts.

    Raises ConfigError where a part is missing or damaged.
    """
    name = read_metadata(path).get(PARTS)
    if name is None:
        return {}
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    folder = path.parent / PARTS / Path(name).name
    require(folder.is_dir(), f"no such folder: {folder}")
    for file in folder.glob("*.safetensors"):
        tensor_shapes(file)  # which says so where it is damaged
    reader = HuggingFaceStorageReader(str(folder))
    found: dict[str, Any] = dict(reader.read_metadata().state_dict_metadata)
    for tensor, about in found.items():
        n_held = sum(prod(chunk.sizes) for chunk in about.chunks)
        require(n_held == prod(about.size), f"{folder} is damaged: it lacks a part of {tensor}")
    return {tensor: tuple(about.size) for tensor, about in found.items()}


def parts_of(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors as those of `like` are: whole, or the part of this process."""
    return {name: _part_of(tensors[name], tensor) for name, tensor in like.items()}


def _part_of(tensor: Tensor, like: Any) -> Tensor:
    if not is_part(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements
    return distribute_tensor(tensor.to(like.device), mesh, placements, src_data_rank=None)


def load_parts(
    path: Path, metadata: Mapping[str, str], tensors: Mapping[str, Tensor], model: Transformer
) -> dict[str, Tensor]:
    """Weights and moments of a state as `model` has its own, whole or in parts.

    They may lie in `tensors`, or in parts, of any number of processes, beside the state at `path`.
    """
    parameters = dict(model.named_parameters())
    like = {
        f"{prefix}.{name}": parameter.detach()
        for name, parameter in parameters.items()
        for prefix in ("model", "adam.exp_avg", "adam.exp_avg_sq")
    }
    if PARTS not in metadata:
        return parts_of(tensors, like)
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    part_shapes(path)
    found = {name: torch.empty_like(parameter) for name, parameter in like.items()}
    reader = HuggingFaceStorageReader(str(path.parent / PARTS / Path(metadata[PARTS]).name))
    with _some_group():
        load(found, storage_reader=reader)
    return found


@contextmanager
def _some_group() -> Iterator[None]:
    """A group of this process alone where it has none: a distributed checkpoint wants one."""
    if dist.is_initialized():
        yield
        return
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
