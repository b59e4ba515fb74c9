"""A source archive comes from the index that pip is told of, as a file: checked,
bounded, and never run."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import io
import json
import os
import tarfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from annotated_transformer.errors import ConfigError
from annotated_transformer.text import package_index
from annotated_transformer.text.package_index import download_sdist

ARCHIVE = "tiny-1.0.tar.gz"
SETUP = "import os, pathlib; pathlib.Path(os.environ['SEEN']).write_text('ran')"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path) -> None:
    """pip as it comes: nothing of this machine's own settings is seen."""
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))


@pytest.fixture
def files(tmp_path) -> Path:
    """A directory with a source archive whose setup.py would leave a trace."""
    (tmp_path / "files").mkdir()
    with tarfile.open(tmp_path / "files" / ARCHIVE, "w:gz") as archive:
        for name, text in (("setup.py", SETUP), ("text", "words\n")):
            member = tarfile.TarInfo(f"tiny-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return tmp_path / "files"


@pytest.fixture
def digest(files) -> str:
    return hashlib.sha256((files / ARCHIVE).read_bytes()).hexdigest()


class Index(http.server.BaseHTTPRequestHandler):
    """An index as PEP 503 (HTML) or PEP 691 (JSON) has it, with the files in a folder beside it."""

    def __init__(
        self, form: str, files: Path, password: str, seen: list[str], *rest: object
    ) -> None:
        self.form, self.files, self.password, self.seen = form, files, password, seen
        super().__init__(*rest)

    def do_GET(self) -> None:
        self.seen.append(self.path)
        token = "Basic " + base64.b64encode(f"me:{self.password}".encode()).decode()
        if self.password and self.headers["Authorization"] != token:
            return self.answer(401, b"", "text/plain")
        if self.path.startswith("/files/"):
            return self.answer(200, (self.files / ARCHIVE).read_bytes(), "application/gzip")
        if self.path != "/simple/tiny/":
            return self.answer(404, b"not here", "text/html")
        if self.form == "json" and "pypi.simple.v1+json" in self.headers["Accept"]:
            listed = [
                {"filename": name, "url": f"/files/x/{name}"}
                for name in ("tiny-0.9.tar.gz", ARCHIVE)
            ]
            return self.answer(
                200, json.dumps({"files": listed}).encode(), "application/vnd.pypi.simple.v1+json"
            )
        page = "".join(
            f'<a href="../../files/{name}#sha256=00" data-x>{name}</a><br>\n'
            for name in ("tiny-0.9.tar.gz", ARCHIVE)
        )
        return self.answer(
            200, f"<!DOCTYPE html><html><body>{page}</body></html>".encode(), "text/html"
        )

    def answer(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing on standard error, which a test reads."""


@pytest.fixture
def serve(files) -> Iterator[object]:
    """Start an index on this machine; its address and what it was asked for."""
    servers = []

    def start(form: str = "html", password: str = "") -> tuple[str, list[str]]:
        seen: list[str] = []
        handler = functools.partial(Index, form, files, password, seen)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"127.0.0.1:{server.server_port}", seen

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["html", "json"])
def test_the_archive_comes_from_the_default_index_and_nothing_of_it_is_run(
    form, serve, digest, tmp_path, monkeypatch, capsys
):
    host, seen = serve(form)
    assert package_index.PYPI == "https://pypi.org/simple"
    monkeypatch.setattr(package_index, "PYPI", f"http://{host}/simple")
    path = download_sdist("tiny", ARCHIVE, digest, tmp_path)
    assert path == tmp_path / ARCHIVE and hashlib.sha256(path.read_bytes()).hexdigest() == digest
    assert seen[0] == "/simple/tiny/" and len(seen) == 2
    assert not (tmp_path / "seen").exists()
    assert capsys.readouterr() == ("", f"annotated-transformer: downloading {ARCHIVE}\n")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["variable", "file", "extra", "without pip"])
def test_the_index_is_the_one_that_pip_is_told_of(how, serve, digest, tmp_path, monkeypatch):
    host, _ = serve()
    monkeypatch.setattr(package_index, "PYPI", "http://127.0.0.1:1/simple")  # where nobody listens
    if how == "file":
        (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = http://{host}/simple/\n")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    else:
        variable = "PIP_EXTRA_INDEX_URL" if how == "extra" else "PIP_INDEX_URL"
        monkeypatch.setenv(
            variable,
            f"http://{host}/empty http://{host}/simple"
            if how == "extra"
            else f"http://{host}/simple",
        )
    if how == "without pip":
        (tmp_path / "pip.py").write_text("raise ModuleNotFoundError('No module named pip')")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert download_sdist("tiny", ARCHIVE, digest, tmp_path).exists()


@pytest.mark.slow
def test_a_directory_that_pip_looks_into_will_do(files, digest, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for place in (str(files), files.as_uri()):
        monkeypatch.setenv("PIP_FIND_LINKS", f"/nowhere {place}")
        download_sdist("tiny", ARCHIVE, digest, tmp_path).unlink()


@pytest.mark.slow
def test_an_index_of_files_will_do(files, digest, tmp_path, monkeypatch):
    page = tmp_path / "simple" / "tiny" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../files/{ARCHIVE}">{ARCHIVE}</a>')
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    assert download_sdist("tiny", ARCHIVE, digest, tmp_path).exists()


@pytest.mark.slow
def test_a_name_and_password_go_to_their_host_and_are_not_shown(
    serve, digest, tmp_path, monkeypatch
):
    host, _ = serve(password="s%cret")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:s%25cret@{host}/simple")
    assert download_sdist("tiny", ARCHIVE, digest, tmp_path).exists()
    with pytest.raises(ConfigError) as caught:
        download_sdist("tiny", ARCHIVE, "0" * 64, tmp_path / "other")
    assert host in str(caught.value) and "cret" not in str(caught.value)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:wr0ng@{host}/simple")
    with pytest.raises(ConfigError, match="HTTP Error 401") as caught:
        download_sdist("tiny", ARCHIVE, digest, tmp_path)
    assert "wr0ng" not in str(caught.value)


def test_a_password_stays_with_its_host(tmp_path, monkeypatch):
    """A page that sends the reader on does not send the password on."""
    sent = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.append(self.headers["Authorization"])
            if len(sent) == 1:
                self.send_response(302)
                self.send_header("Location", f"http://localhost:{self.server.server_port}/moved")
            else:
                self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing on standard error."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://me:secret@127.0.0.1:{server.server_port}/")
        with pytest.raises(ConfigError, match="no index has"):
            download_sdist("tiny", ARCHIVE, "0" * 64, tmp_path)
        server.shutdown()
    assert sent[0] is not None and sent[1:] == [None]


@pytest.mark.slow
def test_another_archive_than_expected_is_not_kept(serve, tmp_path, monkeypatch):
    host, _ = serve()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://{host}/simple")
    with pytest.raises(
        ConfigError, match=r"tiny-1\.0\.tar\.gz has SHA-256 .*, expected 0000000000000000"
    ):
        download_sdist("tiny", ARCHIVE, "0" * 64, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.slow
def test_an_archive_without_end_is_not_read_to_it(serve, files, digest, tmp_path, monkeypatch):
    host, _ = serve()
    (files / ARCHIVE).write_bytes(bytes(5000))
    monkeypatch.setenv("PIP_INDEX_URL", f"http://{host}/simple")
    monkeypatch.setattr(package_index, "MOST_BYTES", 1000)
    with pytest.raises(ConfigError, match=r"is larger than 1,000 bytes$"):
        download_sdist("tiny", ARCHIVE, digest, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("http://{host}/simple", "no index has nothere-1.0.tar.gz"),
        ("http://127.0.0.1:1/simple", r"http://127\.0\.0\.1:1/simple/nothere/: .*refused"),
    ],
)
def test_what_no_index_has_is_one_line(index, reason, serve, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", index.format(host=serve()[0]))
    with pytest.raises(
        ConfigError, match=rf"^cannot download nothere-1\.0\.tar\.gz \({reason}"
    ) as caught:
        download_sdist("nothere", "nothere-1.0.tar.gz", "0" * 64, tmp_path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(
        "without a network, put it into a directory and name the directory in "
        "ANNOTATED_TRANSFORMER_DATA"
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", ["{", '{"files": 3}', '{"files": [{}]}'])
def test_a_page_that_is_none_is_one_line(page, tmp_path, monkeypatch):
    class Response(io.BytesIO):
        def __init__(self) -> None:
            super().__init__(page.encode())
            self.headers = type(
                "Headers", (), {"get_content_type": lambda self: "application/json"}
            )()

        def geturl(self) -> str:
            return "http://x/"

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Response())
    with pytest.raises(ConfigError, match="^cannot download tiny"):
        download_sdist("tiny", ARCHIVE, "0" * 64, tmp_path)


@pytest.mark.slow
def test_a_variable_counts_more_than_a_file_as_with_pip(tmp_path, monkeypatch):
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = http://a/simple\nfind-links = /b /c\ncert = /d\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_CERT", "/e")
    found = package_index.pip_settings()
    assert (found["index-url"], found["find-links"], found["cert"]) == (
        "http://a/simple",
        "/b /c",
        "/e",
    )
