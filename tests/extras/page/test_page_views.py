"""What the views of an exported page compute, run in Node, against the search and by hand."""

from itertools import combinations
from pathlib import Path

import pytest

from annotated_transformer.extras.page.writing import write_page
from tools.page_engine import NODE, run_engine

BOOK_MODEL = Path(__file__).parents[3] / "book" / "model"
needs_node = pytest.mark.skipif(not NODE, reason="no node on this machine")


@pytest.fixture(scope="module")
def book_page(tmp_path_factory):
    return write_page(BOOK_MODEL, tmp_path_factory.mktemp("page") / "book")


def path_to(nodes, node):
    """The nodes from the first token to this one."""
    path = []
    while node["parent"] >= 0:
        path.insert(0, node)
        node = nodes[node["parent"]]
    return path


@needs_node
def test_the_tree_has_every_hypothesis_in_its_place(book_page):
    texts = ["I like tea.", "The woman who lives next door has a small dog."]
    (found,) = run_engine(book_page, {"do": "translate", "texts": texts, "settings": {}})
    jobs = [{"do": "tree", "steps": one["steps"]} for one in found]
    for one, nodes in zip(found, run_engine(book_page, *jobs), strict=True):
        assert len(nodes) == 1 + sum(map(len, one["steps"]))
        ended = sorted((node for node in nodes if node["rank"]), key=lambda node: node["rank"])
        ids = [[step["token"] for step in path_to(nodes, node)] for node in ended]
        assert ids == [[*hypothesis["tokens"], 2] for hypothesis in one["hypotheses"]]
        assert [node for node in nodes[1:] if node["wins"]] == path_to(nodes, ended[0])
        for node in nodes[1:]:
            above = nodes[node["parent"]]
            assert above["step"] == node["step"] - 1 and above["logP"] >= node["logP"]


@needs_node
def test_a_tree_by_hand(book_page):
    """`parent` counts those that went on: in the second step 0 is b, since a has ended."""
    steps = [
        [
            {"parent": 0, "token": 7, "piece": "a", "logP": -1, "score": -1, "ends": True},
            {"parent": 0, "token": 8, "piece": "b", "logP": -2, "score": -1.5, "ends": False},
            {"parent": 0, "token": 9, "piece": "c", "logP": -3, "score": -2, "ends": False},
        ],
        [{"parent": 0, "token": 5, "piece": "d", "logP": -2.5, "score": -0.5, "ends": True}],
    ]
    (nodes,) = run_engine(book_page, {"do": "tree", "steps": steps})
    found = {
        node["piece"]: [node[name] for name in ("parent", "rank", "wins", "goesOn")]
        for node in nodes
    }
    assert found == {
        "<s>": [-1, 0, True, True],
        "a": [0, 2, False, False],
        "b": [0, 0, True, True],
        "c": [0, 0, False, False],
        "d": [2, 1, True, False],
    }


@needs_node
def test_marked_words_leave_a_longest_common_sequence(book_page):
    """Its length by brute force: every way to strike words from either side."""
    pairs = [["a b c d", "a x c d"], ["a b a c", "b a b a"], ["", "a"], ["a b", "a b"], ["a", "b"]]
    (found,) = run_engine(book_page, {"do": "compare", "pairs": pairs})
    for (one, two), marked in zip(pairs, found, strict=True):
        words = [one.split(), two.split()]
        sides = [marked["before"], marked["after"]]
        assert [[word["word"] for word in side] for side in sides] == words
        kept = [[word["word"] for word in side if word["isKept"]] for side in sides]
        ways = [{way for n in range(5) for way in combinations(side, n)} for side in words]
        assert kept[0] == kept[1]
        assert len(kept[0]) == max(map(len, ways[0] & ways[1]))


@needs_node
def test_a_choice_names_its_heads(book_page):
    config = {"N": 2, "h": 3}
    expected = {
        ("cross", "1", "2"): ["cross.1.2"],
        ("encoder", "0", ""): ["encoder.0.0", "encoder.0.1", "encoder.0.2"],
        ("decoder", "", "1"): ["decoder.0.1", "decoder.1.1"],
        ("", "", ""): [],
    }
    choices = [dict(zip(("kind", "layer", "head"), one, strict=True)) for one in expected]
    jobs = [{"do": "headsOf", "choice": one, "config": config} for one in choices]
    assert run_engine(book_page, *jobs) == list(expected.values())
