"""Metrics over time: one complete line for each moment, and none twice."""

import errno
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from heed.storage import journal
from heed.storage.journal import Journal, flatten, read


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_scores_are_flattened_to_plain_numbers() -> None:
    scores = {
        "loss": torch.tensor(1.5),
        "entropy": {"decoder": {"0": numpy.float32(0.25)}, "encoder": 2},
        "nan": float("nan"),
        "inf": torch.tensor(float("-inf")),
        "said": "我",
        "ok": True,
        "none": None,
    }
    assert flatten(scores) == {
        "loss": 1.5,
        "entropy/decoder/0": 0.25,
        "entropy/encoder": 2,
        "nan": None,
        "inf": None,
        "said": "我",
        "ok": True,
        "none": None,
    }


def test_a_line_is_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Journal(path, events=False) as book:
        book.write(1, {"loss": float("nan"), "bleu": {"valid": 30.5}})
        line = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
        assert line.pop("time") > 1.7e9
        assert line == {"step": 1, "loss": None, "bleu/valid": 30.5}
        book.write(2, {})
    with Journal(path, events=False) as book:
        book.write(3, {})
    assert steps(path) == [1, 2, 3]
    assert [entry["step"] for entry in read(path)] == [1, 2, 3]
    assert list(read(tmp_path / "none.jsonl")) == []


def test_rewinding_drops_later_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Journal(path, events=False) as book:
        for step in (10, 20, 20, 30, 40):
            book.write(step, {"loss": 1 / step})
    with path.open("ab") as file:
        file.write(b'{"step": 15, "time": 1')
    with Journal(path, events=False) as book:
        book.rewind(20)
        assert steps(path) == [10, 20, 20]
        book.write(30, {})
        assert steps(path) == [10, 20, 20, 30]
        book.rewind(20)
        book.rewind(20)
        book.write(30, {})
        assert steps(path) == [10, 20, 20, 30]
        book.rewind(0)
        assert path.read_bytes() == b""
    assert os.listdir(tmp_path) == ["metrics.jsonl"]
    Journal(tmp_path / "none.jsonl", events=False).rewind(5)


@pytest.mark.parametrize("half", [b"{", b'{"step": 9, "time": 1.0}', b"\xff", b"{" * 100])
def test_half_a_line_is_dropped_before_the_next(tmp_path: Path, half: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + half)
    assert [entry["step"] for entry in read(path)] == [1]
    with Journal(path, events=False) as book:
        book.write(2, {})
    assert steps(path) == [1, 2]
    path.write_bytes(half)
    with Journal(path, events=False) as book:
        book.write(2, {})
    assert steps(path) == [2]


def test_lines_that_are_not_entries_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sound = b'{"step": 1}\n'
    path.write_bytes(sound + b'[1]\n{"step": "2"}\n{"step": true}\n\n{"loss": 1}\nxyz\n' + sound)
    assert len(list(read(path))) == 2
    Journal(path, events=False).rewind(9)
    assert path.read_bytes() == sound * 2


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = os.write

    def half(file: int, data: memoryview) -> int:
        whole(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(path, events=False) as book:
        book.write(1, {})
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            with pytest.raises(OSError, match="No space"):
                book.write(2, {})
        book.write(3, {})
    assert steps(path) == [1, 3]


def test_a_failed_rewind_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n')

    def fail(*paths: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="Input/output"):
        Journal(path, events=False).rewind(1)
    assert steps(path) == [1, 2]
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard reads."""
    processing = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    seen = processing.EventAccumulator(str(folder))
    seen.Reload()
    return {
        name: [(event.step, event.value) for event in seen.Scalars(name)]
        for name in seen.Tags()["scalars"]
    }


def test_tensorboard_sees_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Journal(path) as book:
        for step in (1, 2, 3):
            book.write(step, {"loss": step / 2, "valid": {"bleu": 5}, "said": "x", "nan": None})
    with Journal(path) as book:
        book.rewind(1)
        book.write(2, {"loss": 7.0})
    assert events(tmp_path) == {"loss": [(1, 0.5), (2, 7.0)], "valid/bleu": [(1, 5.0)]}
    assert steps(path) == [1, 2]


class Failing:
    """Writes a few records, and then meets a full disk or a broken one."""

    def __init__(self, patch: pytest.MonkeyPatch, good: int, code: int) -> None:
        self.left, self.code = good, code
        record = importlib.import_module("tensorboard.summary.writer.record_writer").RecordWriter
        self.real = {name: getattr(record, name) for name in ("write", "flush")}
        for name in self.real:
            patch.setattr(record, name, lambda *given, name=name: self.tried(name, *given))

    def tried(self, name: str, *given: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(self.code, os.strerror(self.code))
        self.real[name](*given)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("good", range(8))
def test_events_that_cannot_be_written_are_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: int, code: int
) -> None:
    """The lines are the record, and go on."""
    lines: list[str] = []
    Failing(monkeypatch, good, code)
    with Journal(tmp_path / "metrics.jsonl", say=lines.append) as book:
        for step in range(1, 6):
            book.write(step, {"loss": 1.0, "valid": {"bleu": 5.0}})
    assert steps(tmp_path / "metrics.jsonl") == [1, 2, 3, 4, 5]
    (line,) = lines
    assert line.startswith(f"no more TensorBoard events: {tmp_path / 'events.out.tfevents.'}")
    assert line.endswith(f": {os.strerror(code)}")


def test_a_kill_loses_no_event(tmp_path: Path) -> None:
    book = Journal(tmp_path / "metrics.jsonl")
    book.write(1, {"loss": 1.0})
    book.write(2, {"loss": 2.0})
    assert events(tmp_path) == {"loss": [(1, 1.0), (2, 2.0)]}
    book.close()


def test_lines_that_cannot_be_written_name_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: int, data: memoryview) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Journal(tmp_path / "metrics.jsonl", events=False) as book:
        book.write(1, {})
        monkeypatch.setattr(os, "write", fail)
        with pytest.raises(OSError, match="Input/output") as told:
            book.write(2, {})
    assert told.value.filename == str(tmp_path / "metrics.jsonl")


def test_a_missing_tensorboard_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    lines: list[str] = []
    with Journal(tmp_path / "metrics.jsonl", say=lines.append) as book:
        book.write(1, {"loss": 1})
        book.write(2, {"loss": 1})
    assert lines == ["no TensorBoard events: pip install tensorboard to have them"]
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_no_events_where_none_are_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any) -> None:
        pytest.fail("asked for events")

    monkeypatch.setattr(journal, "Events", never)
    with Journal(tmp_path / "metrics.jsonl", events=False) as book:
        book.write(1, {"loss": 1})
