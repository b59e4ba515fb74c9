"""Run the tests on the oldest versions that pyproject.toml allows, in _build/floor.

    python tools/floor.py [what pytest takes]

uv resolves the bounds (`lowest-direct`: the lowest version of each package that pyproject.toml
names, the newest of what those need) on the oldest Python that `requires-python` allows. On Linux,
PyPI's torch is the CUDA build, several GB; UV_TORCH_BACKEND=cpu takes PyTorch's CPU build instead.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FLOOR = ROOT / "_build" / "floor"
EXTRAS = ("book", "test")
# The pages need a browser of today; the mutants run the suite many times over, and say nothing of
# versions.
LEFT_OUT = ("test_browser.py", "test_explorer.py", "test_mutants.py")


def oldest_python(project: dict[str, Any]) -> str:
    """The lower bound of requires-python, "3.11" of ">=3.11"."""
    found = re.fullmatch(r">=\s*(\d+\.\d+)", project["requires-python"])
    if not found:
        raise SystemExit(
            f"floor.py: requires-python must be a lower bound, got {project['requires-python']!r}"
        )
    return found[1]


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
    python = str(FLOOR / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))

    def uv(line: str) -> None:
        subprocess.run([sys.executable, "-m", "uv", *line.split()], cwd=ROOT, check=True)

    uv(f"venv --quiet --clear --python {oldest_python(project)} _build/floor")
    extras = " ".join(f"--extra {extra}" for extra in EXTRAS)
    into = "--python _build/floor"
    uv(f"pip install --quiet {into} --resolution lowest-direct -r pyproject.toml {extras}")
    uv(f"pip list {into} --format freeze")
    ignored = [f"--ignore=tests/{name}" for name in LEFT_OUT]
    options = ["-n", "2", "-q", "-rs", "-m", "not slow", *ignored, *arguments]
    return subprocess.run(
        [python, "-m", "pytest", "tests", *options], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
