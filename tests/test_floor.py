"""The oldest versions that pyproject.toml allows: all named, none with a known hole; the newest."""

import re
import tomllib
from pathlib import Path

import pytest

from tools import floor

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# The first release without a hole through which a file from a stranger could harm its reader.
MENDED = {
    # CVE-2026-24747: heap corruption by a checkpoint, even with weights_only=True.
    "torch": (2, 10),
    # CVE-2026-1260 and the crashes on loading a vocabulary that were found after it.
    "sentencepiece": (0, 2, 3),
}


def bounds():
    """Lowest version by package, of the package's own requirements."""
    found = re.findall(r"^([\w.-]+)>=([\d.]+)$", "\n".join(PROJECT["dependencies"]), flags=re.M)
    return {package: tuple(map(int, version.split("."))) for package, version in found}


@pytest.mark.parametrize("package", MENDED)
def test_no_version_with_a_known_hole_is_allowed(package):
    assert bounds()[package] >= MENDED[package]


def test_every_requirement_names_its_oldest_version():
    assert floor.unbounded(PROJECT) == []
    assert len(bounds()) == len(PROJECT["dependencies"])


def test_what_names_no_oldest_version_is_found():
    project = {
        "dependencies": ["torch>=2.10", "numpy", "tqdm<5"],
        "optional-dependencies": {"book": ["a==1", "b"]},
    }
    assert floor.unbounded(project) == ["numpy", "tqdm<5", "b"]


def test_the_oldest_python_is_the_bound():
    assert floor.oldest_python({"requires-python": ">=3.11"}) == "3.11"
    with pytest.raises(SystemExit, match="must be a lower bound, got '~=3.11'"):
        floor.oldest_python({"requires-python": "~=3.11"})


def test_the_newest_python_is_a_release():
    found = [("cpython", "3.9.18"), ("cpython", "3.13.0"), ("cpython", "3.15.0rc1")]
    found += [("pypy", "3.14.2"), ("cpython", "3.11.7")]
    listed = [{"implementation": kind, "version": version} for kind, version in found]
    assert floor.newest_python(listed) == "3.13.0"


def test_the_pins_lie_above_the_floor():
    """What the book was run with is allowed, and not older than what is allowed."""
    requirements = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([\w.-]+)==([\d.]+)", requirements, flags=re.M))
    for package, lowest in bounds().items():
        assert tuple(map(int, pins[package].split("."))) >= lowest, package
