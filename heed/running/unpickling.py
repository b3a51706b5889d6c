"""Weights that torch.save wrote: a zip file of one pickle and of the numbers that it names.

PyTorch's reader of weights executes nothing, but what it may make takes memory without bound: an
array of so many bytes, a tensor of so many numbers that are all the same one. So the pickle is
looked through first, and may make what the weights of a network are made of; then its tensors are
mapped, not read, and must have as many numbers as their shapes say.
"""

from __future__ import annotations

import pickletools
import re
import sys
import zipfile
from pathlib import Path

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
    plain = isinstance(found, dict) and all(
        isinstance(name, str) and isinstance(x, Tensor) for name, x in found.items()
    )
    if not plain:
        raise Refused(f"{path} holds something other than tensors by name")
    return dict(found)


def _look_through(path: Path, shown: Path) -> None:
    """Refuse what torch.save does not write."""
    if not zipfile.is_zipfile(path):
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


def _is_of_weights(pickle: bytes) -> bool:
    """Whether a pickle makes nothing but weights, as far as its steps tell."""
    try:
        for i, (step, told, _) in enumerate(pickletools.genops(pickle)):
            if i == STEPS or (step.name == "GLOBAL" and MADE.fullmatch(str(told)) is None):
                return False
    except ValueError:  # no such step
        return False
    return True


def _broken(path: Path) -> Refused:
    return Refused(f"{path} holds more than weights, or is broken: it is not read")
