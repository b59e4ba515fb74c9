"""Builds the products of the page, kernels.wasm, from kernels.c: `python -m tools.kernels`.

It needs clang and lld (Debian: `apt-get install clang lld`). The result is in git, so that nobody
else needs them: it has some 350 bytes, and a test builds it again wherever there is a clang.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "annotated_transformer" / "extras" / "page" / "files"
CLANG = shutil.which("clang")
COMMAND = [
    "--target=wasm32", "-O2", "-msimd128", "-ffreestanding", "-nostdlib", "-Wall",
    "-Wextra", "-Werror", "-Wl,--no-entry", "-Wl,--import-memory", "-Wl,--strip-all",
    "-Wl,-z,stack-size=1024",
]  # fmt: skip
BUILT_BY = "Debian clang version 14.0.6"  # kernels.wasm in git


def version() -> str:
    """What this machine's clang calls itself."""
    command = [CLANG or "clang", "--version"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[
        0
    ]


def build(path: Path) -> None:
    """Compile kernels.c to `path`."""
    command = [CLANG or "clang", *COMMAND, "-o", str(path), str(FOLDER / "kernels.c")]
    subprocess.run(command, check=True)


def main() -> int:
    """Build kernels.wasm in its place; the exit status."""
    if not CLANG:
        print("no clang here (Debian: apt-get install clang lld)", file=sys.stderr)
        return 2
    build(FOLDER / "kernels.wasm")
    return 0


if __name__ == "__main__":
    sys.exit(main())
