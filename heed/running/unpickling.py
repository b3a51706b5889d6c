"""Weights that torch.save wrote: a zip file of one pickle and of the numbers that it names.

PyTorch's reader of weights executes nothing, but what it may make takes memory without bound: an
array of so many bytes, a tensor of so many numbers that are all the same one. So the pickle is
looked through first, and may make what the weights of a network are made of; then its tensors are
mapped, not read, and must have as many numbers as their shapes say.
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
"""Bytes of a pickle."""
STEPS = 200_000
"""That a pickle takes: forty for a tensor. Each may make something of a few hundred bytes."""
SHARED = 2
"""Times that the numbers of a file may be used: an output may be the table."""

MADE = re.compile(
    r"collections OrderedDict|torch\._utils _rebuild_(tensor_v[23]|parameter(_with_state)?)"
    r"|torch (\w+Storage|(b?float|u?int)\w+)|torch\.storage UntypedStorage"
)
"""What weights are made of, by the names that a pickle has for it."""

NAMED_AGAIN = {"GLOBAL", "BINUNICODE", "SHORT_BINUNICODE", "REDUCE"}
"""Steps whose result a later step may name again: names and tensors. Of tuples that hold each other
twice, forty steps make one that takes for ever to hash."""


def header(path: Path, shown: Path) -> Header:
    """Types and shapes, each tensor's numbers seen to be there; none of them is read."""
    try:
        _look_through(path, shown)
    except HeedError:
        raise
    except Exception:  # whatever a stranger's zip file leads to
        raise _broken(shown) from None
    found = read(path)
    for name, x in found.items():
        if x.nbytes > x.untyped_storage().nbytes():
            raise Refused(
                f"{shown}: '{name}' has the shape {tuple(x.shape)}, and fewer numbers; save it "
                "whole, as .contiguous() makes it"
            )
    told, size = sum(x.nbytes for x in found.values()), path.stat().st_size
    if told > SHARED * size:
        raise Refused(
            f"{shown} describes {told:,} bytes of weights and has {size:,}; save each tensor with "
            "numbers of its own"
        )
    return {name: (x.dtype, tuple(x.shape)) for name, x in found.items()}


def read(path: Path) -> dict[str, Tensor]:
    """Tensors by name, mapped into memory: what is not used is not read."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # whatever a stranger's pickle leads to
        raise _broken(path) from None
    # Its own `items` may be anything: a pickle may set it.
    entries = list(dict.items(found)) if isinstance(found, dict) else [(0, None)]
    named = {n: x for n, x in entries if isinstance(n, str) and isinstance(x, Tensor)}
    if len(named) < len(entries):
        raise Refused(f"{path} holds something other than tensors by name")
    return named


def _look_through(path: Path, shown: Path) -> None:
    """Refuse what torch.save does not write."""
    if not zipfile.is_zipfile(path) or not _ends_plainly(path):
        raise Refused(f"{shown} is no file that torch.save wrote, or was cut off")
    with zipfile.ZipFile(path) as inside:
        for entry in inside.infolist():
            name = entry.filename.lower()  # PyTorch finds an entry in any case of letters
            told = name.endswith((".pkl", "byteorder"))
            if entry.compress_type != zipfile.ZIP_STORED or (told and entry.file_size > LARGEST):
                raise Refused(f"{shown} is packed in a way that torch.save does not")
            if name.endswith("byteorder") and inside.read(entry) != sys.byteorder.encode():
                raise Refused(f"{shown} has its bytes in another order than this machine")
            if name.endswith(".pkl") and not _is_of_weights(inside.read(entry)):
                raise _broken(shown)


def _ends_plainly(path: Path) -> bool:
    """Whether the directory of a zip file ends where its last record begins, and has no other.

    Readers differ in what they make of any other file: Python's would look through one directory,
    and PyTorch's would read another.
    """
    with path.open("rb") as file:
        size = file.seek(0, SEEK_END)
        file.seek(max(0, size - 98))
        tail = file.read()
    if len(tail) < 22:
        return False
    mark, length, begin, comment = struct.unpack("<4s8xIIH", tail[-22:])
    end = size - 22
    if tail[-42:-38] == b"PK\6\7":  # of a file that may be large, as PyTorch writes them all
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
    """Whether a pickle makes nothing but weights, as far as its steps tell."""
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
    except ValueError:  # no such step
        return False
    return True


def _broken(path: Path) -> Refused:
    return Refused(f"{path} holds more than weights, or is broken: it is not read")
