"""Result files: what was measured, and the command, commit, versions and hardware behind it.

A result file is one JSON object under book/results/: command, commit, date, hardware, versions and
`records`, a list in which each record carries its own settings and figures. Chapters read these
files; no number in them is typed in.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from annotated_transformer.checkpoint import write_atomically
from annotated_transformer.config import ConfigError, require

PACKAGES = ("torch", "sentencepiece", "sacrebleu")
KEYS = ("command", "commit", "date", "hardware", "versions", "records")


def commit() -> str:
    """The commit of the checkout that this package runs from, or else "unknown".

    " with changes" stands behind it if the code differs.
    """
    here = Path(__file__).resolve().parents[1]

    def git(*words: str) -> str:
        command = ["git", *words]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=here.parent)
        return done.stdout.strip()

    try:
        this_file = f"{here.name}/experiments/{Path(__file__).name}"
        git("ls-files", "--error-unmatch", this_file)  # no copy elsewhere
        changed = git("status", "--porcelain", "--", here.name, "benchmarks")
        return git("rev-parse", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def hardware(device: str = "cpu") -> str:
    """The GPU's name for "cuda"; else the processor's, with its cores and PyTorch's threads."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    width = torch.backends.cpu.get_cpu_capability()
    return f"CPU: {name} ({width}), {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def origin(command: str, device: str = "cpu") -> dict[str, Any]:
    """What a result file says besides its records: where, when, with what and by which command."""
    versions = {package: version(package) for package in PACKAGES}
    return {
        "command": command,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "hardware": hardware(device),
        "versions": {**versions, "python": platform.python_version()},
    }


def write_result(
    path: str | Path,
    command: str,
    records: Sequence[dict[str, Any]],
    device: str = "cpu",
    **more: Any,
) -> None:
    """Write the records, `origin(command, device)` and what `more` says of them all, to `path`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {**origin(command, device), **more, "records": list(records)}
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_atomically(path, lambda new: new.write_text(text, encoding="utf-8"))


def read_result(path: str | Path) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises ConfigError when it is none, or lacks what a result file must say.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    require(isinstance(content, dict), f"{path} is no result file: it is not a JSON object")
    missing = [key for key in KEYS if not content.get(key)]
    require(not missing, f"{path} is no result file: it lacks {', '.join(missing)}")
    return dict(content)
