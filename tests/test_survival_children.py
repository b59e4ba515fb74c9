"""A child of `survival.py` that breaks is told of, and nobody waits for it."""

import os
import signal

import pytest

import survival

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a process cannot fork here")


@pytest.fixture(autouse=True)
def limited():
    """A test that waits for ever is ended."""
    signal.alarm(600)
    yield
    signal.alarm(0)


@pytest.mark.parametrize("kill_after", [None, 0.0])
def test_a_child_that_breaks_is_not_waited_for(tmp_path, monkeypatch, capfd, kill_after):
    monkeypatch.setattr(survival, "go_on", lambda out, precision: {}["no such key"])
    assert survival.attempt(tmp_path / "run", "fp32", kill_after=kill_after) == 1
    assert "KeyError: 'no such key'" in capfd.readouterr().out


def test_a_preparation_that_breaks_is_told_too(tmp_path, capfd):
    assert survival.attempt(tmp_path / "run", "fp32", install=lambda: int("x")) == 1
    assert "ValueError" in capfd.readouterr().out


def test_a_run_that_breaks_is_not_run_again_until_it_is_killed(tmp_path, monkeypatch):
    ends = {"whole": 0, "killed": 1}
    monkeypatch.setattr(survival, "attempt", lambda out, *_, **__: ends[out.name])
    with pytest.raises(SystemExit, match="a run that should be killed ended by itself with 1"):
        survival.kills(tmp_path, 1, survival.random.Random(1), "fp32")
