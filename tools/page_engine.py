"""The engine of an exported page, run in Node: for tests, and for benchmarks/page.py.

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


def run_engine(folder: Path, *jobs: dict[str, Any], plain: bool = False) -> list[Any]:
    """The answers to `jobs` (see page_engine.js) of the page in `folder`.

    `plain` is the path without WebAssembly.
    """
    command = [NODE or "node", str(SCRIPT), str(folder), *(["plain"] if plain else [])]
    asked = "".join(json.dumps(job) + "\n" for job in jobs)
    done = subprocess.run(
        command, input=asked, capture_output=True, encoding="utf-8", check=False, timeout=3600
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [json.loads(line) for line in done.stdout.split("\n") if line]
