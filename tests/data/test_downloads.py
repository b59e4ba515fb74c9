"""What comes from elsewhere is announced, checked before it is used, kept whole,
and its absence is one clear line."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sys
import tarfile

import pytest

from annotated_transformer.data import downloads
from annotated_transformer.errors import ConfigError
from toys import tar_of

ZIPPED = gzip.compress(b"words\n", mtime=0)
DIGEST = hashlib.sha256(b"words\n").hexdigest()


def test_web_file_is_checked_and_kept(tmp_path, capsys):
    served, kept = tmp_path / "text.gz", tmp_path / "new" / "folder" / "text.gz"
    served.write_bytes(ZIPPED)
    assert downloads.download(served.as_uri(), kept, DIGEST) == kept
    assert gzip.decompress(kept.read_bytes()) == b"words\n"
    assert [path.name for path in kept.parent.iterdir()] == ["text.gz"]
    assert capsys.readouterr().err == f"annotated-transformer: downloading {served.as_uri()}\n"


BOMB = gzip.compress(b"\0" * 2_000_000, mtime=0)
TOO_MUCH = r"text\.gz has more than 100,000 bytes$"
HEX = "[0-9a-f]{16}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"^cannot download file:.*text\.gz .*No such file.*; without a network, put text\."),
        (b"<html>", r"^cannot download .*Not a gzipped file"),
        (ZIPPED[:-3], r"^cannot download "),
        (gzip.compress(b"other"), rf"text\.gz has SHA-256 {HEX}\.\.\., expected {HEX}"),
        (BOMB, TOO_MUCH),
        (ZIPPED + BOMB, TOO_MUCH),
        (bytes(100_001), TOO_MUCH),
    ],
    ids=["missing", "not gzip", "cut", "other", "a bomb", "a second part", "no gzip at all"],
)
def test_web_file_that_is_missing_or_wrong_is_one_line_and_not_kept(
    tmp_path, monkeypatch, content, words
):
    """Nothing is unpacked or read without end."""
    monkeypatch.setattr(downloads, "MAX_FILE_BYTES", 100_000)
    served = tmp_path / "text.gz"
    if content is not None:
        served.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        downloads.download(served.as_uri(), tmp_path / "kept" / "text.gz", DIGEST)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "kept").exists()


def test_cache_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    words = r"^cannot write .*; ANNOTATED_TRANSFORMER_CACHE can name another place$"
    with pytest.raises(ConfigError, match=words):
        downloads.store(tmp_path / "file" / "text.gz", b"words")


def test_cache_is_where_the_variable_says_or_the_users_own(tmp_path, monkeypatch):
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(tmp_path))
    assert downloads.cache_directory() == tmp_path
    monkeypatch.delenv("ANNOTATED_TRANSFORMER_CACHE")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert downloads.cache_directory() == tmp_path / "xdg" / "annotated_transformer"


@pytest.mark.skipif(sys.platform != "linux", reason="asks a user of Linux without an entry")
def test_a_user_without_a_home_directory_is_told_what_to_name(monkeypatch):
    for variable in ("ANNOTATED_TRANSFORMER_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    words = r"^there is no place .* \(.*\): name a directory in ANNOTATED_TRANSFORMER_CACHE$"
    with pytest.raises(ConfigError, match=words):
        downloads.cache_directory()


def test_first_directory_wins_and_its_folder_before_itself(tmp_path):
    for place in ("a", "a/corpus", "b", "b/corpus"):
        (tmp_path / place).mkdir()
    places = [tmp_path / "a", tmp_path / "b"]
    assert downloads.find(["text", "text.gz"], places, "corpus") is None
    for place in ("b/text", "b/corpus/text.gz", "a/text.gz", "a/corpus/text"):
        (tmp_path / place).write_text("words")
        assert downloads.find(["text", "text.gz"], places, "corpus") == tmp_path / place


# One file of an archive


def test_a_file_of_an_archive_is_read_without_writing_anything(tmp_path):
    path = tmp_path / "archive"
    tar_of(path, {name: name.encode() for name in ("a/b", "a/../a/b", "a/c")})
    with path.open("rb") as file:
        assert downloads.archive_member(file, path.name, "a/c") == b"a/c"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"name": "b"}, "archive has no file a$"),
        ({"type": tarfile.SYMTYPE, "linkname": "/etc/hostname"}, "a .* is not an ordinary file$"),
        ({"type": tarfile.LNKTYPE, "linkname": "first"}, "a of .* is not an ordinary file$"),
        ({"type": tarfile.FIFOTYPE}, "a of .* is not an ordinary file$"),
        ({"type": tarfile.DIRTYPE}, "a of .* is not an ordinary file$"),
        ({"size": 2**40}, "archive unpacks to more than 536,870,912 bytes$"),
        ({"name": "b", "size": 2**40}, "archive unpacks to more than 536,870,912 bytes$"),
        ({"size": 2**20}, "archive is a damaged archive: unexpected end of data$"),
    ],
)
def test_an_archive_of_a_stranger_is_one_line(tmp_path, changes, line):
    entry = tarfile.TarInfo("a")
    for name, value in changes.items():
        setattr(entry, name, value)
    path = tmp_path / "archive"
    tar_of(path, {"first": b"words"})
    content = gzip.decompress(path.read_bytes())[:1024] + entry.tobuf() + bytes(2**14)
    path.write_bytes(gzip.compress(content, mtime=0))
    with path.open("rb") as file, pytest.raises(ConfigError, match=line) as error:
        downloads.archive_member(file, "archive", "a")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content", [b"", b"no archive", gzip.compress(b"words", mtime=0), b"\x1f\x8b\x08"]
)
def test_what_is_no_archive_is_one_line(content):
    with pytest.raises(ConfigError, match="archive is a damaged archive|archive has no file a$"):
        downloads.archive_member(io.BytesIO(content), "archive", "a")
