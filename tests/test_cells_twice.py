"""Every code cell of a chapter can be run twice in a row, as readers do.

    python -m tests.test_cells_twice book/3_2_masks.py ...    (without a name: every chapter)

The second run must not raise, and must print the same text; what a cell tagged nbval-ignore-output
prints may differ. The whole book takes half an hour so, and the suite runs two chapters.
"""

import copy
import sys
from pathlib import Path

import nbclient
import pytest

from tools import notebooks


def text_of(cell):
    """What a cell printed, without progress and pictures."""
    printed = [each.get("text", "") for each in cell.outputs if each.get("name") != "stderr"]
    shown = [each.get("data", {}).get("text/plain", "") for each in cell.outputs]
    return "".join([*printed, *(text for text in shown if " at 0x" not in text)])


def failures(chapter):
    """A line for each error, and for each cell that prints something else the second time."""
    notebook = notebooks.read_source(chapter)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.cells = [copy.deepcopy(cell) for cell in cells for _ in range(2)]
    for number, cell in enumerate(notebook.cells):
        cell["id"] = str(number)
    folder = {"metadata": {"path": str(chapter.parent)}}
    options = {"allow_errors": True, "timeout": None, "kernel_name": "python3"}
    nbclient.NotebookClient(notebook, resources=folder, **options).execute()
    found = []
    for first, second in zip(notebook.cells[::2], notebook.cells[1::2]):
        begins = f"{chapter.name}, `{first.source.splitlines()[0][:70]}`"
        for name, cell in (("first", first), ("second", second)):
            for error in (each for each in cell.outputs if each.output_type == "error"):
                found.append(f"{begins}, {name} run: {error.ename}: {error.evalue[:200]}")
        may_differ = "nbval-ignore-output" in first.metadata.get("tags", [])
        if not may_differ and text_of(first) != text_of(second):
            found.append(f"{begins} prints something else the second time")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("chapter", ["5_1_data_and_batching", "5_2_training"])
def test_a_cell_that_is_run_again_does_the_same(chapter):
    assert failures(notebooks.BOOK / f"{chapter}.py") == []


if __name__ == "__main__":
    found = []
    for chapter in map(Path, sys.argv[1:]) if sys.argv[1:] else notebooks.chapters():
        found += (mine := failures(chapter))
        print(*mine, f"{chapter.name}: {len(mine)} failures", sep="\n", flush=True)
    sys.exit(bool(found))
