"""Run the tests on the oldest versions that pyproject.toml allows, or on the newest that there are.

    python -m tools.floor [--ceiling] [what pytest takes]

uv resolves the bounds into _build/floor (`lowest-direct`: the lowest version of each package that
pyproject.toml names, the newest of what those need, and the oldest Python that `requires-python`
allows) or _build/ceiling (the newest of all, and the newest Python that is installed; UV_PYTHON
names another). On Linux, PyPI's torch is the CUDA build, several GB; UV_TORCH_BACKEND=cpu takes
PyTorch's CPU build instead.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("book", "test")
# The pages need a browser of today; the mutants run the suite many times over, and say nothing of
# versions.
LEFT_OUT = ("test_browser.py", "test_mutants.py")


def oldest_python(project: dict[str, Any]) -> str:
    """The lower bound of requires-python, "3.11" of ">=3.11"."""
    found = re.fullmatch(r">=\s*(\d+\.\d+)", project["requires-python"])
    if not found:
        raise SystemExit(
            f"floor.py: requires-python must be a lower bound, got {project['requires-python']!r}"
        )
    return found[1]


def newest_python(listed: list[dict[str, Any]]) -> str:
    """The newest of the releases that uv lists: no release candidate, no other kind of Python."""
    releases = [
        tuple(map(int, python["version"].split(".")))
        for python in listed
        if python["implementation"] == "cpython" and re.fullmatch(r"[\d.]+", python["version"])
    ]
    return ".".join(map(str, max(releases)))


def unbounded(project: dict[str, Any]) -> list[str]:
    """The requirements, of the package and of its optional groups, that name no oldest version."""
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [
        requirement
        for group in groups
        for requirement in group
        if not re.search(r"[>=]=\s*\d", requirement)
    ]


def main(arguments: list[str]) -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if without := unbounded(project):
        raise SystemExit(
            f"floor.py: a requirement must name its oldest version, got {', '.join(without)}"
        )
    is_floor = "--ceiling" not in arguments
    name, resolution = ("floor", "lowest-direct") if is_floor else ("ceiling", "highest")

    def uv(line: str, read: bool = False) -> str:
        command = [sys.executable, "-m", "uv", *line.split()]
        output = subprocess.PIPE if read else None
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=output, text=True)
        return done.stdout or ""

    if is_floor:
        version = oldest_python(project)
    else:
        listed = uv("python list --only-installed --output-format json", read=True)
        version = os.environ.get("UV_PYTHON") or newest_python(json.loads(listed))
    uv(f"venv --quiet --clear --python {version} _build/{name}")
    extras = " ".join(f"--extra {extra}" for extra in EXTRAS)
    into = f"--python _build/{name}"
    uv(f"pip install --quiet {into} --resolution {resolution} -r pyproject.toml {extras}")
    uv(f"pip list {into} --format freeze")
    python = ROOT / "_build" / name / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ignored = [f"--ignore=tests/{test}" for test in LEFT_OUT]
    options = ["-n", "2", "-q", "-rs", "-m", "not slow", *ignored]
    options += [argument for argument in arguments if argument != "--ceiling"]
    command = [str(python), "-m", "pytest", "tests", *options]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
