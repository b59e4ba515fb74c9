"""Trees survive the way to tokens and back, anything is repaired into a tree,
and F1 agrees with counting by hand."""

import itertools
import random
from collections import Counter

import pytest

from annotated_transformer.errors import ConfigError
from lab.parsing.linearization import delinearize, is_well_formed, linearize
from lab.parsing.scoring import bracket_counts, bracket_f1, brackets, f1_of_counts
from lab.parsing.trees import Tree, read_tree, read_trees, tree_words, write_tree
from lab.toy_grammar import sample_trees

DOG = "(S (NP (DT the) (NN dog)) (VP (VBD saw) (NP (NNP Ann))) (. .))"
WITH = (
    "(S (NP (NNP Bob)) "
    "(VP (VBD saw) (NP (NP (DT a) (NN cat)) (PP (IN with) (NP (NNP Ann))))) (. .))"
)
TREES = sample_trees(60, seed=3)


# Penn notation


def test_reading_undoes_writing():
    assert [read_tree(write_tree(tree)) for tree in TREES] == TREES
    assert read_trees("\n".join(map(write_tree, TREES))) == TREES


def test_white_space_is_free_and_a_nameless_bracket_is_top():
    ann, ran = Tree("NP", (Tree("NNP", ("Ann",)),)), Tree("VP", (Tree("VBD", ("ran",)),))
    read = read_tree("( (S\n   (NP (NNP  Ann) )\t(VP (VBD ran))))")
    assert read == Tree("TOP", (Tree("S", (ann, ran)),))
    assert read_trees(" \n") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (NP", "closed, got 2"),
        ("(S (NN dog)))", r"got '\)' at character 13"),
        ("dog", "got 'dog' at character 1"),
        ("(S (NP))", r"got \(NP\)"),
        ("()", r"got \(TOP\)"),
        ("(S (NN dog)) (S (NN cat))", "one tree is needed, got 2"),
        ("", "one tree is needed, got 0"),
    ],
)
def test_what_is_no_tree_is_refused_in_one_line(text, message):
    with pytest.raises(ConfigError, match=message) as error:
        read_tree(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["", "a b", "(", "x)"])
def test_a_name_that_could_not_be_read_back_is_not_written(name):
    for tree in (Tree("NN", (name,)), Tree(name, ("dog",))):
        with pytest.raises(ConfigError, match="no space or bracket"):
            write_tree(tree)


# Tokens


def test_every_mark_of_punctuation_keeps_its_tag():
    tree = Tree("S", tuple(Tree(tag, ("x",)) for tag in (",", ":", "``", "''", ".", "NN")))
    assert linearize(tree, "XX") == ["(S", ",", ":", "``", "''", ".", "XX", ")S"]


def test_linearization_is_the_published_one():
    # Vinyals et al. (2015), figure 2: "John has a dog ." with tags, and with XX for them.
    tree = read_tree("(S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .))")
    assert " ".join(linearize(tree, "tags")) == "(S (NP NNP )NP (VP VBZ (NP DT NN )NP )VP . )S"
    assert " ".join(linearize(tree, "XX")) == "(S (NP XX )NP (VP XX (NP XX XX )NP )VP . )S"
    assert linearize(Tree("NP", ("a", "dog"))) == ["(NP", "a", "dog", ")NP"]


@pytest.mark.slow
def test_a_tree_survives_the_way_to_tokens_and_back():
    for tree in TREES:
        words = tree_words(tree)
        assert delinearize(linearize(tree)) == tree
        assert delinearize(linearize(tree, "tags"), words) == tree
        with_xx = delinearize(linearize(tree, "XX"), words)
        assert tree_words(with_xx) == words
        assert brackets(with_xx) == brackets(tree)


def test_unknown_leaves_are_refused():
    with pytest.raises(ConfigError, match="words, tags or XX, got none"):
        linearize(TREES[0], "none")


