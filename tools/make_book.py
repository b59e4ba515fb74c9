"""Make the book: run the chapters that have changed, and build its pages.
`make book` and `make html` call this.

    python -m tools.make_book            run what has changed since the last time, then build
                                         _build/html
    python -m tools.make_book --stored   build _build/html from the outputs that are stored in git,
                                         run nothing

What was executed is kept in _build/executed, see tools/reuse.py; a run that was stopped goes on
where it stopped. A chapter that fails is named, the others are finished, the pages are built,
and the exit status is 1. jupyter-cache was tried: tools/reuse.py says what it lacks.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from annotated_transformer.files import write_text
from tools import execution, reuse
from tools.arguments import parser_of
from tools.execution import Progress
from tools.notebooks import ROOT, read_source

# They begin a first run, so that no long chapter comes last.
LONGEST = ("6_1_translation", "6_3_parsing", "5_3_optimizer", "5_4_regularization")


def tell(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[int]:
    """Wait until no other process works in this checkout. The lock ends with its process,
    however that ends."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            tell(
                f"make book: process {file.read().strip()} is making the book in this folder; "
                "waiting for it to end"
            )
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()


def plan(sources: Sequence[Path], book: Path, shared: Mapping[str, str]) -> dict[Path, str]:
    """The chapters to run, those that took longest last time first, and why;
    the others' words are brought up to date."""
    copies = {source: book / f"{source.stem}.ipynb" for source in sources}
    seconds = {source: reuse.seconds_taken(copies[source]) for source in sources}
    reasons = {source: reuse.why_to_run(source, copies[source], shared) for source in sources}
    order = sorted(sources, key=lambda source: -(seconds[source] or source.stem in LONGEST))
    return {source: reasons[source] for source in order if reasons[source]}


async def run_chapters(
    root: Path, book: Path, to_run: Sequence[Path], progress: Progress
) -> list[execution.Failure]:
    """Run chapters into `book`. Each is stored when it is done."""
    failures = []

    async def run_one(source: Path) -> None:
        target = book / f"{source.stem}.ipynb"
        notebook = read_source(source)
        code, before = reuse.code_digest(notebook), reuse.shared_inputs(root, book)
        failure = await execution.run(source.stem, notebook, book, progress)
        if failure is not None:
            failures.append(failure)
            reuse.keep_failed(notebook, source.with_suffix(".ipynb"), target, failure)
            progress.end(source.stem, failure)
            return
        run: dict[str, Any] = {"seconds": progress.seconds(source.stem)}
        if reuse.shared_inputs(root, book) == before:
            run["inputs"] = {"code": code, **before}
        else:
            progress.say(f"{source.stem} will run again: what it is made from changed meanwhile")
        notebook.metadata.run = run
        execution.write_whole(notebook, target)
        progress.end(source.stem)

    await execution.side_by_side([partial(run_one, source) for source in to_run])
    return failures


def execute(root: Path, folder: Path) -> list[execution.Failure]:
    """Bring the executed copy of the book in `folder` up to date;
    returns the chapters that failed."""
    sources = sorted((root / "book").glob("*.py"))
    reuse.mirror(root, folder, {path.with_suffix(".ipynb").relative_to(root) for path in sources})
    book = folder / "book"
    to_run = plan(sources, book, reuse.shared_inputs(root, book))
    n_reused = len(sources) - len(to_run)
    why = ", ".join(f"{source.stem} ({reason})" for source, reason in to_run.items())
    print(
        f"{n_reused} chapters reused, {len(to_run) or 'none'} to run: {why}".rstrip(": "),
        flush=True,
    )
    progress = Progress(len(sources), n_reused)
    return asyncio.run(run_chapters(root, book, list(to_run), progress))


def build_pages(root: Path, source: Path, lock: int) -> int:
    """Build _build/html from the sources in `source`, unless it was built from just these;
    the status of the build."""
    build = root / "_build"
    stamp = build / "pages.json"
    package = reuse.files_below(root / "annotated_transformer")  # the reference, the translator
    made_from = json.dumps(
        {
            "site": reuse.digest_of(reuse.site_files(source), source),
            "package": reuse.digest_of(package, root),
            "versions": reuse.versions(root),
        }
    )
    if (
        (build / "html" / "index.html").exists()
        and stamp.exists()
        and stamp.read_text() == made_from
    ):
        print("the pages are those of the last build: nothing has changed")
        return 0
    stamp.unlink(missing_ok=True)
    for name in ("html", ".doctrees"):
        shutil.rmtree(build / name, ignore_errors=True)
    program = Path(sys.executable).with_name("jupyter-book")
    command = [
        str(program), "build", "-n", "-W", "--keep-going", "--path-output", str(root), str(source),
    ]  # fmt: skip
    # The builder holds the lock too: if this process alone is killed,
    # the next one waits for the builder's end.
    status = subprocess.run(command, pass_fds=(lock,), cwd=root).returncode
    if status == 0:
        write_text(stamp, made_from)
    return status


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--stored", action="store_true", help="run nothing: build from the stored outputs"
    )
    parser.add_argument(
        "--no-pages", action="store_true", help="run the chapters and build no pages"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: this one)")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    execution.kernel_environment(root)
    began = time.monotonic()
    source = root if arguments.stored else root / "_build" / "executed"
    try:
        with alone(root / "_build" / "make_book.lock") as lock:
            failures = [] if arguments.stored else execute(root, source)
            status = 0 if arguments.no_pages else build_pages(root, source, lock)
    except (KeyboardInterrupt, asyncio.CancelledError):
        tell("\nstopped. The chapters that were done are kept: run the same command to go on.")
        return 130
    minutes, seconds = divmod(int(time.monotonic() - began), 60)
    if failures:
        tell(f"\n{len(failures)} chapter{'' if len(failures) == 1 else 's'} failed:")
        for failure in failures:
            tell(f"  {failure}")
    if status:
        tell(f"\nthe pages have problems: jupyter-book says above which (status {status})")
    if not arguments.no_pages and (root / "_build" / "html" / "index.html").exists():
        print(f"Open _build/html/index.html ({minutes}:{seconds:02d} minutes)")
    return 1 if failures or status else 0


if __name__ == "__main__":
    sys.exit(main())
