"""The engines of exported pages, run in Node: for tests, and for the programs in benchmarks/.

A page needs no Node; where there is none, those are skipped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

NODE = shutil.which("node")
SCRIPT = Path(__file__).with_suffix(".js")
TRAINING_SCRIPT = SCRIPT.with_name("training_engine.js")


def run_engine(folder: Path, *jobs: dict[str, Any], plain: bool = False) -> list[Any]:
    """The answers to `jobs` (see page_engine.js) of the page in `folder`.

    `plain` is the path without WebAssembly.
    """
    return _answers([str(SCRIPT), str(folder), *(["plain"] if plain else [])], jobs)


def run_training_engine(folder: Path, *jobs: dict[str, Any]) -> list[Any]:
    """The answers to `jobs` (see training_engine.js) of the training page in `folder`."""
    return _answers([str(TRAINING_SCRIPT), str(folder)], jobs)


def _answers(arguments: list[str], jobs: tuple[dict[str, Any], ...]) -> list[Any]:
    command = [NODE or "node", *arguments]
    asked = "".join(json.dumps(job) + "\n" for job in jobs)
    done = subprocess.run(
        command, input=asked, capture_output=True, encoding="utf-8", check=False, timeout=3600
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [json.loads(line) for line in done.stdout.split("\n") if line]
