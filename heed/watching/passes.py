"""What every attention saw of a model at work, pass by pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from heed.records import Attended
from heed.watching.hypotheses import join, keys, sizes
from heed.watching.watch import Records, Watched


class Pass(NamedTuple):
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


def passes(watched: Watched) -> Iterator[Pass]:
    """What was watched, one pass after the other: texts that were written, then all other calls.

    A text has a pass for each hypothesis of its last step. Calls of one query that go on where the
    call before ended are steps of one pass.
    """
    for number, text in enumerate(watched.texts):
        last = len(text.symbols[-1]) if text.symbols else 0
        for row in range(last):
            symbols, sentence = _read_by(text, row)
            seen = watched.follow([*symbols, 0], sentence, text=number)
            yield Pass(f"text {number + 1} · row {row + 1}", seen, 0, sentence, written=True)
    calls = {path: list(_calls(records)) for path, records in watched.items()}
    count = max(map(len, calls.values()), default=0)
    for n in range(count):
        seen = {path: some[n] for path, some in calls.items() if n < len(some)}
        rows = max(sizes(record)[0] for record in seen.values())
        for row in range(rows):
            here = {path: record for path, record in seen.items() if row < sizes(record)[0]}
            told = [f"call {n + 1}"] if count > 1 else []
            told += [f"row {row + 1}"] if rows > 1 else []
            yield Pass(" · ".join(told), here, row, row)


def _read_by(text: Any, row: int) -> tuple[list[int], int]:
    """The symbols that a row of the last step had read after its beginning, and its sentence."""
    symbols: list[int] = []
    for t in range(len(text.symbols) - 1, 0, -1):
        symbols.append(text.symbols[t][row])
        row = text.parents[t][row]
    return symbols[::-1], text.parents[0][row]


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
