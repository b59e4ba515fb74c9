"""Run the chapters from their .py sources and store what they show.

    python -m tools.notebooks refresh [CHAPTER ...]   run book/*.py and write book/*.ipynb,
                                                      outputs included
    python -m tools.notebooks words [CHAPTER ...]     take over changed words and tags, and keep
                                                      the outputs

A chapter is a text file, `book/x.py`, with cells marked `# %%` (jupytext's percent format). The
notebook beside it is that text with outputs, made so that running it twice gives the same bytes:
stable cell ids, no times, no versions. What a cell writes to standard error is progress: it is
shown here while the cell runs, and not stored. jupytext reads the text; it gives cells random ids,
and does not know from which code an output is.
"""

import asyncio
import hashlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbformat import NotebookNode

from tools import colab, execution
from tools.arguments import parser_of

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"


def chapters() -> list[Path]:
    """The chapters' sources, in the order of their names."""
    return sorted(path for path in BOOK.glob("*.py"))


def read_source(path: Path) -> NotebookNode:
    """The notebook that the text `path` describes, with what Colab needs: no outputs,
    cell ids by position."""
    notebook = jupytext.read(path)
    notebook.cells = [cell for cell in notebook.cells if not colab.is_made_here(cell)]
    kinds = [cell.cell_type for cell in notebook.cells]
    notebook.cells.insert(
        kinds.index("code") if "code" in kinds else len(kinds), colab.first_cell()
    )
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"{path.stem}-{number:03d}"
    notebook.cells.insert(0, colab.badge(path.stem))
    notebook.metadata = NotebookNode(
        kernelspec={
            "display_name": "Python 3 (ipykernel)",
            "language": "python",
            "name": "python3",
        },
        language_info={"name": "python"},
        jupytext={"formats": "ipynb,py:percent"},
        book={"source_hash": source_hash(notebook)},
        **colab.metadata(path.stem),
    )
    return notebook


def source_hash(notebook: NotebookNode) -> str:
    """A fingerprint of the code that made the outputs: the chapter's own code cells, in order."""
    code = "\0".join(
        cell.source
        for cell in notebook.cells
        if cell.cell_type == "code" and not colab.is_made_here(cell)
    )
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def is_stale(source: Path) -> bool:
    """Whether the stored notebook is missing,
    or was made from other cells than `source` has now."""
    stored = source.with_suffix(".ipynb")
    if not stored.exists():
        return True
    old, new = nbformat.read(stored, as_version=4), read_source(source)
    return old.metadata != new.metadata or [_text(cell) for cell in old.cells] != [
        _text(cell) for cell in new.cells
    ]


def _text(cell: NotebookNode) -> tuple[str, str, str, dict[str, Any]]:
    return cell.id, cell.cell_type, cell.source, cell.metadata


def take_over_words(source: Path) -> bool:
    """Bring the stored notebook's words and tags up to date, without running it;
    False where code has changed.

    The code cells, and so the outputs, must be the same, in the same order.
    """
    target = source.with_suffix(".ipynb")
    if not target.exists():
        return False
    old, new = nbformat.read(target, as_version=4), read_source(source)
    if old.metadata.get("book") != new.metadata["book"]:
        return False
    take_outputs(old, new)
    execution.write_whole(new, target)
    return True


def take_outputs(old: NotebookNode, new: NotebookNode) -> None:
    """Give the code cells of `new` the outputs of `old`,
    which has the same code cells in the same order."""
    for before, after in zip(
        (cell for cell in old.cells if cell.cell_type == "code"),
        (cell for cell in new.cells if cell.cell_type == "code"),
        strict=True,
    ):
        after.outputs, after.execution_count = before.outputs, before.execution_count


async def run(source: Path, target: Path, progress: execution.Progress | None = None) -> bool:
    """Run the chapter `source` and write the notebook `target`; False, and nothing written,
    where a cell fails."""
    notebook = read_source(source)
    progress = progress or execution.Progress(1, 0)
    failure = await execution.run(source.stem, notebook, target.parent, progress)
    if failure is None:
        execution.write_whole(notebook, target)
    progress.end(source.stem, failure)
    return failure is None


async def run_all(sources: list[Path], folder: Path) -> bool:
    """Run chapters side by side; False where one failed, after all have ended."""
    progress = execution.Progress(len(sources), 0)
    done = list[bool]()

    async def run_one(source: Path) -> None:
        done.append(await run(source, folder / f"{source.stem}.ipynb", progress))

    await execution.side_by_side([partial(run_one, source) for source in sources])
    return all(done)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("verb", choices=["refresh", "words"])
    parser.add_argument("chapters", nargs="*", type=Path, help="book/x.py; all if none is named")
    arguments = parser.parse_args()

    execution.kernel_environment(ROOT)
    sources = [path.with_suffix(".py") for path in arguments.chapters] or chapters()
    if missing := [str(path) for path in sources if not path.exists()]:
        parser.error(f"no such chapter: {', '.join(missing)}")
    if arguments.verb == "words":
        changed = [str(path) for path in sources if is_stale(path) and not take_over_words(path)]
        for path in changed:
            print(f"{path}: code has changed; run: make refresh CHAPTER={path}", file=sys.stderr)
        return bool(changed)
    try:
        return not asyncio.run(run_all(sources, BOOK))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped. The chapters that were done are stored.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
