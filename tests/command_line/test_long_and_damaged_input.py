"""What `translate` does with a stream of which a part is no sentence: it answers the others."""

import gzip
import io
import os

import pytest

from annotated_transformer.command_line import entry_point as cli
from annotated_transformer.data.parallel_text import MAX_LINE_BYTES, decoded_lines
from toys import small_checkpoint


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    small_checkpoint(path)
    return str(path)


def translated(capsys, monkeypatch, directory, content):
    """Exit status, lines of output and messages of `translate` with this standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    options = ["--beam-size", "1", "--max-extra", "2", "--max-source", "9"]
    status = cli.main(["translate", directory, *options])
    out, err = capsys.readouterr()
    return status, out.splitlines(), err


def test_a_line_of_megabytes_is_cut_and_costs_no_other_line(capsys, monkeypatch, directory):
    short = b"tea\ncoffee\n"
    status, alone, _ = translated(capsys, monkeypatch, directory, short)
    assert status == 0
    long = b"x" * 2 * MAX_LINE_BYTES + b"\n"
    status, lines, said = translated(capsys, monkeypatch, directory, b"tea\n" + long + b"coffee")
    assert status == 0 and len(lines) == 3
    assert [lines[0], lines[2]] == alone
    assert "standard input, line 2 has more than 1,048,576 bytes: it is cut there" in said


def test_what_comes_before_a_damaged_end_is_answered_first(capsys, monkeypatch, directory):
    """A window holds up to 512 lines; the error is told after they have been translated."""
    noise = os.urandom(99_999).hex().encode()  # which gzip does not shrink to nothing
    packed = gzip.compress(b"tea\ncoffee\n" + noise)
    status, lines, said = translated(capsys, monkeypatch, directory, packed[: len(packed) // 2])
    assert status == 2 and len(lines) == 2
    assert said.endswith("error: standard input is a damaged gzip file\n")


@pytest.mark.parametrize("shift", range(4))
def test_a_line_is_cut_between_characters_and_once(capsys, shift):
    """Of one byte, and then of four; the rest of the line is no line, however long it is."""
    text = "x" * shift + "😀" * (MAX_LINE_BYTES // 4) * 3
    source = io.BytesIO(f"one\n{text}\ntwo\n".encode())
    one, cut, two = decoded_lines(source, "in", strict=False)
    assert (one, two) == ("one", "two") and text.startswith(cut)
    assert MAX_LINE_BYTES - 4 < len(cut.encode()) <= MAX_LINE_BYTES
    assert capsys.readouterr().err.count("\n") == 1
