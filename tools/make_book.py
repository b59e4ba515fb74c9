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
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from tools import execution, reuse
from tools.arguments import parser_of
from tools.notebooks import ROOT, read_source
from tools.progress import Progress, expected_seconds


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
    """The chapters to run, those expected to take longest first, and why;
    the others' words are brought up to date."""
    reasons = {
        source: reuse.why_to_run(source, book / f"{source.stem}.ipynb", shared)
        for source in sources
    }
    to_run = [source for source in sources if reasons[source]]
    return {
        source: reasons[source]
        for source in sorted(to_run, key=lambda path: -seconds_of(path, book))
    }


def seconds_of(source: Path, book: Path) -> float:
    """What the chapter took last time, or may take where it was never run."""
    return reuse.seconds_taken(book / f"{source.stem}.ipynb") or expected_seconds(source.stem)


def describe(n_chapters: int, to_run: Mapping[Path, str]) -> str:
    """One line: how many chapters are reused, which are run, and why."""
    by_reason = defaultdict(list)
    for source in sorted(to_run):
        by_reason[to_run[source]].append(source.stem)
    lists = "; ".join(
        f"{', '.join(names)} ({reason})" for reason, names in sorted(by_reason.items())
    )
    n_reused = n_chapters - len(to_run)
    reused = f"{n_reused} chapter{'' if n_reused == 1 else 's'} reused"
    return f"{reused}, {len(to_run)} to run: {lists}" if to_run else f"{reused}, none to run"


async def run_chapters(
    root: Path, book: Path, to_run: Sequence[Path], progress: Progress
) -> list[execution.Failure]:
    """Run chapters into `book`. Each is stored when it is done."""
    failures = []

    async def run_one(source: Path) -> None:
        target, notebook = book / f"{source.stem}.ipynb", read_source(source)
        began = time.monotonic()
        code, before = reuse.code_digest(notebook), reuse.shared_inputs(root, book)
        failure = await execution.run(source.stem, notebook, book, progress)
        if failure is not None:
            failures.append(failure)
            reuse.keep_failed(notebook, source.with_suffix(".ipynb"), target, failure)
            progress.end(source.stem, failure)
            return
        same = reuse.shared_inputs(root, book) == before  # nobody edited the package meanwhile
        if not same:
            progress.say(
                f"{source.stem}: what it is made from changed while it ran, so it will be run "
                "again next time"
            )
        inputs = {"code": code, **before} if same else None
        reuse.keep(notebook, target, inputs, execution.seconds_since(began))
        progress.end(source.stem)

    await execution.side_by_side([partial(run_one, source) for source in to_run], progress)
    return failures


def execute(root: Path, folder: Path) -> list[execution.Failure]:
    """Bring the executed copy of the book in `folder` up to date;
    returns the chapters that failed."""
    sources = sorted((root / "book").glob("*.py"))
    reuse.mirror(root, folder, {path.with_suffix(".ipynb").relative_to(root) for path in sources})
    book = folder / "book"
    to_run = plan(sources, book, reuse.shared_inputs(root, book))
    print(describe(len(sources), to_run), flush=True)
    progress = Progress(len(sources), len(sources) - len(to_run))
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
        execution.replace_by(stamp, made_from.encode())
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
