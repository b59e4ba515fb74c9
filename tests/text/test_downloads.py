"""What comes from elsewhere is announced, checked before it is used, kept whole, and its absence is one clear line."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys

import pytest
from toys import PEAK

from annotated_transformer.config import ConfigError
from annotated_transformer.text import downloads


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


@pytest.mark.parametrize(("content", "words"), [
    (gzip.compress(b"\0" * 2_000_000), r"text\.gz unpacks to more than 100,000 bytes$"),
    (gzip.compress(b"words\n") + gzip.compress(b"\0" * 2_000_000), r"unpacks to more than 100,000 bytes$"),
    (bytes(100_001), r"text\.gz is larger than 100,000 bytes$"),
], ids=["a bomb", "a second part", "no gzip at all"])
def test_nothing_is_unpacked_or_read_without_end(tmp_path, monkeypatch, content, words):
    monkeypatch.setattr(downloads, "MOST_BYTES", 100_000)
    served = tmp_path / "text.gz"
    served.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        downloads.download(served.as_uri(), tmp_path / "kept" / "text.gz", "0" * 64)
    assert not (tmp_path / "kept").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs the resource module")
def test_what_unpacks_to_a_gigabyte_does_not_take_one(tmp_path):
    """100 kB of gzip for 100 MB of zeros: hashed as they come."""
    served = tmp_path / "text.gz"
    served.write_bytes(gzip.compress(bytes(100_000_000), 9))
    code = (PEAK + "import sys; from annotated_transformer.text import downloads\n"
            "before = peak()\n"
            "try: downloads.download(sys.argv[1], downloads.Path('never'), '0' * 64)\n"
            "except ValueError as error: print(peak() - before, error)")
    command = [sys.executable, "-c", code, served.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kilobytes, _, line = done.stdout.partition(" ")
    assert "has SHA-256" in line
    assert int(kilobytes) < 30_000


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
