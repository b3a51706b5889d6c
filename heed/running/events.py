"""What long work tells whoever waits: notes and progress. Its result is what it returns.

def work() -> Work[int]:
    yield Note("reading")
    for i in range(10):
        yield Progress("counting", i + 1, 10)
    return 10
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Note:
    """A line worth keeping."""

    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage has come; of a total that is not known, 0."""

    stage: str
    done: float
    total: float = 0
    note: str = ""


Event = Note | Progress
Work = Generator[Event, None, Result]
"""Long work: events while it lasts, a result at the end."""


def finish(work: Work[Result], tell: Callable[[Event], object] = lambda event: None) -> Result:
    """The result; whoever looks on is told every event."""
    while True:
        try:
            tell(next(work))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def relayed(work: Work[Result], change: Callable[[Event], Event | None]) -> Work[Result]:
    """The same work, its events changed on their way, or left out."""
    while True:
        try:
            event = change(next(work))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        if event is not None:
            yield event
