"""Files that come from elsewhere: the cache, a directory to look in first, a web address.

For an archive from an index of packages see `package_index`. Every download is announced on
standard error, has its SHA-256 checked before it is used or kept, and is stored whole or not at
all. Without a network there is one line that says where to put the file instead.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Protocol

import platformdirs

from annotated_transformer.errors import ConfigError, require, say
from annotated_transformer.files import write_atomically

DATA_VARIABLE, CACHE_VARIABLE = "ANNOTATED_TRANSFORMER_DATA", "ANNOTATED_TRANSFORMER_CACHE"
MOST_BYTES = 2**28  # four times the largest file that a corpus needs
MOST_UNPACKED = 2**29  # and what an archive with others unpacks to
IN_MEMORY = 2**24  # what is larger lies in a temporary file
UNREADABLE_ZIP = KeyError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error


def cache_directory() -> Path:
    """Where downloads are kept.

    It is what ANNOTATED_TRANSFORMER_CACHE names, or the user's own cache directory.
    """
    return Path(
        os.environ.get(CACHE_VARIABLE)
        or platformdirs.user_cache_dir("annotated_transformer", appauthor=False)
    )


def find(file_names: Iterable[str], directories: Iterable[Path], folder: str) -> Path | None:
    """The first of the files that exists, in `folder` of a directory or in the directory itself."""
    places = (
        place / name
        for directory in directories
        for place in (directory / folder, directory)
        for name in file_names
    )
    return next((path for path in places if path.is_file()), None)


def store(path: Path, content: bytes) -> Path:
    """Write a file of the cache whole or not at all."""
    return _store(path, lambda file: file.write(content))


def download(url: str, path: Path, sha256: str) -> Path:
    """Fetch a .gz file into the cache; `sha256` is the digest of what it unpacks to."""
    say(f"downloading {url}")
    with fetch(url, path.name) as content:
        try:
            with gzip.GzipFile(fileobj=content, mode="rb") as unpacked:
                digest = _digest(unpacked, url)
        except (OSError, EOFError, zlib.error) as error:
            raise ConfigError(_cannot(url, error, path.name)) from None
        verify(url, digest, sha256)
        content.seek(0)
        return _store(path, lambda file: shutil.copyfileobj(content, file))


def download_member(url: str, member: str, path: Path, sha256: str) -> Path:
    """Fetch one file of a .zip into the cache as `path`, a .gz.

    `sha256` is the digest of the file itself.
    """
    say(f"downloading {url}")
    what = f"{member} of {url}"
    with fetch(url, path.name) as archive:
        try:
            with zipfile.ZipFile(archive) as files, files.open(member) as content:
                verify(what, _digest(content, what), sha256)
                content.seek(0)
                return _store(path, lambda file: _compress(content, file))
        except (*UNREADABLE_ZIP, OSError) as error:
            raise ConfigError(_cannot(url, error, path.name)) from None


def archive_member(archive: Path, member: str) -> bytes:
    """One file of a .tar.gz, in memory: nothing is written, and no link is followed.

    Raises ConfigError where the archive has no such file, or unpacks to more than `MOST_UNPACKED`
    before its end.
    """
    try:
        with gzip.open(archive) as file, tarfile.open(fileobj=file, mode="r|") as entries:
            for entry in entries:
                is_small = entry.offset_data + entry.size <= MOST_UNPACKED
                require(is_small, f"{archive} unpacks to more than {MOST_UNPACKED:,} bytes")
                if entry.name == member:
                    content = entries.extractfile(entry) if entry.isreg() else None
                    require(content is not None, f"{member} of {archive} is not an ordinary file")
                    return content.read()  # type: ignore[union-attr]
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ConfigError(f"{archive} is a damaged archive: {error}") from None
    raise ConfigError(f"{archive} has no file {member}")


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _digest(file: _Readable, what: str) -> str:
    """SHA-256 of what a file unpacks to, hashed as it comes and of at most `MOST_BYTES`."""
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(2**20):
        digest.update(chunk)
        size += len(chunk)
        require(size <= MOST_BYTES, f"{what} unpacks to more than {MOST_BYTES:,} bytes")
    return digest.hexdigest()


def _compress(content: IO[bytes], file: IO[bytes]) -> None:
    with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
        shutil.copyfileobj(content, packed)


def _store(path: Path, write: Callable[[IO[bytes]], object]) -> Path:
    """Write a file of the cache whole or not at all."""

    def fill(temporary: Path) -> None:
        with temporary.open("wb") as file:
            write(file)

    try:
        write_atomically(path, fill)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path} ({error.strerror}); {CACHE_VARIABLE} can name another place"
        ) from None
    return path


def fetch(url: str, file: str) -> IO[bytes]:
    """What a web address gives, of at most `MOST_BYTES`, in a temporary file.

    Raises ConfigError, which says where to put `file` instead.
    """
    content: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115
    size = 0
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            while chunk := response.read(2**16):
                size += len(chunk)
                require(size <= MOST_BYTES, f"{url} is larger than {MOST_BYTES:,} bytes")
                content.write(chunk)
    except (OSError, http.client.HTTPException) as error:
        raise ConfigError(_cannot(url, error, file)) from None
    content.seek(0)
    return content


def _cannot(what: str, error: object, file: str) -> str:
    return (
        f"cannot download {what} ({error}); without a network, put {file} into a directory "
        f"and name the directory in {DATA_VARIABLE}"
    )


def verify(path: str | os.PathLike[str], digest: str, expected: str) -> None:
    """Raise ConfigError unless the SHA-256 `digest`, in hexadecimal, is the one expected."""
    require(
        digest == expected,
        f"{path} has SHA-256 {digest[:16]}..., expected {expected[:16]}...: "
        "it is damaged, or of another edition",
    )
