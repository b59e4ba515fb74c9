"""Two files stay parallel whatever their lines hold, and splits share no sentence."""

from __future__ import annotations

import bz2
import gzip
import inspect
import itertools
import lzma
import os
import random
import re
import threading
import time

import pytest

from annotated_transformer.data import parallel_text
from annotated_transformer.data.batching import encode_pairs
from annotated_transformer.data.parallel_text import (
    BOMB_BYTES,
    MAX_LINE_BYTES,
    PairsSHA256,
    fold,
    load_files,
    pairs_sha256,
    read_lines,
    sample,
    split_by_group,
    stream_files,
    stream_lines,
)
from annotated_transformer.decoding.evaluation import scorable
from annotated_transformer.errors import ConfigError
from toys import toy_run_config, toy_tokenizer

ODD = ["a\u2028b", "c\x0b\x0cd\x85e", "f\x1cg\x1dh\x1ei", "j\rk", "", "\x00", "l\u2029", " m "]

ZIPPED = gzip.compress(b"1\n" * 99, mtime=0)


def write(path, content):
    content = content.encode("utf-8") if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["text", "text.gz"])
@pytest.mark.parametrize("end", ["\n", ""])
def test_only_line_feeds_end_lines(tmp_path, name, end):
    assert read_lines(write(tmp_path / name, "\n".join(ODD) + end)) == ODD


def test_windows_line_ends_and_byte_order_mark_are_no_text(tmp_path):
    path = tmp_path / "text"
    assert read_lines(write(path, b"\xef\xbb\xbfone\r\ntwo\r\n")) == ["one", "two"]
    assert list(stream_lines(write(path, b"\xef\xbb\xbf"))) == []
    assert list(stream_lines(write(path, b"\xef\xbb\xbf\n"))) == [""]


