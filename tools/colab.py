"""What a chapter's notebook has for Colab: a badge that opens it there, a first cell, metadata.

All three are made here when the notebook is made, and no chapter's text has them. The repository's
address is that of _config.yml, which the buttons of the pages use as well. The first cell fetches
the release that its notebook stands in, by the version of pyproject.toml, so that a copy that
somebody has saved goes on working. `make words` brings all notebooks to another version.
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

ROOT = Path(__file__).resolve().parents[1]
HOME = "/content/annotated-transformer"
BADGE_TAGS, FIRST_CELL_TAGS = ["colab-badge", "remove-cell"], ["colab-install", "remove-cell"]

# Which chapters ask for a GPU, and why. The others train for seconds at a time, on the CPU, and
# leave the reader's share of GPU time alone.
ASKS_FOR_GPU = {
    "6_1_translation": "trains a translation model for minutes, on a GPU where there is one",
    "on_a_gpu": "gives the commands that train on a GPU, for the reader to run",
}

FIRST_CELL = """\
import sys

if "google.colab" in sys.modules:  # On Colab: fetch the book. Elsewhere this does nothing.
    import os
    import runpy
    import subprocess

    url, home = "{url}", "{home}"
    for revision in {revisions}:  # a release that is not published yet is its branch
        if not os.path.exists(home):
            clone = ["git", "clone", "--quiet", "--depth=1", "--branch", revision, url, home]
            done = subprocess.run(clone, capture_output=True, text=True)
    if not os.path.exists(home):
        sys.exit(f"git cannot fetch {{url}}: {{' '.join(done.stderr.split())}}")
    runpy.run_path(f"{{home}}/tools/on_colab.py", run_name="__main__")  # install what is missing"""


@cache
def settings() -> dict[str, Any]:
    """What _config.yml says."""
    return yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))


def repository() -> dict[str, str]:
    """`repository` of _config.yml: its url, its branch, and path_to_book."""
    return settings()["repository"]


def revisions() -> list[str]:
    """What the first cell clones, the first that is there: the release's tag, or the branch.

    Between two releases the version has "dev" in it, and there is no tag.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tag = [] if "dev" in project["version"] else [f"v{project['version']}"]
    return [*tag, repository()["branch"]]


def address(chapter: str) -> str:
    """Where Colab opens the notebook notebooks/CHAPTER.ipynb, the plain form of a chapter."""
    at_github, branch = (
        repository()["url"].removeprefix("https://github.com/"),
        repository()["branch"],
    )
    notebook = f"{at_github}/blob/{branch}/notebooks/{chapter}.ipynb"
    return f"https://colab.research.google.com/github/{notebook}"


def badge(chapter: str) -> NotebookNode:
    """The Markdown cell that opens the chapter on Colab; the pages have a button instead."""
    picture = "https://colab.research.google.com/assets/colab-badge.svg"
    return new_markdown_cell(
        f"[![Open in Colab]({picture})]({address(chapter)})",
        id=f"{chapter}-badge",
        metadata={"tags": BADGE_TAGS},
    )


def first_cell() -> NotebookNode:
    """The cell that makes a Colab machine ready for the chapter, and does nothing elsewhere."""
    source = FIRST_CELL.format(url=repository()["url"], home=HOME, revisions=revisions())
    return new_code_cell(source, metadata={"tags": FIRST_CELL_TAGS})


def metadata(chapter: str) -> dict[str, Any]:
    """The part of a notebook's metadata that Colab reads."""
    plain: dict[str, Any] = {"colab": {"provenance": [], "toc_visible": True}}
    if chapter in ASKS_FOR_GPU:
        plain["colab"]["gpuType"] = "T4"
        plain["accelerator"] = "GPU"
    return plain


def is_made_here(cell: NotebookNode) -> bool:
    """Whether a cell is the badge or the first cell, which no chapter's text has."""
    return cell.metadata.get("tags") in (BADGE_TAGS, FIRST_CELL_TAGS)
