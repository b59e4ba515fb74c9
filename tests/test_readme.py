"""README says what is so: its Python runs, its command lines parse,
its make targets and files exist."""

import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from annotated_transformer import corpus
from annotated_transformer.command_line.entry_point import parser
from annotated_transformer.command_line.verbs import PROGRAM

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LISTINGS = re.compile(r"^```python\n(.*?)^```", flags=re.M | re.S)
STARTS = (f"{PROGRAM} ", "torchrun ", "python -m ", "python benchmarks/")
MADE_LATER = ("_build/", "runs/")  # what the commands themselves write


def arguments(line):
    """The words after the program's name, without comment and redirections."""
    words = shlex.split(line, comments=True)
    if words[0] == "torchrun":
        words = words[words.index("-m") + 1 :]
    assert words[0] in (PROGRAM, "annotated_transformer")
    ends = [i for i, word in enumerate(words) if word in ("<", ">", "|")]
    return words[1 : min(ends, default=len(words))]


def lines_of_the_book():
    """The commands in the fences of chapters and pages, with the file that shows them."""
    found = []
    for path in sorted([*(ROOT / "book").glob("*.py"), *(ROOT / "book").glob("*.md")]):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            text = re.sub(r"^# ?", "", text, flags=re.M)
        for _, _, block in re.findall(r"^(`{3,})(.*?)\n(.*?)^\1", text, flags=re.M | re.S):
            lines = block.replace("\\\n", " ").splitlines()
            found += [(path.name, line) for line in lines if line.startswith(STARTS)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "book/api.md"])
def test_its_python_runs_from_first_block_to_last(page):
    code = "\n".join(LISTINGS.findall((ROOT / page).read_text(encoding="utf-8")))
    assert "Translator.from_checkpoint" in code
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("name", "line"), lines_of_the_book())
def test_the_command_lines_of_the_book_parse(name, line):
    if line.startswith("python -m"):
        assert find_spec(line.split()[2]), name
    elif line.startswith("python"):
        assert (ROOT / line.split()[1]).is_file(), name
    else:
        chosen = parser().parse_args(arguments(line))
        if getattr(chosen, "corpus", None):
            assert chosen.corpus in corpus.names()


def test_every_verb_is_shown():
    lines = [line for _, line in lines_of_the_book() if line.startswith((PROGRAM, "torchrun"))]
    assert {arguments(line)[0] for line in lines} >= {
        "prepare", "train", "average", "translate", "evaluate", "inspect", "export", "import",
        "export-page", "new",
    }  # fmt: skip


def test_its_make_targets_exist():
    targets = set(re.findall(r"\bmake ([a-z]+)\b(?= |`)", README))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = set(re.findall(r"^([a-z]+):", makefile, flags=re.M))
    assert targets and targets <= rules


def test_the_files_it_names_exist():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    words = re.findall(r"`([\w./-]+/[\w./-]*)`", README)
    paths = [word for word in words if not word.startswith(MADE_LATER)]
    assert "LICENSE" in links and "book/model" in paths
    assert [name for name in links + paths if not (ROOT / name).exists()] == []


def test_it_credits_tatoeba():
    assert "Tatoeba contributors, tatoeba.org, CC BY 2.0 FR" in " ".join(README.split())


def test_its_results_are_those_of_the_result_files():
    lines = re.findall(r"^\| \[.*\]\(book/results/.*\|$", README, flags=re.M)
    assert all(len(re.sub(r"\(book.*?\)|\|", " ", line).split()) <= 20 for line in lines)
    found = (re.search(r"\((book/results/\w+\.json)\).*?\| ([\d.]+) ", line) for line in lines)
    rows = [(match[2], match[1]) for match in found if match]
    recipes = [
        path
        for path in (ROOT / "book" / "results").glob("*.json")
        if {'"recipe":', '"published":'} & set(path.read_text("utf-8").split())
    ]
    assert len(rows) == len(recipes) >= 2
    for printed, path in rows:
        record = json.loads((ROOT / path).read_text(encoding="utf-8"))["records"][0]
        assert printed == f"{record['test']['BLEU']['score']:.1f}"
