"""Stopping on a signal: the loop ends its step, saves, and exits with a code that says why.

    with listening() as stop:
        for moment in fit(...):
            if stop.asked:
                save(...)
                sys.exit(stop.code)

Exit codes: 130 interrupted (SIGINT, Ctrl-C), 143 pre-empted and saved (SIGTERM, as schedulers
send before they take a machine away). A second Ctrl-C does not wait: KeyboardInterrupt at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Literal

Name = Literal["SIGTERM", "SIGINT"]

CODES: dict[Name, int] = {"SIGINT": 130, "SIGTERM": 143}
"""The exit code for each: 128 and the signal's number, as shells have it."""


class Stop:
    """Whether the program was asked to stop, and by which signal."""

    asked: Name | None = None

    def __init__(self) -> None:
        self._interrupts = 0

    @property
    def code(self) -> int:
        """The exit code that says what happened; 0 where no signal came."""
        return CODES[self.asked] if self.asked else 0

    def hear(self, number: int, frame: FrameType | None = None) -> None:
        """The handler: remember the first signal; a second SIGINT raises KeyboardInterrupt."""
        name: Name = "SIGINT" if number == signal.SIGINT else "SIGTERM"
        self.asked = self.asked or name
        self._interrupts += name == "SIGINT"
        if self._interrupts > 1:
            raise KeyboardInterrupt


@contextmanager
def listening() -> Iterator[Stop]:
    """Turn SIGTERM and SIGINT into a flag while it lasts; the old handlers come back after.

    Only the main thread can listen; elsewhere the flag stays None. A signal that the program was
    told to ignore (SIGINT under nohup) stays ignored.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number, handler in former.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, stop.hear)
        yield stop
    finally:
        for number, handler in former.items():
            # None: set by something that is not Python, which cannot be put back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
