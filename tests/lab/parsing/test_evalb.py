"""The counts behind bracket F1 are those of EVALB (with COLLINS.prm) on 1,000 pairs of trees with
noise.

EVALB's counts lie in evalb_counts.json. To count again with EVALB itself (a C program in the public
domain: `evalb.c` and `COLLINS.prm` are in the wheel of allennlp 0.9.0, and on
nlp.cs.nyu.edu/evalb), name the folder of the compiled program: EVALB=folder python -m pytest
tests/lab/parsing/test_evalb.py. WRITE=1 as well writes the file anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from lab.parsing.scoring import bracket_counts, bracket_f1
from lab.parsing.trees import read_tree, read_trees, write_tree
from lab.toy_grammar import sample_trees

COUNTS = Path(__file__).with_name("evalb_counts.json")
EVALB = os.environ.get("EVALB")
PUNCTUATION = {",": ",", ":": "--", "``": "``", "''": "''", ".": "."}
UNCOUNTED = (*PUNCTUATION, "-NONE-")
LABELS = [
    "S", "NP", "VP", "PP", "SBAR", "ADVP", "PRT", "ADJP", "NP-SBJ", "NP=2", "PP-LOC-3", "S-TPC-1",
    "SBAR|X",
]  # fmt: skip

# Trees are nested lists here, [label, child, ...], words are strings:
# nothing of the package's is used to make noise.


def is_leaf(node):
    return len(node) == 2 and isinstance(node[1], str)


def as_list(text):
    pieces, stack = re.findall(r"\(|\)|[^\s()]+", text), [[]]
    for piece in pieces:
        if piece == "(":
            stack.append([])
        elif piece == ")":
            stack[-2].append(stack.pop())
        else:
            stack[-1].append(piece)
    return stack[0][0]


def as_text(node):
    return node if isinstance(node, str) else f"({' '.join(map(as_text, node))})"


def phrases(node, above=None):
    """All phrases with the one that they stand in, the outermost first."""
    if not is_leaf(node):
        yield node, above
        for child in node[1:]:
            yield from phrases(child, node)


def decorate(tree, chance):
    """Put punctuation marks, traces and grammatical functions into the tree."""
    for node, _ in list(phrases(tree)):
        if chance.random() < 0.2:
            tag = chance.choice(sorted(PUNCTUATION))
            node.insert(chance.randint(1, len(node)), [tag, PUNCTUATION[tag]])
        if chance.random() < 0.1:
            trace = ["-NONE-", "*T*-1"]
            place = chance.randint(1, len(node))
            node.insert(place, chance.choice([trace, ["NP-SBJ-1", trace], ["S", ["NP", trace]]]))
        if chance.random() < 0.2:
            node[0] += chance.choice(["-SBJ", "-TMP-2", "=3", "-LOC=1"])
        if chance.random() < 0.05:
            node[:] = ["PRT" if len(node) == 2 else node[0], *node[1:]]
    return tree


def disturb(tree, chance, n_edits):
    """Change brackets, and keep every word where it is."""
    for _ in range(n_edits):
        node, above = chance.choice(list(phrases(tree)))
        edit = chance.choice(["relabel", "drop", "add", "double", "move", "tag"])
        if edit == "relabel":
            node[0] = chance.choice(LABELS)
        elif edit == "drop" and above is not None:
            place = next(i for i, child in enumerate(above) if child is node)
            above[place : place + 1] = node[1:]
        elif edit == "add":
            start = chance.randint(1, len(node) - 1)
            end = chance.randint(start + 1, len(node))
            node[start:end] = [[chance.choice(LABELS), *node[start:end]]]
        elif edit == "double":
            node[1:] = [[node[0], *node[1:]]]
        elif edit == "move" and above is not None and len(node) > 2:
            # Its last child goes to the phrase above.
            place = next(i for i, child in enumerate(above) if child is node)
            above.insert(place + 1, node.pop())
        elif edit == "tag":
            leaves = [child for child in node[1:] if is_leaf(child) and child[0] not in UNCOUNTED]
            if leaves:
                chance.choice(leaves)[0] = chance.choice(["NN", "JJ", "XX", "-LRB-"])
    return tree


def noisy_pairs(n=1000):
    """Gold and predicted trees over the same words, in Penn notation,
    from none to many edits apart."""
    chance = random.Random(2)
    pairs = []
    for number, tree in enumerate(sample_trees(n, seed=12)):
        gold = as_text(decorate(as_list(write_tree(tree)), chance))
        predicted = as_text(disturb(as_list(gold), chance, number % 12))
        pairs.append((f"(TOP {gold})", f"(TOP {predicted})"))
    return pairs


PAIRS = noisy_pairs()
DIGEST = hashlib.sha256("\n".join(map("\t".join, PAIRS)).encode()).hexdigest()


def ours(pairs):
    return [list(bracket_counts(*map(read_tree, pair))) for pair in pairs]


def lines_of_evalb(pairs, folder):
    """What EVALB prints of these pairs."""
    for i, name in enumerate(("gold", "test")):
        (folder / name).write_text("\n".join(pair[i] for pair in pairs) + "\n")
    command = [f"{EVALB}/evalb", "-p", f"{EVALB}/COLLINS.prm", folder / "gold", folder / "test"]
    return subprocess.check_output(command, text=True)


def test_the_noise_is_noise():
    stored = json.loads(COUNTS.read_text(encoding="utf-8"))["counts"]
    assert len(PAIRS) == len(stored) == 1000
    wrong = sum(matched < max(gold, predicted) for matched, gold, predicted in stored)
    assert wrong > 600
    text = "".join(predicted for _, predicted in PAIRS)
    pieces = ["PRT", "ADVP", "-NONE-", "-SBJ", "=2", "``", "(: --)", "(, ,)", "SBAR|X", "(NP (NP"]
    assert [piece for piece in pieces if piece not in text] == []


@pytest.mark.slow
def test_counts_are_those_of_evalb():
    stored = json.loads(COUNTS.read_text(encoding="utf-8"))
    assert stored["sha256 of the pairs"] == DIGEST, "the pairs are not those that EVALB has seen"
    assert ours(PAIRS) == stored["counts"]
    gold, predicted = (read_trees("\n".join(side)) for side in zip(*PAIRS, strict=True))
    precision, recall, f1, complete = (f"{value:.2f}" for value in bracket_f1(gold, predicted))
    of_evalb = {
        "Recall": recall,
        "Precision": precision,
        "FMeasure": f1,
        "Complete match": complete,
    }
    assert of_evalb == stored["summary"]


@pytest.mark.skipif(not EVALB, reason="EVALB does not name a folder with the compiled program")
def test_evalb_itself_counts_what_is_stored(tmp_path):
    printed = lines_of_evalb(PAIRS, tmp_path)
    rows = [line.split() for line in printed.split("=== Summary ===")[0].splitlines()]
    rows = [row for row in rows if len(row) == 12 and row[0].isdigit()]
    assert [row[2] for row in rows] == ["0"] * len(PAIRS), "EVALB refuses a pair"
    counts = [[int(row[5]), int(row[6]), int(row[7])] for row in rows]
    of_all = printed.split("-- All --")[1].split("-- len<=40 --")[0]
    named = r"^(?:Bracketing )?(Recall|Precision|FMeasure|Complete match) +=? *([\d.]+)$"
    summary = dict(re.findall(named, of_all, re.M))
    if os.environ.get("WRITE"):
        tens = (", ".join(map(json.dumps, counts[i : i + 10])) for i in range(0, len(counts), 10))
        header = f'{{"sha256 of the pairs": "{DIGEST}",\n"summary": {json.dumps(summary)},\n'
        COUNTS.write_text(header + '"counts": [\n' + ",\n".join(tens) + "\n]}\n")
    stored = json.loads(COUNTS.read_text(encoding="utf-8"))
    assert (counts, summary) == (stored["counts"], stored["summary"])


@pytest.mark.parametrize(
    ("pair", "counted", "by_evalb"),
    [
        # COLLINS.prm names TOP alone; other treebanks call the same bracket ROOT or S1.
        (("(ROOT (S (NP (NN a)) (VP (VB b))))",) * 2, [3, 3, 3], (4, 4, 4)),
        # EVALB takes out what either tree calls punctuation, refuses the pair,
        # and leaves it out of its totals.
        (
            ("(TOP (S (NP (NN a) (, ,)) (NN b)))", "(TOP (S (NP (NN a)) (NN ,) (NN b)))"),
            [2, 2, 2],
            "error",
        ),
        (("(TOP (S (NP (NN a)) (NN b)))", "(TOP (S (NP (. a)) (NN b)))"), [2, 2, 2], "error"),
    ],
)
def test_where_we_depart_from_evalb(pair, counted, by_evalb, tmp_path):
    assert ours([pair]) == [counted]
    if EVALB:
        printed = lines_of_evalb([pair], tmp_path).splitlines()
        row = next(line.split() for line in printed if re.match(r" +1 ", line))
        assert ("error" if row[2] == "1" else tuple(map(int, row[5:8]))) == by_evalb
