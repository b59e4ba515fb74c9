"""No module reaches for what another one keeps private."""

from pathlib import Path

from tools import private_names
from tools.private_names import ALLOWED, Use, all_uses, tracked


def found(folder: Path, **sources: str) -> tuple[list[Use], list[Use]]:
    """What is found in a folder of these modules."""
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    return all_uses({f"{name}.py": folder / f"{name}.py" for name in sources})


def test_no_private_name_is_used_outside_its_module() -> None:
    ours, others = all_uses(tracked())
    assert ours == []
    assert {use.name for use in others} == set(ALLOWED)  # and no reason is left over


def test_an_attribute_an_import_and_a_string_are_uses(tmp_path: Path) -> None:
    user = "import a\nfrom a import _f\nprint(a._f, a._x, a.__name__)\nsetattr(a, '_x', 3)\n"
    ours, others = found(tmp_path, a="_x = 1\ndef _f(): return _x\n", b=user)
    names = [(2, "_f"), (3, "_f"), (3, "_x"), (4, "_x")]
    assert ours == [Use("b.py", line, name) for line, name in names] and others == []
    assert str(ours[0]) == "b.py:2 _f"


def test_a_class_may_use_what_its_base_classes_define(tmp_path: Path) -> None:
    base = "class Base:\n    def __init__(self): self._x = 1\n    def _f(self): return self._x\n"
    child = "from a import Base\nclass Child(Base):\n    def f(self): return self._f() + self._x\n"
    grandchild = "from b import Child\nclass Third(Child):\n    def g(self): return self._x\n"
    stranger = "from a import Base\nprint(Base()._x)\n"
    ours, _ = found(tmp_path, a=base, b=child, c=grandchild, d=stranger)
    assert ours == [Use("d.py", 2, "_x")]


def test_names_of_other_libraries_are_listed_apart(tmp_path: Path, monkeypatch, capsys) -> None:
    source = "import torch\nprint(torch._C, (1,)._asdict, torch._foo)\n"
    ours, others = found(tmp_path, a=source)
    assert ours == [] and [use.name for use in others] == ["_C", "_foo"]
    monkeypatch.setattr(private_names, "tracked", lambda: {"a.py": tmp_path / "a.py"})
    assert private_names.main() == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "a.py:2 _foo" and printed[-1].endswith("module: 1")
