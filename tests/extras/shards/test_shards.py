"""Shards hold the pairs of a list, take nothing that is damaged, and survive any kill."""

import hashlib
import json
import os
import random
import re
import shutil
import signal

import numpy as np
import pytest

from annotated_transformer.data.batching import MAX_ENCODED_TOKENS, encode_pairs, token_batches
from annotated_transformer.data.parallel_text import pairs_sha256
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.shards import writing as shard_writing
from annotated_transformer.extras.shards.reading import Shards
from annotated_transformer.extras.shards.writing import encode
from toys import as_lists, pipe_in_place_of, text_pairs, toy_tokenizer

LEFT_OUT = [("", "tea"), ("tea", " ")]
PAIRS = [*text_pairs(1, 50), *LEFT_OUT, ("x" * MAX_ENCODED_TOKENS, "tea"), ("tea", "aet")]
OTHER_TEXT = [side for pair in text_pairs(7, 200) for side in pair]


def write(directory, pairs=PAIRS, tokenizer=None, pairs_per_shard=20, **settings):
    settings = {"pairs_per_shard": pairs_per_shard, "progress": False, **settings}
    return encode(tokenizer or toy_tokenizer(), iter(pairs), directory, **settings)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished directory, which tests copy before they change it."""
    directory = tmp_path_factory.mktemp("shards") / "whole"
    write(directory, corpus="toys", revision="r1")
    return directory


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


# What they hold


def test_shards_hold_the_pairs_of_a_list(whole):
    shards = Shards(whole)
    pairs = encode_pairs(toy_tokenizer(), PAIRS, MAX_ENCODED_TOKENS + 1)
    assert len(shards) == len(pairs) == 52 and shards.gather(np.arange(52)) == pairs
    chosen = random.Random(0).choices(range(52), k=30)
    assert shards.gather(np.array(chosen)) == [pairs[i] for i in chosen]
    lengths = shards.lengths(np.array(chosen)).tolist()
    assert lengths == [[len(side) for side in pairs[i]] for i in chosen]
    for settings in ({}, {"window": 16}, {"window": 25, "multiple_of": 8, "start": 2}):
        ours, theirs = (token_batches(some, 60, **settings) for some in (shards, pairs))
        assert as_lists(ours) == as_lists(theirs)


def test_beside_the_ids_stands_what_they_were_made_from(whole):
    shards = Shards(whole)
    manifest, entries = shards.manifest, shards.manifest.shards
    assert (manifest.corpus, manifest.split, manifest.revision) == ("toys", "train", "r1")
    assert shards.tokenizer().model_bytes == toy_tokenizer().model_bytes
    digest = hashlib.sha256(toy_tokenizer().model_bytes).hexdigest()
    assert manifest.tokenizer_sha256 == digest and manifest.vocab_size == 280
    assert [(entry.pairs, entry.left_out) for entry in entries] == [(20, 0), (20, 0), (12, 2)]
    pairs = encode_pairs(toy_tokenizer(), PAIRS, MAX_ENCODED_TOKENS + 1)
    assert sum(entry.source_tokens for entry in entries) == sum(len(x) for x, _ in pairs)
    assert sum(entry.target_tokens for entry in entries) == sum(len(y) for _, y in pairs)
    assert shards.pairs_sha256 == pairs_sha256(PAIRS)


def test_numpy_opens_the_files_without_us(whole):
    ids = np.load(whole / "00001.ids.npy", mmap_mode="r")
    offsets = np.load(whole / "00001.offsets.npy", mmap_mode="r")
    pairs = encode_pairs(toy_tokenizer(), PAIRS[20:40], 100)
    sentences = np.split(ids, offsets[1:-1])
    assert [list(s) for s in sentences] == [list(side) for pair in pairs for side in pair]
    assert ids.dtype == np.uint16


def test_a_large_vocabulary_has_wider_ids(tmp_path, monkeypatch):
    monkeypatch.setattr(Tokenizer, "vocab_size", 2**16 + 1)
    monkeypatch.setattr(Tokenizer, "encode_batch", lambda *_, **__: [[4, 2**16], [5]])
    write(tmp_path, [("a", "b"), ("c", "d")])
    found = Shards(tmp_path).gather(np.arange(2))
    assert [list(map(list, pair)) for pair in found] == [[[4, 2**16]] * 2, [[5]] * 2]


def test_a_shard_may_have_no_pair(tmp_path):
    pairs = [*PAIRS[:2], ("", ""), ("", "tea"), *PAIRS[2:4]]
    write(tmp_path, pairs, pairs_per_shard=2)
    shards = Shards(tmp_path)
    shards.verify()
    assert [entry.pairs for entry in shards.manifest.shards] == [2, 0, 2]
    assert shards.gather(np.arange(4)) == encode_pairs(toy_tokenizer(), PAIRS[:4], 100)


# Killed and begun again


def killed_after(n, directory):
    """Encode in a process that is killed when it flushes the n-th file to disk; whether it was."""
    process = os.fork()
    if process == 0:
        flushed, flush = [], os.fsync

        def deadly(file):
            flushed.append(file)
            if len(flushed) == n:
                os.kill(os.getpid(), signal.SIGKILL)
            flush(file)

        os.fsync = deadly
        write(directory)
        os._exit(0)
    status = os.waitpid(process, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process cannot fork here")
def test_a_kill_at_any_moment_leaves_what_the_next_run_goes_on_with(tmp_path, monkeypatch):
    expected, n, done, encoded = None, 0, False, shard_writing.encode_some
    write(tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    while not done:
        n, directory = n + 1, tmp_path / str(n)
        done = not killed_after(n, directory)
        manifest = directory / "shards.json"
        finished = json.loads(manifest.read_text()) if manifest.exists() else {"shards": []}
        is_complete = finished.get("complete", False)
        again = []
        monkeypatch.setattr(
            shard_writing, "encode_some", lambda t, p, *r, a=again: a.append(p) or encoded(t, p, *r)
        )
        if not is_complete:
            with pytest.raises(ConfigError, match="is not (finished|a directory of shards)"):
                Shards(directory)
        write(directory)
        assert contents(directory) == expected
        assert len(again) == 3 - len(finished["shards"])  # a finished shard is not done again
    assert n > 20


def test_any_number_of_threads_writes_the_same_files(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_writing, "PAIRS_AT_ONCE", 7)
    for threads in (1, 3):
        write(tmp_path / str(threads), threads=threads)
    assert contents(tmp_path / "1") == contents(tmp_path / "3")
    with pytest.raises(ConfigError, match="the number of threads must be at least 1, got 0"):
        write(tmp_path / "0", threads=0)


def test_a_finished_directory_is_not_written_again(copy, monkeypatch):
    before = contents(copy)
    monkeypatch.setattr(shard_writing, "encode_some", None)
    write(copy, corpus="toys", revision="r1")
    assert contents(copy) == before


@pytest.mark.parametrize("name", ["00001.ids.npy", "00001.offsets.npy"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_shard_is_encoded_again(copy, capsys, name, damage):
    before, path = contents(copy), copy / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content if damage == "changed" else content[:-1])
    if damage == "gone":
        path.unlink()
    write(copy, corpus="toys", revision="r1")
    assert contents(copy) == before
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{name}" in said and said.endswith("it is encoded again\n")


@pytest.mark.parametrize(
    ("pairs", "settings", "message"),
    [
        ([("tea", "tea"), *PAIRS[1:]], {}, "holds shards of other text, from 0 on: name"),
        (PAIRS[:-1], {}, "holds shards of other text, from 2 on: name another directory$"),
        (PAIRS[:40], {}, "holds shards of a longer text: name another directory$"),
        ([*PAIRS, PAIRS[0]], {}, "holds shards of other text, from 2 on"),
        (PAIRS, {"pairs_per_shard": 21}, "holds shards with another pairs_per_shard: name"),
    ],
)
def test_other_text_does_not_mix_with_what_is_there(copy, pairs, settings, message):
    before = contents(copy)
    with pytest.raises(ConfigError, match=message):
        write(copy, pairs, **settings)
    assert contents(copy) == before


def test_another_vocabulary_does_not_mix_with_what_is_there(copy):
    before = contents(copy)
    with pytest.raises(ConfigError, match="holds shards with another tokenizer_sha256: name"):
        write(copy, tokenizer=Tokenizer.train(OTHER_TEXT, 280))
    assert contents(copy) == before


@pytest.mark.parametrize("pairs", [[], [("", "")]])
def test_nothing_is_not_encoded(tmp_path, pairs):
    with pytest.raises(ConfigError, match="there is nothing to encode"):
        write(tmp_path, pairs)
    with pytest.raises(ConfigError, match="is not (finished|a directory of shards)"):
        Shards(tmp_path)


# Damage


def change(directory, **changes):
    path = directory / "shards.json"
    stored = json.loads(path.read_text())
    entry = {name: changes.pop(name) for name in [*changes] if name in stored["shards"][0]}
    stored["shards"][1] |= entry
    path.write_text(json.dumps(stored | changes))


def replace_numbers(directory, name, numbers):
    """Write a file anew, and its checksum, as only somebody who means it does."""
    np.save(directory / f"00001.{name}.npy", numbers)
    digest = hashlib.sha256((directory / f"00001.{name}.npy").read_bytes()).hexdigest()
    change(directory, **{f"{name}_sha256": digest})


def offsets_with(place, value):
    def damage(directory):
        offsets = np.load(directory / "00001.offsets.npy")
        offsets[place] = value
        replace_numbers(directory, "offsets", offsets)

    return damage


def largest_id(directory):
    ids = np.load(directory / "00001.ids.npy")
    ids[3] = 280
    replace_numbers(directory, "ids", ids)


def of_objects(directory):
    np.save(directory / "00001.ids.npy", np.array([{}, []], dtype=object), allow_pickle=True)


def of_another_type(directory):
    """As many numbers, as wide, with a sign: their checksum is that of the file."""
    replace_numbers(directory, "ids", np.load(directory / "00001.ids.npy").view("<i2"))


def many_bytes(directory):
    with open(directory / "shards.json", "ab") as file:
        file.truncate(2**40)


DAMAGES = {
    r"is not a directory of shards: it has no shards.json": lambda d: os.remove(d / "shards.json"),
    r"shards.json is not JSON": lambda d: (d / "shards.json").write_text('{"format": 1'),
    r"shards.json: Manifest has no setting colour": lambda d: change(d, colour=1),
    r"shards.json: format must be 1, got 2": lambda d: change(d, format=2),
    r"shards.json: pairs must be int, got 'many'": lambda d: change(d, pairs="many"),
    r"shards.json: a shard's counts must not be negative, got -1": lambda d: change(d, pairs=-1),
    r"shards.json: the settings of ShardEntry must be a dictionary": lambda d: change(
        d, shards=[1]
    ),
    r"shards is not finished: the same prepare --encode": lambda d: change(d, complete=False),
    r"offsets.npy is damaged: it must hold 2199023255553 numbers of type int64, as shards.js": (
        lambda d: change(d, pairs=2**40)
    ),
    r"cannot read .*00001.ids.npy: No such file": lambda d: (d / "00001.ids.npy").unlink(),
    r"00001.ids.npy is damaged: it must hold": lambda d: (d / "00001.ids.npy").write_bytes(b""),
    r"00001.ids.npy is damaged: it must": of_objects,
    r"00001.ids.npy is damaged: it must hold \d+ numbers of type uint16": of_another_type,
    r"shards.json has 1,099,511,627,776 bytes, more than": many_bytes,
    r"00001.ids.npy is damaged: ": lambda d: shutil.copy(d / "00002.ids.npy", d / "00001.ids.npy"),
    r"00001.offsets.npy is damaged: its SHA-256 is not the one": lambda d: shutil.copy(
        d / "00000.offsets.npy", d / "00001.offsets.npy"
    ),
    r"tokenizer.model is not the vocabulary of these shards": lambda d: Tokenizer.train(
        OTHER_TEXT, 280, d / "tokenizer.model"
    ),
    r"00001.ids.npy has the id 280, and the vocabulary has 280 tokens": largest_id,
    r"00001.offsets.npy does not say where sentences begin": offsets_with(4, 1),
    r"00001.offsets.npy does not say where sentences begin in ": offsets_with(0, 1),
    r"00001.offsets.npy does not say where sentences begin in \d": offsets_with(-1, 10**6),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_damage_is_named_in_one_line(whole, tmp_path, message):
    directory = shutil.copytree(whole, tmp_path / "shards")
    DAMAGES[message](directory)
    with pytest.raises(ConfigError, match=message) as error:
        shards = Shards(directory)
        shards.tokenizer()
        shards.verify()
    assert "\n" not in str(error.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
@pytest.mark.parametrize(
    "name", ["shards.json", "tokenizer.model", "00001.ids.npy", "00001.offsets.npy"]
)
def test_a_pipe_is_not_waited_for(copy, name):
    said = f"{name} is not an ordinary file"
    with pipe_in_place_of(copy / name), pytest.raises(ConfigError, match=said):
        Shards(copy).tokenizer()


def test_no_cut_and_no_changed_byte_is_overlooked(copy):
    """100 random lengths and 100 random bytes, over all files of numbers."""
    generator, files = random.Random(1), sorted(copy.glob("*.npy"))
    for turn in range(200):
        path = generator.choice(files)
        content = path.read_bytes()
        place = generator.randrange(len(content))
        flipped = bytes([content[place] ^ generator.randrange(1, 256)])
        path.write_bytes(content[:place] + (flipped + content[place + 1 :] if turn % 2 else b""))
        with pytest.raises(ConfigError, match=re.escape(path.name)):
            Shards(copy).verify()
        path.write_bytes(content)
    Shards(copy).verify()


def test_a_file_that_is_cut_while_it_is_read_is_named(copy):
    shards = Shards(copy)
    (copy / "00001.ids.npy").write_bytes(b"")
    with pytest.raises(ConfigError, match="00001.ids.npy was cut short while it was being read"):
        shards.gather(np.array([25]))
