"""A chapter opens on Colab: its notebook's badge, first cell and metadata, and what that cell does.

`make colab` runs the chapters under Colab's versions; here is what can be seen in seconds, offline.
"""

import asyncio
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from test_book import CHAPTERS, code_cells, in_notebooks, stored
from tools import colab, notebooks, on_colab

ROOT = Path(__file__).parents[1]
ADDRESS = colab.repository()["url"]


# What the notebooks have


@in_notebooks
def test_the_first_code_cell_fetches_the_book(chapter: Path) -> None:
    first = code_cells(chapter)[0]
    assert first.metadata.tags == ["colab-install", "remove-cell"]
    assert re.findall(r'"(https://[^"]*)"', first.source) == [ADDRESS]
    assert first.source == colab.first_cell().source and first.outputs == []


@in_notebooks
def test_the_badge_opens_this_very_notebook(chapter: Path) -> None:
    badge = stored(chapter).cells[0]
    notebook = f"{urlsplit(ADDRESS).path}/blob/main/notebooks/{chapter.stem}.ipynb"
    address = f"https://colab.research.google.com/github{notebook}"
    assert badge.cell_type == "markdown" and badge.source.endswith(f"]({address})")
    assert "remove-cell" in badge.metadata.tags  # the pages ask no other host for a picture


@in_notebooks
def test_a_chapter_asks_for_a_gpu_only_where_that_helps(chapter: Path) -> None:
    found = stored(chapter).metadata
    assert found.kernelspec.name == "python3"
    asked = ("GPU", "T4") if chapter.stem in colab.ASKS_FOR_GPU else (None, None)
    assert (found.get("accelerator"), found.colab.get("gpuType")) == asked


@pytest.mark.slow
def test_every_chapter_that_names_a_cuda_device_asks_for_a_gpu() -> None:
    users = {
        chapter.stem
        for chapter in CHAPTERS
        for cell in notebooks.read_source(chapter).cells
        if cell.cell_type == "code" and re.search(r"""["' ]cuda["' ]""", cell.source)
    }
    assert users and users <= set(colab.ASKS_FOR_GPU) <= {chapter.stem for chapter in CHAPTERS}


def test_the_repository_has_one_address() -> None:
    """_config.yml has it; everything else that names it agrees."""
    address = re.compile(r"https://github\.com/(?!harvardnlp/)[\w-]+/annotated-transformer\b")
    found = {
        (path.name, named)
        for pattern in ("*.*", ".github/**/*.*", "book/*.[mp][dy]")
        for path in ROOT.glob(pattern)
        if path.is_file()
        for named in address.findall(path.read_text(encoding="utf-8"))
    }
    assert {"pyproject.toml", "CITATION.cff", "_config.yml"} <= {name for name, _ in found}
    assert [(name, named) for name, named in found if named != ADDRESS] == []


CHAPTER = """# %% [markdown]
# # A small chapter

# %%
print("result", 1 + 1)
"""


@pytest.mark.slow
def test_a_new_address_needs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "small.py", tmp_path / "small.ipynb"
    source.write_text(CHAPTER, encoding="utf-8")
    assert asyncio.run(notebooks.run(source, target))
    before = code_cells(source)
    fork = {"url": "https://github.com/someone/fork", "branch": "trunk"}
    monkeypatch.setattr(colab, "repository", lambda: fork)
    assert notebooks.is_stale(source)
    assert notebooks.take_over_words(source) and not notebooks.is_stale(source)
    badge = stored(source).cells[0]
    assert badge.source.endswith("/github/someone/fork/blob/trunk/notebooks/small.ipynb)")
    first, code = code_cells(source)
    assert '"https://github.com/someone/fork"' in first.source
    assert (first.execution_count, code.execution_count) == (1, 2)
    assert code.outputs == before[1].outputs and "result 2" in code.outputs[0].text


# What the first cell does

PRELUDE = """
import sys, sysconfig, types
sys.path.remove("")  # where a kernel looks for modules is its own affair
sysconfig.get_path = lambda name: {scripts!r}
for name in ("google", "google.colab"):
    sys.modules[name] = types.ModuleType(name)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with a repository in place of GitHub's, and a `uv` that notes how it was called."""
    needed = '["torch", "numpy>=99", "tqdm", "no-such-package>=1.5"]'
    files = {
        "github/tools/on_colab.py": (ROOT / "tools" / "on_colab.py").read_text(),
        "github/annotated_transformer/__init__.py": "",
        "github/annotated_transformer/__main__.py": "import sys\nprint(sys.argv[1:])\n",
        "github/book/lab/__init__.py": "",
        "github/pyproject.toml": f'[project]\nversion = "0.9"\ndependencies = {needed}\n',
        "bin/uv": f'#!/bin/sh\necho "$@" >> {tmp_path}/uv.log\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "bin" / "uv").chmod(0o755)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    commit(tmp_path)
    return tmp_path


def git(machine: Path, *words: str) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", *identity, *words], cwd=machine / "github", check=True)


def commit(machine: Path) -> None:
    git(machine, "add", ".")
    git(machine, "commit", "--quiet", "--message=all")


def run_first_cell(
    machine: Path, repository: str = "github", then: str = "", on_colab: bool = True
) -> subprocess.CompletedProcess[str]:
    home, url = machine / "content" / "annotated-transformer", (machine / repository).as_uri()
    cell = colab.FIRST_CELL.format(url=url, home=home, revisions=["v0.9", "main"])
    prelude = PRELUDE.format(scripts=str(machine / "bin")) if on_colab else ""
    path = os.pathsep.join([str(machine / "bin"), os.environ["PATH"]])
    return subprocess.run(
        [sys.executable, "-c", f"{prelude}\n{cell}\n{then}"],
        cwd=machine,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, "PYTHONPATH": ""},
    )


