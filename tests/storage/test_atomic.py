"""Files that are written whole or not at all."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heed.storage import atomic


def test_a_call_that_takes_only_a_part_is_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, data: whole(file, data[:7]))
    atomic.write(tmp_path / "a", [b"a line that is longer than that"])
    assert (tmp_path / "a").read_bytes() == b"a line that is longer than that"


def test_replacing_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    atomic.replace(path, [b"old"])

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match=r"No space left on device: '.*/a\.tmp-[0-9a-f]{8}'"):
            atomic.replace(path, [b"new"])
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]
    atomic.replace(path, [b"new"])
    assert path.read_bytes() == b"new"


def test_a_file_is_on_the_disk_before_its_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut there is the old file or the new one, and never an empty one."""
    done: list[str] = []
    for name in ("write", "fsync", "replace"):
        real = getattr(os, name)

        def noted(*given: Any, name: str = name, real: Callable[..., Any] = real) -> Any:
            done.append(name)
            return real(*given)

        monkeypatch.setattr(os, name, noted)
    atomic.replace(tmp_path / "a", [b"new"])
    assert done == ["write", "fsync", "replace", "fsync"]  # the last is of the folder


@pytest.mark.parametrize("name", ["x" * 255, "爱" * 85, "🙂" * 63], ids=["1", "3", "4"])
def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path, name: str) -> None:
    """Of letters of one, three and four bytes."""
    atomic.replace(tmp_path / name, [b"new"])
    assert os.listdir(tmp_path) == [name]
    assert atomic.TEMPORARY.fullmatch(atomic.aside(tmp_path / name).name)


def test_what_cannot_be_finished_leaves_nothing(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic.replace(tmp_path / "a", parts())
    assert os.listdir(tmp_path) == []


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    (tmp_path / "a").symlink_to(tmp_path / "precious")
    with pytest.raises(FileExistsError):
        atomic.write(tmp_path / "a", [b"new"])
    atomic.replace(tmp_path / "a", [b"new"])
    assert (tmp_path / "precious").read_text() == "x"
    assert not (tmp_path / "a").is_symlink()


@pytest.mark.parametrize("path", [".", ".."])
def test_a_folder_is_no_place_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    with pytest.raises(OSError, match=r"."):
        atomic.replace(Path(path), [b"new"])
    assert os.listdir(tmp_path) == ["inner"]
    assert os.listdir(".") == []
