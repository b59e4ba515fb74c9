"""Run the chapters as Colab does: its versions, each notebook alone in a folder, the book from git.

    python -m tools.colab_rehearsal [CHAPTER ...] [--jobs N] [--python python3.13]

It rehearses the last commit: its notebooks, and a clone of it in place of the one at GitHub. Each
chapter has a copy of the environment, an empty home (so no downloads are kept), a /content of its
own (a mount that nobody else sees, for which it needs Linux and root), and a module google.colab
that is loaded when Python starts. There is no GPU, and nobody looks at the outputs. A chapter fails
with its first cell that fails, and where the first cell is slow, is not quick when it is run again,
or exchanges a package that was new enough. The runtime itself can be had only as an image of tens
of GB; nbclient runs the cells.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from packaging.requirements import Requirement

from tools import colab
from tools.arguments import parser_of

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "_build" / "colab"
CONTENT = Path(colab.HOME).parent
PYTHON = "3.13"
# Colab in August 2026 (its torch is another CUDA build). Not there: sacrebleu and jaxtyping.
PACKAGES = (
    "torch==2.11.*", "numpy==2.1.3", "ipython==7.34.0", "ipykernel==6.17.1", "matplotlib==3.10.0",
    "sentencepiece==0.2.2", "safetensors==0.8.0", "jupytext==1.19.5", "uv", "beartype", "lxml",
    "packaging", "platformdirs", "setuptools", "tabulate", "tqdm",
)  # fmt: skip
NEVER = ("torch", "numpy")  # not even if they are too old
SLOWEST_FIRST_CELL, SLOWEST_SECOND_RUN = 20.0, 2.0  # seconds
INTO_CONTENT = f'mount --bind "$0" {CONTENT} && cd {CONTENT} && exec "$@"'


@dataclass
class Report:
    """Seconds of the first cell, of its second run and of the whole chapter, and what is wrong."""

    chapter: str
    first: float = 0.0
    again: float = 0.0
    whole: float = 0.0
    wrong: str = ""

    def __str__(self) -> str:
        times = (
            f"first cell {self.first:4.1f} s, again {self.again:.1f} s, chapter {self.whole:5.0f} s"
        )
        return f"{self.chapter:28} {times}  {self.wrong or 'ok'}"


def make_environment(python: str) -> Path:
    """A virtual environment with Colab's versions; made again only when they change."""
    folder = PLACE / "venv"
    made_of = "\n".join([python, *PACKAGES])
    stamp = folder / "made-of.txt"
    if not stamp.exists() or stamp.read_text() != made_of:
        print("installing Colab's packages, some 5 GB with CUDA's libraries")
        made = ["venv", "--quiet", "--seed", "--clear", "--python", python, str(folder)]
        for words in (made, ["pip", "install", "--quiet", "--python", str(folder), *PACKAGES]):
            subprocess.run([sys.executable, "-m", "uv", *words], check=True)
        stamp.write_text(made_of)
    return folder


def versions(environment: Path) -> dict[str, str]:
    """The packages of an environment and their versions."""
    folder = next(environment.glob("lib/python*/site-packages"))
    return {
        distribution.metadata["Name"].lower(): distribution.version
        for distribution in distributions(path=[str(folder)])
    }


def exchanged(
    before: dict[str, str], after: dict[str, str], requirements: list[Requirement]
) -> list[str]:
    """The packages that were there and are now others, save those too old for `requirements`."""
    too_old = {
        requirement.name
        for requirement in requirements
        if requirement.name not in NEVER
        and not requirement.specifier.contains(before.get(requirement.name, "0"))
    }
    return [
        f"{name} {version} became {after.get(name, 'nothing')}"
        for name, version in sorted(before.items())
        if after.get(name) != version and name not in too_old
    ]


def git(*words: str | Path) -> str:
    """What git prints, run in the checkout."""
    command = ["git", *words]
    return subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, encoding="utf-8"
    ).stdout


def snapshot() -> Path:
    """A bare clone of the last commit, which stands for the repository at GitHub."""
    if git("status", "--porcelain"):
        print("the working tree differs from the last commit; the commit is rehearsed")
    folder = PLACE / "repository.git"
    shutil.rmtree(folder, ignore_errors=True)
    git("clone", "--quiet", "--bare", "--depth=1", ROOT.as_uri(), folder)
    for revision in colab.revisions():  # the release that this commit may become
        kind = "tags" if revision.startswith("v") else "heads"
        git("-C", folder, "update-ref", f"refs/{kind}/{revision}", "HEAD")
    return folder


