"""Constituency parsing (section 6.3): trees to tokens and back, bracket F1, and a toy grammar.

To the model, parsing is translation: a sentence in, the tokens of a tree out (Vinyals et al. 2015).
The trees themselves are those of `trees`.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from annotated_transformer.errors import ConfigError, require
from annotated_transformer.trees import (
    TOP,
    Tree,
    is_tag,
    read_tree as read_tree,  # the chapter on parsing has these two from here
    tree_words,
    walk,
    write_tree as write_tree,
)

UNKNOWN_TAG = "XX"
PUNCTUATION = frozenset({",", ":", "``", "''", "."})
Leaves = Literal["words", "tags", "XX"]


def linearize(tree: Tree, leaves: Leaves = "words") -> list[str]:
    """The tree as tokens, (S (NP ... )NP ... )S: each closing bracket says what it closes.

    With leaves="words" every bracket and word is a token. With "tags" a tag and its word are one
    token, the tag. "XX" is the same with XX for every tag but punctuation (Vinyals et al. 2015). A
    word without a tag of its own is an XX.
    """
    require(leaves in ("words", "tags", "XX"), f"leaves must be words, tags or XX, got {leaves}")
    tokens = []
    for kind, node in walk(tree):
        if kind == "word":
            tokens.append(str(node) if leaves == "words" else UNKNOWN_TAG)
        elif leaves == "words" or not is_tag(node):
            tokens.append(kind + node[0])
        elif kind == ")":  # a tag and its word, which has left XX
            tokens[-1] = node[0] if leaves == "tags" or node[0] in PUNCTUATION else UNKNOWN_TAG
    return tokens


def delinearize(tokens: Sequence[str], words: Sequence[str] | None = None) -> Tree:
    """The tree of these tokens, whatever they are: what is malformed is repaired.

    With `words`, the leaves are tags, and the i-th gets the i-th word; without, the leaves are the
    words. So delinearize(linearize(tree)) and delinearize(linearize(tree, "tags"),
    tree_words(tree)) are the tree again (with tags: if each of its words has one).

    A closing bracket closes all that was opened inside its own, and nothing where no bracket of its
    label is open. What is open at the end is closed. Brackets without words go. Tags beyond the
    last word go; words beyond the last tag become (XX word) at the end of the outermost bracket.
    TOP holds what is then more than one tree, or a word alone. Raises ConfigError when there is no
    word at all.
    """
    stack: list[tuple[str, list[Tree | str]]] = [(TOP, [])]
    remaining = list(words or ())

    def close() -> str:
        label, children = stack.pop()
        if children:
            stack[-1][1].append(Tree(label, tuple(children)))
        return label

    for token in tokens:
        label = token[1:] or TOP
        if token.startswith("("):
            stack.append((label, []))
        elif token.startswith(")"):
            while label in [opened for opened, _ in stack[1:]] and close() != label:
                pass
        elif words is None:
            stack[-1][1].append(token)
        elif remaining:
            stack[-1][1].append(Tree(token, (remaining.pop(0),)))
    while len(stack) > 1:
        close()
    top, missing = stack[0][1], [Tree(UNKNOWN_TAG, (word,)) for word in remaining]
    require(bool(top or missing), "a tree must have at least one word, got none")
    if len(top) == 1 and isinstance(top[0], Tree) and not (missing and is_tag(top[0])):
        return Tree(top[0].label, (*top[0].children, *missing))
    rest = (*top, *missing)
    return rest[0] if len(rest) == 1 and isinstance(rest[0], Tree) else Tree(TOP, rest)


def is_well_formed(tokens: Sequence[str], words: Sequence[str]) -> bool:
    """Whether tags and brackets are one tree over these words as they stand, without repair."""
    return bool(words) and linearize(delinearize(tokens, words), "tags") == list(tokens)


def uncounted_words(tree: Tree) -> frozenset[int]:
    """The positions of the words that EVALB takes out: punctuation, by its tag, and traces."""
    found, position, tag = set(), 0, ""
    for kind, node in walk(tree):
        if kind == "word":
            found |= {position} if tag in (*PUNCTUATION, "-NONE-") else set()
            position += 1
        tag = node[0] if kind == "(" and is_tag(node) else ""
    return frozenset(found)


def brackets(tree: Tree, without: frozenset[int] | None = None) -> Counter[tuple[str, int, int]]:
    """How often each (label, start, end) occurs among the phrases, as EVALB counts.

    The counting is that of EVALB with its file COLLINS.prm. Tags are no phrases. The words at the
    positions `without` (default: `uncounted_words`) are taken out before words are numbered, and a
    phrase that has no others goes with them. A label ends before - or = (NP-SBJ is NP), PRT is
    ADVP, and TOP (elsewhere ROOT or S1) does not count.
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
            label, start = re.split("[-=]", node[0])[0], starts.pop()
            if label not in (TOP, "ROOT", "S1") and start < end:
                found["ADVP" if label == "PRT" else label, start, end] += 1
    return found


