"""Make a Colab machine ready for a chapter, whose first cell runs this file from its clone.

What pyproject.toml asks for and the machine lacks is installed. PyTorch and NumPy stay as they are:
Colab's are built for its GPU and for each other, and an exchanged one breaks what is loaded. The
package is not installed but found in the clone, so that an edit there takes effect. A second run
finds nothing to do.
"""

import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

HOME = Path(__file__).resolve().parents[1]
COLABS_OWN = {"torch", "numpy"}


def lacking(requirements: Iterable[str]) -> list[Requirement]:
    """The requirements ("name>=1.0") that this Python does not meet: not installed, or too old."""

    def is_met(requirement: Requirement) -> bool:
        try:
            return requirement.specifier.contains(
                metadata.version(requirement.name), prereleases=True
            )
        except metadata.PackageNotFoundError:
            return False

    return [
        requirement for requirement in map(Requirement, requirements) if not is_met(requirement)
    ]


def install(requirements: list[str]) -> None:
    """Install with uv, or with pip where there is no uv or it fails. Exits if both do."""
    tools = [
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "--retries=1",
        ]
    ]  # fmt: skip
    if shutil.which("uv"):
        tools.insert(0, ["uv", "pip", "install", "--quiet", "--python", sys.executable])
    for tool in tools:
        done = subprocess.run(
            [*tool, *requirements], capture_output=True, text=True, errors="replace"
        )
        if done.returncode == 0:
            importlib.invalidate_caches()
            return
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    sys.exit(
        f"cannot install {', '.join(requirements)}: {lines[-1] if lines else 'pip says nothing'}"
    )


def show_the_package() -> None:
    """Let this Python, those that it starts, and the shell find package and lab in the clone."""
    places = [str(HOME), str(HOME / "book")]
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [*(place for place in places if place not in path), *filter(None, path)]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    sys.path[:0] = [place for place in places if place not in sys.path]
    command = Path(sysconfig.get_path("scripts"), "annotated-transformer")
    if not command.exists():
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m annotated_transformer "$@"\n')
        command.chmod(0o755)


def main() -> None:
    started = time.monotonic()
    project = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lacks = lacking(project["dependencies"])
    wanted = [str(requirement) for requirement in lacks if requirement.name not in COLABS_OWN]
    if wanted:
        install(wanted)
    show_the_package()
    os.chdir(HOME / "book")
    took = f"Installed {', '.join(wanted)} in {time.monotonic() - started:.0f} s."
    place = f"The book is in {HOME}, version {project['version']}."
    print(place, took if wanted else "Nothing was missing.")
    for requirement in lacks:
        if requirement.name in COLABS_OWN:
            has = metadata.version(requirement.name)
            print(
                f"The book asks for {requirement}, and this runtime has {has}: "
                "choose a newer one under Runtime, Change runtime type."
            )


if __name__ == "__main__":
    main()
