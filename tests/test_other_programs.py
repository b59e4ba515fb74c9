"""The page on other programs: its Python runs, and its commands are commands."""

import re
import shlex
from pathlib import Path

import pytest

from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.command_line import entry_point as cli

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "book" / "other_programs.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
COMMANDS = re.findall(r"^annotated-transformer (.*)$", PAGE, flags=re.M)


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "book").symlink_to(ROOT / "book")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_its_python_runs(here):
    for code in PYTHON:
        exec(compile(code, "other_programs.md", "exec"), {})
    assert len(PYTHON) == 2 and load_model(here / "runs" / "from-torch")[0].config.final_norm


@pytest.mark.slow
def test_the_first_two_run(here):
    for line in COMMANDS[:2]:
        assert cli.main(shlex.split(line)) == 0
    again, tokenizer = load_model("runs/again")
    model, own = load_model("book/model")
    assert again.config == model.config and tokenizer.model_bytes == own.model_bytes
