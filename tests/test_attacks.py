"""Each hostile file of tests/attacks is refused in one line, and harms software that trusts it."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "attacks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "attack")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits processes as Linux does")
PROGRAMS = {"pickled_weights", "pickled_state", "config_of_code", "archive_that_builds"}
HARM = (
    "runs the stranger", "takes ", "never ends", "ends in a traceback", "dies of", "goes on",
    "translates", "writes a file",
)  # fmt: skip


@pytest.fixture(autouse=True)
def scripts(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.syspath_prepend(FOLDER.parent / "text")
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(tmp_path / "cache"))


def test_there_are_enough():
    assert len(NAMES) >= 15


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_file_is_refused_in_one_line(name, tmp_path):
    attack = importlib.import_module("attack")
    trusting, ours = attack.outcomes(importlib.import_module(name), tmp_path / "stranger")
    assert trusting.words.startswith(HARM), trusting.words
    assert ("runs the stranger" in trusting.words) == (name in PROGRAMS), trusting.words
    assert ours.refused and "\n" not in ours.words, ours.words
    assert ours.peak < attack.MOST_MEMORY
