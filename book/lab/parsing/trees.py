"""Trees in the notation of the Penn Treebank (section 6.3): read, written, and their words.

A treebank gives each word a bracket with its part of speech, `(NN dog)`: a *tag* and its word.
Other brackets are *phrases*.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from annotated_transformer.errors import require

TOP = "TOP"


class Tree(NamedTuple):
    """A bracket: its label, and its children from left to right, each a tree or a word."""

    label: str
    children: tuple[Tree | str, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and self._names() == other._names()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(tuple(self._names()))

    # The methods of a tuple recurse in C: they would end Python in a tree some 60,000 deep.
    def _names(self) -> list[tuple[str, str]]:
        return [(kind, node if isinstance(node, str) else node.label) for kind, node in walk(self)]


def is_tag(tree: Tree | str) -> bool:
    """Whether this is a part of speech with its word, `(NN dog)`."""
    if isinstance(tree, str) or len(tree.children) != 1:
        return False
    return isinstance(tree.children[0], str)


def walk(tree: Tree) -> Iterator[tuple[str, Tree | str]]:
    """Openings "(", words and closings ")", each with its tree or word, from left to right.

    The tree may have any depth.
    """
    stack: list[tuple[str, Tree | str]] = [("(", tree)]
    while stack:
        kind, node = stack.pop()
        yield kind, node
        if kind == "(":
            stack.append((")", node))
            children = reversed(node[1])
            stack.extend(("word" if isinstance(child, str) else "(", child) for child in children)


def tree_words(tree: Tree) -> list[str]:
    """The sentence: the tree's words from left to right."""
    return [str(node) for kind, node in walk(tree) if kind == "word"]


def read_trees(text: str) -> list[Tree]:
    """All trees of `text` in Penn Treebank notation, (S (NP (DT the) (NN dog)) (VP (VBD slept))).

    A bracket without a label, as treebank files have round each tree, is read as TOP. Raises
    ConfigError for unbalanced brackets, words outside a tree and empty brackets.
    """
    trees: list[Tree] = []
    stack: list[tuple[str, list[Tree | str]]] = []  # the open brackets, outermost first
    # An opening bracket with its label (group 1, perhaps empty), a closing one (group 2), a word.
    for match in re.finditer(r"\(\s*([^\s()]*)|(\))|[^\s()]+", text):
        require(
            match[1] is not None or bool(stack),
            f"a tree must begin with an opening bracket, "
            f"got {match[0]!r} at character {match.start() + 1}",
        )
        if match[1] is not None:
            stack.append((match[1] or TOP, []))
        elif match[2] is None:
            stack[-1][1].append(match[0])
        else:
            label, children = stack.pop()
            require(bool(children), f"a bracket must hold a word or a tree, got ({label})")
            (stack[-1][1] if stack else trees).append(Tree(label, tuple(children)))
    require(not stack, f"every bracket must be closed, got {len(stack)} open at the end")
    return trees


def read_tree(text: str) -> Tree:
    """The one tree of `text`.

    Raises ConfigError where `read_trees` does, and unless there is exactly one.
    """
    trees = read_trees(text)
    require(len(trees) == 1, f"one tree is needed, got {len(trees)}")
    return trees[0]


def write_tree(tree: Tree) -> str:
    """The tree on one line in Penn Treebank notation.

    Raises ConfigError for a label or word that could not be read back.
    """
    text = ""
    for kind, node in walk(tree):
        name = node if isinstance(node, str) else node[0]
        is_name = re.fullmatch(r"[^\s()]+", name) is not None
        require(is_name, f"a label or word has no space or bracket, got {name!r}")
        text += ")" if kind == ")" else f" ({name}" if kind == "(" else f" {name}"
    return text[1:]
