"""Trees as tokens and back (section 6.3).

To the model, parsing is translation: a sentence in, the tokens of a tree out (Vinyals et al. 2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from annotated_transformer.errors import require, require_strings
from lab.parsing.scoring import PUNCTUATION
from lab.parsing.trees import TOP, Tree, is_tag, walk

UNKNOWN_TAG = "XX"
Leaves = Literal["words", "tags", "XX"]


def linearize(tree: Tree, leaves: Leaves = "words") -> list[str]:
    """The tree as tokens, (S (NP ... )NP ... )S: each closing bracket says what it closes.

    With leaves="words" every bracket and every word is a token. With "tags" a tag and its word are
    one token, the tag, and a word without a tag of its own is XX. "XX" has XX for every tag but
    punctuation (Vinyals et al. 2015).
    """
    require(leaves in ("words", "tags", "XX"), f"leaves must be words, tags or XX, got {leaves}")
    tokens = []
    for kind, node in walk(tree):
        if kind == "word":
            tokens.append(str(node) if leaves == "words" else UNKNOWN_TAG)
        elif leaves == "words" or not is_tag(node):
            tokens.append(kind + node[0])
        elif kind == ")":  # a tag ends: in place of its word's XX
            tokens[-1] = node[0] if leaves == "tags" or node[0] in PUNCTUATION else UNKNOWN_TAG
    return tokens


def delinearize(tokens: Sequence[str], words: Sequence[str] | None = None) -> Tree:
    """The tree of these tokens, whatever they are: what is malformed is repaired.

    With `words`, the leaves are tags, and the i-th tag gets the i-th word; without, the leaves are
    the words. So delinearize(linearize(tree)) is the tree again, and so is
    delinearize(linearize(tree, "tags"), tree_words(tree)) if each of its words has a tag.

    A closing bracket also closes every bracket opened inside its own; it is ignored where no
    bracket of its label is open. Brackets that are open at the end are closed, and brackets without
    a word dropped. Tags beyond the last word are dropped; words beyond the last tag become
    (XX word) at the end of the outermost bracket. If there is then more than one tree, or a word
    outside a bracket, TOP holds them all. Raises ConfigError when there is no word at all, and for
    one string in place of a list.
    """
    for given in (tokens, words or ()):
        require_strings(given, "tokens and words must be lists of strings")
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
            is_open = any(opened == label for opened, _ in stack[1:])
            while is_open:
                is_open = close() != label
        elif words is None:
            stack[-1][1].append(token)
        elif remaining:
            stack[-1][1].append(Tree(token, (remaining.pop(0),)))
    while len(stack) > 1:
        close()
    top = stack[0][1]
    missing = [Tree(UNKNOWN_TAG, (word,)) for word in remaining]
    require(bool(top or missing), "a tree must have at least one word, got none")
    if len(top) == 1 and isinstance(top[0], Tree) and not (missing and is_tag(top[0])):
        return Tree(top[0].label, (*top[0].children, *missing))
    rest = (*top, *missing)
    return rest[0] if len(rest) == 1 and isinstance(rest[0], Tree) else Tree(TOP, rest)


def is_well_formed(tokens: Sequence[str], words: Sequence[str]) -> bool:
    """Whether these tags and brackets are one tree over these words, with nothing to repair."""
    return bool(words) and linearize(delinearize(tokens, words), "tags") == list(tokens)
