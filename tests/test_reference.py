"""The reference has every public name, each with an example that is run."""

import doctest
import inspect
import re
from pathlib import Path

import pytest
import torch

import annotated_transformer

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "book" / "api.md").read_text(encoding="utf-8")
DOOR = annotated_transformer.__name__
PUBLIC = {name: getattr(annotated_transformer, name) for name in annotated_transformer.__all__}


def test_the_page_documents_what_the_package_names_and_nothing_else():
    documented = re.findall(r"^\.\. auto(?:class|exception|function|module):: (\S+)$", PAGE, re.M)
    names = {name: f"{DOOR}.{name}" for name in PUBLIC} | {"corpus": PUBLIC["corpus"].__name__}
    assert sorted(documented) == sorted(names.values())


def test_the_page_is_written_by_hand():
    """Signatures and docstrings are put in when the page is built: none of them is in git."""
    _, _, reference = PAGE.partition("## Settings")
    assert "eval-rst" in reference
    assert not re.search(r"^#+ `|^```python|^\s*def |->", reference, flags=re.M)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_member_on_the_page_has_a_docstring(name):
    """Sphinx leaves out a member without one, in silence."""
    found = re.search(rf":: {DOOR}\S*\.{name}\n   :members: (\S.*)$", PAGE, flags=re.M)
    for member in found[1].split(", ") if found else []:
        assert getattr(PUBLIC[name], member).__doc__, f"{name}.{member}"


@pytest.mark.slow
def test_every_example_runs(tmp_path, monkeypatch):
    (tmp_path / "book").symlink_to(ROOT / "book", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    order = sorted(PUBLIC, key=lambda name: name != "train")  # whose run other examples use
    without = []
    for name in order:
        text = inspect.getdoc(PUBLIC[name]) or ""
        known = {**PUBLIC, "torch": torch}
        example = doctest.DocTestParser().get_doctest(text, known, name, None, 0)
        without += [] if example.examples else [name]
        output: list[str] = []
        result = doctest.DocTestRunner(verbose=False).run(example, out=output.append)
        assert result.failed == 0, "".join(output)
    assert without == []
