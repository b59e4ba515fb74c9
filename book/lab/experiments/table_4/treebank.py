"""Treebanks (section 6.3): trees that people made, cleaned as for a score, and split by file.

`load("craft", "train")` gives trees, `to_pair` makes of a tree the pair of texts (sentence, tree
tokens) that training, search and command line treat like any pair of sentences. A treebank is
looked for in the directory `data_dir`, in the one that ANNOTATED_TRANSFORMER_DATA names, and in the
user's cache; if none has it, it is downloaded. Nothing is used before the SHA-256 of its files is
right.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from annotated_transformer.data.downloads import (
    DATA_VARIABLE,
    MAX_FILE_BYTES,
    cache_directory,
    fetch,
    find,
    store,
    verify,
)
from annotated_transformer.data.parallel_text import SPLITS, Pair, PathLike
from annotated_transformer.errors import ConfigError, require, say
from lab.parsing.linearization import UNKNOWN_TAG, Leaves, linearize
from lab.parsing.scoring import uncounted_words
from lab.parsing.trees import TOP, Tree, is_tag, read_trees, tree_words

TRACE = "-NONE-"
GITHUB = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class Treebank:
    """What is known of a treebank: its files in order, the digest of all, and how they are split.

    Of every `step` files one is held out for testing and one for validation. `sha256` is that of
    the uncompressed files, one after the other. `n_trees` counts the trees of each split; `fetch`
    downloads all files as bytes.
    """

    name: str
    folder: str
    files: tuple[str, ...]
    step: int
    n_trees: Mapping[str, int]
    sha256: str
    fetch: Callable[[Treebank], Iterable[bytes]]
    url: str

    def split_files(self, split: str) -> tuple[str, ...]:
        """The files of one split, by their places in the list: the same on every machine."""
        test = self.files[self.step // 2 - 1 :: self.step]
        valid = self.files[self.step - 1 :: self.step]
        others = tuple(file for file in self.files if file not in {*test, *valid})
        return {"test": test, "valid": valid, "train": others}[split]


def load(name: str, split: str, data_dir: PathLike | None = None) -> list[Tree]:
    """The cleaned trees of one split, in the order of the files.

    No sentence of the test files is in valid or train, and none of the valid files in train: what
    occurs again there, case aside, is left out. Raises ConfigError for an unknown name or split, or
    files that are missing or damaged.
    """
    require(name in TREEBANKS, f"there is no treebank {name}; there are {', '.join(TREEBANKS)}")
    require(split in SPLITS, f"split must be one of {', '.join(SPLITS)}, got {split}")
    directories = [Path(path) for path in (data_dir, os.environ.get(DATA_VARIABLE)) if path]
    for directory in directories:
        require(directory.is_dir(), f"the data directory {directory} does not exist")
    return list(splits(name, _paths(TREEBANKS[name], directories))[split])


def to_pair(tree: Tree, leaves: Leaves = "tags") -> Pair:
    """(sentence, tree tokens) as text, its pieces separated by spaces."""
    return " ".join(tree_words(tree)), " ".join(linearize(tree, leaves))


def symbols(trees: Iterable[Tree], leaves: Leaves = "tags") -> list[str]:
    """All tokens of these trees in order: what a tokenizer keeps whole, see `Tokenizer.train`."""
    return sorted({token for tree in trees for token in linearize(tree, leaves)})


def clean(tree: Tree) -> Tree | None:
    """The tree without traces (-NONE-) and grammatical functions (NP-SBJ is NP).

    Brackets that held nothing but traces go as well. The outer bracket TOP is left out where it
    holds a single tree. A tag over two words, (NN a b), becomes one over each, except at the root.
    None when nothing remains.
    """
    if is_tag(tree):
        return None if tree.label == TRACE else Tree(base_label(tree.label), tree.children)
    kept: list[Tree] = []
    for child in tree.children:
        if isinstance(child, str):
            kept.append(Tree(UNKNOWN_TAG, (child,)))
        elif len(child.children) > 1 and all(isinstance(word, str) for word in child.children):
            words = child.children if child.label != TRACE else ()
            kept += [Tree(base_label(child.label), (word,)) for word in words]
        elif cleaned := clean(child):
            kept.append(cleaned)
    if tree.label == TOP and len(kept) == 1:
        return kept[0]
    return Tree(base_label(tree.label), tuple(kept)) if kept else None


def base_label(label: str) -> str:
    """The label up to the first -, = or |, save where it begins with one (-LRB- is a tag)."""
    return label[0] + re.split(r"[-=|]", label[1:])[0] if label[0] not in "-=|" else label


def flat(tree: Tree) -> Tree:
    """One bracket S over all words of `tree`: what a parser gets that has learned nothing."""
    return Tree("S", tuple(Tree(UNKNOWN_TAG, (word,)) for word in tree_words(tree)))


def right_branching(tree: Tree, label: str) -> Tree:
    """(S w1 (label w2 (label w3 ...)) .): each word of `tree` opens a phrase up to the end.

    A punctuation mark at the end, which does not count, hangs below S. English often branches so.
    """
    leaves = [Tree(UNKNOWN_TAG, (word,)) for word in tree_words(tree)]
    n = len(leaves) - (len(leaves) > 1 and len(leaves) - 1 in uncounted_words(tree))
    inner: tuple[Tree, ...] = (leaves[n - 1],)
    for leaf in reversed(leaves[: n - 1]):
        inner = (leaf, Tree(label, inner))
    return Tree("S", (*inner, *leaves[n:]))


@lru_cache(maxsize=4)
def splits(name: str, paths: tuple[Path, ...]) -> dict[str, list[Tree]]:
    """The clean trees of a treebank, each once, by split; read once, and held to its SHA-256."""
    treebank = TREEBANKS[name]
    contents = [_read(path) for path in paths]
    verify(f"the treebank {name} in {paths[0].parent}", _digest(contents), treebank.sha256)
    trees = {
        file: [tree for tree in map(clean, read_trees(content.decode("utf-8"))) if tree]
        for file, content in zip(treebank.files, contents, strict=True)
    }
    chosen: dict[str, list[Tree]] = {}
    seen: set[str] = set()
    for split in ("test", "valid", "train"):
        here = [tree for file in treebank.split_files(split) for tree in trees[file]]
        chosen[split] = [tree for tree in here if _folded(tree) not in seen]
        seen |= {_folded(tree) for tree in chosen[split]}
    return chosen


def _folded(tree: Tree) -> str:
    return " ".join(tree_words(tree)).casefold()


def _paths(treebank: Treebank, directories: list[Path]) -> tuple[Path, ...]:
    places = [*directories, cache_directory()]
    paths = [find((file, f"{file}.gz"), places, treebank.folder) for file in treebank.files]
    if missing := [file for file, path in zip(treebank.files, paths, strict=True) if path is None]:
        folder = cache_directory() / treebank.folder
        say(f"downloading {treebank.url} ({len(missing)} of {len(paths)} files are not here)")
        contents = list(treebank.fetch(treebank))
        verify(treebank.url, _digest(contents), treebank.sha256)
        named = zip(treebank.files, contents, strict=True)
        return tuple(store(folder / f"{file}.gz", content) for file, content in named)
    return tuple(path for path in paths if path is not None)


def _digest(contents: list[bytes]) -> str:
    return hashlib.sha256(b"".join(contents)).hexdigest()


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


def _fetch_zip(treebank: Treebank) -> Iterable[bytes]:
    try:
        with fetch(treebank.url, "the files") as file, zipfile.ZipFile(file) as archive:
            members = [archive.getinfo(f"treebank/combined/{file}") for file in treebank.files]
            size = sum(member.file_size for member in members)
            most = MAX_FILE_BYTES
            require(size <= most, f"{treebank.url} unpacks to more than {most:,} bytes")
            return [archive.read(member) for member in members]
    except (zipfile.BadZipFile, KeyError) as error:
        raise ConfigError(f"{treebank.url} is not the archive expected: {error}") from None


def _fetch_files(treebank: Treebank) -> Iterable[bytes]:
    return [_content(f"{treebank.url}/{file}") for file in treebank.files]


def _content(url: str) -> bytes:
    with fetch(url, "the files") as file:
        return file.read()


# fmt: off
CRAFT_ARTICLES = (
    11319941, 11532192, 11597317, 11604102, 11897010, 12079497, 12546709, 12585968, 12925238,
    14609438, 14611657, 14624252, 14675480, 14691534, 14723793, 14737183, 15005800, 15018652,
    15040800, 15061865, 15070402, 15207008, 15238161, 15314655, 15314659, 15320950, 15328533,
    15328538, 15345036, 15492776, 15550985, 15560850, 15588329, 15615595, 15619330, 15630473,
    15676071, 15760270, 15784609, 15819996, 15836427, 15850489, 15876356, 15882093, 15917436,
    15921521, 15938754, 16026622, 16027110, 16098226, 16103912, 16109169, 16110338, 16121255,
    16121256, 16216087, 16221973, 16255782, 16279840, 16362077, 16410827, 16433929, 16462940,
    16504143, 16504174, 16507151, 16517939, 16539743, 16579849, 16611361, 16628246, 16670015,
    16700629, 16787536, 16800892, 16870721, 16968134, 17002498, 17020410, 17022820, 17029558,
    17069463, 17078885, 17083276, 17194222, 17201918, 17206865,
)
# fmt: on
"""The articles of the corpus that are used here, by PubMed number; ten of its 97 are not."""

TREEBANKS: Mapping[str, Treebank] = {
    treebank.name: treebank
    for treebank in (
        Treebank(
            "ptb-sample",
            "treebank",
            tuple(f"wsj_{number:04}.mrg" for number in range(1, 181)),
            10,
            {"train": 2995, "valid": 346, "test": 332},
            "78d35fd1a5696234474c6d857a5d6640d7e4c9a0d85afd4fbc5c46096c448cf8",
            _fetch_zip,
            f"{GITHUB}/nltk/nltk_data/gh-pages/packages/corpora/treebank.zip",
        ),
        Treebank(
            "craft",
            "craft",
            tuple(f"{number}.tree" for number in CRAFT_ARTICLES),
            22,
            {"train": 23175, "valid": 844, "test": 1308},
            "f80d5d00b3283b5c15d9cb9aa7b40cdd8f4d4c11fd921749ccea5fcba30cf20b",
            _fetch_files,
            f"{GITHUB}/UCDenver-ccp/CRAFT/master/structural-annotation/treebank/penn",
        ),
    )
}
"""All treebanks by name: newspaper English, and the English of biology.

"ptb-sample" are the files wsj_0001 to wsj_0180 of the Penn Treebank (Marcus et al. 1993, J93-2004)
that NLTK distributes: not commercial, to illustrate tools; (C) LDC 1995. "craft" are 87 biomedical
articles of the Colorado Richly Annotated Full Text corpus (Verspoor et al. 2012, BMC Bioinformatics
13:207): CC BY 3.0.
"""