def set_the_scene(chapter: str, environment: Path, repository: Path) -> Path:
    """A folder with all that the chapter's kernel sees, and Jupyter's description of the kernel."""
    folder = PLACE / "chapters" / chapter
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("home", "content", "modules/google/colab", f"jupyter/kernels/colab-{chapter}"):
        (folder / name).mkdir(parents=True)
    shutil.copytree(environment, folder / "venv", symlinks=True, copy_function=os.link)
    (folder / "modules" / "google" / "colab" / "__init__.py").write_text("")
    (folder / "modules" / "sitecustomize.py").write_text("import google.colab\n")
    notebook = git("-C", repository, "show", f"HEAD:book/{chapter}.ipynb")
    (folder / "content" / f"{chapter}.ipynb").write_text(notebook, encoding="utf-8")
    kernel = {
        "argv": [
            "unshare", "--mount", "--propagation", "private", "sh", "-c", INTO_CONTENT,
            str(folder / "content"), str(folder / "venv" / "bin" / "python"), "-m",
            "ipykernel_launcher", "-f", "{connection_file}",
        ],
        "display_name": "Colab",
        "language": "python",
        "env": {
            "HOME": str(folder / "home"),
            "XDG_CACHE_HOME": "",
            "PYTHONPATH": str(folder / "modules"),
            "PATH": os.pathsep.join(
                [str(folder / "venv" / "bin"), os.environ.get("PATH", os.defpath)]
            ),
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            "UV_SYSTEM_PYTHON": "true",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # no warning from the debugger
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{repository.as_uri()}.insteadOf",
            "GIT_CONFIG_VALUE_0": colab.repository()["url"],
        },
    }  # fmt: skip
    (folder / "jupyter" / "kernels" / f"colab-{chapter}" / "kernel.json").write_text(
        json.dumps(kernel)
    )
    return folder


async def run(chapter: str, environment: Path, repository: Path) -> Report:
    """Run one chapter from its first cell to its last, and the first cell once more."""
    folder = set_the_scene(chapter, environment, repository)
    report, started = Report(chapter), time.monotonic()
    notebook = nbformat.read(folder / "content" / f"{chapter}.ipynb", as_version=4)
    code = [(index, cell) for index, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    os.environ["JUPYTER_PATH"] = os.pathsep.join(
        str(path) for path in (PLACE / "chapters").glob("*/jupyter")
    )
    client = NotebookClient(
        notebook,
        timeout=None,
        startup_timeout=600,
        iopub_timeout=60,
        kernel_name=f"colab-{chapter}",
        resources={"metadata": {"path": str(folder / "content")}},
    )
    times: list[float] = []
    try:
        async with client.async_setup_kernel():
            for index, cell in [*code, code[0]]:
                before = time.monotonic()
                await client.async_execute_cell(cell, index)
                times.append(time.monotonic() - before)
                if len(times) == 1:
                    said = "".join(output.get("text", "") for output in cell.outputs).strip()
                    print(f"{chapter}: {times[0]:.1f} s for the first cell: {said}", flush=True)
        report.wrong = _judge(times, environment, folder / "venv", repository)
    except (CellExecutionError, DeadKernelError) as error:
        index, cell = [*code, code[0]][len(times)]
        reason = "the kernel died"
        if isinstance(error, CellExecutionError):
            reason = f"{error.ename}: {error.evalue}"
        line = cell.source.partition("\n")[0][:50]
        report.wrong = f"FAILED in cell {index} ({line}): {reason}"
        (folder / "error.txt").write_text(str(error))
    if times:
        report.first, report.again = times[0], times[-1]
    report.whole = time.monotonic() - started
    shutil.rmtree(folder / "venv")
    print(report, flush=True)
    return report


def _judge(times: list[float], before: Path, after: Path, repository: Path) -> str:
    """What is wrong with a run in which no cell failed."""
    project = tomllib.loads(git("-C", repository, "show", "HEAD:pyproject.toml"))["project"]
    requirements = list(map(Requirement, project["dependencies"]))
    wrong = exchanged(versions(before), versions(after), requirements)
    if times[0] > SLOWEST_FIRST_CELL:
        wrong.append(f"the first cell took more than {SLOWEST_FIRST_CELL:.0f} s")
    if times[-1] > SLOWEST_SECOND_RUN:
        wrong.append(f"run again, the first cell took more than {SLOWEST_SECOND_RUN:.0f} s")
    return "; ".join(wrong)


def make_a_place_to_mount() -> None:
    """An empty /content, which stays. Exits with one line where no mount can be made on it."""
    try:
        CONTENT.mkdir(exist_ok=True)
        subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "mount", "--bind", ROOT, CONTENT],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(
            f"colab_rehearsal: needs Linux and root, to have a {CONTENT} for each chapter ({error})"
        )


async def run_all(names: list[str], environment: Path, repository: Path, jobs: int) -> list[Report]:
    slots = asyncio.Semaphore(jobs)

    async def run_one(chapter: str) -> Report:
        async with slots:
            return await run(chapter, environment, repository)

    return await asyncio.gather(*map(run_one, names))


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("chapters", nargs="*", help="book/x.py or x; all if none is named")
    parser.add_argument("--jobs", type=int, default=1, help="chapters at once")
    parser.add_argument("--python", default=PYTHON, help=f"what uv takes (default {PYTHON})")
    arguments = parser.parse_args()
    known = sorted(path.stem for path in (ROOT / "book").glob("*.ipynb"))
    names = [Path(name).stem for name in arguments.chapters] or known
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"no such chapter: {', '.join(unknown)}")
    for variable in [name for name in os.environ if name.startswith("ANNOTATED_TRANSFORMER_")]:
        del os.environ[variable]
    make_a_place_to_mount()
    environment, repository = make_environment(arguments.python), snapshot()
    reports = asyncio.run(run_all(names, environment, repository, arguments.jobs))
    failed = [report.chapter for report in reports if report.wrong]
    slowest = max(report.first for report in reports)
    print(
        f"{len(reports) - len(failed)} of {len(reports)} chapters ran; "
        f"the slowest first cell took {slowest:.1f} s"
        + (f"; wrong: {', '.join(failed)}" if failed else "")
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
