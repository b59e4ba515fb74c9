"""Run the chapters from their .py sources and store what they show.

    python tools/notebooks.py refresh [CHAPTER ...]      run book/*.py and write book/*.ipynb, outputs included
    python tools/notebooks.py refresh --check            change nothing; say which notebooks are stale, exit 1 if any
    python tools/notebooks.py words [CHAPTER ...]        take over changed words and tags, and keep the outputs
    python tools/notebooks.py execute --to FOLDER        the same into a copy of the book's sources, for `make book`

A chapter is a text file, `book/x.py`, with cells marked `# %%` (jupytext's percent format). The notebook beside it
is that text with outputs, made so that running it twice gives the same bytes: stable cell ids, no times, no versions.
What a cell writes to standard error is progress: it is shown here while the cell runs, and not stored.
"""

import argparse
import asyncio
import hashlib
import os
import shutil
import sys
import time
from pathlib import Path

import jupytext
import nbclient
import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
SITE = ("_config.yml", "_toc.yml", "static", "book")  # all that a build of the HTML reads
CELL_TIMEOUT = 900  # seconds
COLAB = {"gpuType": "T4", "provenance": [], "toc_visible": True}


def chapters() -> list[Path]:
    """The chapters' sources, in the order of their names."""
    return sorted(path for path in BOOK.glob("*.py"))


