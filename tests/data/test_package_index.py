"""A source archive comes from the index that pip is told of, as a file: bounded, and never run."""

import base64
import http.server
import json
import os
import threading

import pytest

from annotated_transformer.data import downloads, package_index
from annotated_transformer.data.package_index import fetch_sdist
from annotated_transformer.errors import ConfigError
from toys import tar_of

pytestmark = pytest.mark.slow
ARCHIVE = "tiny-1.0.tar.gz"
SETUP = b"import os, pathlib; pathlib.Path(os.environ['SEEN']).write_text('ran')"
JSON = "application/vnd.pypi.simple.v1+json"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    """pip as it comes: nothing of this machine's own settings is seen."""
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))


@pytest.fixture
def files(tmp_path):
    """A directory with a source archive whose setup.py would leave a trace."""
    (tmp_path / "files").mkdir()
    tar_of(tmp_path / "files" / ARCHIVE, {"tiny-1.0/setup.py": SETUP})
    return tmp_path / "files"


class Index(http.server.BaseHTTPRequestHandler):
    """An index as PEP 503 (HTML) or PEP 691 (JSON) has it, with the files in a folder beside it."""

    def do_GET(self):
        server, names = self.server, ("tiny-0.9.tar.gz", ARCHIVE)
        server.seen.append((self.headers["Host"], self.path, self.headers["Authorization"]))
        token = base64.b64encode(f"me:{server.password}".encode()).decode()
        if server.password and self.headers["Authorization"] != f"Basic {token}":
            self.answer(401)
        elif self.path.startswith("/files/"):
            self.answer(200, (server.files / ARCHIVE).read_bytes())
        elif self.path == "/moved/tiny/":
            self.answer(302, location=f"http://localhost:{server.server_port}/simple/tiny/")
        elif self.path != "/simple/tiny/":
            self.answer(404)
        elif server.form == "broken":
            self.answer(200, b'{"files": 3}', JSON)
        elif server.form == "json":
            listed = [{"filename": name, "url": f"/files/x/{name}"} for name in names]
            self.answer(200, json.dumps({"files": listed}).encode(), JSON)
        else:
            links = (f'<a href="../../files/{name}#sha256=00">{name}</a>' for name in names)
            self.answer(200, "".join(links).encode())

    def answer(self, status, content=b"", kind="text/html", location=None):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Nothing on standard error, which a test reads."""


@pytest.fixture
def index(files):
    """An index on this machine."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        server.form, server.password, server.files, server.seen = "html", "", files, []
        server.host = f"127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def is_found(files):
    with fetch_sdist(ARCHIVE) as archive:
        return archive.read() == (files / ARCHIVE).read_bytes()


@pytest.mark.parametrize("form", ["html", "json"])
def test_the_archive_comes_from_the_default_index_and_nothing_of_it_is_run(
    form, index, files, tmp_path, monkeypatch, capsys
):
    assert package_index.PYPI == "https://pypi.org/simple"
    monkeypatch.setattr(package_index, "PYPI", f"http://{index.host}/simple")
    index.form = form
    assert is_found(files)
    assert [path for _, path, _ in index.seen][0] == "/simple/tiny/" and len(index.seen) == 2
    assert not (tmp_path / "seen").exists()
    assert capsys.readouterr() == ("", f"annotated-transformer: downloading {ARCHIVE}\n")


@pytest.mark.parametrize("how", ["variable", "file", "extra", "without pip", "moved"])
def test_the_index_is_the_one_that_pip_is_told_of(how, index, files, tmp_path, monkeypatch):
    nobody = "http://127.0.0.1:1/simple"  # where nobody listens
    monkeypatch.setattr(package_index, "PYPI", nobody)
    (tmp_path / "pip.conf").write_text(
        f"[global]\nindex-url = {f'http://{index.host}/simple/' if how == 'file' else nobody}\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    if how == "extra":
        both = f"http://{index.host}/empty http://{index.host}/simple"
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", both)
    elif how != "file":
        folder = "moved" if how == "moved" else "simple"
        monkeypatch.setenv("PIP_INDEX_URL", f"http://{index.host}/{folder}")
    if how == "without pip":
        (tmp_path / "pip.py").write_text("raise ModuleNotFoundError('No module named pip')")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert is_found(files)


def test_a_directory_of_files_or_an_index_of_files_will_do(files, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for place in (str(files), files.as_uri()):
        monkeypatch.setenv("PIP_FIND_LINKS", f"/nowhere {place}")
        assert is_found(files)
    page = tmp_path / "simple" / "tiny" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../files/{ARCHIVE}">{ARCHIVE}</a>')
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    assert is_found(files)


def test_a_name_and_password_go_to_their_host_and_are_not_shown(index, files, monkeypatch):
    index.password = "s%cret"
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:s%25cret@{index.host}/simple")
    assert is_found(files)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:wr0ng@{index.host}/simple")
    with pytest.raises(ConfigError, match=r"Client Error\(401\)") as caught:
        fetch_sdist(ARCHIVE)
    assert index.host in str(caught.value) and "wr0ng" not in str(caught.value)
    index.seen.clear()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:s%25cret@{index.host}/moved")
    with pytest.raises(ConfigError, match=r"Client Error\(401\)"):
        fetch_sdist(ARCHIVE)
    assert {token for host, _, token in index.seen if host.startswith("localhost")} == {None}


def test_an_archive_without_end_is_not_read_to_it(index, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", f"http://{index.host}/simple")
    monkeypatch.setattr(downloads, "MAX_FILE_BYTES", 100)
    with pytest.raises(ConfigError, match=r"tiny-1\.0\.tar\.gz has more than 100 bytes"):
        fetch_sdist(ARCHIVE)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("http://{host}/empty", r"no index has tiny-1\.0\.tar\.gz"),
        ("http://127.0.0.1:1/simple", r"http://127\.0\.0\.1:1/simple: .*refused"),
        ("http://{host}/simple", r"http://.*/simple: 'int' object is not iterable"),
        ("address", "address: Invalid find link"),
    ],
)
def test_what_no_index_has_is_one_line(place, reason, index, monkeypatch, capsys):
    index.form = "broken"
    monkeypatch.setenv("PIP_INDEX_URL", place.format(host=index.host))
    with pytest.raises(ConfigError) as caught:
        fetch_sdist(ARCHIVE)
    assert "\n" not in str(caught.value)
    assert caught.match(
        rf"^cannot download tiny-1\.0\.tar\.gz \({reason}.*\); without a network, put "
        r"tiny-1\.0\.tar\.gz into a directory and name the directory in ANNOTATED_TRANSFORMER_DATA$"
    )
    assert capsys.readouterr().err.count("\n") == 1
