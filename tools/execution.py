"""Run notebooks: each from top to bottom in a fresh kernel, several side by side,
and no clock stops a cell.

A cell may take as long as it takes. What ends a chapter is a cell that raises, or a kernel
that is dead; either is a `Failure` that names the chapter, the cell and the message, and the
other chapters go on. What a cell writes to standard error is progress: it is not stored, and
only warnings are shown. nbclient runs a notebook; it lacks the rest of this file: notebooks side by
side, waits without a limit, and a signal that ends all kernels.
"""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from jupyter_client.kernelspec import NoSuchKernel
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode

from annotated_transformer.files import write_text

# Seconds: for waits that jupyter insists on limiting, and that end at once when the kernel is dead.
HOUR = 3600
ANSI_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Failure:
    """Where and why a chapter ended early. `cell` counts code cells from 1;
    it is 0 where no cell had begun."""

    chapter: str
    cell: int
    n_cells: int
    first_line: str
    message: str
    details: str = ""

    def __str__(self) -> str:
        place = (
            f"cell {self.cell} of {self.n_cells} (`{self.first_line}`)"
            if self.cell
            else "before its first cell"
        )
        return f"{self.chapter}, {place}: {self.message}"


class Progress:
    """Says which chapters begin and end. `n_done` of them need no run."""

    def __init__(self, n_chapters: int, n_done: int):
        self.n_chapters = n_chapters
        self.n_done = n_done
        self.began: dict[str, float] = {}

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def begin(self, name: str) -> None:
        self.began[name] = time.monotonic()
        self.say(f"{name} begins")

    def seconds(self, name: str) -> float:
        return round(time.monotonic() - self.began[name], 1)

    def end(self, name: str, failure: Failure | None = None) -> None:
        """A chapter is stored, or has failed."""
        if failure:
            self.say(f"FAILED: {failure}\n{failure.details}")
        self.n_done += not failure
        how = "FAILED after" if failure else "done in"
        counted = f"[{self.n_done} of {self.n_chapters} chapters]"
        self.say(f"{counted} {name} {how} {self.seconds(name):.0f} s")


class Client(nbclient.NotebookClient):
    """nbclient without time limits, without its signal handlers,
    and with standard error as progress."""

    def __init__(self, notebook: NotebookNode, folder: Path, warn: Callable[[str], None]):
        super().__init__(
            notebook,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
            # Else each kernel warns that it talks over TCP.
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
            timeout=None,
            startup_timeout=HOUR,
            # At the default of 4 s, a busy machine loses outputs, and only a warning says so.
            iopub_timeout=HOUR,
        )
        self.warn = warn
        self.exit_status: int | None = None

    @asynccontextmanager
    async def async_setup_kernel(self, **kwargs: Any) -> AsyncGenerator[None, None]:
        """A running kernel. nbclient's own method lets Ctrl-C end the kernel
        of one chapter only."""
        self.create_kernel_manager()
        try:
            await self.async_start_new_kernel(**kwargs)
            await self.async_start_new_kernel_client()
            yield
        except BaseException:
            self.shutdown_kernel = "immediate"  # nothing in it is worth waiting for
            if self.km is not None and self.km.provisioner is not None:
                self.exit_status = await self.km.provisioner.poll()
            raise
        finally:
            if self.km is not None:  # it is None where the kernel did not start
                await self._async_cleanup_kernel()

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        if msg["msg_type"] == "stream" and msg["content"]["name"] == "stderr":
            if "Warning" in msg["content"]["text"]:
                self.warn(msg["content"]["text"].strip())
            return None
        return super().process_message(msg, cell, cell_index)


async def run(
    name: str, notebook: NotebookNode, folder: Path, progress: Progress
) -> Failure | None:
    """Run `notebook` in `folder`; its cells then hold their outputs,
    after a failure those up to it.

    The caller stores it, and then tells `progress` of its end:
    what is said to be done can be relied on.
    """
    code = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    progress.begin(name)
    reached = 0

    def count(cell_index: int, **_: object) -> None:
        nonlocal reached
        reached = code.index(cell_index) + 1

    def failed(message: str, details: str = "") -> Failure:
        line = _first_line(notebook.cells[code[reached - 1]]) if reached else ""
        return Failure(name, reached, len(code), line, message, ANSI_COLOURS.sub("", details))

    failure = None
    # A kernel's ports are chosen before it takes them: another one may have been quicker.
    for tries_left in (1, 0):
        client = Client(notebook, folder, lambda text: progress.say(f"{name}: {text}"))
        client.on_cell_execute = count
        try:
            await client.async_execute()
        except CellExecutionError as error:
            message = (str(error.evalue).splitlines() or [""])[0]
            failure = failed(f"{error.ename}: {ANSI_COLOURS.sub('', message)}", str(error))
        except DeadKernelError:
            _raise_if_cancelled()
            failure = failed(f"the kernel died{_cause(client.exit_status)}")
        except (RuntimeError, OSError, NoSuchKernel) as error:
            if tries_left and not reached:
                continue
            failure = failed(f"the kernel did not start: {error}")
        break
    notebook.metadata.language_info = {"name": "python"}  # the kernel put its version there
    return failure


def _first_line(cell: NotebookNode) -> str:
    lines = [line.strip() for line in cell.source.splitlines() if line.strip()]
    return lines[0][:80] if lines else ""


def _raise_if_cancelled() -> None:
    """nbclient takes a cancelled task for a dead kernel."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _cause(exit_status: int | None) -> str:
    if exit_status is None:
        return ""
    if exit_status >= 0:
        return f" (exit status {exit_status})"
    hint = ", as the system does when memory runs out" if exit_status == -signal.SIGKILL else ""
    return f" (killed by {signal.Signals(-exit_status).name}{hint})"


async def side_by_side(jobs: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run the jobs in their order, one for each core. Ctrl-C and SIGTERM end all kernels."""
    free = asyncio.Semaphore(n_slots())

    async def run_one(job: Callable[[], Awaitable[None]]) -> None:
        async with free:
            await job()

    this = asyncio.current_task()
    assert this is not None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, this.cancel)
    try:
        await asyncio.gather(*(run_one(job) for job in jobs))
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def n_slots() -> int:
    """How many chapters run at once: as many as there are cores for this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def kernel_environment(root: Path) -> None:
    """What kernels and the builder inherit: `root` and the lab's folder first on the path, and one
    thread each, as in the tests: same digits."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(root), str(root / "book"), os.environ.get("PYTHONPATH")))
    )


def write_whole(notebook: NotebookNode, path: Path) -> None:
    """Write a valid notebook, whole or not at all, whenever this process is killed."""
    nbformat.validate(notebook)
    write_text(path, f"{nbformat.writes(notebook).rstrip()}\n")
