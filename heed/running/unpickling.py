"""Weights that torch.save wrote: a zip file of one pickle and of the numbers that it refers to.

PyTorch's reader of weights executes nothing, but the objects that it makes may take any amount of
memory: a huge array of bytes, a huge tensor that repeats one number. So the pickle is scanned
first, and may make only what weights consist of; then its tensors are mapped, not read, and must
have as many numbers as their shapes need.
"""

from __future__ import annotations

import pickletools
import re
import struct
import sys
import zipfile
from os import SEEK_END
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heed.errors import HeedError, Refused
from heed.training.tensors import Header

LARGEST = 4 * 2**20
"""The most bytes of a pickle."""
STEPS = 200_000
"""The most opcodes of a pickle: a tensor takes forty. Each may make a few hundred bytes."""
SHARED = 2
"""How often the numbers of a file may be used: an output may share the embedding table."""

MADE = re.compile(
    r"collections OrderedDict|torch\._utils _rebuild_(tensor_v[23]|parameter(_with_state)?)"
    r"|torch (\w+Storage|(b?float|u?int)\w+)|torch\.storage UntypedStorage"
)
"""The classes and functions that make weights, as a pickle names them."""

NAMED_AGAIN = {"GLOBAL", "BINUNICODE", "SHORT_BINUNICODE", "REDUCE"}
"""Opcodes whose result a later one may use again: names and tensors. Tuples that hold each other
twice take exponential time to hash: forty are too many."""


def header(path: Path, shown: Path) -> Header:
    """Types and shapes; each tensor's numbers are checked to exist, but not read."""
    try:
        _look_through(path, shown)
    except HeedError:
        raise
    except Exception:  # an untrusted zip file may cause any error
        raise _broken(shown) from None
    found = read(path)
    for name, x in found.items():
        if x.nbytes > x.untyped_storage().nbytes():
            raise Refused(
                f"{shown}: '{name}' has the shape {tuple(x.shape)}, but fewer numbers; save it "
                "after .contiguous()"
            )
    told, size = sum(x.nbytes for x in found.values()), path.stat().st_size
    if told > SHARED * size:
        raise Refused(
            f"{shown} describes {told:,} bytes of weights, but has {size:,}; save each tensor "
            "with its own numbers"
        )
    return {name: (x.dtype, tuple(x.shape)) for name, x in found.items()}


def read(path: Path) -> dict[str, Tensor]:
    """Tensors by name, mapped into memory and read when used."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # an untrusted pickle may cause any error
        raise _broken(path) from None
    # A pickle may set its own `items` to anything.
    entries = list(dict.items(found)) if isinstance(found, dict) else [(0, None)]
    named = {n: x for n, x in entries if isinstance(n, str) and isinstance(x, Tensor)}
    if len(named) < len(entries):
        raise Refused(f"{path} holds something other than tensors by name")
    return named


def _look_through(path: Path, shown: Path) -> None:
    """Refuse what torch.save does not write."""
    if not zipfile.is_zipfile(path) or not _ends_plainly(path):
        raise Refused(f"{shown} was not written by torch.save, or is incomplete")
    with zipfile.ZipFile(path) as inside:
        for entry in inside.infolist():
            name = entry.filename.lower()  # PyTorch finds an entry in any case of letters
            told = name.endswith((".pkl", "byteorder"))
            if entry.compress_type != zipfile.ZIP_STORED or (told and entry.file_size > LARGEST):
                raise Refused(f"{shown} is not packed as torch.save does it")
            if name.endswith("byteorder") and inside.read(entry) != sys.byteorder.encode():
                raise Refused(f"{shown} has another byte order than this machine")
            if name.endswith(".pkl") and not _is_of_weights(inside.read(entry)):
                raise _broken(shown)


def _ends_plainly(path: Path) -> bool:
    """Whether a zip file has a single directory, which ends where the last record begins.

    Readers disagree on other files: Python's might check one directory, and PyTorch's read another.
    """
    with path.open("rb") as file:
        size = file.seek(0, SEEK_END)
        file.seek(max(0, size - 98))
        tail = file.read()
    if len(tail) < 22:
        return False
    mark, length, begin, comment = struct.unpack("<4s8xIIH", tail[-22:])
    end = size - 22
    if tail[-42:-38] == b"PK\6\7":  # zip64, which PyTorch always writes
        mark_64, large_length, large_begin = struct.unpack("<4s36xQQ", tail[:56])
        (where,) = struct.unpack("<8xQ4x", tail[-42:-22])
        end = size - 98
        small = length in (large_length, 2**32 - 1) and begin in (large_begin, 2**32 - 1)
        if len(tail) < 98 or mark_64 != b"PK\6\6" or where != end or not small:
            return False
        length, begin = large_length, large_begin
    plain: bool = mark == b"PK\5\6" and comment == 0 and begin + length == end
    return plain


def _is_of_weights(pickle: bytes) -> bool:
    """Whether a pickle makes nothing but weights, by its opcodes."""
    before, memo = "", dict[Any, str]()
    try:
        for i, (step, told, _) in enumerate(pickletools.genops(pickle)):
            if i == STEPS or (step.name == "GLOBAL" and MADE.fullmatch(str(told)) is None):
                return False
            if step.name.endswith("PUT"):
                memo[told] = before
                continue
            if step.name.endswith("GET") and memo.get(told) not in NAMED_AGAIN:
                return False
            before = step.name
    except ValueError:  # an unknown opcode
        return False
    return True


def _broken(path: Path) -> Refused:
    return Refused(f"{path} holds more than weights, or is damaged: it is not read")
