"""One line of progress for a run of many chapters: done, time so far, and where each chapter is.

On a terminal tqdm rewrites the line in place; elsewhere there is a line for each chapter that ends.
"""

import sys
import time
from typing import TextIO

from tqdm import tqdm

# The order of a first run, so that no long chapter comes last; afterwards the last times decide.
LONGEST_FIRST = ("6_1_translation", "6_3_parsing", "5_3_optimizer", "5_4_regularization")


def expected_seconds(name: str) -> float:
    """What orders the chapters that were never run here."""
    return 100.0 if name in LONGEST_FIRST else 30.0


class Progress:
    """Counts chapters. `n_done` of them need no run."""

    def __init__(self, n_chapters: int, n_done: int, stream: TextIO | None = None):
        stream = sys.stderr if stream is None else stream
        self.bar = tqdm(
            total=n_chapters,
            initial=n_done,
            unit="chapter",
            file=stream,
            disable=not stream.isatty(),
            dynamic_ncols=True,
            bar_format="[{n_fmt} of {total_fmt} chapters] {elapsed} so far{postfix}",
        )
        self.stream, self.n_done, self.n_chapters = stream, n_done, n_chapters
        self.began: dict[str, float] = {}
        self.places: dict[str, str] = {}

    def begin(self, name: str) -> None:
        self.began[name] = time.monotonic()

    def reach(self, name: str, place: str) -> None:
        """A chapter comes to a cell, or says something in it."""
        self.places[name] = f"{name} {place[:50]}"
        self.tick()

    def note(self, name: str, text: str) -> None:
        """A cell writes to standard error; a warning is shown at once, the rest in the line."""
        if lines := text.replace("\r", "\n").strip().splitlines():
            if "Warning" in lines[0]:
                self.say(f"{name}: {lines[0]}")
            self.reach(name, lines[-1].strip())

    def end(self, name: str, failure: object = None) -> None:
        """A chapter is done, or has failed: `failure` says where and why."""
        self.places.pop(name, None)
        minutes, seconds = divmod(int(time.monotonic() - self.began.pop(name)), 60)
        if failure:
            self.say(f"FAILED: {failure}")
            for line in str(getattr(failure, "details", "")).splitlines():
                self.say(f"    {line}")
        self.n_done += not failure
        how = "FAILED after" if failure else "done in"
        counted = f"[{self.n_done} of {self.n_chapters} chapters]"
        self.say(f"{counted} {name} {how} {minutes}:{seconds:02d}")
        self.bar.update(not failure)

    def tick(self) -> None:
        self.bar.set_postfix_str("; ".join(self.places.values()))

    def say(self, text: str) -> None:
        """A line of its own, above the one that is rewritten."""
        self.bar.write(text, file=self.stream)

    def close(self) -> None:
        self.bar.close()