def test_on_colab_the_first_cell_finds_the_book_and_installs_what_is_missing(machine: Path) -> None:
    then = """
import os, subprocess
import annotated_transformer, lab
print(*(os.path.relpath(module.__file__) for module in (annotated_transformer, lab)))
command = ["annotated-transformer", "prepare", "a b"]
print(subprocess.run(command, capture_output=True, text=True).stdout)
"""
    done = run_first_cell(machine, then=then)
    assert done.returncode == 0, done.stderr
    home = machine / "content" / "annotated-transformer"
    version = metadata.version("numpy")
    assert re.sub(r"\d+ s\.", "0 s.", done.stdout).splitlines()[:4] == [
        f"The book is in {home}, version 0.9. Installed no-such-package>=1.5 in 0 s.",
        f"The book asks for numpy>=99, and this runtime has {version}: "
        "choose a newer one under Runtime, Change runtime type.",
        "../annotated_transformer/__init__.py lab/__init__.py",
        "['prepare', 'a b']",
    ]
    called = (machine / "uv.log").read_text()
    assert called == f"pip install --quiet --python {sys.executable} no-such-package>=1.5\n"


def test_the_first_cell_can_be_run_again(machine: Path) -> None:
    """It leaves the clone, with what the reader may have changed there, and finds nothing to do."""
    requirements = machine / "github" / "pyproject.toml"
    requirements.write_text('[project]\nversion = "0.9"\ndependencies = ["torch", "numpy"]\n')
    commit(machine)
    home = machine / "content" / "annotated-transformer"
    again = colab.FIRST_CELL.format(url="nowhere", home=home, revisions=["v0.9", "main"])
    then = f"import os\nprint(os.listdir(), sys.path.count({str(home)!r}))"
    done = run_first_cell(machine, then=f"open('mine.txt', 'w').close()\n{again}\n{then}")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"The book is in {home}, version 0.9. Nothing was missing."] * 2
    assert "mine.txt" in lines[2] and lines[2].endswith(" 1")
    assert not (machine / "uv.log").exists()


def test_between_releases_there_is_no_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for version in ("0.9.0", "1.0.dev0"):
        (tmp_path / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
        (tmp_path / "_config.yml").write_text("repository: {branch: main}\n")
        monkeypatch.setattr(colab, "ROOT", tmp_path)
        found[version] = colab.revisions()
    assert found == {"0.9.0": ["v0.9.0", "main"], "1.0.dev0": ["main"]}


def test_elsewhere_the_first_cell_does_nothing(machine: Path) -> None:
    then = "print(sorted({'runpy', 'subprocess', 'tomllib'} & set(sys.modules)), sys.path[0])"
    done = run_first_cell(machine, then=then, on_colab=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[] \n", "")
    assert not (machine / "content").exists()


COLABS = {"torch": "2.11.0", "numpy": "2.1.3", "sentencepiece": "0.2.2", "tqdm": "4.67"}


def test_only_what_is_missing_or_too_old_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colab's versions of August 2026, whose torch has a local version."""
    there = {**COLABS, "torch": "2.11.0+cu128", "jaxtyping": "1rc1"}

    def version(name: str) -> str:
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(on_colab.metadata, "version", version)
    asked = [
        "torch>=2.10", "numpy", "sentencepiece>=0.2.3", "sacrebleu>=2.4", "tqdm>=4.60",
        "jaxtyping>=0.2.34",
    ]  # fmt: skip
    lacking = [str(requirement) for requirement in on_colab.lacking(asked)]
    assert lacking == ["sentencepiece>=0.2.3", "sacrebleu>=2.4"]


def test_the_first_cell_reads_nothing_but_the_standard_library_and_packaging() -> None:
    """It runs before anything is installed; `packaging` comes with Colab's matplotlib."""
    program = (ROOT / "tools" / "on_colab.py").read_text()
    modules = set(re.findall(r"^\s*(?:import|from) (\w+)", program, flags=re.M))
    assert modules - sys.stdlib_module_names == {"packaging"}


# What the rehearsal looks at