@pytest.mark.parametrize(
    ("tokens", "repaired"),
    [
        # Nothing to repair.
        ("(S (NP XX )NP (VP XX XX )VP )S", "(S (NP (XX a)) (VP (XX b) (XX c)))"),
        ("(S (NP XX )NP (VP XX XX", "(S (NP (XX a)) (VP (XX b) (XX c)))"),  # not closed
        # Closed from further out.
        ("(S (NP XX (VP XX )NP XX )S", "(S (NP (XX a) (VP (XX b))) (XX c))"),
        ("(S XX )NP XX XX )S )S", "(S (XX a) (XX b) (XX c))"),  # closes what is not open
        ("(S (NP XX )NP )S", "(S (NP (XX a)) (XX b) (XX c))"),  # words missing
        # Words too many, a bracket empty.
        ("(S XX (NP )NP XX XX XX XX )S", "(S (XX a) (XX b) (XX c))"),
        ("(NP XX )NP (VP XX XX )VP", "(TOP (NP (XX a)) (VP (XX b) (XX c)))"),  # two trees
        ("XX", "(TOP (XX a) (XX b) (XX c))"),
        ("", "(TOP (XX a) (XX b) (XX c))"),
        (")S )S (S", "(TOP (XX a) (XX b) (XX c))"),
    ],
)
def test_a_repair_by_hand(tokens, repaired):
    tokens, words = tokens.split(), ["a", "b", "c"]
    assert write_tree(delinearize(tokens, words)) == repaired
    assert is_well_formed(tokens, words) == (
        repaired == "(S (NP (XX a)) (VP (XX b) (XX c)))" and len(tokens) == 9
    )


@pytest.mark.slow
def test_whatever_a_model_writes_becomes_a_tree_over_the_words():
    generator = random.Random(5)
    alphabet = ["(S", ")S", "(NP", ")NP", "XX", "(", ")", ".", "XX"]
    for _ in range(200):
        tokens = generator.choices(alphabet, k=generator.randint(0, 12))
        words = generator.choices("uvwxyz", k=generator.randint(1, 5))
        tree = delinearize(tokens, words)
        assert tree_words(tree) == words
        assert read_tree(write_tree(tree)) == tree
        again = linearize(tree, "tags")
        assert delinearize(again, words) == tree
        assert is_well_formed(again, words)


@pytest.mark.slow
def test_well_formed_is_what_a_stack_says():
    def by_stack(tokens, n_words):
        stack, roots = [], 0
        for i, token in enumerate(tokens):
            roots += not stack and not token.startswith(")")
            if token.startswith("("):
                stack.append(token[1:])
            elif token[0] == ")" and (
                not stack or stack.pop() != token[1:] or tokens[i - 1][0] == "("
            ):
                return False
        return not stack and roots == 1 and sum(token[0] not in "()" for token in tokens) == n_words

    for n in range(1, 6):
        for tokens in itertools.product(["(A", ")A", "(B", ")B", "XX"], repeat=n):
            assert is_well_formed(tokens, ["u", "v"]) == by_stack(tokens, 2), tokens


def test_a_tree_needs_a_word():
    for words in (None, []):
        with pytest.raises(ConfigError, match="at least one word"):
            delinearize(["(S", ")S"], words)


def test_depth_is_no_limit():
    words = ["a"]
    tree = delinearize(["(S"] * 2000 + ["XX"], words)
    assert sum(brackets(tree).values()) == 2000
    assert len(linearize(tree, "tags")) == 4001


# Scores


