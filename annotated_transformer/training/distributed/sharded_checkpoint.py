"""Sharded tensors (FSDP2), of which each process has a part: on disk, and gathered.

A run whose weights are sharded saves a sharded state: PyTorch's distributed checkpoint writes a
file for each process, as safetensors, into a folder of its own. The state's metadata name that
folder and the SHA-256 of each file, so that a damaged shard is noticed as a damaged state is. Such
a state is read by any number of processes, and by one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from annotated_transformer.checkpoint import state_files
from annotated_transformer.errors import ConfigError, DamagedFileError
from annotated_transformer.files import require_ordinary
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training.distributed.processes import Processes
from annotated_transformer.training.distributed.rendezvous import make_group
from annotated_transformer.weights import read_metadata, tensor_shapes

SHARDED = "sharded"
"""The directory of the sharded states of a run; in a state's metadata, what is said of its own."""
LONGEST_NAME = 96  # of a file, in bytes
NOT_SHARDS = AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError
"""What PyTorch raises where the heads of shards are not as it writes them; too deep JSON, too."""


def is_sharded(tensor: Tensor) -> bool:
    """Whether each process has a part of the tensor."""
    return hasattr(tensor, "full_tensor")  # a DTensor, whose module takes a second to import


def whole(tensor: Any) -> Tensor:
    """All of a tensor that may be sharded; all processes have to ask."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def whole_model(model: Transformer, device: torch.device | str | None = None) -> Transformer:
    """The model itself, or a whole copy of one whose weights are sharded (all must ask).

    Each tensor moves to `device` before the next is put together: to the CPU, say, or to "meta" in
    a process that needs none of them.
    """
    state = model.state_dict()
    if not any(map(is_sharded, state.values())):
        return model
    with torch.device("meta"):
        copied = Transformer(model.config)
    weights = {name: whole(tensor).to(device or tensor.device) for name, tensor in state.items()}
    copied.load_state_dict(weights, assign=True)
    if model.config.positions != "learned":
        copied.positions = model.positions  # a table that is computed and no weight
    return copied.train(model.training)


def save_shards(
    out: Path, steps: int, tensors: dict[str, Tensor], processes: Processes
) -> dict[str, str]:
    """Take the sharded tensors out of `tensors`, and let each process write its own shards.

    What is returned belongs to the metadata of the state. Raises ConfigError where one of the
    processes cannot write.
    """
    sharded = {name: t for name, t in tensors.items() if is_sharded(t)}
    if not sharded:
        return {}
    folder = out / SHARDED / f"step-{steps:08d}"
    if processes.is_first:
        shutil.rmtree(folder, ignore_errors=True)  # what a killed run may have left there
    processes.wait()
    own = _write(folder, {name: tensors.pop(name).detach() for name in sharded})
    digests = _digests(folder, own, processes)
    return {SHARDED: json.dumps({"folder": folder.name, "sha256": digests})}


def _write(folder: Path, sharded: dict[str, Tensor]) -> set[str]:
    """Let each process write its shards; the names of the files of this one: one, or none."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer: Any = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    write_data, own = writer.write_data, set[str]()

    def noted(*args: Any) -> Any:
        written = write_data(*args)
        own.update(result.storage_data.relative_path for result in written.wait())
        return written

    writer.write_data = noted
    try:
        save(sharded, storage_writer=writer)
    except CheckpointException as error:
        failure, _ = next(iter(error.failures.values()))
        raise ConfigError(f"cannot write {folder}: {failure}") from None
    return own


def _digests(folder: Path, own: Iterable[str], processes: Processes) -> dict[str, str]:
    """The SHA-256 of each file: every process reads its own, and tells the others."""
    told = torch.zeros(LONGEST_NAME + 32, dtype=torch.uint8)
    for name in own:
        about = name.encode().ljust(LONGEST_NAME, b"\0") + _sha256(folder / name)
        told = torch.frombuffer(bytearray(about), dtype=torch.uint8)
    rows = [bytes(row.tolist()) for row in processes.gathered(told)]
    named = [(row[:LONGEST_NAME].rstrip(b"\0").decode(), row[LONGEST_NAME:].hex()) for row in rows]
    return {name: digest for name, digest in named if name}