def read_source(path: Path) -> NotebookNode:
    """The notebook that the text `path` describes: no outputs, cell ids by position, metadata for Jupyter and Colab."""
    notebook = jupytext.read(path)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"{path.stem}-{number:03d}"
    notebook.metadata = NotebookNode(
        kernelspec={"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        language_info={"name": "python"},
        accelerator="GPU",
        colab=COLAB,
        jupytext={"formats": "ipynb,py:percent"},
        book={"source_hash": source_hash(notebook)},
    )
    return notebook


def source_hash(notebook: NotebookNode) -> str:
    """A fingerprint of the code that made the outputs: all code cells, in order."""
    code = "\0".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def is_stale(source: Path) -> bool:
    """Whether the stored notebook is missing, or was made from other cells than `source` has now."""
    stored = source.with_suffix(".ipynb")
    if not stored.exists():
        return True
    old, new = nbformat.read(stored, as_version=4), read_source(source)
    return old.metadata != new.metadata or [_text(cell) for cell in old.cells] != [_text(cell) for cell in new.cells]


def _text(cell: NotebookNode) -> tuple[str, str, str, dict]:
    return cell.id, cell.cell_type, cell.source, cell.metadata


class Reporter:
    """Prints where each chapter is: a line when a cell takes long, one when a chapter ends."""

    QUIET = 5.0  # seconds without a line before the next one

    def __init__(self, name: str, n_cells: int):
        self.name, self.n_cells, self.cell = name, n_cells, 0
        self.started = self.last = time.monotonic()

    def say(self, text: str, now: bool = False) -> None:
        if now or time.monotonic() - self.last >= self.QUIET:
            self.last = time.monotonic()
            minutes, seconds = divmod(int(self.last - self.started), 60)
            print(f"{self.name}  {minutes}:{seconds:02d}  cell {self.cell}/{self.n_cells}  {text}", file=sys.stderr)


class Client(nbclient.NotebookClient):
    """Runs a notebook; standard error goes to the reporter as it comes, instead of into the notebook."""

    def __init__(self, notebook: NotebookNode, folder: Path, reporter: Reporter):
        super().__init__(
            notebook, timeout=CELL_TIMEOUT, kernel_name="python3", record_timing=False, coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
        )
        self.reporter = reporter

    def process_message(self, msg: dict, cell: NotebookNode, cell_index: int) -> NotebookNode | None:
        if msg["msg_type"] == "stream" and msg["content"]["name"] == "stderr":
            lines = msg["content"]["text"].replace("\r", "\n").strip().splitlines()
            if lines:
                self.reporter.say(lines[-1].strip(), now="Warning" in lines[0])
            return None
        return super().process_message(msg, cell, cell_index)


async def run(source: Path, target: Path) -> bool:
    """Run the chapter `source` from top to bottom in a fresh kernel and write the notebook `target`."""
    notebook = read_source(source)
    code = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    reporter = Reporter(source.stem, len(code))
    client = Client(notebook, target.parent, reporter)

    async def heartbeat() -> None:
        while True:
            await asyncio.sleep(30)
            reporter.say("still running")

    def count(cell_index: int, **_: object) -> None:
        reporter.cell = code.index(cell_index) + 1
        reporter.say(notebook.cells[cell_index].source.partition("\n")[0][:60])

    client.on_cell_execute = count
    beat = asyncio.create_task(heartbeat())
    try:
        await client.async_execute()
    except (CellExecutionError, CellTimeoutError) as error:
        reporter.say(f"FAILED\n{error}", now=True)
        return False
    finally:
        beat.cancel()
    notebook.metadata.language_info = {"name": "python"}  # the kernel put its version there
    nbformat.validate(notebook)
    nbformat.write(notebook, target)
    reporter.say("done", now=True)
    return True


def take_over_words(source: Path) -> bool:
    """Bring the stored notebook's words and tags up to date, without running it; False where code has changed.

    The code cells, and so the outputs, must be the same, in the same order.
    """
    target = source.with_suffix(".ipynb")
    if not target.exists():
        return False
    old, new = nbformat.read(target, as_version=4), read_source(source)
    if old.metadata.get("book") != new.metadata["book"]:
        return False
    for before, after in zip((cell for cell in old.cells if cell.cell_type == "code"),
                             (cell for cell in new.cells if cell.cell_type == "code"), strict=True):
        after.outputs, after.execution_count = before.outputs, before.execution_count
    nbformat.validate(new)
    nbformat.write(new, target)
    return True


async def run_all(sources: list[Path], folder: Path) -> bool:
    """Run all chapters, as many at once as there are cores, the last ones (which train) first."""
    slots = asyncio.Semaphore(os.cpu_count() or 1)

    async def run_one(source: Path) -> bool:
        async with slots:
            return await run(source, folder / source.with_suffix(".ipynb").name)

    return all(await asyncio.gather(*(run_one(source) for source in reversed(sources))))


def copy_site(folder: Path) -> Path:
    """A fresh copy in `folder` of everything that a build reads; returns its book folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in SITE:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    return folder / "book"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    refresh = verbs.add_parser("refresh", help="run chapters and store their outputs beside them")
    refresh.add_argument("chapters", nargs="*", type=Path, help="book/x.py (or .ipynb); all chapters if none is named")
    refresh.add_argument("--check", action="store_true", help="run nothing, exit 1 if a stored notebook is stale")
    words = verbs.add_parser("words", help="where only words and tags have changed: store them, run nothing")
    words.add_argument("chapters", nargs="*", type=Path, help="book/x.py (or .ipynb); all chapters if none is named")
    execute = verbs.add_parser("execute", help="run all chapters in a copy of the book")
    execute.add_argument("--to", type=Path, required=True, help="folder to replace by the executed copy")
    arguments = parser.parse_args()

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as the tests do: same thread count, same digits
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    if arguments.verb == "execute":
        return not asyncio.run(run_all(chapters(), copy_site(arguments.to.resolve())))
    sources = [path.with_suffix(".py") for path in arguments.chapters] or chapters()
    if missing := [str(path) for path in sources if not path.exists()]:
        parser.error(f"no such chapter: {', '.join(missing)}")
    if arguments.verb == "words":
        changed = [str(path) for path in sources if is_stale(path) and not take_over_words(path)]
        for path in changed:
            print(f"{path}: code has changed; run: make refresh CHAPTER={path}", file=sys.stderr)
        return bool(changed)
    if arguments.check:
        stale = [str(path) for path in sources if is_stale(path)]
        for path in stale:
            print(f"{path}: the stored notebook is stale; run: make refresh CHAPTER={path}", file=sys.stderr)
        return bool(stale)
    return not asyncio.run(run_all(sources, BOOK))


if __name__ == "__main__":
    sys.exit(main())
