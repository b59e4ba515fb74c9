"""Another program, in a process and an environment of its own, that answers in JSON.

`make readers` makes that environment; READERS names another Python that has the programs.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PYTHON = os.environ.get("READERS", str(HERE.parents[1] / ".readers" / "bin" / "python"))
PATIENCE = 3600


@functools.cache
def missing(*modules: str) -> str:
    """Which of the programs are not there, "" where all are."""
    if not Path(PYTHON).exists():
        return f"no {PYTHON}: `make readers` makes it"
    code = f"import importlib.util as u; print(*(m for m in {modules} if not u.find_spec(m)))"
    found = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    return found.stdout.strip() and f"{PYTHON} has no {found.stdout.strip()}"


def needs(*modules: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(bool(missing(*modules)), reason=missing(*modules))


def answers(script: str, *questions: dict[str, Any]) -> list[Any]:
    """What a script of this folder says of exported folders. It knows nothing of our package."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [PYTHON, str(HERE / script)], input=json.dumps(questions, default=str), text=True,
        capture_output=True, check=False, timeout=PATIENCE, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def answer(script: str, **question: Any) -> Any:
    """The same of one."""
    return answers(script, question)[0]
