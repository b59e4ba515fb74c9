"""A changed number in the package turns a chapter red,
and not only where the chapter shows the changed line."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from mutants import Mutant, copy_of_the_package

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
CHAPTER = "book/3_2_attention.ipynb"
OUTPUT = "attention_weights(q, k, mask) @ v"
DOUBLED = ("attention's output is doubled", f"return {OUTPUT}", f"return 2 * ({OUTPUT})")
UNSCALED = ("nothing divides by sqrt(d_k)", " / math.sqrt(q.size(-1))", "")
PROJECT = ("conftest.py", "pyproject.toml", "tests/nbval.cfg", CHAPTER)
"""What `pytest --nbval` reads besides the package. The copy's conftest.py puts the copy
before this repository."""


def red_cells(project, *options):
    """The numbers of the cells that failed in the chapter, run on the package in `project`."""
    command = [
        sys.executable, "-m", "pytest", "--nbval", "-q", "-rf", "-p", "no:xdist", "-p",
        "no:cacheprovider",
    ]  # fmt: skip
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    done = subprocess.run(
        [*command, *options, CHAPTER], cwd=project, env=environment, capture_output=True, text=True
    )
    numbers = re.findall(r"^FAILED \S+::Cell (\d+)", done.stdout, flags=re.M)
    right = pytest.ExitCode.TESTS_FAILED if numbers else pytest.ExitCode.OK
    assert done.returncode == right, done.stdout
    return list(map(int, numbers))


def copy_of_the_project(folder):
    for name in PROJECT:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    copy_of_the_package(folder)
    return folder


@pytest.fixture(scope="module")
def red(tmp_path_factory):
    """For each mutant the first two cells that turn red: the one that shows the line,
    and one that asserts."""
    found = {}
    for name, original, replacement in (DOUBLED, UNSCALED):
        project = copy_of_the_project(tmp_path_factory.mktemp("mutant"))
        mutant = Mutant(name, "model/attention.py", original, replacement, ())
        mutant.apply(project / "annotated_transformer")
        found[name] = red_cells(project, "--maxfail=2")
    return found


@pytest.mark.parametrize("name", [DOUBLED[0], UNSCALED[0]])
def test_a_changed_number_turns_the_chapter_red(name, red):
    cells = nbformat.read(ROOT / CHAPTER, as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    assert any("assert" in code[number] for number in red[name])


def test_without_the_change_the_same_cells_are_green(red, tmp_path):
    """As far as the last of them: the whole chapter is compared elsewhere
    in the same run of the tests."""
    project = copy_of_the_project(tmp_path)
    notebook, last = nbformat.read(project / CHAPTER, as_version=4), max(map(max, red.values()))
    places = [place for place, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    del notebook.cells[places[last] + 1 :]
    nbformat.write(notebook, project / CHAPTER)
    assert red_cells(project) == []
