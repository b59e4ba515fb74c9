"""A package's source archive, as a file, from the index that pip asks: nothing of it is run.

`pip download` would run the archive's setup.py, to learn a name and a version that we know. So the
index is read here (the "simple" pages of PEP 503 and PEP 691), at the address that pip is
configured for, or else on pypi.org.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import html.parser
import http.client
import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from annotated_transformer.errors import ConfigError, require, say
from annotated_transformer.files import write_atomically
from annotated_transformer.text.downloads import DATA_VARIABLE, MOST_BYTES, verify

MOST_PAGE = 2**24  # bytes: the page of a package with thousands of files has some 5 MB
PYPI = "https://pypi.org/simple"
SETTINGS = ("index-url", "extra-index-url", "find-links", "no-index", "cert")
BAD_PAGE = OSError, ValueError, KeyError, TypeError, RecursionError, http.client.HTTPException
ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"


def download_sdist(package: str, archive: str, sha256: str, directory: Path) -> Path:
    """The source archive of `package`, in `directory`.

    Raises ConfigError when no index has it, or another one.
    """
    say(f"downloading {archive}")
    settings, failures = pip_settings(), [f"no index has {archive}"]
    for page in _pages(settings, package):
        try:
            url = _address(page, archive, settings)
            if url is not None:
                return _fetch(url, directory / archive, sha256, settings)
        except ConfigError:
            raise
        except BAD_PAGE as error:
            failures.append(f"{_shown(page)}: {error}")
    raise ConfigError(
        f"cannot download {archive} ({failures[-1]}); without a network, put it into a directory "
        f"and name the directory in {DATA_VARIABLE}"
    )


def pip_settings() -> dict[str, str]:
    """What pip is told on this machine, by the names of `SETTINGS`."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found: dict[str, str] = {}
    for section in ("global", "download", ":env:"):  # the later ones count more
        for line in listed.stdout.splitlines():
            name, equals, value = line.partition("=")
            if equals and name.startswith(f"{section}."):
                found[name.removeprefix(f"{section}.")] = str(ast.literal_eval(value))
    for name in SETTINGS:  # for a Python without pip
        variable = "PIP_" + name.upper().replace("-", "_")
        if variable in os.environ:
            found[name] = os.environ[variable]
    return found


def _pages(settings: dict[str, str], package: str) -> Iterator[str]:
    """The addresses of pages and directories that may list the archive."""
    for place in settings.get("find-links", "").split():
        is_address = urlsplit(place).scheme in ("http", "https", "file")
        yield place if is_address else Path(place).expanduser().absolute().as_uri()
    if settings.get("no-index", "").lower() not in ("1", "true", "yes", "on"):
        for index in (
            settings.get("index-url", PYPI),
            *settings.get("extra-index-url", "").split(),
        ):
            yield f"{index.rstrip('/')}/{package}/"


def _address(page: str, archive: str, settings: dict[str, str]) -> str | None:
    """The address of the archive, if this page or directory has one."""
    if urlsplit(page).scheme == "file":
        path = Path(urllib.request.url2pathname(urlsplit(page).path))
        if (path / archive).is_file():
            return (path / archive).as_uri()
        page = (path / "index.html" if path.is_dir() else path).as_uri()
    try:
        with _open(page, settings) as response:
            is_json = response.headers.get_content_type().endswith("json")
            content = response.read(MOST_PAGE).decode("utf-8")
            moved = response.geturl() != _shown(page)
            base = response.geturl() if moved else page  # a name and password stay with their host
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
    if is_json:
        links = [(file["filename"], file["url"]) for file in json.loads(content)["files"]]
    else:
        links = _Links.of(content)
    return next(
        (urldefrag(urljoin(base, link)).url for name, link in links if name == archive), None
    )


class _Links(html.parser.HTMLParser):
    """The links of a page with the names of the files that they lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        link = dict(attributes).get("href")
        if tag == "a" and link:
            self.found.append((unquote(urlsplit(link).path).rpartition("/")[2], link))

    @classmethod
    def of(cls, page: str) -> list[tuple[str, str]]:
        parser = cls()
        parser.feed(page)
        return parser.found


def _open(url: str, settings: dict[str, str]) -> Any:
    """Ask for `url` as pip would.

    That is with the certificates it is told of, and the name and password in an address.
    """
    parts = urlsplit(url)
    request = urllib.request.Request(_shown(url), headers={"Accept": ACCEPT})
    if parts.username is not None:
        name, password = unquote(parts.username), unquote(parts.password or "")
        token = base64.b64encode(f"{name}:{password}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    is_https = parts.scheme == "https"
    context = ssl.create_default_context(cafile=settings.get("cert")) if is_https else None
    return urllib.request.urlopen(request, timeout=30, context=context)


def _shown(url: str) -> str:
    """The address without a name and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _fetch(url: str, path: Path, sha256: str, settings: dict[str, str]) -> Path:
    """The file at `url`, kept only if its digest is right.

    It is hashed as it comes and may not be too large.
    """
    digest, size = hashlib.sha256(), 0

    def write(temporary: Path) -> None:
        nonlocal size
        with _open(url, settings) as response, temporary.open("wb") as file:
            while chunk := response.read(2**20):
                size += len(chunk)
                require(size <= MOST_BYTES, f"{_shown(url)} is larger than {MOST_BYTES:,} bytes")
                digest.update(chunk)
                file.write(chunk)
        verify(_shown(url), digest.hexdigest(), sha256)

    write_atomically(path, write)
    return path
