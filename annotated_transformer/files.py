"""Files that are whole or not there: written beside their place, and moved when on disk."""

from __future__ import annotations

import os
import platform
import re
import stat
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, flush it to disk and move it to `path`.

    The file gets the permissions that the user's umask gives any new file. Temporary files of this
    path that a killed process of this machine has left are removed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for orphan in temporaries(path.parent, re.escape(path.name)):
        orphan.unlink(missing_ok=True)
    temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")
    try:
        temporary.touch()
        mode = stat.S_IMODE(temporary.stat().st_mode)
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(mode)  # safetensors makes files that only their owner can read
        temporary.replace(path)
        _flush_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def temporaries(directory: Path, names: str) -> list[Path]:
    """The temporary files that killed processes of this machine have left in `directory`.

    `names` is the regular expression of the files that they were to become.
    """
    pattern, found = rf"\.(?:{names})\.(?:(.*)\.)?(\d+)", []
    for path in directory.glob(".*"):
        match = re.fullmatch(pattern, path.name)
        if match and match[1] in (None, platform.node()) and not _is_alive(int(match[2])):
            found.append(path)
    return found


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
