"""An environment counts as installed only when it is, whatever stopped the installation before."""

import contextlib
from pathlib import Path

import pytest

from tools import install

PIP = [["-r", "requirements.txt"], ["--no-deps", "-e", "."]]


class Machine:
    """Stands for venv and pip: notes what is called; `answers` are pip's exit statuses,
    or what interrupts it."""

    def __init__(self, answers=()):
        self.answers, self.calls = list(answers), list[str]()

    def __call__(self, command, lock, output=None):
        words = list(map(str, command))[2:]
        self.calls.append(" ".join(words[:2]))
        if words[0] == "venv":
            assert "--clear" in words
            (Path(words[-1]) / "bin").mkdir(parents=True, exist_ok=True)
            (Path(words[-1]) / "bin" / "python").touch()
            for marker in Path(words[-1]).glob(".install*"):
                marker.unlink()
        elif words[1] == "install" and self.answers:
            answer = self.answers.pop(0)
            if not isinstance(answer, int):
                raise answer
            return answer
        return 0


def installation(folder, monkeypatch, *answers):
    machine = Machine(answers)
    monkeypatch.setattr(install, "run", machine)
    status = install.main(folder, PIP)
    assert (
        (status == 0)
        == (folder / ".installed").exists()
        == (not machine.answers and not any(answers))
    )
    return machine


def test_an_environment_is_made_once_and_then_brought_up_to_date(tmp_path, monkeypatch):
    first = installation(tmp_path / "venv", monkeypatch)
    assert first.calls == ["venv --clear", "pip install", "pip install"]
    assert installation(tmp_path / "venv", monkeypatch).calls == [
        "pip --version",
        "pip install",
        "pip install",
    ]


@pytest.mark.parametrize("stopped", [KeyboardInterrupt, -9])
@pytest.mark.parametrize("n_before", [0, 1])
def test_a_killed_installation_begins_again_from_nothing(tmp_path, monkeypatch, stopped, n_before):
    folder = tmp_path / "venv"
    monkeypatch.setattr(install, "run", Machine([0] * n_before + [stopped]))
    with contextlib.suppress(KeyboardInterrupt):
        assert install.main(folder, PIP) != 0
    assert not (folder / ".installed").exists()
    assert "venv --clear" in installation(folder, monkeypatch).calls


def test_an_installation_that_pip_gave_up_goes_on(tmp_path, monkeypatch):
    assert installation(tmp_path / "venv", monkeypatch, 1).calls == ["venv --clear", "pip install"]
    assert "venv --clear" not in installation(tmp_path / "venv", monkeypatch).calls
