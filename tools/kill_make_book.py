"""Kill `make book` at random moments, go on, and see that no finished chapter is run again.

    python -m tools.kill_make_book [--kills 5] [--chapters 4] [--within 60] [--seed 17] [--fresh]

The whole process group is killed (SIGKILL) between 1 and `--within` seconds after a run has
finished so many chapters, from none up to `--chapters`: on a slow machine, too, there is something
to lose. Then `make book` runs to its end. Exit status 0 if that succeeded, and if no chapter that
was done in one run was begun in a later one. `--fresh` removes _build first.
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from tools.notebooks import ROOT

PLAN = re.compile(r"(\d+) chapters? reused, (\d+|none) to run(?:: (.*))?")
DONE = re.compile(r"\| (\w+) done in [\d:]+$")


def make_book(chapters: int, kill_after: float | None) -> tuple[set[str], set[str], int]:
    """The chapters that `make book` planned to run and those it finished, and its exit status.

    It is killed so many seconds after it has finished so many chapters, or never.
    """
    process = subprocess.Popen(
        ["make", "book"],
        cwd=ROOT,
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    planned, done = set[str](), set[str]()
    assert process.stdout is not None
    for line in process.stdout:
        print(f"    {line}", end="", flush=True)
        if plan := PLAN.search(line):
            planned = set(re.findall(r"\w+", re.sub(r"\([^)]*\)", "", plan[3] or "")))
        if chapter := DONE.search(line):
            done.add(chapter[1])
        if kill_after is not None and planned and len(done) >= chapters:
            threading.Timer(kill_after, kill, [process]).start()
            kill_after = None
    return planned, done, process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    """End everything that `make book` started, except kernels,
    which end when they see that they are orphans."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--chapters", type=int, default=4, help="kill after so many at most")
    parser.add_argument("--within", type=float, default=60, help="seconds more at most")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--fresh", action="store_true", help="remove _build first")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    if arguments.fresh:
        shutil.rmtree(ROOT / "_build", ignore_errors=True)
    finished, again, status = set[str](), set[str](), 1
    for number in range(1, arguments.kills + 2):
        last = number > arguments.kills
        chapters = chance.randint(0, arguments.chapters)
        moment = None if last else chance.uniform(1, arguments.within)
        killed = f"killed {moment:.0f} s after {chapters} chapters" if moment else "to its end"
        print(f"run {number}: {killed}", flush=True)
        began = time.monotonic()
        planned, done, status = make_book(chapters, moment)
        again |= planned & finished
        finished |= done
        print(
            f"run {number}: {len(planned)} chapters to run, {len(done)} done, {len(finished)} done "
            f"in all, {time.monotonic() - began:.0f} s, exit status {status}",
            flush=True,
        )
    print(
        f"run again although finished: {', '.join(sorted(again)) or 'none'}; the last run "
        + ("succeeded" if status == 0 else f"FAILED with status {status}")
    )
    return 1 if again or status else 0


if __name__ == "__main__":
    sys.exit(main())
