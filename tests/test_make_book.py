"""`make book` runs what has changed and nothing else, whatever stops it,
and a chapter that fails stops no other.

The book here has three chapters, each of which notes its runs in a file,
so that a run too many can be counted.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import nbformat
import pytest

from annotated_transformer.data import corpus
from tools import execution, make_book, reuse

ROOT = Path(__file__).parents[1]
CHAPTERS = ("one", "two", "three")
CHAPTER = """# %% [markdown]
# # Chapter {name}

# %%
import os
import time

with open("../../../begun.txt", "a") as begun:
    print("{name}", os.getpid(), file=begun, flush=True)

# %%
time.sleep({seconds})
print("from {name}")
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"])  # make_book puts its root before it


def write_book(root, seconds=0):
    """A checkout as small as can be."""
    files = {
        "_config.yml": "title: Small",
        "_toc.yml": "root: book/one",
        "static/style.css": "p {}",
        "tools/sphinx/extension.py": "",
        "annotated_transformer/__init__.py": "version = 1",
        "book/model/config.json": "{}",
        "book/results/figures.json": "{}",
        "requirements.txt": "numpy==2.4.6  # for numbers\n",
        "cache/" + next(iter(tables())): "corpus",
    }
    for name in CHAPTERS:
        files[f"book/{name}.py"] = CHAPTER.format(name=name, seconds=seconds)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def tables():
    """The files of the default corpus that the cache may hold."""
    return [name for name in corpus.get(corpus.names()[0]).sha256 if "/" not in name]


def run(root, *options):
    """`make book` in this process, without the pages unless `options` say otherwise."""
    command = ["make_book", "--root", str(root), *(options or ("--no-pages",))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", command)
        return make_book.main()


def start(root):
    """`make book` in a process of its own."""
    command = [sys.executable, "-m", "tools.make_book", "--root", str(root), "--no-pages"]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=ROOT, preexec_fn=hear_ctrl_c, **output)


def hear_ctrl_c():
    """A shell lets what it starts in the background ignore SIGINT, and a program inherits that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def begun(root):
    """How often each chapter was begun."""
    path = root / "begun.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter(line.split()[0] for line in lines)


def copy_of(root, name):
    return root / "_build" / "executed" / "book" / f"{name}.ipynb"


def own_cells(root, name):
    """The cells of the executed copy that the chapter's text has; others are added for Colab."""
    cells = nbformat.read(copy_of(root, name), as_version=4).cells
    return [cell for cell in cells if "remove-cell" not in cell.metadata.get("tags", [])]


def to_run(root):
    """The chapters that a run would run now, and why."""
    book = root / "_build" / "executed" / "book"
    reuse.mirror(root, book.parent, {Path(f"book/{name}.ipynb") for name in CHAPTERS})
    sources = sorted((root / "book").glob("*.py"))
    found = make_book.plan(sources, book, reuse.shared_inputs(root, book))
    return {source.stem: reason for source, reason in found.items()}


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def root(tmp_path):
    """A checkout in which nothing has been run."""
    return write_book(tmp_path)


@pytest.fixture(scope="module")
def finished_book(tmp_path_factory):
    root = write_book(tmp_path_factory.mktemp("finished"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANNOTATED_TRANSFORMER_CACHE", str(root / "cache"))
        patch.setenv("PYTHONPATH", os.environ["PYTHONPATH"])
        assert run(root) == 0
    return root


@pytest.fixture
def finished(finished_book, tmp_path):
    """A checkout in which all chapters have been run."""
    shutil.copytree(finished_book, tmp_path, dirs_exist_ok=True)
    assert begun(tmp_path) == Counter(CHAPTERS)
    return tmp_path


# Reuse


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("annotated_transformer/__init__.py", "package changed"),
        ("annotated_transformer/folder/new.html", "package changed"),
        ("book/lab/new.py", "lab changed"),
        (f"cache/{tables()[0]}", "corpus changed"),
        ("book/model/config.json", "model changed"),
        ("book/results/figures.json", "results changed"),
        ("book/results/new.json", "results changed"),
        ("requirements.txt", "versions changed"),
    ],
)
def test_a_change_of_what_all_chapters_use_runs_all(finished, file, reason):
    path = finished / file
    path.parent.mkdir(exist_ok=True)
    old = path.read_bytes() if path.exists() else b""
    path.write_bytes(old + b"\nnumpy")
    assert to_run(finished) == dict.fromkeys(CHAPTERS, reason)


