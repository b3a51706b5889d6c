"""Files are written completely or not at all, and JSON is checked as it is read."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from heed.errors import Refused
from heed.storage import durable
from heed.storage.durable import Damaged


def test_a_file_is_hashed_as_it_is_written(tmp_path: Path) -> None:
    parts = [b"one", b"", memoryview(bytes(range(256)) * 10_000), b"end"]
    digest = durable.write(tmp_path / "a", parts)
    data = (tmp_path / "a").read_bytes()
    assert data == b"".join(bytes(part) for part in parts)
    assert digest == (len(data), hashlib.sha256(data).hexdigest())
    assert durable.digest_of(tmp_path / "a") == digest


def test_sweeping_removes_leftovers_and_nothing_else(tmp_path: Path) -> None:
    keep = ["a", "a.tmp", "a.tmp-notes", "tmp-01234567", "a.tmp-0123456789"]
    for name in [*keep, "a.tmp-01234567"]:
        (tmp_path / name).write_text("x")
    (tmp_path / "b.tmp-89abcdef").mkdir()
    (tmp_path / "b.tmp-89abcdef" / "inner").write_text("x")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (tmp_path / "c.tmp-89abcdef").symlink_to(outside)
    durable.sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(keep)
    assert (outside / "precious").exists()
    durable.sweep(tmp_path / "nowhere")


def test_folders_are_made_unless_a_file_is_in_the_way(tmp_path: Path) -> None:
    both = [tmp_path / "a" / "b", tmp_path / "a"]
    assert durable.make_folder(tmp_path / "a" / "b") == both
    assert durable.make_folder(tmp_path / "a" / "b") == []
    assert (tmp_path / "a" / "b").is_dir()
    deep = tmp_path.joinpath(*["d"] * 1200)  # deeper than Python calls itself
    durable.make_folder(deep)
    os.removedirs(deep)  # it is there, and nothing is in it
    (tmp_path / "file").write_text("x")
    with pytest.raises(Refused, match="a folder is needed there"):
        durable.make_folder(tmp_path / "file")
    with pytest.raises(Refused, match="a folder is needed there"):
        durable.make_folder(tmp_path / "file" / "below")


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "nothing"])
def test_only_plain_files_are_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    (tmp_path / "real").write_text("{}")
    if kind == "link":
        path.symlink_to(tmp_path / "real")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(Damaged, match=str(path)):
        durable.read_json(path)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "line 1"),
        (b'{"a": 1, "a": 2}', "'a' is given twice"),
        (b'{"b": {"a": 1, "a": 1}}', "'a' is given twice"),
        (b'{"a": "\xff"}', "utf-8"),
        (b"[" * 100_000, "too deep"),
        (b"[" * 70 + b"]" * 70, "deeper than 64"),
        (b'{"a": ' * 70 + b"1" + b"}" * 70, "deeper than 64"),
        (b"9" * 5000, "not valid JSON"),
    ],
)
def test_unsound_json_is_refused_in_one_line(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(Damaged, match=reason) as caught:
        durable.read_json(tmp_path / "a.json")
    assert str(tmp_path / "a.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_json_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'"' + b"x" * 98 + b'"')
    assert durable.read_json(path, limit=100) == "x" * 98
    with pytest.raises(Damaged, match="larger than 99 bytes"):
        durable.read_json(path, limit=99)


def test_json_is_read_as_it_was_written() -> None:
    value = {"b": [1, 2.5, None, True], "a": {"名": "我 爱"}, "inf": float("inf"), "deep": [[[1]]]}
    data = durable.dump_json(value, Path("a.json"))
    assert durable.parse_json(data, Path("a.json")) == value == json.loads(data)
    assert list(json.loads(data)) == list(value)


@pytest.mark.parametrize("value", [{1: 2}, [{None: 1}], {"a": {1, 2}}, {"a": b"x"}, "\ud800"])
def test_values_that_json_would_change_are_refused(value: object) -> None:
    with pytest.raises(Refused, match=r"a\.json cannot be written"):
        durable.dump_json(value, Path("a.json"))


def test_json_that_could_not_be_read_again_is_refused() -> None:
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(Refused, match="deeper"):
        durable.dump_json(circle, Path("a.json"))
    with pytest.raises(Refused, match="larger"):
        durable.dump_json("x" * durable.LIMIT, Path("a.json"))