def test_a_mark_before_any_line_is_no_text_and_within_one_it_is(tmp_path):
    """As in `cat` of two files of Windows."""
    content = "\ufeffone\n\ufefftw\ufeffo\n"
    assert read_lines(write(tmp_path / "text", content)) == ["one", "tw\ufeffo"]
    assert read_lines(write(tmp_path / "text.gz", content)) == ["one", "tw\ufeffo"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.parametrize("form", ["plain", "gzip", "a byte at a time"])
def test_a_pipe_is_read_as_a_file_is(tmp_path, form):
    """As in --train <(zcat a.gz) <(zcat b.gz)."""
    os.mkfifo(tmp_path / "pipe")
    written = gzip.compress(b"one\ntwo\n") if form == "gzip" else b"one\ntwo\n"
    size = 1 if form == "a byte at a time" else len(written)

    def feed():
        with open(tmp_path / "pipe", "wb", buffering=0) as pipe:
            for i in range(0, len(written), size):
                pipe.write(written[i : i + size])
                time.sleep(0.01)

    writer = threading.Thread(target=feed, daemon=True)
    writer.start()
    assert read_lines(tmp_path / "pipe") == ["one", "two"]
    writer.join(10)


@pytest.mark.parametrize("name", ["text", "text.gz"])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_without_end_is_named_and_the_longest_is_read(tmp_path, name, end):
    longest = b"x" * (MAX_LINE_BYTES - len(end)) + end
    assert list(map(len, read_lines(write(tmp_path / name, longest)))) == [longest.count(b"x")]
    path = write(tmp_path / name, b"one\nx" + longest)
    words = r"text.*, line 2 has more than 1,048,576 bytes: text has one sentence a line$"
    with pytest.raises(ConfigError, match=words):
        read_lines(path)


def test_gzip_is_known_by_its_first_bytes(tmp_path):
    """A file that lost or gained its .gz on the way is read all the same."""
    (tmp_path / "zipped").write_bytes(gzip.compress(b"one\n"))
    (tmp_path / "plain.gz").write_bytes(b"one\n")
    assert read_lines(tmp_path / "zipped") == read_lines(tmp_path / "plain.gz") == ["one"]


def test_own_files_give_pairs(tmp_path):
    source = write(tmp_path / "mine.en", "a house\na tree\n")
    target = write(tmp_path / "mine.de.gz", "ein Haus\nein Baum\n")
    assert load_files(str(source), target) == [("a house", "ein Haus"), ("a tree", "ein Baum")]


def test_pairs_with_a_blank_side_are_left_out_aloud(tmp_path, capsys):
    source = write(tmp_path / "mine.en", "a house\n\na tree\nthe sea\n\u200b\u2060 \n")
    target = write(tmp_path / "mine.de", "ein Haus\nein Hund\n \t\ndas Meer\nnichts\n")
    assert load_files(source, target) == [("a house", "ein Haus"), ("the sea", "das Meer")]
    printed = capsys.readouterr()
    assert printed.out == "" and "3 of 5 pairs" in printed.err


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("1\n2\n3\n", "1\n2\n", r"equally many lines, got 3 in .*mine\.en and 2 in .*mine\.de$"),
        ("", "1\n", r"mine\.en is empty$"),
        ("1\n", "", r"mine\.de is empty$"),
        ("\n", "1\n", "no pair with a sentence on both sides"),
        ("1\n", b"Stra\xdfe\n", r"de, line 1: byte 0xdf is not UTF-8; perhaps it is Latin-1$"),
        (b"1\n2\n\xff\xfe3\n", "1\n2\n3\n", r"en, line 3: byte 0xff is not UTF-8; perhaps"),
        ("Straße".encode("utf-16"), "1\n", r"mine\.en is not UTF-8 text: it looks like UTF-16$"),
        ("Straße\n".encode("utf-16-le"), "1\n", r"mine\.en is not .*: it looks like UTF-16$"),
        ("Straße\n".encode("utf-16-be"), "1\n", r"mine\.en is not .*: it looks like UTF-16$"),
        (bz2.compress(b"1\n"), "1\n", r"mine\.en is not UTF-8 text: it looks like bzip2$"),
        (lzma.compress(b"1\n"), "1\n", r"mine\.en is not UTF-8 text: it looks like xz$"),
        ("1\n", b"one\rtwo\r", r"mine\.de has lines that end in CR alone, as on old Macs: make"),
        ("1\n", b"one\r" * 10**6, r"mine\.de has lines that end in CR alone"),
        (b"\x1f\x8bnonsense", "1\n", r"mine\.en is a damaged gzip file$"),
        (ZIPPED[:-9], "1\n", r"mine\.en is a damaged gzip file$"),
        (ZIPPED[:-5] + b"abcde", "1\n", r"mine\.en is a damaged gzip file$"),
        (ZIPPED[:10] + b"\xff" * 20, "1\n", r"mine\.en is a damaged gzip file$"),
    ],
    ids=[
        "unequal", "first empty", "second empty", "blank", "Latin-1", "third line", "UTF-16",
        "UTF-16LE", "UTF-16BE", "bzip2", "xz", "CR", "many CR", "not gzip", "cut", "wrong sum",
        "wrong body",
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_one_line(tmp_path, source, target, words):
    with pytest.raises(ConfigError, match=words) as caught:
        load_files(write(tmp_path / "mine.en", source), write(tmp_path / "mine.de", target))
    assert "\n" not in str(caught.value)


def test_missing_file_and_directory_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"^cannot read .*missing: No such file"):
        read_lines(tmp_path / "missing")
    with pytest.raises(ConfigError, match=r"^cannot read .*: Is a directory"):
        read_lines(tmp_path)


def random_pairs(seed):
    """Sparse enough that there are both many groups and some long chains."""
    rng = random.Random(seed)
    return [(f"s{rng.randrange(150)}", f"t{rng.randrange(150)}") for _ in range(120)]


