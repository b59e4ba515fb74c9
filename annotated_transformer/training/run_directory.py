"""The directory of a training run: room for a new run, its lock, and what a killed run left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from annotated_transformer import files
from annotated_transformer.checkpoint.directory import read_config, state_files, step_checkpoints
from annotated_transformer.config import TrainConfig
from annotated_transformer.errors import ConfigError, require
from annotated_transformer.files import remove_left_over
from annotated_transformer.text.shards import MANIFEST
from annotated_transformer.training.distributed.processes import Processes


def require_room(directory: str | Path) -> None:
    """Raise ConfigError unless a new run may begin in `directory`.

    It must hold no run, model, checkpoints or shards, and no other file that a run would overwrite.
    What a run killed in its first save left there does not count.
    """
    path = Path(directory)
    require(
        not state_files(path),
        f"{directory} already holds a run: resume it, or name another directory",
    )
    if not _killed_in_its_first_save(path):
        require(
            not (path / "model.safetensors").exists(),
            f"{directory} already holds a model: name another directory",
        )
        require(
            not step_checkpoints(path),
            f"{path / 'checkpoints'} holds the weights of another run: "
            "remove it, or name another directory",
        )
        files.require_room(path, ("config.json", "tokenizer.model", "log.jsonl"))
    files.require_room(path, [MANIFEST])


def begin_run(directory: str | Path) -> None:
    """`require_room`, then remove what a run killed in its first save left there."""
    require_room(directory)
    path = Path(directory)
    for file in (path / "model.safetensors", path / "log.jsonl", *step_checkpoints(path)):
        file.unlink(missing_ok=True)
    remove_temporaries(path)


@contextmanager
def kept_from_others(directory: Path, processes: Processes) -> Iterator[None]:
    """Keep other runs from training in `directory` inside the block.

    Rank 0 locks a file there; the lock ends with its process, however that ends. Raises ConfigError
    in all processes where another run holds it. Without fcntl, as on Windows, and on a file system
    without locks nobody is kept out.
    """
    with ExitStack() as stack:

        def lock() -> bytes:
            stack.enter_context(_locked(directory))
            return b""

        processes.from_first(lock)
        yield


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:
        yield
        return
    path = directory / ".lock"
    directory.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = _is_at(file, path)  # or its owner removed it at this moment
        except BlockingIOError:
            is_free = False
        except OSError:
            is_free = True  # this file system has no locks
        require(is_free, f"another process trains in {directory}: name another directory")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _is_at(file: IO[bytes], path: Path) -> bool:
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())


def remove_temporaries(directory: str | Path) -> None:
    """Remove the half-written files that killed processes of this machine left in a run."""
    path = Path(directory)
    names = (
        r"config\.json|tokenizer\.model|log\.jsonl|(?:model|training(?:\.previous)?)\.safetensors"
    )
    remove_left_over(path, names)
    remove_left_over(path / "checkpoints", r"step-\d+\.safetensors")


def _killed_in_its_first_save(path: Path) -> bool:
    """Whether `path` holds what a run left that was killed before its first state was written.

    Such a run wrote one checkpoint and perhaps the weights. Exports and averages have an entry in
    config.json that says what they are, and a run that was resumed has a later checkpoint.
    """
    try:
        stored = read_config(path)
        config = TrainConfig.from_dict(stored.get("train"))
    except ConfigError:
        return False
    steps = [int(file.stem.partition("-")[2]) for file in step_checkpoints(path)]
    is_first = len(steps) == 1 and steps[0] <= min(config.checkpoint_every, config.train_steps)
    is_run = not stored.keys() & {"averaged", "dtype"} and not state_files(path)
    return is_run and (is_first or not (steps or (path / "model.safetensors").exists()))