def test_what_no_chapter_reads_runs_none(finished):
    for name in ("static/style.css", "book/page.md", "annotated_transformer/__pycache__/x.pyc"):
        (finished / name).parent.mkdir(exist_ok=True)
        (finished / name).write_text("changed")
    edit(finished / "requirements.txt", "for numbers", "for arrays")
    assert to_run(finished) == {}
    assert (finished / "_build/executed/static/style.css").read_text() == "changed"


@pytest.mark.slow
def test_only_the_chapter_whose_code_changed_is_run(finished, capsys):
    edit(finished / "book/two.py", "from two", "now from two")
    assert run(finished) == 0
    assert begun(finished) == Counter([*CHAPTERS, "two"])
    assert "now from two" in copy_of(finished, "two").read_text()
    assert "2 chapters reused, 1 to run: two (code changed)" in capsys.readouterr().out
    assert to_run(finished) == {}


def test_changed_words_are_taken_over_without_a_run(finished):
    edit(finished / "book/two.py", "# Chapter two", "# The second chapter\n#\n# It has more words.")
    edit(finished / "book/one.py", "# %%\nimport", '# %% tags=["hide-cell"]\nimport')
    assert run(finished) == 0
    assert begun(finished) == Counter(CHAPTERS)
    words, *code = own_cells(finished, "two")
    assert words.source == "# The second chapter\n\nIt has more words."
    assert code[-1].outputs[0].text == "from two\n"
    assert own_cells(finished, "one")[1].metadata.tags == ["hide-cell"]
    # Which changes how the cell is run.
    edit(finished / "book/one.py", "hide-cell", "raises-exception")
    assert to_run(finished) == {"one": "code changed"}


@pytest.mark.parametrize("damage", [b"", b'{"cells": [', b"\xff\xfe"])
def test_a_copy_that_cannot_be_read_is_made_again(finished, damage):
    copy_of(finished, "two").write_bytes(damage)
    assert to_run(finished) == {"two": "not run yet"}


@pytest.mark.slow
def test_a_chapter_is_not_kept_if_the_package_changed_while_it_ran(finished):
    change = 'open("../../../annotated_transformer/new.py", "w").close()'
    edit(finished / "book/two.py", "time.sleep(0)", change)
    assert run(finished) == 0
    assert to_run(finished)["two"] == "not run yet"
    assert "from two" in copy_of(finished, "two").read_text()


# Failures


@pytest.mark.slow
def test_failing_chapters_are_named_and_the_others_are_finished(root, capsys):
    edit(root / "book/two.py", 'print("from two")', 'print("so far")\nnumber = 1 / 0')
    edit(root / "book/three.py", "time.sleep(0)", "os.kill(os.getpid(), 9)")
    assert run(root) == 1
    assert to_run(root) == dict.fromkeys(("two", "three"), "not run yet")
    said = capsys.readouterr().err
    raised = r"two, cell (\d) of \1 \(`time.sleep\(0\)`\): ZeroDivisionError: division by zero"
    died = r"three, cell (\d) of \1 \(`os.kill.*`\): the kernel died \(killed by SIGKILL"
    assert re.search(raised, said), said
    assert re.search(died, said), said
    cells = own_cells(root, "two")
    assert cells[0].source.startswith("# Chapter two\n\n:::{admonition} This chapter failed")
    assert "ZeroDivisionError: division by zero" in cells[0].source
    assert cells[2].outputs[0].text == "so far\n"
    edit(root / "book/two.py", "1 / 0", "1 / 1")
    edit(root / "book/three.py", "os.kill(os.getpid(), 9)", "pass")
    assert run(root) == 0
    assert begun(root) == Counter([*CHAPTERS, "two", "three"])