def connected(pairs):
    """Brute force: merge any two groups that share a sentence on a side
    until there are no such two."""
    groups = []
    for pair in pairs:
        shared = [g for g in groups if any(pair[0] == s or pair[1] == t for s, t in g)]
        groups = [g for g in groups if g not in shared] + [{pair}.union(*shared)]
    return groups


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_never_divided(seed):
    pairs = random_pairs(seed)
    splits = split_by_group(pairs, n_held_out=20)
    assert sorted(sum(splits.values(), [])) == sorted(set(pairs))
    groups = connected(pairs)
    assert max(map(len, groups)) > 2
    for group in groups:
        assert sum(bool(group & set(split)) for split in splits.values()) == 1
    assert [len(splits[name]) for name in ("valid", "test")] == [20, 20]


def test_splits_do_not_depend_on_the_order_of_pairs():
    pairs = random_pairs(7)
    shuffled = random.Random(1).sample(pairs, len(pairs))
    for name, split in split_by_group(pairs, n_held_out=20).items():
        again = split_by_group(shuffled, n_held_out=20)[name]
        assert sorted(split) == sorted(again)
        assert split == [pair for pair in dict.fromkeys(pairs) if pair in split]
        assert again == [pair for pair in dict.fromkeys(shuffled) if pair in again]


@pytest.mark.slow
def test_case_punctuation_and_spaces_make_no_new_sentence():
    sources = ["Don't go!", "dont go", "DON’T  GO …", "Straße", "strasse?", "Привет!", "привет"]
    sources += ["你好。", "你好", "x", "y", "?!", "?", "再见"]
    targets = [*map(str, range(9)), "GO", "„Go“", "9", "10", "11"]
    alike = list(zip(sources, targets, strict=True))
    filler = [(f"other {number}", f"anderes {number}") for number in range(40)]
    differs = []
    for n_held_out in range(1, 20):
        splits = split_by_group(alike + filler, n_held_out)
        where = {pair: name for name, split in splits.items() for pair in split}
        home = [where[pair] for pair in alike]
        assert len(set(home[:3])) == 1
        for i in (3, 5, 7, 9):
            assert home[i] == home[i + 1], sources[i]
        differs.append(home[11] != home[12])
    # Signs alone fold to nothing, which is no sentence to share.
    assert any(differs)
    assert len(set(map(fold, sources))) == 9


def test_training_split_takes_what_is_left():
    splits = split_by_group([("a", "b"), ("a", "b"), ("a", "c")], n_held_out=1)
    assert splits == {"train": [("a", "b"), ("a", "c")], "valid": [], "test": []}
    assert split_by_group([]) == {"train": [], "valid": [], "test": []}


# One by one


@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_files_are_streamed_as_they_are_loaded(tmp_path, capsys, name):
    files = tmp_path / f"a.{name}", tmp_path / f"b.{name}"
    write(files[0], "one\n\nthree\n \nfive\n")
    write(files[1], "eins\nzwei\ndrei\nvier\nfünf\n")
    assert list(stream_files(*files)) == load_files(*files)
    streamed, loaded = capsys.readouterr().err.splitlines()
    assert streamed == loaded and "2 of 5 pairs in" in streamed


def test_a_stream_of_files_reads_no_further_than_asked(tmp_path):
    files = write(tmp_path / "a", b"one\ntwo\n"), write(tmp_path / "b", b"eins\n\xff\n")
    pairs = stream_files(*files)
    assert next(pairs) == ("one", "eins")
    with pytest.raises(ConfigError, match="b, line 2: byte 0xff is not UTF-8"):
        next(pairs)


