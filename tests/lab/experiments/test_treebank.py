"""Treebanks load in splits by file that share no sentence,
cleaned of nothing that a score would count."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
import zipfile

import pytest

from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import ConfigError
from lab.experiments.table_4 import treebank
from lab.parsing.linearization import delinearize, linearize
from lab.parsing.scoring import bracket_counts, brackets
from lab.parsing.trees import Tree, read_tree, read_trees, tree_words, write_tree
from lab.toy_grammar import sample_trees

REAL_DATA = os.environ.get("ANNOTATED_TRANSFORMER_DATA")
TREES = [tree for tree in sample_trees(400, seed=4) if len(tree_words(tree)) > 6]
FILES = tuple(f"{number:02}.tree" for number in range(10))


def content(number):
    """A file of twelve trees in the form of treebanks, the first with the last sentence
    of the file before, shouted."""
    trees = TREES[12 * number : 12 * number + 12]
    if number:
        before = TREES[12 * number - 1]
        shouted = [word.upper() for word in tree_words(before)]
        trees = [delinearize(linearize(before, "tags"), shouted), *trees]
    return "\n".join(f"( {write_tree(tree)} )" for tree in trees).encode()


CONTENTS = [content(number) for number in range(10)]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    """Nothing of the machine's own is seen, and nothing comes from the network."""
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ANNOTATED_TRANSFORMER_DATA", raising=False)
    treebank.splits.cache_clear()
    return tmp_path / "cache"


@pytest.fixture
def web(tmp_path):
    """A place that stands in for the two web addresses."""
    (tmp_path / "web").mkdir()
    serve(tmp_path / "web", CONTENTS)
    return tmp_path / "web"


def serve(web, contents):
    """The files, each alone and all in the archive."""
    with zipfile.ZipFile(web / "treebank.zip", "w") as archive:
        for file, text in zip(FILES, contents, strict=True):
            (web / file).write_bytes(text)
            archive.writestr(f"treebank/combined/{file}", text)


def stand_in(monkeypatch, name, web):
    """Let `name` be a small treebank that is fetched as the real one is."""
    url = (web / "treebank.zip" if name == "ptb-sample" else web).as_uri()
    digest = hashlib.sha256(b"".join(CONTENTS)).hexdigest()
    entry = dataclasses.replace(
        treebank.TREEBANKS[name], files=FILES, step=5, sha256=digest, url=url
    )
    monkeypatch.setattr(treebank, "TREEBANKS", {**treebank.TREEBANKS, name: entry})


# Cleaning


@pytest.mark.parametrize(
    ("tree", "cleaned"),
    [
        ("( (S (NP-SBJ (NNP Ann)) (VP (VBD slept))))", "(S (NP (NNP Ann)) (VP (VBD slept)))"),
        ("(S (NP-SBJ-1 (-NONE- *)) (VP (VB go)))", "(S (VP (VB go)))"),
        ("(S (SBAR (-NONE- 0) (S (NP (-NONE- *T*-1)))) (VP=2 (VB go)))", "(S (VP (VB go)))"),
        ("(NP (-LRB- -LRB-) (NN a) (-RRB- -RRB-))", "(NP (-LRB- -LRB-) (NN a) (-RRB- -RRB-))"),
        ("(NP (PRP$ her) (NN dog))", "(NP (PRP$ her) (NN dog))"),
        ("(VP (VB go) (ADVP|PRT (RB|RP on)))", "(VP (VB go) (ADVP (RB on)))"),
        ("( (NN dog))", "(NN dog)"),
        ("( (NP (NN a)) (. .))", "(TOP (NP (NN a)) (. .))"),
        ("(NP (NN Xpd TTD) (NN b))", "(NP (NN Xpd) (NN TTD) (NN b))"),
        ("(NP a (NN b))", "(NP (XX a) (NN b))"),
    ],
)
def test_cleaning_by_hand(tree, cleaned):
    assert write_tree(treebank.clean(read_tree(tree))) == cleaned


def test_a_tree_of_traces_is_none():
    assert treebank.clean(Tree("S", (Tree("NP", (Tree("-NONE-", ("*", "T")),)),))) is None
    assert treebank.clean(read_tree("( (S (NP-SBJ (-NONE- *)) (VP (-NONE- *))))")) is None


# Splits


def test_files_are_split_by_their_place():
    for entry in treebank.TREEBANKS.values():
        splits = {split: entry.split_files(split) for split in entry.n_trees}
        assert sorted(file for files in splits.values() for file in files) == sorted(entry.files)
        assert len(set(entry.files)) == len(entry.files)
    ptb, craft = (treebank.TREEBANKS[name].split_files for name in ("ptb-sample", "craft"))
    assert ptb("test")[:2] == ("wsj_0005.mrg", "wsj_0015.mrg")
    assert ptb("valid")[-1] == "wsj_0180.mrg"
    assert [len(craft(split)) for split in ("train", "valid", "test")] == [80, 3, 4]


def folded(trees):
    return {" ".join(tree_words(tree)).casefold() for tree in trees}


@pytest.mark.slow
def test_no_held_out_sentence_is_trained_on(monkeypatch, web):
    stand_in(monkeypatch, "craft", web)
    train, valid, test = (
        treebank.load("craft", split, web) for split in ("train", "valid", "test")
    )
    everything = [treebank.clean(tree) for text in CONTENTS for tree in read_trees(text.decode())]
    assert folded(everything) == folded(train + valid + test)
    assert not folded(train) & folded(valid)
    assert not folded(train + valid) & folded(test)
    for place in (1, 6):  # the test files are whole, with the sentence that another file has too
        texts = read_trees(CONTENTS[place].decode())
        assert all(treebank.clean(tree) in test for tree in texts)
    assert len(test) == 26
    assert len(train) + len(valid) < len(everything) - 26


