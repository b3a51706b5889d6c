"""The passes of a watch: the calls of all attentions while one text was read or written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from heed.records import Attended
from heed.watching.hypotheses import join, keys, sizes
from heed.watching.watch import Records, Watched


class WatchedPass(NamedTuple):
    """One look at one row of a batch, or the steps that wrote one text: what each attention saw.

    row      which of the records' rows it is
    sentence which sentence the words are of
    written  whether its queries were written one after another
    """

    name: str
    seen: dict[str, Attended]
    row: int = 0
    sentence: int = 0
    written: bool = False


def watched_passes(watched: Watched) -> Iterator[WatchedPass]:
    """Watched calls, one pass after the other: texts that were written, then all other calls.

    A text has a pass for each hypothesis of its last step. Calls of one query that go on where the
    call before ended are steps of one pass.
    """
    for number, text in enumerate(watched.texts):
        for row, path in enumerate(text.paths()):
            seen = watched.follow(path, text=number)
            yield WatchedPass(f"text {number + 1} · row {row + 1}", seen, 0, path[0], written=True)
    calls = {path: list(_calls(records)) for path, records in watched.items()}
    count = max(map(len, calls.values()), default=0)
    for n in range(count):
        seen = {path: some[n] for path, some in calls.items() if n < len(some)}
        rows = max(sizes(record)[0] for record in seen.values())
        for row in range(rows):
            here = {path: record for path, record in seen.items() if row < sizes(record)[0]}
            told = [f"call {n + 1}"] if count > 1 else []
            told += [f"row {row + 1}"] if rows > 1 else []
            yield WatchedPass(" · ".join(told), here, row, row)


def _calls(records: Records) -> Iterator[Attended]:
    """The calls that wrote no text; those that are steps of one pass are joined."""
    steps: list[Attended] = []
    for n, when in enumerate(records.when):
        if when is not None:
            continue
        record = records[n]
        if steps and not _goes_on(steps[-1], record):
            yield join(steps)
            steps = []
        steps.append(record)
    if steps:
        yield join(steps)


def _goes_on(before: Attended, after: Attended) -> bool:
    (B, _), (rows, T) = sizes(before), sizes(after)
    later = after.state.step > before.state.step or keys(after) > keys(before)
    return rows == B and T == 1 and later
