"""Another program, in a process and an environment of its own, that answers in JSON.

`make readers` makes that environment; READERS names another Python that has the programs, and
READERS_NODE another folder of Node's packages.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PYTHON = os.environ.get("READERS", str(HERE.parents[1] / ".readers" / "bin" / "python"))
TRANSFORMERS_4 = str(Path(PYTHON).parents[1] / "transformers_4")
"""A folder with an older transformers, which stands in front of that environment's own."""
NODE = os.environ.get("READERS_NODE", str(HERE.parents[1] / ".readers" / "node"))
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


def needs_node(package: str) -> pytest.MarkDecorator:
    """It must be installed as our lock file has it."""
    reason = "" if shutil.which("node") else "no node"
    if not (Path(NODE) / "node_modules" / package).exists():
        reason = reason or f"{NODE} has no {package}: `make readers` installs it with npm"
    return pytest.mark.skipif(bool(reason), reason=reason)


def borrow(module: str) -> None:
    """Our own process uses it too; that environment comes last, to shadow nothing."""
    if not find_spec(module):
        sys.path += map(str, Path(PYTHON).parents[1].glob("lib/python*/site-packages"))


def answers(script: str, *questions: dict[str, Any], path: str = "") -> list[Any]:
    """What a script of this folder says of exported folders. It knows nothing of our package.

    Packages in the folder `path` come before the environment's own.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment |= {"PYTHONPATH": path} if path else {}
    is_python = script.endswith(".py")
    command = [PYTHON, str(HERE / script)] if is_python else ["node", str(HERE / script), NODE]
    done = subprocess.run(
        command, input=json.dumps(questions, default=str), text=True,
        capture_output=True, check=False, timeout=PATIENCE, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def answer(script: str, path: str = "", **question: Any) -> Any:
    """The same of one."""
    return answers(script, question, path=path)[0]