def test_a_caller_cannot_spoil_the_next_ones_trees(monkeypatch, web):
    stand_in(monkeypatch, "craft", web)
    first = treebank.load("craft", "test", web)
    first.clear()
    assert treebank.load("craft", "test", web)


# Finding and fetching


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ptb-sample", "craft"])
def test_a_treebank_is_downloaded_once(name, monkeypatch, web, empty_cache, capsys):
    stand_in(monkeypatch, name, web)
    trees = treebank.load(name, "train")
    assert "downloading" in capsys.readouterr().err
    for path in web.iterdir():
        path.unlink()
    treebank.splits.cache_clear()
    assert treebank.load(name, "train") == trees
    assert capsys.readouterr().err == ""
    folder = empty_cache / treebank.TREEBANKS[name].folder
    assert [gzip.decompress((folder / f"{file}.gz").read_bytes()) for file in FILES] == CONTENTS


@pytest.mark.parametrize("name", ["ptb-sample", "craft"])
def test_a_changed_byte_is_refused_and_not_kept(name, monkeypatch, web, empty_cache):
    stand_in(monkeypatch, name, web)
    serve(web, [*CONTENTS[:3], CONTENTS[3].replace(b"S", b"T", 1), *CONTENTS[4:]])
    for data_dir in (None, web):
        with pytest.raises(ConfigError, match="it is damaged, or of another edition"):
            treebank.load(name, "test", data_dir)
    assert not empty_cache.exists()


EMPTY_ZIP = b"PK\5\6" + bytes(18)


@pytest.mark.parametrize(
    ("name", "file", "content", "words"),
    [
        ("ptb-sample", "treebank.zip", None, "cannot download"),
        ("craft", "03.tree", None, "cannot download"),
        ("ptb-sample", "treebank.zip", b"PK", "is not the archive expected"),
        ("ptb-sample", "treebank.zip", EMPTY_ZIP, "is not the archive expected"),
    ],
)
def test_what_cannot_be_fetched_is_one_line(name, file, content, words, monkeypatch, web):
    stand_in(monkeypatch, name, web)
    (web / file).unlink()
    if content:
        (web / file).write_bytes(content)
    with pytest.raises(ConfigError, match=words) as error:
        treebank.load(name, "test")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "split", "data_dir", "words"),
    [
        ("penn", "train", None, "^there is no treebank penn; there are ptb-sample, craft$"),
        ("craft", "dev", None, "^split must be one of train, valid, test, got dev$"),
        ("craft", "train", "nowhere", "^the data directory nowhere does not exist$"),
    ],
)
def test_what_does_not_exist_is_refused(name, split, data_dir, words):
    with pytest.raises(ConfigError, match=words):
        treebank.load(name, split, data_dir)


# Pairs


@pytest.mark.slow
def test_a_pair_is_text_that_a_tokenizer_keeps_whole():
    pairs = [treebank.to_pair(tree) for tree in TREES]
    texts = (side for pair in pairs for side in pair)
    tokenizer = Tokenizer.train(texts, 400, symbols=treebank.symbols(TREES))
    for tree, (sentence, target) in zip(TREES, pairs, strict=True):
        assert len(tokenizer.encode(target)) == len(linearize(tree, "tags"))
        written = tokenizer.decode(tokenizer.encode(target)).split()
        assert delinearize(written, sentence.split()) == tree


def test_symbols_are_all_tokens():
    tree = read_tree("(S (NP (NNP Ann)) (VP (VBD slept)) (. .))")
    assert treebank.symbols([tree]) == ["(NP", "(S", "(VP", ")NP", ")S", ")VP", ".", "NNP", "VBD"]
    assert treebank.symbols([tree], "XX") == ["(NP", "(S", "(VP", ")NP", ")S", ")VP", ".", "XX"]
    assert treebank.to_pair(tree, "XX") == ("Ann slept .", "(S (NP XX )NP (VP XX )VP . )S")


def test_trees_that_nobody_has_learned():
    text = "(S (NP (NNP Ann)) (VP (VBD saw) (NP (DT the) (NN dog))) (. .))"
    tree = read_tree(text)
    assert write_tree(treebank.flat(tree)) == "(S (XX Ann) (XX saw) (XX the) (XX dog) (XX .))"
    for given, expected in (
        (text, "(S (XX Ann) (NP (XX saw) (NP (XX the) (NP (XX dog)))) (XX .))"),
        ("(NP (NN a) (NN b))", "(S (XX a) (NP (XX b)))"),
        ("(NP (NN a))", "(S (XX a))"),
        ("(. .)", "(S (XX .))"),
    ):
        assert write_tree(treebank.right_branching(read_tree(given), "NP")) == expected
    branching = treebank.right_branching(tree, "NP")
    assert bracket_counts(tree, branching) == (2, 4, 4)  # S and (NP the dog), by hand
    for other in TREES:
        assert tree_words(treebank.right_branching(other, "VP")) == tree_words(other)


@pytest.mark.skipif(not REAL_DATA, reason="ANNOTATED_TRANSFORMER_DATA names no directory")
@pytest.mark.parametrize("name", treebank.TREEBANKS)
def test_real_treebanks_are_as_their_entry_says(name):
    entry = treebank.TREEBANKS[name]
    splits = {split: treebank.load(name, split, REAL_DATA) for split in entry.n_trees}
    assert {split: len(trees) for split, trees in splits.items()} == entry.n_trees
    assert not folded(splits["train"] + splits["valid"]) & folded(splits["test"])
    for tree in splits["test"]:
        words = tree_words(tree)
        again = delinearize(linearize(tree, "tags"), words)
        n = brackets(tree).total()
        assert bracket_counts(tree, again) == (n, n, n)
