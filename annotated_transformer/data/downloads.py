"""Files of corpora: from a directory of the user's, from the cache, or else from the web.

pooch was tried for this. It checks the digest of what is downloaded, but the digests known here are
those of unpacked files, since a host may pack them anew; and it sets no bound on what a host sends.

Every download is announced on standard error. A file is used and kept only if its SHA-256 is the
one expected, and it is written atomically. Without a network the error says where to put the file.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO

import platformdirs

from annotated_transformer.errors import ConfigError, require, say
from annotated_transformer.files import write_bytes

DATA_VARIABLE = "ANNOTATED_TRANSFORMER_DATA"
CACHE_VARIABLE = "ANNOTATED_TRANSFORMER_CACHE"
MAX_FILE_BYTES = 2**28  # four times the largest file that a corpus needs
MAX_ARCHIVE_BYTES = 2**29  # of an unpacked archive, up to the member that is wanted
IN_MEMORY_BYTES = 2**24  # a larger download goes to a temporary file
NOT_GZIP = OSError, EOFError, zlib.error
# In this order: no zip file; no such member; it is encrypted; Python lacks its compression.
NOT_ZIP = zipfile.BadZipFile, KeyError, RuntimeError, NotImplementedError


def cache_directory() -> Path:
    """The directory that ANNOTATED_TRANSFORMER_CACHE names, or the user's own cache directory.

    Raises ConfigError for a user without a home directory, as in some containers.
    """
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    try:
        return Path(platformdirs.user_cache_dir("annotated_transformer", appauthor=False))
    except RuntimeError as error:
        advice = f"name a directory in {CACHE_VARIABLE}"
        raise ConfigError(f"there is no place for downloads ({error}): {advice}") from None


def find(file_names: Iterable[str], directories: Iterable[Path], folder: str) -> Path | None:
    """The first file that exists, in `folder` of each directory and in the directory itself."""
    for directory in directories:
        for place in (directory / folder, directory):
            for name in file_names:
                if (place / name).is_file():
                    return place / name
    return None


def download(url: str, path: Path, sha256: str, member: str = "") -> Path:
    """Fetch a .gz file, or one `member` of a .zip, and keep its content at `path`, a .gz file.

    `sha256` is the digest of the unpacked content.
    """
    say(f"downloading {url}")
    name = f"{member} of {url}" if member else url
    with fetch(url, path.name) as packed:
        try:
            with _unpacked(packed, member) as file, spooled(_chunks(file), name) as content:
                verify(name, hashlib.file_digest(content, "sha256").hexdigest(), sha256)
                content.seek(0)
                return store(path, content.read())
        except (*NOT_GZIP, *NOT_ZIP) as error:
            raise cannot_download(name, error, path.name) from None


def _unpacked(packed: IO[bytes], member: str) -> IO[bytes] | gzip.GzipFile:
    if member:
        return zipfile.ZipFile(packed).open(member)
    return gzip.GzipFile(fileobj=packed, mode="rb")


def _chunks(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    return iter(partial(file.read, 2**16), b"")


def store(path: Path, content: bytes) -> Path:
    """Write the content to a .gz file of the cache, atomically."""
    packed = gzip.compress(content, mtime=0)  # without a time, the same content is the same file
    try:
        write_bytes(path, packed)
    except OSError as error:
        advice = f"{CACHE_VARIABLE} can name another place"
        raise ConfigError(f"cannot write {path} ({error.strerror}); {advice}") from None
    return path


def archive_member(archive: IO[bytes], name: str, member: str) -> bytes:
    """One file of a .tar.gz, in memory: nothing is written, and no link is followed.

    Raises ConfigError, with the `name` of the archive, where it has no such file, or unpacks to
    more than `MAX_ARCHIVE_BYTES` before it.
    """
    try:
        with gzip.open(archive) as file, tarfile.open(fileobj=file, mode="r|") as entries:
            for entry in entries:
                is_small = entry.offset_data + entry.size <= MAX_ARCHIVE_BYTES
                require(is_small, f"{name} unpacks to more than {MAX_ARCHIVE_BYTES:,} bytes")
                if entry.name == member:
                    content = entries.extractfile(entry) if entry.isreg() else None
                    require(content is not None, f"{member} of {name} is not an ordinary file")
                    return content.read()  # type: ignore[union-attr]
    except (tarfile.TarError, *NOT_GZIP) as error:
        raise ConfigError(f"{name} is a damaged archive: {error}") from None
    raise ConfigError(f"{name} has no file {member}")


def fetch(url: str, file: str) -> SpooledTemporaryFile[bytes]:
    """What is at a web address, at most `MAX_FILE_BYTES`, as a temporary file.

    Raises ConfigError, which says where to put `file` instead.
    """
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return spooled(_chunks(response), url)
    except (OSError, http.client.HTTPException) as error:
        raise cannot_download(url, error, file) from None


def spooled(chunks: Iterable[bytes], name: str) -> SpooledTemporaryFile[bytes]:
    """A temporary file of the chunks, in memory as long as it is small.

    Raises ConfigError as soon as there are more than `MAX_FILE_BYTES`.
    """
    content = SpooledTemporaryFile[bytes](IN_MEMORY_BYTES)
    for chunk in chunks:
        content.write(chunk)
        require(content.tell() <= MAX_FILE_BYTES, f"{name} has more than {MAX_FILE_BYTES:,} bytes")
    content.seek(0)
    return content


def cannot_download(what: str, error: object, file: str) -> ConfigError:
    """The error that says where to put `file` instead."""
    return ConfigError(
        f"cannot download {what} ({error}); without a network, put {file} into a directory "
        f"and name the directory in {DATA_VARIABLE}"
    )


def verify(path: str | os.PathLike[str], sha256: str, expected: str) -> None:
    """Raise ConfigError unless the digest of a file is the one expected."""
    found = f"{path} has SHA-256 {sha256[:16]}..., expected {expected[:16]}..."
    require(sha256 == expected, f"{found}: it is damaged, or of another edition")
