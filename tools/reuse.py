"""What an executed chapter depends on, and what may be kept of an earlier run.

jupyter-cache 1.0.1 was tried in its place. Its key is the code and the kernel's specification, so a
digest of the package put there does make it run again. It lacks: a process pool that ends when its
parent is killed (a worker and its kernel went on), the longest chapters first, a dead kernel's or a
failing cell's name, partial outputs, and no limit on waiting for outputs (4 s: a busy machine loses
some).

The executed copy of a chapter carries digests of all that it was made from: its code, the package,
the lab, the corpus, the model, the results, and the versions of Python and of the pinned packages.
It is kept as long as these are what they were; where only words have changed, they are taken over.
Copy and digests are one file, written whole or not at all, so a process that is killed at any
moment leaves a chapter either done or to do.
"""

import hashlib
import importlib.metadata
import json
import platform
import re
import shutil
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from annotated_transformer.data import corpus
from annotated_transformer.files import write_bytes
from tools import colab
from tools.execution import Failure, write_whole
from tools.notebooks import read_source, take_outputs

SITE = ("_config.yml", "_toc.yml", "static", "book", "tools/sphinx")  # what the HTML is made from
RUN_TAGS = {"raises-exception", "skip-execution"}  # the tags that change how a cell is run


def digest_of(files: Iterable[Path], root: Path) -> str:
    """SHA-256 over the names below `root` and contents of files."""
    digest = hashlib.sha256()
    for path in sorted(files):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(root).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()[:16]


def files_below(folder: Path) -> list[Path]:
    """All files, without what Python and editors leave."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and not {"__pycache__", ".ipynb_checkpoints"} & set(path.parts)
    ]


def site_files(root: Path) -> list[Path]:
    """All files that the HTML is made from."""
    places = [root / name for name in SITE]
    found = (files_below(place) if place.is_dir() else [place] for place in places)
    return [*chain.from_iterable(found)]


def versions(root: Path) -> dict[str, str]:
    """Python's version, and of each requirement the pin and what is installed."""
    lines = (root / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = sorted(filter(None, (line.partition("#")[0].strip() for line in lines)))
    found = {"python": platform.python_version()}
    for pin in pins:
        try:
            found[pin] = importlib.metadata.version(re.split(r"[^\w.-]", pin)[0])
        except importlib.metadata.PackageNotFoundError:
            found[pin] = "missing"
    return found


def shared_inputs(root: Path, book: Path) -> dict[str, str]:
    """Digests of what every chapter is made from. `book` is the folder in which chapters run."""
    cache = corpus.cache_directory()
    tables = [cache / name for name in corpus.get(corpus.names()[0]).sha256]
    return {
        "package": digest_of(files_below(root / "annotated_transformer"), root),
        "lab": digest_of(files_below(root / "book" / "lab"), root),
        "corpus": digest_of((path for path in tables if path.is_file()), cache),
        "model": digest_of(files_below(book / "model"), book),
        "results": digest_of([*files_below(book / "results"), *book.glob("*.tsv")], book),
        "versions": hashlib.sha256(json.dumps(versions(root)).encode()).hexdigest()[:16],
    }


def code_digest(notebook: NotebookNode) -> str:
    """A digest of the chapter's code cells, and of the tags that change how they are run.

    The first cell is for Colab and does nothing elsewhere:
    another address of the repository runs no chapter again.
    """
    cells = [
        [cell.source, sorted(RUN_TAGS & set(cell.metadata.get("tags", [])))]
        for cell in notebook.cells
        if cell.cell_type == "code" and not colab.is_made_here(cell)
    ]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def read_kept(path: Path) -> NotebookNode | None:
    """The executed copy of an earlier run, None where there is none that can be read."""
    try:
        return nbformat.read(path, as_version=4)
    except (OSError, ValueError):  # ValueError: not JSON, or not a notebook
        return None


def seconds_taken(path: Path) -> float | None:
    """How long the chapter took when it was last run."""
    kept = read_kept(path)
    return kept.metadata.get("run", {}).get("seconds") if kept else None


def why_to_run(source: Path, path: Path, shared: Mapping[str, str]) -> str:
    """Why the copy at `path` is not what `source` gives; empty where it is:
    then its words are brought up to date."""
    kept, notebook = read_kept(path), read_source(source)
    made_from = kept.metadata.get("run", {}).get("inputs") if kept else None
    if kept is None or made_from is None:
        return "not run yet"
    now = {"code": code_digest(notebook), **shared}
    if changed := [f"{name} changed" for name in now if made_from.get(name) != now[name]]:
        return " and ".join(changed)
    take_outputs(kept, notebook)
    notebook.metadata.run = kept.metadata.run
    if notebook != kept:
        write_whole(notebook, path)
    return ""


def keep_failed(notebook: NotebookNode, stored: Path, path: Path, failure: Failure) -> None:
    """Store what a reader gets of a chapter that failed: a warning under the title, and the outputs
    that come with the book if the same code made them, otherwise those up to the failure."""
    old = read_kept(stored)
    if old is not None and code_digest(old) == code_digest(notebook):
        take_outputs(old, notebook)
    warning = (
        ":::{admonition} This chapter failed when this copy of the book was made\n:class: warning\n"
        f"~~~text\n{str(failure).replace('~~~', '~ ~ ~')}\n~~~\n"
        "Its outputs may be those of an earlier run of the same code.\n:::\n"
    )
    for cell in notebook.cells:
        title = re.search(r"^# .*$", cell.source, flags=re.M)
        if title and cell.cell_type == "markdown":
            cell.source = f"{cell.source[: title.end()]}\n\n{warning}{cell.source[title.end() :]}"
            break
    write_whole(notebook, path)


def mirror(root: Path, folder: Path, kept: set[Path]) -> None:
    """Make `folder` the same as the site's sources in `root`, but for the paths in `kept`,
    which stay as they are.

    What is there and not in the sources goes, the partial files of dead processes too.
    """
    wanted = {path.relative_to(root): path for path in site_files(root)}
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before the folder
        name = path.relative_to(folder)
        if path.is_dir() and not path.is_symlink():
            if name in wanted or not any(path.iterdir()):
                shutil.rmtree(path)
        elif name not in wanted and name not in kept:
            path.unlink()
    for name, source in wanted.items():
        if name in kept:
            continue
        content, target = source.read_bytes(), folder / name
        if not target.is_file() or target.read_bytes() != content:
            write_bytes(target, content)
