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
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.errors import ConfigError, require
from annotated_transformer.files import write_text

PACKAGES = ("torch", "sentencepiece", "sacrebleu")
PLACE = Path("book", "lab", "experiments", "result_file.py")  # of this file in a checkout
CHECKOUT = Path(__file__).resolve().parents[3]
RESULTS = CHECKOUT / "book" / "results"
RUNS = CHECKOUT / "runs"
CODE = ("annotated_transformer", "book/lab", "benchmarks/*.py")
"""What a result depends on. Scores that a run adds to benchmarks/ are no change of it."""
KEYS = ("command", "commit", "date", "hardware", "versions", "records")


def commit() -> str:
    """The commit of the checkout that this package runs from, or else "unknown".

    " with changes" stands behind it if the code differs.
    """

    def git(*words: str) -> str:
        command = ["git", *words]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=CHECKOUT)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", str(PLACE))  # no copy elsewhere
        changed = git("status", "--porcelain", "--", *CODE)
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


def versions() -> dict[str, str]:
    """The versions that a result may depend on."""
    return {**{package: version(package) for package in PACKAGES}, "python": python_version()}


def origin(command: str, device: str = "cpu") -> dict[str, Any]:
    """What a result file says besides its records: where, when, with what and by which command."""
    return {
        "command": command,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "hardware": hardware(device),
        "versions": versions(),
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
    write_text(path, text)


def folder_of(named: Path | None, small: bool) -> Path:
    """The folder of result files: `named`, else book/results, for a rehearsal a temporary one."""
    return named or (Path(tempfile.mkdtemp()) if small else RESULTS)


def require_same_settings(
    folder: Path, found: Mapping[str, Any], model: ModelConfig, train: TrainConfig
) -> None:
    """Raises ConfigError where `found`, which describes the run in `folder`, has other settings.

    What it does not name was added later, and has its default. `window` orders batches only.
    """
    then = {**found["train"], "window": train.window}
    same = (ModelConfig.from_dict(found["model"]), TrainConfig.from_dict(then)) == (model, train)
    require(same, f"{folder} holds a run with other settings: remove it, or name another folder")


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
