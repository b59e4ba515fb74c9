"""nbval, as conftest.py has it: no clock fails a cell, and a dead kernel does."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def nbval(folder: Path, *cells: tuple[str, str], options: tuple[str, ...] = ()) -> str:
    """What `pytest --nbval` says of a notebook of these cells and what they are to print."""
    kernel = {"name": "python3", "display_name": "Python"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    for number, (source, text) in enumerate(cells, 1):
        outputs = [nbformat.v4.new_output("stream", text=text)] if text else []
        cell = nbformat.v4.new_code_cell(source, outputs=outputs, execution_count=number)
        notebook.cells.append(cell)
    nbformat.write(notebook, folder / "small.ipynb")
    command = [
        sys.executable, "-m", "pytest", "--nbval", "-v", "-rs", "--color=no", f"--rootdir={folder}",
        "-p", "conftest", "-p", "no:xdist", "-p", "no:cacheprovider",
        f"-c{ROOT / 'pyproject.toml'}", f"--nbval-sanitize-with={ROOT / 'tests' / 'nbval.cfg'}",
        *options, str(folder / "small.ipynb"),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    return done.stdout + done.stderr


def test_no_clock_fails_a_slow_cell(tmp_path: Path) -> None:
    """Longer than the limit that is asked for, and than the 5 s after which
    nbval gives up on an output."""
    slow = ("import time\ntime.sleep(6)\nprint('done')", "done\n")
    after = ("print('next')", "next\n")
    said = nbval(tmp_path, slow, after, options=("--nbval-cell-timeout=1",))
    assert "2 passed" in said, said


def test_a_dead_kernel_fails_its_cell_and_the_rest_is_skipped(tmp_path: Path) -> None:
    before, after = (f"print('{word}')" for word in ("alive", "after"))
    die = ("import os\nos.kill(os.getpid(), 9)", "")
    said = nbval(tmp_path, (before, "alive\n"), die, (after, "after\n"))
    assert "1 failed, 1 passed, 1 skipped" in said, said
    assert "Cell 1: The kernel died while this cell ran" in said
    assert "the kernel died in cell 1" in said


def test_a_kernel_that_dies_between_cells_fails_the_next_one(tmp_path: Path) -> None:
    die_later = "import os, threading, time\nthreading.Timer(0.5, os._exit, [1]).start()"
    said = nbval(tmp_path, (die_later, ""), ("time.sleep(3)", ""))
    assert "1 failed, 1 passed" in said and "Cell 1: The kernel died" in said, said


@pytest.mark.parametrize(("printed", "outcome"), [("right\n", "1 passed"), ("wrong\n", "1 failed")])
def test_a_cell_is_still_judged_by_what_it_prints(tmp_path, printed, outcome) -> None:
    assert outcome in nbval(tmp_path, ("print('right')", printed))
