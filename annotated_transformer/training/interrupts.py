"""Ctrl-C and SIGTERM in training: at once where nothing is lost by it, else after the step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from annotated_transformer.errors import Terminated


class Interrupts:
    """Within `with Interrupts() as signals` both signals raise KeyboardInterrupt.

    For SIGTERM it is the subclass `errors.Terminated`. Within `with signals.held()` one waits for
    the end of the block. A second one does not wait: then `broke_in` is true, and what the block
    was doing is half done. Only the main thread of a process gets signals; in another one nothing
    changes.

    With `agree` there are several processes, and it says whether one of them has got a signal. Then
    every signal, the second one too, waits for the end of a held block, and they stop together:
    whoever started them, torchrun, sends a Ctrl-C of its own and kills who does not end.
    """

    def __init__(self, agree: Callable[[bool], bool] | None = None) -> None:
        self.agree = agree
        self.holding = self.waiting = self.broke_in = False
        self.stop: type[KeyboardInterrupt] = KeyboardInterrupt
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        self.stop = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        if self.agree or self.holding and not self.waiting:
            self.waiting = True
            return
        self.broke_in = self.holding
        raise self.stop

    @contextmanager
    def held(self) -> Iterator[None]:
        self.holding = True
        try:
            yield
        finally:
            self.holding = False
        if self.agree:
            self.waiting = self.agree(self.waiting)
        if self.waiting:
            self.waiting = False
            raise self.stop