class BracketScores(NamedTuple):
    """In percent; `complete` is the share of sentences with all brackets right and none missing."""

    precision: float
    recall: float
    f1: float
    complete: float


class BracketCounts(NamedTuple):
    """Of a pair of trees, or of many: brackets of both, of the gold, of the predicted tree."""

    matched: int
    gold: int
    predicted: int


def bracket_counts(right: Tree, guess: Tree) -> BracketCounts:
    """What EVALB counts of a gold tree and a predicted one.

    A bracket that occurs twice must be predicted twice. The gold tags say which words are
    punctuation, so that a wrong tag moves no bracket (EVALB asks the tags of each tree, and may
    then refuse the pair). Raises ConfigError when the words of the two differ.
    """
    same_words = tree_words(right) == tree_words(guess)
    require(same_words, "gold and predicted tree must have the same words")
    ours, theirs = (brackets(tree, uncounted_words(right)) for tree in (right, guess))
    return BracketCounts((ours & theirs).total(), ours.total(), theirs.total())


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

    Raises ConfigError when the numbers of trees or the words of a pair differ, or there is nothing
    to score.
    """
    require(
        len(gold) == len(predicted),
        f"each gold tree needs one predicted, got {len(gold)} and {len(predicted)}",
    )
    counts = []
    for number, pair in enumerate(zip(gold, predicted, strict=True), start=1):
        try:
            counts.append(bracket_counts(*pair))
        except ConfigError:
            raise ConfigError(f"the trees of pair {number} must have the same words") from None
    return f1_of_counts(counts)


GRAMMAR: dict[str, list[tuple[float, str]]] = {
    "S": [(0.85, "NP VP ."), (0.15, "S-CLAUSE , CC S-CLAUSE .")],
    "NP": [
        (0.60, "NP-BASE"),
        (0.16, "NP-BASE PP-NOUN"),
        (0.12, "NP-BASE SBAR-WHO"),
        (0.12, "NP-BASE CC NP-BASE"),
    ],
    "NP-BASE": [(0.5, "DT NN"), (0.25, "DT JJ NN"), (0.25, "NNP")],
    "VP": [
        (0.15, "VBD-ALONE"),
        (0.35, "VBD NP"),
        (0.16, "VBD NP PP-VERB"),
        (0.10, "VBD-ALONE PP-VERB"),
        (0.08, "VBD-ALONE ADVP"),
        (0.08, "VBD-SAY SBAR"),
        (0.08, "VP-BASE CC VP-BASE"),
    ],
    "VP-BASE": [(0.5, "VBD-ALONE"), (0.5, "VBD NP-BASE")],
    "SBAR-WHO": [(1.0, "WHNP S-GAP")],
    "S-CLAUSE": [(1.0, "NP VP")],
    "S-GAP": [(1.0, "VP")],
    "WHNP": [(1.0, "WP")],
    "ADVP": [(1.0, "RB")],
    "PP-NOUN": [(1.0, "IN-NOUN NP")],
    "PP-VERB": [(1.0, "IN-VERB NP")],
    "SBAR": [(1.0, "IN-THAT S-CLAUSE")],
}
LEXICON = {
    "RB": "often again",
    "DT": "the a every this",
    "JJ": "old small red clever tired",
    "NNP": "Ann Bob Carol Dan",
    "NN": "dog cat bird man woman child teacher telescope garden house river song",
    "CC": "and or",
    ",": ",",
    "VBD": "saw heard chased liked found followed",
    "VBD-ALONE": "slept ran sang laughed",
    "VBD-SAY": "said thought",
    "IN-NOUN": "of of with near",
    "IN-VERB": "with near during after",
    "IN-THAT": "that",
    "WP": "who",
    ".": ".",
}
"""A toy English: the rules of each symbol with their probabilities, and the words of each tag.

A word that is listed twice is drawn twice as often. A label is the symbol up to the hyphen. *With*
and *near* may belong to a noun or to a verb.
"""


def sample_trees(n: int, seed: int = 0, max_depth: int = 8) -> list[Tree]:
    """`n` trees drawn from `GRAMMAR`, the same ones for the same seed.

    Below `max_depth` the first rule is taken.
    """
    require(n >= 0, f"n must not be negative, got {n}")
    generator = random.Random(seed)

    def sample(symbol: str, depth: int) -> Tree:
        label = symbol.partition("-")[0]
        if symbol in LEXICON:
            return Tree(label, (generator.choice(LEXICON[symbol].split()),))
        rules = GRAMMAR[symbol]
        weights = [weight for weight, _ in rules]
        if depth >= max_depth:
            weights[1:] = [0.0] * (len(rules) - 1)
        rule = generator.choices(rules, weights)[0]
        children = tuple(sample(child, depth + 1) for child in rule[1].split())
        same_label = len(children) == 1 and children[0].label == label
        return children[0] if same_label else Tree(label, children)

    return [sample("S", 1) for _ in range(n)]
