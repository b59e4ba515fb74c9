"""The counts behind bracket F1 are those of EVALB (with COLLINS.prm) on 1,000 pairs of trees with
noise.

A line of evalb_pairs.tsv.xz has a gold tree, a predicted one over the same words, and the matched,
gold and predicted brackets that EVALB counted (a C program in the public domain: `evalb.c` and
`COLLINS.prm` are in the wheel of allennlp 0.9.0, and on nlp.cs.nyu.edu/evalb).
"""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from lab.parsing.scoring import bracket_counts, bracket_f1
from lab.parsing.trees import read_tree, read_trees

PAIRS = Path(__file__).with_name("evalb_pairs.tsv.xz")
SUMMARY = ("77.37", "84.52", "80.79", "13.40")  # as EVALB prints them, of all pairs


def ours(gold, predicted):
    return bracket_counts(read_tree(gold), read_tree(predicted))


@pytest.mark.slow
def test_counts_are_those_of_evalb():
    rows = [row.split("\t") for row in lzma.decompress(PAIRS.read_bytes()).decode().splitlines()]
    counted = [" ".join(map(str, ours(gold, predicted))) for gold, predicted, _ in rows]
    assert counted == [of_evalb for *_, of_evalb in rows] and len(rows) == 1000
    gold, predicted = (read_trees("\n".join(row[i] for row in rows)) for i in (0, 1))
    assert tuple(f"{value:.2f}" for value in bracket_f1(gold, predicted)) == SUMMARY


@pytest.mark.parametrize(
    ("gold", "predicted", "counted"),
    [
        # COLLINS.prm names TOP alone, and EVALB counts 4: other treebanks call the same bracket
        # ROOT or S1.
        (*("(ROOT (S (NP (NN a)) (VP (VB b))))",) * 2, (3, 3, 3)),
        # EVALB takes out what either tree calls punctuation, refuses the pair, and leaves it out of
        # its totals.
        ("(TOP (S (NP (NN a) (, ,)) (NN b)))", "(TOP (S (NP (NN a)) (NN ,) (NN b)))", (2, 2, 2)),
        ("(TOP (S (NP (NN a)) (NN b)))", "(TOP (S (NP (. a)) (NN b)))", (2, 2, 2)),
    ],
)
def test_where_we_depart_from_evalb(gold, predicted, counted):
    assert ours(gold, predicted) == counted
