"""What a type checker sees of an installed wheel: classes and functions,
and the README's listing without an error."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REVEALED = """
import annotated_transformer as a
from annotated_transformer import Transformer, beam_search, train

reveal_type(Transformer)
reveal_type(beam_search)
reveal_type(train)
reveal_type(a.Translator.from_checkpoint)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which a wheel of this checkout is installed,
    beside what it depends on."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--wheel-dir", str(folder), str(copy_of_the_sources(folder))]
    subprocess.run(command, check=True)
    venv.create(folder / "venv", with_pip=False)
    (packages,) = (folder / "venv").glob("**/site-packages")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    (python,) = [*(folder / "venv").glob("bin/python"), *(folder / "venv").glob("*/python.exe")]
    return python


def copy_of_the_sources(folder: Path) -> Path:
    """So that building leaves nothing in the checkout."""
    command = ["git", "ls-files", "annotated_transformer", "pyproject.toml", "README.md", "LICENSE"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True).split()
    for name in listed:
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    return folder / "source"


def checked(code: str, python: Path) -> list[str]:
    """What mypy, strict, says of a program that uses the installed package."""
    folder = python.parents[2]
    (folder / "program.py").write_text(code, encoding="utf-8")
    command = [
        sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable",
        str(python), "--cache-dir", str(folder / "cache"), "--no-error-summary", "program.py",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.stderr == ""
    return [line.partition(": ")[2] for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_the_front_door_shows_classes_and_functions(installed: Path) -> None:
    said = checked(REVEALED, installed)
    assert len(said) == 4 and all(line.startswith("note: Revealed type is") for line in said)
    model, search, training, translator = said
    assert re.search(r"def \(config: .*ModelConfig\) -> .*model\.transformer\.Transformer", model)
    assert re.search(r"def \(model: .*source: .*\) -> .*list\[.*Hypothesis", search)
    assert re.search(r"def \(model_config: .*out: .*\) -> .*Transformer", training)
    assert "-> annotated_transformer.decoding.translator.Translator" in translator
    assert not re.search(r"Type of .* is Any|\bAny\b", model + translator)


@pytest.mark.slow
def test_the_readmes_listings_have_no_type_error(installed: Path) -> None:
    pages = (ROOT / name for name in ("README.md", "book/api.md"))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    listings = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    said = checked("\n".join(listings), installed)
    assert len(listings) == 3 and [line for line in said if line.startswith("error")] == []