def test_brackets_of_a_sentence_by_hand():
    expected = [("S", 0, 6), ("NP", 0, 1), ("VP", 1, 6), ("NP", 2, 6), ("NP", 2, 4), ("PP", 4, 6)]
    assert brackets(read_tree(WITH)) == Counter([*expected, ("NP", 5, 6)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("(TOP (S (NN a)))", "(S (NN a))"),
        ("(ROOT (S (NN a)))", "(S1 (S (NN a)))"),
        ("(S (ADVP (RB a)))", "(S (PRT (RP a)))"),
        ("(S (NP-SBJ-1 (NN a)) (NP=2 (NN b)))", "(S (NP (NN a)) (NP (NN b)))"),
        # Where a comma hangs does not count.
        ("(S (NP (NN a) (, ,)) (NN b))", "(S (NP (NN a)) (, ,) (NN b))"),
        ("(S (NN a) (PRN (: --)))", "(S (NN a) (: --))"),
        ("(S (NP (-NONE- *)) (NN a))", "(S (-NONE- *) (NN a))"),
        ("(S (NN a))", "(S (JJ a))"),  # tags do not count
    ],
)
def test_what_evalb_does_not_tell_apart(one, other):
    assert brackets(read_tree(one)) == brackets(read_tree(other)) != Counter()


def test_f1_by_hand_on_one_attachment():
    flat = (
        "(S (NP (NNP Bob)) (VP (VBD saw) (NP (DT a) (NN cat)) (PP (IN with) (NP (NNP Ann)))) (. .))"
    )
    scores = bracket_f1([read_tree(WITH)], [read_tree(flat)])
    assert scores.precision == pytest.approx(100)  # all 6 predicted brackets are there
    assert scores.recall == pytest.approx(100 * 6 / 7)
    assert scores.f1 == pytest.approx(100 * 12 / 13)
    assert scores.complete == 0


@pytest.mark.slow
def test_counts_of_pairs_add_up_to_the_corpus():
    flat = [delinearize(["(S"], tree_words(tree)) for tree in TREES]
    counts = [bracket_counts(*pair) for pair in zip(TREES, flat, strict=True)]
    assert f1_of_counts(counts) == bracket_f1(TREES, flat)
    assert counts[0] == (0, brackets(TREES[0]).total(), 0)
    both = f1_of_counts([*counts, *(bracket_counts(tree, tree) for tree in TREES)])
    assert (both.precision, both.recall, both.complete) == (100, 50, 50)
    with pytest.raises(ConfigError, match="no brackets"):
        f1_of_counts([])


def test_tokens_in_one_string_are_refused():
    """Not taken letter by letter."""
    for tokens, words in (("(S a )S", None), (["(S", "NN", ")S"], "dog")):
        with pytest.raises(ConfigError, match="tokens and words must be lists of strings, got '"):
            delinearize(tokens, words)


def test_what_cannot_be_scored_is_refused():
    dog, other = read_tree(DOG), read_tree(WITH)
    with pytest.raises(ConfigError, match="got 2 and 1"):
        bracket_f1([dog, dog], [dog])
    with pytest.raises(ConfigError, match="pair 2 must have the same words"):
        bracket_f1([dog, dog], [dog, other])
    for not_trees in (dog, [DOG], DOG):  # a tree is a tuple of its label and children
        with pytest.raises(ConfigError, match="must be lists of trees, got "):
            bracket_f1(not_trees, not_trees)
    for nothing in ([], [read_tree("(NN dog)")]):
        with pytest.raises(ConfigError, match="no brackets"):
            bracket_f1(nothing, nothing)


def test_an_empty_parse_scores_zero():
    flat = delinearize([], tree_words(read_tree(DOG)))
    assert bracket_f1([read_tree(DOG)], [flat]) == (0, 0, 0, 0)


LEVELS = 100_000


def deep_tree(word, levels=LEVELS):
    tree = Tree("NN", (word,))
    for _ in range(levels):
        tree = Tree("NP", (tree,))
    return tree


def test_trees_of_any_depth_are_compared_and_hashed():
    """Also deeper than Python's own tuples, whose hash recurses in C until the process dies."""
    one, same, other = deep_tree("dog"), deep_tree("dog"), deep_tree("cat")
    assert (one == same, one != same, hash(one) == hash(same)) == (True, False, True)
    assert (one == other, one != other) == (False, True)
    assert one not in {other, deep_tree("dog", LEVELS - 1), "dog", ("NP", one.children)}
