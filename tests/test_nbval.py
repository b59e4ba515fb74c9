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


def test_a_cell_is_judged_by_what_it_prints_and_not_by_the_clock(tmp_path: Path) -> None:
    """The first takes longer than the limit that is asked for, and than the 5 s after which
    nbval gives up on an output."""
    slow = ("import time\ntime.sleep(6)\nprint('done')", "done\n")
    right, wrong = (("print('next')", text) for text in ("next\n", "nothing\n"))
    said = nbval(tmp_path, slow, right, wrong, options=("--nbval-cell-timeout=1",))
    assert "1 failed, 2 passed" in said, said


def test_a_dead_kernel_fails_its_cell_and_the_rest_is_skipped(tmp_path: Path) -> None:
    before, after = (f"print('{word}')" for word in ("alive", "after"))
    die = ("import os\nos.kill(os.getpid(), 9)", "")
    said = nbval(tmp_path, (before, "alive\n"), die, (after, "after\n"))
    assert "1 failed, 1 passed, 1 skipped" in said, said
    assert "Cell 1: The kernel died while this cell ran" in said
    assert "the kernel died in cell 1" in said