def _sha256(path: Path) -> bytes:
    require_ordinary(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def remove_old_shards(out: Path) -> None:
    """Remove the shards that no state of the run names any longer, or never did."""
    folders = [path for path in (out / SHARDED).glob("step-*") if path.name[5:].isdecimal()]
    named = {_named(path) for path in state_files(out)} if folders else set()
    for old in {*folders} - named:
        shutil.rmtree(old)


def _named(path: Path) -> Path | None:
    """The folder that the state at `path` names; None if it has none, or cannot be read."""
    try:
        return shard_digests(path)[0]
    except (ConfigError, OSError):
        return None


def shard_digests(path: Path) -> tuple[Path | None, dict[str, str]]:
    """The folder of the state at `path` and the SHA-256 of each file in it; None if it has none."""
    said = read_metadata(path).get(SHARDED)
    if said is None:
        return None, {}
    try:
        about = json.loads(said)
        name, digests = about["folder"], {str(k): str(v) for k, v in about["sha256"].items()}
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        raise DamagedFileError(f"{path} is damaged: it names no shards") from None
    return path.parent / SHARDED / Path(str(name)).name, digests


def require_whole_shards(path: Path) -> None:
    """Raise DamagedFileError unless each shard of the state at `path` is as it was written."""
    folder, digests = shard_digests(path)
    if folder is None:
        return
    found = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    if found != digests.keys():
        different = ", ".join(sorted(found ^ digests.keys())[:3])
        raise DamagedFileError(f"{folder} does not hold the shards of {path}: {different}")
    for name, digest in digests.items():
        if _sha256(folder / name).hex() != digest:
            raise DamagedFileError(
                f"{folder / name} is damaged: its SHA-256 is not the one in {path.name}"
            )


def shard_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the sharded tensors of the state at `path`, put together.

    Raises DamagedFileError where a part of one is missing.
    """
    folder, digests = shard_digests(path)
    if folder is None:
        return {}
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    for name in digests:
        tensor_shapes(folder / name)  # whose head has a bound
    try:
        about_all = HuggingFaceStorageReader(str(folder)).read_metadata()
    except NOT_SHARDS:
        raise DamagedFileError(f"{folder} is damaged: it does not say what its parts are") from None
    found: dict[str, Any] = about_all.state_dict_metadata
    for tensor, about in found.items():
        is_below = any(offset < 0 for chunk in about.chunks for offset in chunk.offsets)
        if is_below or sum(prod(chunk.sizes) for chunk in about.chunks) != prod(about.size):
            raise DamagedFileError(f"{folder} is damaged: it lacks a part of {tensor}")
    return {tensor: tuple(about.size) for tensor, about in found.items()}


def shards_of(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors as those of `like` are: whole, or this process's shard of them."""
    return {name: _shard_of(tensors[name], tensor) for name, tensor in like.items()}


def _shard_of(tensor: Tensor, like: Any) -> Tensor:
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements
    return distribute_tensor(tensor.to(like.device), mesh, placements, src_data_rank=None)


def load_shards(path: Path, tensors: Mapping[str, Tensor], model: Transformer) -> dict[str, Tensor]:
    """Weights and moments of a state as `model` has its own, whole or sharded.

    They lie in `tensors`, or in the shards of any number of processes beside the state at `path`.
    """
    like = {
        f"{prefix}.{name}": parameter.detach()
        for name, parameter in model.named_parameters()
        for prefix in ("model", "adam.exp_avg", "adam.exp_avg_sq")
    }
    folder, _ = shard_digests(path)
    if folder is None:
        return shards_of(tensors, like)
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    found = {name: torch.empty_like(parameter) for name, parameter in like.items()}
    with _some_group():
        try:
            load(found, storage_reader=HuggingFaceStorageReader(str(folder)))
        except CheckpointException:
            raise DamagedFileError(f"{folder} is damaged: its parts make no tensors") from None
    return found


@contextmanager
def _some_group() -> Iterator[None]:
    """A group of this process alone where it has none: a distributed checkpoint wants one."""
    if dist.is_initialized():
        yield
        return
    make_group("gloo", dist.HashStore())  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dist.destroy_process_group()