@pytest.mark.slow
def test_a_failed_chapter_shows_the_outputs_that_come_with_the_book(root):
    edit(root / "book/two.py", "time.sleep(0)", 'assert os.path.exists("../../../there")')
    (root / "there").touch()
    assert run(root) == 0
    shutil.copy(copy_of(root, "two"), root / "book/two.ipynb")  # as `make refresh` would store it
    shutil.rmtree(root / "_build")
    (root / "there").unlink()
    assert run(root) == 1
    words, *code = own_cells(root, "two")
    assert "AssertionError" in words.source
    assert code[-1].outputs[0].text == "from two\n"
    assert to_run(root) == {"two": "not run yet"}


@pytest.mark.slow
def test_no_clock_stops_a_cell(tmp_path):
    client = execution.Client(nbformat.v4.new_notebook(), tmp_path, print)
    assert client.timeout is None and client.timeout_func is None
    assert min(client.startup_timeout, client.iopub_timeout) >= 3600
    assert not client.raise_on_iopub_timeout
    # Longer than nbclient waits anywhere by default, but for a start.
    root = write_book(tmp_path)
    edit(root / "book/two.py", "time.sleep(0)", "time.sleep(6)")
    assert run(root) == 0


# Stopping


def finish(process):
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


@pytest.mark.slow
def test_no_finished_chapter_is_run_again_after_three_kills(tmp_path):
    root, chance = write_book(tmp_path, seconds=1), random.Random(17)
    for _ in range(3):
        process = start(root)
        time.sleep(chance.uniform(0.5, 5))
        process.kill()
        process.communicate()
        done = set(CHAPTERS) - set(to_run(root))
        before = begun(root)
    finish(start(root))
    assert all(begun(root)[name] == before[name] for name in done)
    assert to_run(root) == {}
    assert not list((root / "_build").rglob(".*.ipynb.*"))


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_kernels_and_keeps_what_is_done(root, signal_number):
    for name in ("two", "three"):
        edit(root / f"book/{name}.py", "time.sleep(0)", "time.sleep(600)")
    process = start(root)
    wait_until(lambda: set(begun(root)) == set(CHAPTERS) and is_kept(root, "one"))
    process.send_signal(signal_number)
    output, _ = process.communicate()
    assert process.returncode == 130
    assert "stopped. The chapters that were done are kept" in output and "Traceback" not in output
    assert "FAILED" not in output
    for line in (root / "begun.txt").read_text().splitlines():
        with pytest.raises(ProcessLookupError):
            os.kill(int(line.split()[1]), 0)
    assert set(to_run(root)) == {"two", "three"}


def is_kept(root, name):
    """Whether a chapter was run to its end, found without touching the folder in which
    another process works."""
    kept = reuse.read_kept(copy_of(root, name))
    return bool(kept and "run" in kept.metadata)


def wait_until(condition):
    while not condition():
        time.sleep(0.05)


# Pages


@pytest.fixture
def builder(monkeypatch):
    """Stands for jupyter-book: notes its calls and writes a page;
    a style called "bad" is a problem."""
    calls: list[list[str]] = []

    def build(command, cwd, **_):
        calls.append(command)
        (cwd / "_build/html").mkdir()
        (cwd / "_build/html/index.html").write_text("page")
        style = (Path(command[-1]) / "static/style.css").read_text()
        return subprocess.CompletedProcess(command, "bad" in style)

    monkeypatch.setattr(make_book.subprocess, "run", build)
    return calls


def test_pages_are_built_again_only_if_something_changed(finished, builder):
    def build(*options):
        assert run(finished, "--root", str(finished), *options) == 0
        return len(builder)

    assert [build(), build()] == [1, 1]
    edit(finished / "static/style.css", "p", "div")
    assert [build(), build()] == [2, 2]
    (finished / "_build/html/index.html").unlink()
    assert build() == 3
    edit(finished / "static/style.css", "div", "bad")
    assert run(finished, "--root", str(finished)) == run(finished, "--root", str(finished)) == 1
    assert len(builder) == 5  # pages with problems do not count as built
    edit(finished / "static/style.css", "bad", "div")
    assert build() == 6
    (finished / "book/two.ipynb").write_bytes(copy_of(finished, "one").read_bytes())
    assert [build(), build("--stored"), build("--stored"), build()] == [6, 7, 7, 8]


def test_the_long_chapters_are_chapters_that_exist():
    assert set(make_book.LONGEST) <= {path.stem for path in (ROOT / "book").glob("*.py")}