@pytest.mark.parametrize(
    ("contents", "streamed", "loaded"),
    [
        (("a\nb\nc\n", "x\n"), "got 3 in .*a and 1 in .*b", "got 3 in .*a and 1 in .*b"),
        (("a\n", "x\ny\nz\n"), "got 1 in .*a and 3 in .*b", "got 1 in .*a and 3 in .*b"),
        (("", "x\n"), "got 0 in .*a and 1 in .*b", "a is empty"),
        (("\n \n", "x\ny\n"), "a and .*b have no pair with", "a and .*b have no pair with"),
    ],
)
def test_a_stream_refuses_what_loading_refuses(tmp_path, contents, streamed, loaded):
    files = tuple(write(tmp_path / name, text) for name, text in zip("ab", contents))
    with pytest.raises(ConfigError, match=streamed):
        list(stream_files(*files))
    with pytest.raises(ConfigError, match=loaded):
        load_files(*files)


def test_a_sample_keeps_the_order_and_every_pair_has_the_same_chance():
    pairs = [(str(i), str(-i)) for i in range(20)]
    assert sample(iter(pairs), 20) == sample(pairs, 100) == pairs
    counts = dict.fromkeys(pairs, 0)
    for seed in range(600):
        drawn = sample(iter(pairs), 5, seed)
        assert len(drawn) == 5 and drawn == sorted(drawn, key=pairs.index)
        for pair in drawn:
            counts[pair] += 1
    # Binomial with mean 150 and standard deviation 10.6.
    assert all(abs(n - 150) < 5 * 10.6 for n in counts.values())
    assert sample(pairs, 5, seed=1) == sample(pairs, 5, seed=1) != sample(pairs, 5, seed=2)


def test_the_sha256_does_not_depend_on_how_the_pairs_come(monkeypatch):
    monkeypatch.setattr(parallel_text, "HASHED_AT_ONCE", 10)
    pairs = [(str(i), "x" * (i % 7)) for i in range(50)]
    for steps in ([50], [1] * 50, [7, 0, 43], [10] * 5):
        total = PairsSHA256()
        rest = iter(pairs)
        for n in steps:
            total.add(itertools.islice(rest, n))
            total.hexdigest()  # which changes nothing
        assert total.hexdigest() == pairs_sha256(tuple(pairs))


def test_other_pairs_have_another_sha256():
    pairs = [("ab", "c"), ("d", "")]
    others = [
        [], pairs[:1], pairs[::-1], [("a", "bc"), ("d", "")], [("ab", "cd"), ("", "")],
        [("d", "c"), ("ab", "")], [("ab", "c"), ("d", "e")], [("ab", "c"), ("d", ""), ("", "")],
    ]  # fmt: skip
    assert len({pairs_sha256(some) for some in [pairs, *others]}) == 1 + len(others)


@pytest.mark.parametrize(
    "row", [{"en": "a", "de": "b"}, {"a", "b"}, "ab", ("a", "b", "c"), ("a", 1), ["a"], None]
)
def test_what_is_no_pair_of_text_is_refused(row):
    """Python would take a dictionary apart into its keys, and a string into letters."""
    words = re.escape(f"a pair must be (source, target), two strings, got {row!r}")
    # In a test the types of these two are checked, in a user's program they are not.
    encode, score = inspect.unwrap(encode_pairs), inspect.unwrap(scorable)
    for read in (
        pairs_sha256,
        lambda pairs: encode(toy_tokenizer(), pairs, 10),
        lambda pairs: score(toy_run_config()[0], toy_tokenizer(), pairs),
    ):
        assert read([("a", "b"), ["a", "b"]])
        with pytest.raises(ConfigError, match=f"^{words}$"):
            read([("a", "b"), row])


def test_what_unpacks_to_more_than_text_can_is_one_line(tmp_path):
    """Text shrinks to a third or a fifth, a line over and over to a thousandth."""
    path, line = tmp_path / "bomb.gz", b"word " * 200 + b"\n"
    path.write_bytes(gzip.compress(line * (BOMB_BYTES // len(line) + 1)))
    with pytest.raises(ConfigError, match="bomb.gz unpacks to more than 200 times its size"):
        list(stream_lines(path))
    path.write_bytes(gzip.compress(line * 1000))
    assert len(list(stream_lines(path))) == 1000
