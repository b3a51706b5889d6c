"""Pickles that another reader would read differently, or that take exponential time."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import pytest
import torch

from heed.errors import Refused
from heed.running import unpickling


def saved(path: Path) -> dict[str, bytes]:
    torch.save({"w": torch.zeros(3, 3)}, path)
    with zipfile.ZipFile(path) as inside:
        return {entry.filename: inside.read(entry) for entry in inside.infolist()}


def rewritten(path: Path, pickle: bytes) -> None:
    """A file like torch.save's, with another pickle."""
    entries = saved(path)
    with zipfile.ZipFile(path, "w") as inside:
        for name, data in entries.items():
            inside.writestr(name, pickle if name.endswith(".pkl") else data)


def test_tensors_saved_twice_and_parameters_are_read(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    torch.save({"a": weight, "b": weight, "c": weight.detach().half()}, tmp_path / "a.bin")
    found = unpickling.header(tmp_path / "a.bin", tmp_path / "a.bin")
    assert found == {
        "a": (torch.float32, (2, 3)),
        "b": (torch.float32, (2, 3)),
        "c": (torch.float16, (2, 3)),
    }


def test_a_file_with_two_directories_is_refused(tmp_path: Path) -> None:
    """Python's reader finds the one before the last record, PyTorch's the one it names."""
    path = tmp_path / "two.bin"
    entries = saved(path)
    (name,) = (name for name in entries if name.endswith("data.pkl"))
    evil = b"\x80\x02}X\x01\x00\x00\x00wc__builtin__\nbytearray\nJ" + struct.pack("<i", 10**6)
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as inside:
        for each, data in entries.items():
            inside.writestr(each, data)
        inside.writestr(name.replace("data.pkl", "evil.zzz"), (evil + b"\x85Rs.").ljust(64))
    whole = held.getvalue()
    end = whole.rindex(b"PK\5\6")
    length, begin = struct.unpack("<II", whole[end + 12 : end + 20])
    head, directory, last = whole[:begin], whole[begin : begin + length], whole[end:]

    def swapped(part: bytes) -> bytes:
        part = part.replace(b"data.pkl", b"none.zzz").replace(b"evil.zzz", b"data.pkl")
        return part.replace(b"none.zzz", b"evil.zzz")

    path.write_bytes(swapped(head) + swapped(directory) + head + directory + last)
    assert zipfile.is_zipfile(path)
    with pytest.raises(Refused, match="was not written by"):
        unpickling.header(path, path)


def test_exponentially_nested_tuples_are_refused_at_once(tmp_path: Path) -> None:
    steps = b"\x80\x02)q\x01"
    for i in range(1, 41):
        steps += b"h%ch%c\x86q%c" % (i, i, i + 1)
    rewritten(tmp_path / "deep.bin", steps + b"}h\x29K\x01s.")
    with pytest.raises(Refused, match="holds more than weights"):
        unpickling.header(tmp_path / "deep.bin", tmp_path / "deep.bin")


def test_replaced_methods_of_a_dictionary_are_not_called(tmp_path: Path) -> None:
    pickle = b"\x80\x02ccollections\nOrderedDict\n)R}X\x05\x00\x00\x00itemsK\x01sb."
    rewritten(tmp_path / "set.bin", pickle)
    assert unpickling.header(tmp_path / "set.bin", tmp_path / "set.bin") == {}
