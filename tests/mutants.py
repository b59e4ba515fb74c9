"""One-line departures from the paper and from our own rules,
each with the tests that must notice it.

`test_mutants.py` makes each change in a copy of the package and runs those tests on the copy. To
keep this quick, one server process (`python mutants.py`) imports PyTorch once and runs every copy's
tests in a fork of itself.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """`original`, which occurs exactly once in `file`, becomes `replacement`.

    A file is one of the package, or of the book's lab where its name begins with lab/.
    """

    name: str
    file: str
    original: str
    replacement: str
    tests: tuple[str, ...]

    def apply(self, package: Path) -> None:
        path = (package.parent if self.file.startswith("lab/") else package) / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.original) != 1:
            raise ValueError(
                f"{self.name}: {self.file} must hold this exactly once, "
                f"it does {text.count(self.original)} times:\n{self.original}"
            )
        path.write_text(text.replace(self.original, self.replacement), encoding="utf-8")


def read_mutants(path: Path) -> list[Mutant]:
    """The list in mutants.txt, whose first lines say how it is written."""
    found: list[tuple[str, str, dict[str, list[str]]]] = []
    file = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("@ "):
            file = line[2:]
        elif line.startswith("  "):
            found[-1][2][line[2]].append(line[4:])
        elif line and not line.startswith("#"):
            found.append((line, file, {"-": [], "+": [], "!": []}))
    return [
        Mutant(name, file, "\n".join(lines["-"]), "\n".join(lines["+"]), tuple(lines["!"]))
        for name, file, lines in found
    ]


MUTANTS = read_mutants(Path(__file__).with_suffix(".txt"))
LAB = Path(__file__).parents[1] / "book" / "lab"


class Outcome(NamedTuple):
    """How a copy's tests went: pytest's exit status, tests that failed in their own code,
    the package's directory."""

    exit_status: int
    failed: list[str]
    package: str
    output: str


def copy_of_the_package(directory: Path) -> Path:
    """A fresh copy of the package that this process imported, and of the lab, in `directory`."""
    import annotated_transformer

    source = Path(annotated_transformer.__file__).parent
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(LAB, directory / "lab", ignore=without_caches)
    return Path(shutil.copytree(source, directory / source.name, ignore=without_caches))


def _run_tests(directory: str, tests: list[str], output: str) -> Outcome:
    """In a forked child: pytest over `tests`, with the package of `directory`."""
    import resource  # Windows has none, and no fork either

    import pytest

    class Recorder:
        failed: list[str] = []

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_setup(self, item: pytest.Item) -> None:
            if item.nodeid.partition("[")[0] in self.failed:
                pytest.skip("another case of it has failed, which is enough")

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed and report.when == "call":
                self.failed.append(report.nodeid.partition("[")[0])

    assert "annotated_transformer" not in sys.modules
    sys.path.insert(0, directory)
    limit = max(60, 10 * len(tests))  # CPU seconds: a search that never ends is ended
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    # These tests need no plugin, and to look for them takes time.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with open(output, "w", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        here = Path(__file__).parent
        options = [
            "-q", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull, "-o",
            f"pythonpath={here}", f"--rootdir={here}",  # what a failed test is called begins here
        ]  # fmt: skip
        status = pytest.main([*options, *tests], plugins=[Recorder()])
    package = str(Path(sys.modules["annotated_transformer"].__file__ or "").parent)
    return Outcome(int(status), sorted(set(Recorder.failed)), package, output)


def _load_what_tests_load() -> None:
    """Import the libraries once, and those that PyTorch imports at first use:
    2 seconds for each fork otherwise."""
    import jaxtyping  # noqa: F401
    import pytest  # noqa: F401
    import sacrebleu  # noqa: F401
    import safetensors.torch  # noqa: F401
    import sentencepiece  # noqa: F401
    import torch

    weight = torch.ones(2, requires_grad=True)
    torch.testing.assert_close(weight, weight)  # imports distributed tensors and sympy
    weight.sum().backward()
    torch.optim.Adam([weight]).step()  # imports the compiler


def serve() -> None:
    """Answer each request on standard input (JSON: directory, tests,
    output) with a JSON Outcome."""
    _load_what_tests_load()
    for line in sys.stdin:
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            os.close(reader)
            outcome = _run_tests(*json.loads(line))
            with os.fdopen(writer, "w") as pipe:
                json.dump(outcome, pipe)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        print(answer or json.dumps(Outcome(-1, [], "", json.loads(line)[2])), flush=True)


if __name__ == "__main__":
    serve()
