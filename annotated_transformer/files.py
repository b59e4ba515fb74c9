"""Files that are complete or absent: written beside their place, and moved there once on disk."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from annotated_transformer.errors import ConfigError, require


def write_bytes(path: Path, content: bytes) -> None:
    """`write_atomically` for bytes."""
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def write_text(path: Path, text: str) -> None:
    """`write_atomically` for text: in UTF-8 with LF line ends, on any system."""
    write_bytes(path, text.encode("utf-8"))


def write_atomically(
    path: Path, write: Callable[[Path], object], before: Path | None = None
) -> None:
    """Let `write` fill a temporary file, flush it to disk and move it to `path`.

    The temporary file has a directory to itself, since a library may write a temporary file of its
    own next to the one that it is asked for, as safetensors does. The new file gets the permissions
    that the user's umask gives any new file. What killed processes of this machine left of this
    path is removed first. With `before`, the previous file at `path` is kept there; where the file
    system supports links, there is a file at `path` at every moment.
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


def require_room(directory: Path, names: Iterable[str]) -> None:
    """Raise ConfigError unless new files of these names can be written into `directory`."""
    for path in (directory / name for name in names):
        require(not path.exists(), f"{path} would be overwritten: name another directory")
        require_writable(path)


def require_writable(path: Path) -> None:
    """Raise ConfigError unless a file can be written at `path`. Ask before the work for it."""
    require(not path.is_dir(), f"cannot write {path}: it is a directory")
    for link in path.parents:
        is_dangling = link.is_symlink() and not link.exists()
        require(not is_dangling, f"cannot write {path}: {link} is a link to nothing, remove it")
    place = next(place for place in (path, *path.absolute().parents) if place.exists())
    require(place == path or place.is_dir(), f"cannot write {path}: {place} is not a directory")
    require(os.access(place, os.W_OK), f"cannot write {path}: {place} is read-only")


def read_json(path: Path, max_bytes: int) -> dict[str, Any]:
    """The JSON object in an ordinary file, without the byte order mark that some editors write.

    Raises ConfigError for any other content.
    """
    content = read_bounded(path, max_bytes)
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    require(isinstance(value, dict), f"{path} is not a JSON object")
    return dict(value)


def without_folders(names: str) -> str:
    """The names of files without the folders they lie in, for what is published.

    >>> without_folders("/home/alice/acme/train.en ../train.de")
    'train.en train.de'
    """
    return re.sub(r"\S*[/\\]", "", names)


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """All of an ordinary file.

    Raises ConfigError for a pipe, a device or a directory, which may have no end, and for a file of
    more than `max_bytes`, before any is read.
    """
    require_ordinary(path)
    size = path.stat().st_size
    require(size <= max_bytes, f"{path} has {size:,} bytes, more than {max_bytes:,}")
    with path.open("rb") as file:
        return file.read(max_bytes)


def require_ordinary(path: Path) -> None:
    """Raise FileNotFoundError for a path without a file, ConfigError for a pipe, a device, ..."""
    require(stat.S_ISREG(path.stat().st_mode), f"{path} is not an ordinary file")


def flush_to_disk(path: Path) -> None:
    """Make what was written to the file survive a power cut."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def remove_left_over(directory: Path, names: str) -> None:
    """Remove the temporary files that killed processes of this machine have left in `directory`.

    `names` is a regular expression for the names of the files that they were to become.
    """
    pattern = rf"\.(?:{names})\.{re.escape(platform.node())}\.(\d+)"  # as `_temporary` makes it
    for path in directory.glob(".*"):
        match = re.fullmatch(pattern, path.name)
        if match and not _is_alive(int(match[1])):
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a temporary directory and its content, or the second name of a file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # another process may be removing it too
    else:
        path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    """Whether a process has this number; True where the system cannot be asked."""
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
