"""Make the environment that everything else runs in:
a folder with its own Python and the pinned packages.

    python3 tools/install.py .venv -- -r requirements.txt -- --no-deps -e .

After each `--` stand the arguments of one `pip install`. Needs nothing but Python 3.11 and pip's
index. An installation that was killed half-way may have left packages that pip takes for complete,
so the next one begins with an empty folder (what was downloaded is in pip's cache); one that pip
gave up, without a network for example, goes on where it was.
"""

import fcntl
import subprocess
import sys
from pathlib import Path


def main(folder: Path, installs: list[list[str]]) -> int:
    """Run pip in `folder`; `folder`/.installed is touched last, and only after success."""
    python, begun, done = folder / "bin" / "python", folder / ".installing", folder / ".installed"
    lock = folder.absolute().parent / "_build" / "install.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        try:
            # It ends with this process and with pip.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(
                f"make: another process is installing into {folder}; waiting for it to end",
                file=sys.stderr,
            )
            fcntl.flock(file, fcntl.LOCK_EX)
        has_pip = (
            python.exists()
            and run([python, "-m", "pip", "--version"], file.fileno(), subprocess.DEVNULL) == 0
        )
        if begun.exists() or not has_pip:
            if begun.exists():
                print(
                    f"make: the last installation into {folder} was stopped half-way; beginning "
                    "again"
                )
            if status := run([sys.executable, "-m", "venv", "--clear", folder], file.fileno()):
                return status
        begun.touch()
        done.unlink(missing_ok=True)
        for arguments in installs:
            if status := run([python, "-m", "pip", "install", *arguments], file.fileno()):
                if status > 0:  # pip itself gave up, and left everything in order
                    begun.unlink()
                return 1
        begun.unlink()
        done.touch()
    return 0


def run(command: list[str | Path], lock: int, output: int | None = None) -> int:
    """The exit status of a command; less than zero if a signal ended it."""
    return subprocess.run(command, pass_fds=(lock,), stdout=output, stderr=output).returncode


if __name__ == "__main__":
    if sys.argv[2:3] != ["--"]:
        sys.exit(__doc__)
    groups: list[list[str]] = []
    for argument in sys.argv[2:]:
        if argument == "--":
            groups.append([])
        else:
            groups[-1].append(argument)
    try:
        sys.exit(main(Path(sys.argv[1]), groups))
    except KeyboardInterrupt:
        sys.exit(130)
