"""Every piece of code of *Change the model* runs as it is printed, and is short."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "book" / "change_the_model.md").read_text(encoding="utf-8")
BEGINNING, *SECTIONS = PAGE.split("\n## ")
TITLES = [section.partition("\n")[0] for section in SECTIONS]
OPTIONAL = {"Lightning": "lightning", "Hugging Face's Trainer": "transformers"}
NEEDS = {"Frozen layers": "Another loss", "Keep what you have trained": "Frozen layers"}
"""Sections that go on with what another has made."""


def pieces(text):
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def section(title):
    return SECTIONS[TITLES.index(title)]


@pytest.mark.slow
@pytest.mark.parametrize("title", TITLES)
def test_a_change_runs_as_it_is_printed(title, tmp_path, monkeypatch):
    if title in OPTIONAL:
        pytest.importorskip(OPTIONAL[title])
    monkeypatch.chdir(tmp_path)
    names = {}
    before = [title]
    while before[0] in NEEDS:
        before.insert(0, NEEDS[before[0]])
    for text in (BEGINNING, *map(section, before)):
        for code in pieces(text):
            exec(compile(code, title, "exec"), names)
    if title == "Your own figures in the log":
        assert '"embedding_norm"' in (tmp_path / "runs/changed/log.jsonl").read_text()


def test_there_are_seven_changes_and_each_is_short():
    assert len(TITLES) == 8 and TITLES[-1] == "Keep what you have trained"
    for title in TITLES:
        for code in pieces(section(title)):
            lines = [line for line in code.splitlines() if line.strip()]
            assert 1 <= len(lines) <= 15, title
