"""Files that are whole or not there: written beside their place, and moved when on disk."""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from annotated_transformer.errors import require


def write_atomically(
    path: Path, write: Callable[[Path], object], before: Path | None = None
) -> None:
    """Let `write` fill a temporary file, flush it to disk and move it to `path`.

    That file has a directory to itself, since a library may write a temporary file of its own next
    to the one that it is asked for, as safetensors does. It gets the permissions that the user's
    umask gives any new file. What a killed process of this machine has left of this path is removed
    first. With `before`, what was at `path` until now is kept there; at no moment is there nothing
    at `path`, where the file system knows links.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_left_over(path.parent, re.escape(path.name))
    directory = _temporary(path)
    temporary = directory / path.name
    try:
        _remove(directory)  # a dead process may have had this one's number
        directory.mkdir(exist_ok=True)
        temporary.touch()
        mode = stat.S_IMODE(temporary.stat().st_mode)
        write(temporary)
        flush_to_disk(temporary)
        temporary.chmod(mode)  # safetensors makes files that only their owner can read
        if before is not None and path.exists():
            _keep(path, before)
        temporary.replace(path)
        _flush_directory(path.parent)
    except OSError as error:
        error.filename = error.filename or str(path)  # a library may leave out which
        raise
    finally:
        _remove(directory)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")


def _keep(path: Path, before: Path) -> None:
    """Give the file at `path` the name `before` as well, in place of what has it."""
    second = _temporary(before)
    second.unlink(missing_ok=True)
    try:
        second.hardlink_to(path)
    except OSError:
        path.replace(before)
    else:
        second.replace(before)
        second.unlink(missing_ok=True)  # rename(2) does nothing where both are the same file


def read_bounded(path: Path, most: int) -> bytes:
    """All of an ordinary file.

    Raises ConfigError for a pipe, a device or a directory, which may have no end, and for a file of
    more than `most` bytes, before any is read.
    """
    require_ordinary(path)
    size = path.stat().st_size
    require(size <= most, f"{path} has {size:,} bytes, more than {most:,}")
    with path.open("rb") as file:
        return file.read(most)


def shown(path: Path | str) -> str:
    """A name as text to print: bytes in it that are no UTF-8 become U+FFFD."""
    return os.fsencode(path).decode(errors="replace")


def require_ordinary(path: Path) -> None:
    """Raise FileNotFoundError where there is nothing, ConfigError for what is no ordinary file."""
    require(stat.S_ISREG(path.stat().st_mode), f"{path} is not an ordinary file")


def flush_to_disk(path: Path) -> None:
    """What was written to the file survives a power cut from now on."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def remove_left_over(directory: Path, names: str) -> None:
    """Remove the temporary files that killed processes of this machine have left in `directory`.

    `names` is the regular expression of the files that they were to become.
    """
    pattern = rf"\.(?:{names})\.(?:(.*)\.)?(\d+)"
    for path in directory.glob(".*"):
        match = re.fullmatch(pattern, path.name)
        if match and match[1] in (None, platform.node()) and not _is_alive(int(match[2])):
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a temporary directory with what is in it, or a file, as earlier versions made it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # another process may be at it
    else:
        path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    """Whether a process has this number; True where that cannot be asked."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _flush_directory(directory: Path) -> None:
    """Make a move within `directory` survive a power cut, where a directory can be flushed."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
