"""Labelled brackets and their F1, as EVALB counts them (section 6.3)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from annotated_transformer.errors import ConfigError, require
from lab.parsing.trees import TOP, Tree, is_tag, tree_words, walk

PUNCTUATION = frozenset({",", ":", "``", "''", "."})


def uncounted_words(tree: Tree) -> frozenset[int]:
    """The positions of the words that EVALB takes out: punctuation and traces, by their tags."""
    found: set[int] = set()
    position = 0
    tag = ""
    for kind, node in walk(tree):
        if kind == "word":
            if tag in (*PUNCTUATION, "-NONE-"):
                found.add(position)
            position += 1
        tag = node[0] if kind == "(" and is_tag(node) else ""
    return frozenset(found)


def brackets(tree: Tree, without: frozenset[int] | None = None) -> Counter[tuple[str, int, int]]:
    """How often each (label, start, end) occurs among the phrases, as EVALB counts.

    The counting is that of EVALB with its file COLLINS.prm. Tags are not phrases. The words at the
    positions `without` (default: `uncounted_words`) are taken out before words are numbered, and
    with them a phrase that has no others. A label ends before - or = (NP-SBJ is NP), PRT is ADVP,
    and TOP (elsewhere ROOT or S1) does not count.
    """
    without = uncounted_words(tree) if without is None else without
    found: Counter[tuple[str, int, int]] = Counter()
    starts: list[int] = []
    position = end = 0
    for kind, node in walk(tree):
        if kind == "word":
            end += position not in without
            position += 1
        elif kind == "(" and not is_tag(node):
            starts.append(end)
        elif not is_tag(node):
            label = re.split("[-=]", node[0])[0]
            start = starts.pop()
            if label not in (TOP, "ROOT", "S1") and start < end:
                found["ADVP" if label == "PRT" else label, start, end] += 1
    return found


class BracketScores(NamedTuple):
    """In percent; `complete` is the share of sentences whose brackets are exactly the gold ones."""

    precision: float
    recall: float
    f1: float
    complete: float


class BracketCounts(NamedTuple):
    """Brackets of a pair of trees, or of many: in both, in the gold, in the predicted tree."""

    matched: int
    gold: int
    predicted: int


def bracket_counts(gold: Tree, predicted: Tree) -> BracketCounts:
    """What EVALB counts of a gold tree and a predicted one.

    A bracket that occurs twice must be predicted twice. The gold tags say which words are
    punctuation, so that a wrong tag moves no bracket (EVALB reads the tags of each tree, and may
    then refuse the pair). Raises ConfigError when the words of the two differ.
    """
    has_same_words = tree_words(gold) == tree_words(predicted)
    require(has_same_words, "gold and predicted tree must have the same words")
    right, guess = (brackets(tree, uncounted_words(gold)) for tree in (gold, predicted))
    return BracketCounts((right & guess).total(), right.total(), guess.total())


def f1_of_counts(counts: Sequence[BracketCounts]) -> BracketScores:
    """F1 = 2 matched / (gold + predicted), all brackets counted together: labelled PARSEVAL.

    Raises ConfigError when there is no bracket at all.
    """
    n_matched = sum(count.matched for count in counts)
    n_gold = sum(count.gold for count in counts)
    n_guessed = sum(count.predicted for count in counts)
    require(n_gold + n_guessed > 0, "there are no brackets to score")
    n_complete = sum(count.matched == count.gold == count.predicted for count in counts)
    precision, recall = (100 * n_matched / max(n, 1) for n in (n_guessed, n_gold))
    f1 = 200 * n_matched / (n_gold + n_guessed)
    return BracketScores(precision, recall, f1, complete=100 * n_complete / len(counts))


def bracket_f1(gold: Sequence[Tree], predicted: Sequence[Tree]) -> BracketScores:
    """Labelled bracket F1 of a corpus: `f1_of_counts` of all pairs' `bracket_counts`.

    Raises ConfigError for anything but lists of trees, when the numbers of trees or the words of a
    pair differ, and when there is nothing to score.
    """
    for trees in (gold, predicted):
        # A tree is a tuple, and so a sequence too: of its label and its children.
        if isinstance(trees, Tree) or not all(isinstance(tree, Tree) for tree in trees):
            raise ConfigError(f"gold and predicted must be lists of trees, got {trees!r:.60}")
    are_equal = len(gold) == len(predicted)
    rule = "each gold tree needs one predicted"
    require(are_equal, f"{rule}, got {len(gold)} and {len(predicted)}")
    counts = []
    for number, pair in enumerate(zip(gold, predicted, strict=True), start=1):
        try:
            counts.append(bracket_counts(*pair))
        except ConfigError:
            raise ConfigError(f"the trees of pair {number} must have the same words") from None
    return f1_of_counts(counts)
