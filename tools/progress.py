"""One line of progress for a run of many chapters: done and left, time so far,
about how long it will take.

    [19 of 22 chapters] 3:12 so far, about 8 min to go | 3_1_stacks done in 0:41

On a terminal the last line is rewritten in place; elsewhere there is a line per event,
and one a minute between them.
"""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import TextIO

# Seconds on one quiet core, for a first estimate; afterwards the last run's times are used.
EXPECTED_SECONDS = {
    "0_one_hour": 12,
    "1_introduction": 20,
    "2_background": 30,
    "3_1_stacks": 53,
    "3_2_attention": 14,
    "3_2_masks": 10,
    "3_3_feed_forward": 22,
    "3_4_embeddings_and_softmax": 25,
    "3_5_positional_encoding": 41,
    "4_why_self_attention": 15,
    "5_1_data_and_batching": 30,
    "5_2_training": 55,
    "5_3_optimizer": 75,
    "5_4_regularization": 60,
    "6_1_results": 15,
    "6_1_translation": 200,
    "6_2_variations": 25,
    "6_3_parsing": 110,
    "7_attention_visualizations": 40,
    "7_controlled_corpus": 15,
    "after_the_paper": 35,
    "claims": 5,
    "common_mistakes": 6,
}
USUAL_SECONDS = 30.0
QUIET = 60.0  # seconds without a line before the next one, where the line is not rewritten


@dataclass
class Running:
    """A chapter in hand: when it began, the code cell it is at, and what it last said."""

    began: float
    n_cells: int
    cell: int = 0
    says: str = ""


def expected_seconds(name: str) -> float:
    """What a chapter takes, as far as is known without having run it here."""
    return EXPECTED_SECONDS.get(name, USUAL_SECONDS)


class Progress:
    """Counts chapters. `expected` has the seconds that each is thought to take,
    as far as they are known."""

    def __init__(
        self,
        expected: Mapping[str, float],
        n_done: int,
        slots: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.waiting = dict(expected)
        self.expected = dict(expected)
        self.running: dict[str, Running] = {}
        self.took: dict[str, float] = {}
        self.n_done, self.n_failed, self.n_chapters = n_done, 0, n_done + len(expected)
        self.slots, self.clock = slots, clock
        self.stream = sys.stderr if stream is None else stream
        self.in_place = self.stream.isatty()
        self.began = self.last = clock()

    def begin(self, name: str, n_cells: int) -> None:
        """A chapter's kernel starts."""
        self.waiting.pop(name)
        self.running[name] = Running(self.clock(), n_cells)
        self.tick()

    def reach(self, name: str, cell: int, first_line: str) -> None:
        """A chapter comes to a cell."""
        self.running[name].cell, self.running[name].says = cell, first_line
        self.tick()

    def note(self, name: str, text: str) -> None:
        """A cell writes to standard error; a warning is shown at once,
        anything else with the next line."""
        lines = text.replace("\r", "\n").strip().splitlines()
        if lines:
            self.running[name].says = lines[-1].strip()
            if "Warning" in lines[0]:
                self.say(f"{name}, cell {self.running[name].cell}: {lines[0]}")

    def end(self, name: str, failure: object = None) -> None:
        """A chapter is done, or has failed: `failure` says where and why."""
        self.took[name] = self.clock() - self.running.pop(name).began
        if failure:
            self.n_failed += 1
            self.say(f"FAILED: {failure}")
            for line in str(getattr(failure, "details", "")).splitlines():
                self.say(f"    {line}")
        else:
            self.n_done += 1
        self._event(
            f"{name} {'FAILED after' if failure else 'done in'} {_minutes(self.took[name])}"
        )

    def tick(self) -> None:
        """Rewrite the line; where that cannot be done, write one if there was none for a minute."""
        places = [
            f"{name} cell {at.cell}/{at.n_cells} {at.says[:40]}".rstrip()
            for name, at in self.running.items()
        ]
        if self.in_place:
            columns = get_terminal_size().columns
            line = f"{self.line()} | {'; '.join(places)}"
            self.stream.write("\r\x1b[K" + line[: columns - 1])
            self.stream.flush()
        elif self.clock() - self.last >= QUIET:
            self._event(f"at {'; '.join(places)}")

    def say(self, text: str) -> None:
        """A line of its own."""
        self.stream.write(("\r\x1b[K" if self.in_place else "") + text + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Leave the line that was rewritten."""
        if self.in_place:
            self.stream.write("\r\x1b[K")
            self.stream.flush()

    def line(self) -> str:
        """Chapters done of all, time so far, time to go."""
        failed = f", {self.n_failed} failed" if self.n_failed else ""
        left = self.seconds_to_go()
        to_go = (
            f", about {max(1, round(left / 60))} min to go" if self.waiting or self.running else ""
        )
        so_far = _minutes(self.clock() - self.began)
        return f"[{self.n_done} of {self.n_chapters} chapters{failed}] {so_far} so far{to_go}"

    def seconds_to_go(self) -> float:
        """An estimate: what is expected of each chapter, at the pace of this run,
        over as many slots as there are."""
        now = self.clock()
        pace = self._pace(now)
        slots = [
            max(pace * self.expected[name] - (now - at.began), 0.1 * (now - at.began))
            for name, at in self.running.items()
        ]
        slots += [0.0] * (self.slots - len(slots))
        for seconds in sorted(self.waiting.values(), reverse=True):
            first_free = slots.index(min(slots))
            slots[first_free] += pace * seconds
        return max(slots)

    def _pace(self, now: float) -> float:
        """Seconds taken for a second expected, over the chapters that ended
        and those that are overdue."""
        taken = dict(self.took)
        taken.update(
            {
                name: now - at.began
                for name, at in self.running.items()
                if now - at.began > self.expected[name]
            }
        )
        expected = sum(self.expected[name] for name in taken)
        return sum(taken.values()) / expected if expected else 1.0

    def _event(self, text: str) -> None:
        self.last = self.clock()
        self.say(f"{self.line()} | {text}")


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
