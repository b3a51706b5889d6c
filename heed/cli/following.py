"""Following long work: bars with speed and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from heed.running.events import Event, Note, Result, Work
from heed.running.events import Progress as Stage

EVERY = 10.0  # seconds between plain lines


def follow(work: Work[Result], *, quiet: bool = False) -> Result:
    """Show what the work tells on stderr; give its result. `quiet` shows nothing."""
    console = Console(stderr=True, highlight=False)
    if quiet:
        return _exhaust(work, lambda event: None)
    if console.is_terminal:
        return _with_bars(work, console)
    return _exhaust(work, Lines())


def _exhaust(work: Work[Result], tell: object) -> Result:
    while True:
        try:
            tell(next(work))  # type: ignore[operator]
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


class Lines:
    """Notes as they come; of a stage its beginning, a line now and then, and its end."""

    def __init__(self) -> None:
        self.stage, self.last = "", 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Note):
            print(event.text, file=sys.stderr, flush=True)
            return
        now, ended = time.monotonic(), 0 < event.total <= event.done
        if event.stage != self.stage or ended or now - self.last >= EVERY:
            self.stage, self.last = event.stage, now
            share = f" {event.done:.0f}" + (f"/{event.total:.0f}" if event.total else "")
            note = f"  {event.note}" if event.note else ""
            print(f"{event.stage}{share}{note}", file=sys.stderr, flush=True)


def _with_bars(work: Work[Result], console: Console) -> Result:
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("[dim]{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("[dim]left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    current: dict[str, TaskID] = {}

    def tell(event: Event) -> None:
        if isinstance(event, Note):
            bars.console.print(event.text, markup=False, soft_wrap=True)
            return
        _advance(bars, current, event)

    with bars:
        return _exhaust(work, tell)


def _advance(bars: Progress, current: dict[str, TaskID], event: Stage) -> None:
    """One bar at a time: a new stage takes the place of the last."""
    if event.stage not in current:
        for done in current.values():
            bars.remove_task(done)
        current.clear()
        current[event.stage] = bars.add_task(event.stage, total=event.total or None, note="")
    bars.update(
        current[event.stage],
        completed=event.done,
        total=event.total or None,
        note=event.note,
    )
