"""A source archive from the index that pip asks, as a file: nothing of it is executed.

unearth finds the archive. This module adds what unearth lacks: it reads pip's settings, asks the
next index if one cannot be reached, and bounds a download. pip itself would execute the archive's
setup.py, to learn a name and a version that are known.
"""

from __future__ import annotations

import ast
import logging.handlers
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

from annotated_transformer.data.downloads import cannot_download, spooled
from annotated_transformer.errors import say

PYPI = "https://pypi.org/simple"
BAD_PAGE = OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError
REFUSALS = logging.handlers.BufferingHandler(capacity=1000)
"""The warnings that unearth logs when an index answers with an error; it then goes on."""


def fetch_sdist(archive: str) -> SpooledTemporaryFile[bytes]:
    """The source archive of this name, as a temporary file. Its content is not yet verified.

    Raises ConfigError when no index has it.
    """
    import httpx2
    from unearth import Link, PackageFinder
    from unearth.auth import MultiDomainBasicAuth
    from unearth.fetchers import PyPIClient

    say(f"downloading {archive}")
    REFUSALS.flush()
    logging.getLogger("unearth").addHandler(REFUSALS)  # the last goes into our error
    settings = pip_settings()
    failures = [f"no index has {archive}"]
    context = ssl.create_default_context(cafile=settings.get("cert"))
    trusted = settings.get("trusted-host", "").split()
    client: Any = PyPIClient(
        verify=context, trusted_hosts=trusted, timeout=30, follow_redirects=True
    )
    with client:
        client.auth = MultiDomainBasicAuth(prompting=False)
        # One finder for each place: where one cannot be reached, the next may have the archive.
        for indexes, links in _places(settings):
            # The archive is not to be installed, so it need not fit this Python.
            finder = PackageFinder(
                client, index_urls=indexes, find_links=links, ignore_compatibility=True
            )
            try:
                for package in finder.find_all_packages(archive.rpartition("-")[0], True):
                    if package.link.filename == archive:
                        with client.get_stream(package.link.normalized) as response:
                            response.raise_for_status()
                            return spooled(response.iter_bytes(2**16), package.link.redacted)
            except (httpx2.HTTPError, httpx2.InvalidURL, *BAD_PAGE) as error:
                failures.append(f"{Link((indexes or links)[0]).redacted}: {error}")
    refusals = [record.getMessage() for record in REFUSALS.buffer]
    failures += [refusal for refusal in refusals if "(404)" not in refusal]
    raise cannot_download(archive, failures[-1], archive)


def pip_settings() -> dict[str, str]:
    """The settings of pip on this machine by their names, such as "index-url"."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found: dict[str, str] = {}
    for section in ("global", "download", ":env:"):  # the later ones count more, as with pip
        for line in listed.stdout.splitlines():
            name, equals, value = line.partition("=")
            if equals and name.startswith(f"{section}."):
                found[name.removeprefix(f"{section}.")] = str(ast.literal_eval(value))
    for variable, value in os.environ.items():  # once more, for a Python without pip
        if variable.startswith("PIP_"):
            found[variable.removeprefix("PIP_").lower().replace("_", "-")] = value
    return found


def _places(settings: dict[str, str]) -> Iterator[tuple[list[str], list[str]]]:
    """The places that may list the archive, one at a time: an index, or a page of links."""
    for place in settings.get("find-links", "").split():
        # A directory that is not there is passed over, as pip does.
        if "://" in place or Path(place).expanduser().exists():
            yield [], [os.path.expanduser(place)]
    if settings.get("no-index", "").lower() not in ("1", "true", "t", "yes", "y", "on"):  # as pip
        indexes = settings.get("index-url", PYPI), settings.get("extra-index-url", "")
        for index in " ".join(indexes).split():
            yield [index], []
