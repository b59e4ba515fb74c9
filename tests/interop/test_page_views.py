"""What the views of an exported page compute, run in Node, against the search and by hand."""

from pathlib import Path

import pytest

from annotated_transformer.interop.page import write_page
from tools.page_engine import NODE, run_engine

BOOK_MODEL = Path(__file__).parents[2] / "book" / "model"
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
