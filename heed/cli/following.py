"""Following long work: bars with speed and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import IO

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
from rich.table import Column

from heed.cli.options import safe
from heed.events import Event, Note, Result, Work, finish
from heed.events import Progress as Stage

EVERY = 10.0  # seconds between plain lines
ROOM = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # as wide as the others allow


def follow(work: Work[Result], *, quiet: bool = False, console: Console | None = None) -> Result:
    """Show the events of work on stderr, or elsewhere; return its result. `quiet` shows nothing."""
    console = console or Console(stderr=True, highlight=False)
    if quiet:
        return finish(work)
    if console.is_terminal:
        return _with_bars(work, console)
    return finish(work, Lines(console.file))


class Lines:
    """Prints notes as they come; for a stage its beginning, a line now and then, and its end."""

    def __init__(self, file: IO[str]) -> None:
        self.file, self.stage, self.last = file, "", 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Note):
            print(safe(event.text), file=self.file, flush=True)
            return
        now, ended = time.monotonic(), 0 < event.total <= event.done
        if event.stage != self.stage or ended or now - self.last >= EVERY:
            self.stage, self.last = event.stage, now
            share = f" {event.done:.0f}" if event.done or event.total else ""
            share += f"/{event.total:.0f}" if event.total else ""
            note = f"  {safe(event.note)}" if event.note else ""
            print(f"{event.stage}{share}{note}", file=self.file, flush=True)


def _with_bars(work: Work[Result], console: Console) -> Result:
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        TextColumn("{task.fields[note]}", "dim", markup=False, table_column=ROOM),
        console=console,
        transient=True,
        expand=True,
    )
    current: dict[str, TaskID] = {}

    def tell(event: Event) -> None:
        if isinstance(event, Note):
            bars.console.print(safe(event.text), markup=False, soft_wrap=True)
            return
        _advance(bars, current, event)

    with bars:
        return finish(work, tell)


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
        note=safe(event.note),
    )
