"""What `tools.shape` counts, and how much of the package a program enters at most."""

import sys

import pytest

from tools import shape


def test_a_file_is_entered_when_a_function_in_it_is_called(tmp_path, monkeypatch):
    (tmp_path / "entered.py").write_text("def function(): pass\n", encoding="utf-8")
    (tmp_path / "imported.py").write_text("class Nobody: pass\n", encoding="utf-8")
    monkeypatch.setattr(shape, "PACKAGE", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def program():
        import entered  # type: ignore[import-not-found]
        import imported  # type: ignore[import-not-found]  # noqa: F401

        entered.function()

    try:
        assert shape.entered(program) == ["entered.py"]
    finally:
        sys.modules.pop("entered", None), sys.modules.pop("imported", None)


def test_a_cycle_is_found_however_long():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"f"}, "f": {"e"}}
    assert shape.cycles(graph) == [["a", "b", "c"], ["e", "f"]]


def test_only_tuples_written_on_both_sides_count():
    assert shape.tuple_assignments("a, b = 1, 2\na, b = f()\na = 1, 2\nx, (y, z) = 1, (2, 3)") == 2


@pytest.mark.slow
def test_a_program_enters_no_more_files_than_it_did():
    entered = {name: len(names) for name, names in shape.entered_by_programs().items()}
    assert entered["TrainingRun.step"] <= 13
    assert entered["train() of one step"] <= 31
