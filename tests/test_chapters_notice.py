"""A changed number in the package turns a chapter red, and not only where the chapter shows the changed line."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from mutants import ATTENTION, Mutant, copy_of_the_package

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
CHAPTER = "book/3_2_attention.ipynb"
DOUBLED = Mutant("attention's output is doubled", ATTENTION, "return attention_weights(q, k, mask) @ v",
                 "return 2 * (attention_weights(q, k, mask) @ v)", ())
UNSCALED = Mutant("nothing divides by sqrt(d_k)", ATTENTION, " / math.sqrt(q.size(-1))", "", ())
PROJECT = ("conftest.py", "pyproject.toml", "tests/nbval.cfg", CHAPTER)
"""What `pytest --nbval` reads besides the package. The copy's conftest.py puts the copy before this repository."""


def red_cells(project: Path, *options: str) -> list[str]:
    """The code of the cells that failed in the chapter, run on the package in `project`."""
    command = [sys.executable, "-m", "pytest", "--nbval", "-q", "-rf", "-p", "no:xdist", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([*command, *options, CHAPTER], cwd=project, env=environment, capture_output=True, text=True)
    failed = [int(number) for number in re.findall(r"^FAILED \S+::Cell (\d+)", done.stdout, flags=re.M)]
    assert done.returncode == (pytest.ExitCode.TESTS_FAILED if failed else pytest.ExitCode.OK), done.stdout
    cells = [cell for cell in nbformat.read(project / CHAPTER, as_version=4).cells if cell.cell_type == "code"]
    return [cells[number].source for number in failed]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in PROJECT:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    copy_of_the_package(tmp_path)
    return tmp_path


def test_the_unchanged_copy_is_green(project: Path) -> None:
    assert red_cells(project) == []


@pytest.mark.parametrize("mutant", [DOUBLED, UNSCALED], ids=lambda mutant: mutant.name)
def test_a_changed_number_turns_the_chapter_red(mutant: Mutant, project: Path) -> None:
    """Two red cells are enough to wait for: the one that shows the line, and one that asserts what it computes."""
    mutant.apply(project / "annotated_transformer")
    red = red_cells(project, "--maxfail=2")
    assert any("assert" in cell for cell in red), red
