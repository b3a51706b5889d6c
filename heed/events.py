"""Events of long work: it yields notes and progress, and returns its result.

def work() -> Work[int]:
    yield Note("reading")
    for i in range(10):
        yield Progress("counting", i + 1, 10)
    return 10
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from heed.errors import HeedError

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Note:
    """A message, in one line."""

    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a stage; an unknown total is 0."""

    stage: str
    done: float
    total: float = 0
    note: str = ""


Event = Note | Progress
Work = Generator[Event, None, Result]
"""Long work: events while it lasts, a result at the end."""


class Stopped(HeedError):
    """A signal stopped the work, and everything is saved."""

    def __init__(self, folder: Path | None, step: int, code: int) -> None:
        """folder: None before the first step, when there is nothing to resume."""
        place = shlex.quote(str(folder))
        saved = f"stopped and saved at step {step}; to continue: heed train {place} --resume"
        begun = "stopped before the first step; run the command again"
        super().__init__(begun if folder is None else saved)
        self.code = code


def finish(work: Work[Result], tell: Callable[[Event], object] = lambda event: None) -> Result:
    """Run work to its end and return its result; `tell` gets every event."""
    while True:
        try:
            tell(next(work))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def relayed(work: Work[Result], change: Callable[[Event], Event | None]) -> Work[Result]:
    """The same work with its events changed, or left out if `change` returns None."""
    while True:
        try:
            event = change(next(work))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        if event is not None:
            yield event
