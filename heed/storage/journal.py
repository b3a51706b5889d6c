"""Scores over time: a line of JSON for each moment, and TensorBoard's events beside it.

    {"step": 200, "time": 1700000000.0, "loss": 2.31, "entropy/decoder": 1.07}

The lines are the record; the events are for looking at. A resumed run first rewinds to the step of
its checkpoint, so that no step is written twice.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from heed.storage import atomic, durable

Scores = Mapping[str, Any]
"""Numbers by name; names may be nested."""


def flatten(scores: Scores, prefix: str = "") -> dict[str, float | int | str | bool | None]:
    """{"a": {"b": 1}} -> {"a/b": 1}; numbers of any library become Python's; NaN and inf null."""
    flat: dict[str, float | int | str | bool | None] = {}
    for name, value in scores.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}/")
        else:
            flat[f"{prefix}{name}"] = _plain(value)
    return flat


def _plain(value: Any) -> float | int | str | bool | None:
    if hasattr(value, "item"):  # a tensor or a NumPy number
        value = value.item()
    if value is None or isinstance(value, str | bool | int):
        return value
    return float(value) if math.isfinite(value) else None


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a journal; those that a kill or a full disk left incomplete are left out."""
    if not path.exists():
        return
    with BufferedReader(durable.open_plain(path)) as file:
        for line in file:
            entry = _entry(line)
            if entry is not None:
                yield entry


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    sound = isinstance(entry, dict) and type(entry.get("step")) is int
    return entry if sound else None


class Journal:
    """Writes scores down as they come.

    path     metrics.jsonl; TensorBoard's files stand beside it
    events   whether to write those too; if `tensorboard` is not installed, or they cannot be
             written, `say` is called once, and the lines go on without them
    """

    def __init__(
        self, path: Path, *, events: bool = True, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.path = path
        self._say = say
        self._wanted = events
        self._events: Events | None = None
        self._purge: int | None = None
        self._file: int | None = None

    def write(self, step: int, scores: Scores) -> None:
        """Add a line; the system has it when this returns."""
        flat = flatten(scores)
        entry = {"step": step, "time": round(time.time(), 3), **flat}
        self._append((json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n").encode())
        numbers = {name: value for name, value in flat.items() if isinstance(value, int | float)}
        if self._wanted:
            self._show(step, numbers)

    def rewind(self, step: int) -> None:
        """Remove what came after a step, and incomplete lines."""
        self.close()
        self._purge = step + 1
        if self.path.exists():
            with BufferedReader(durable.open_plain(self.path)) as file:
                lines = file.readlines()
            kept = [line for line in lines if (e := _entry(line)) and e["step"] <= step]
            if kept != lines:
                atomic.replace(self.path, [b"".join(kept)])

    def close(self) -> None:
        """Write down what still waits; a later `write` opens the journal again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._events is not None:
            self._events.close()
            self._events = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _append(self, line: bytes) -> None:
        """Append all of a line or nothing: half of one would spoil the next."""
        file = self._open() if self._file is None else self._file
        before = os.fstat(file).st_size
        try:
            atomic.write_all(file, memoryview(line))
        except BaseException as error:
            os.ftruncate(file, before)
            if isinstance(error, OSError):
                error.filename = str(self.path)
            raise

    def _open(self) -> int:
        """Open for appending, after the last whole line."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        file = self._file = os.open(self.path, flags, 0o666)
        end = os.fstat(file).st_size
        while end and os.pread(file, 1, end - 1) != b"\n":
            end -= 1
        os.ftruncate(file, end)
        return file

    def _show(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write an event; where that is not possible, it is said, and not tried again."""
        try:
            if self._events is None:
                self._events = Events(self.path.parent, self._purge)
                self._purge = None
            self._events.write(step, numbers)
        except ImportError:
            self._wanted = False
            self._say("no TensorBoard events: pip install tensorboard to have them")
        except OSError as error:
            self._wanted = False
            self._say(f"no more TensorBoard events: {error.filename}: {error.strerror or error}")


class Events:
    """TensorBoard's file of numbers. Its own writer has a thread, which a full disk ends with a
    traceback; here each event is on its way to the disk when `write` returns.

    purge  the first step that is shown anew: what earlier files have from there on is not shown
    """

    def __init__(self, folder: Path, purge: int | None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its imports warn of each other's future
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter
        self._event, self._summary = Event, Summary
        seconds, part = divmod(time.time_ns(), 10**9)
        # TensorBoard reads the files in the order of their names.
        self.path = folder / f"events.out.tfevents.{seconds:010d}.{part:09d}.{os.getpid()}"
        self._records = RecordWriter(open(self.path, "xb"))  # noqa: SIM115  closed by `close`
        session = SessionLog(status=SessionLog.START)
        begun = [] if purge is None else [{"step": purge, "session_log": session}]
        self._add({"file_version": "brain.Event:2"}, *begun)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a step."""
        values = [self._summary.Value(tag=name, simple_value=x) for name, x in numbers.items()]
        self._add({"step": step, "summary": self._summary(value=values)})

    def _add(self, *events: Mapping[str, Any]) -> None:
        try:
            for fields in events:
                event = self._event(wall_time=time.time(), **fields)
                self._records.write(event.SerializeToString())
            self._records.flush()
        except OSError as error:
            self.close()
            error.filename = str(self.path)
            raise

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # of what could not be written, `write` has told
            self._records.close()
