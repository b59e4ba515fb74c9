"""The toy grammar: probabilities add up, every symbol has rules, and trees follow them."""

import pytest

from annotated_transformer.errors import ConfigError
from lab.parsing.trees import is_tag
from lab.toy_grammar import GRAMMAR, LEXICON, sample_trees

TREES = sample_trees(60, seed=3)


def test_probabilities_add_up_and_every_symbol_has_rules():
    for rules in GRAMMAR.values():
        assert sum(weight for weight, _ in rules) == pytest.approx(1)
        for _, right_side in rules:
            assert all(symbol in GRAMMAR or symbol in LEXICON for symbol in right_side.split())
    assert not GRAMMAR.keys() & LEXICON.keys()


def test_sampled_trees_follow_the_grammar_and_repeat():
    def short(symbol):
        return symbol.partition("-")[0]

    rules = {
        (short(symbol), tuple(map(short, right.split())))
        for symbol, options in GRAMMAR.items()
        for _, right in options
    }

    def check(tree):
        if is_tag(tree):
            words = (w.split() for tag, w in LEXICON.items() if short(tag) == tree.label)
            assert tree.children[0] in sum(words, [])
            return
        assert (tree.label, tuple(child.label for child in tree.children)) in rules
        for child in tree.children:
            check(child)

    for tree in TREES:
        check(tree)
    assert sample_trees(60, seed=3) == TREES != sample_trees(60, seed=4)
    assert sample_trees(0) == []
    with pytest.raises(ConfigError, match="got -1"):
        sample_trees(-1)
