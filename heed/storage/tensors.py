"""Tensors in a file: the safetensors format, written in one pass and read with suspicion.

    8 bytes   length N of the header, little-endian
    N bytes   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
    the rest  the numbers of one tensor after the other, without gaps

The file is written here and not by the library, which wants all of it in memory, cannot hash while
it writes, and refuses tensors that share memory. Tied tensors are written once; the header's
metadata says which other names they have. Any reader of safetensors reads the file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from heed.errors import Refused
from heed.storage.durable import Damaged, open_plain, parse_json

HEADER_LIMIT = 16 * 2**20
"""The most bytes of a header: enough for some hundred thousand tensors."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
METADATA = "__metadata__"
TIED = "tied"


def parts(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The file of these tensors, piece by piece: header first, then each tensor's numbers."""
    for name, tensor in tensors.items():
        _check_writable(name, tensor)
    tied = ties(tensors)
    # The widest numbers first, so that each tensor begins where its dtype may.
    kept = sorted(tensors.keys() - tied.keys(), key=lambda n: (-tensors[n].element_size(), n))
    header: dict[str, Any] = {METADATA: {"format": "pt", TIED: json.dumps(tied, sort_keys=True)}}
    end = 0
    for name in kept:
        start, end = end, end + tensors[name].nbytes
        shape = list(tensors[name].shape)
        dtype = NAMES[tensors[name].dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT:
        raise Refused(f"{len(kept):,} tensors are too many for one file, or their names too long")
    yield len(text).to_bytes(8, "little") + text
    for name in kept:
        yield _bytes(tensors[name].detach().resolve_conj().resolve_neg().cpu().contiguous())


def ties(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Names of tensors that share all their memory with an earlier one, and the name of that."""
    first: dict[tuple[Any, ...], str] = {}
    tied = {}
    for name, x in tensors.items():
        if x.numel() == 0:
            continue
        memory = (x.device, x.data_ptr(), x.dtype, x.shape, x.stride(), x.is_conj(), x.is_neg())
        kept = first.setdefault(memory, name)
        if kept != name:
            tied[name] = kept
    return tied


def _check_writable(name: str, tensor: Tensor) -> None:
    if name == METADATA:
        raise Refused(f"no tensor can be saved under the name {METADATA}")
    if not isinstance(tensor, Tensor):
        raise Refused(f"{name!r} is not a tensor and cannot be saved: {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.dtype not in NAMES:
        kind = f"{tensor.layout}, {tensor.dtype}, on {tensor.device}"
        raise Refused(f"{name!r} cannot be saved, only plain tensors can: {kind}")


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return memoryview(cast(Any, tensor.reshape(-1).view(torch.uint8).numpy()))


Header = dict[str, tuple[torch.dtype, tuple[int, ...]]]
"""The entry of each tensor in a file."""


class Place(NamedTuple):
    """The place of a tensor in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


def tied(path: Path) -> dict[str, str]:
    """The names in a file that have no numbers of their own, and the names whose they share."""
    with open_plain(path) as file:
        return _tied(*_layout(file, path), path)


def header(path: Path) -> Header:
    """The content of a file, tied names included, before anything of it is allocated."""
    with open_plain(path) as file:
        places, metadata = _layout(file, path)
    found, tied = _kinds(places), _tied(places, metadata, path)
    return found | {name: found[kept] for name, kept in tied.items()}


def plain_header(path: Path) -> Header:
    """The content of a file for any reader of safetensors, which knows nothing of tied names."""
    with open_plain(path) as file:
        return _kinds(_layout(file, path)[0])


def _kinds(places: Mapping[str, Place]) -> Header:
    return {name: (place.dtype, place.shape) for name, place in places.items()}


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, in main memory; tied names have one tensor again.

    Each is read into memory of its own, as PyTorch aligns it: some products of matrices differ in
    the last bit with the alignment of their operands, and a resumed run must not.
    """
    with open_plain(path) as file:
        places, metadata = _layout(file, path)
        tied = _tied(places, metadata, path)
        found = {name: _tensor(file, place, path) for name, place in places.items()}
    return found | {name: found[kept] for name, kept in tied.items()}


def _tensor(file: FileIO, place: Place, path: Path) -> Tensor:
    tensor = torch.empty(place.shape, dtype=place.dtype, device="cpu")
    left = _bytes(tensor)
    while left:
        count = file.readinto(left)  # two gigabytes at most
        if not count:
            raise Damaged(f"{path} ends too early")
        left = left[count:]
    return tensor


def _layout(file: FileIO, path: Path) -> tuple[dict[str, Place], Any]:
    """Read and check the header: places in the order of the file, and what is said of it."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or not 2 <= length <= min(size - 8, HEADER_LIMIT):
        raise Damaged(f"{path} is not a safetensors file, or is incomplete")
    table = parse_json(file.read(length), path)
    if not isinstance(table, dict):
        raise Damaged(f"{path} has a header that is not a table")
    metadata = table.pop(METADATA, {})
    found = {name: _place(name, entry, path) for name, entry in table.items()}
    places = dict(sorted(found.items(), key=lambda item: (item[1].start, item[1].end)))
    end = _follow(places.values(), path)
    if end != size - 8 - length:
        raise Damaged(f"{path} should have {end:,} bytes of numbers and has {size - 8 - length:,}")
    return places, metadata


def _place(name: str, entry: Any, path: Path) -> Place:
    try:
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
        start, end = entry["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (*shape, start, end))
        # Also where one axis is empty, the others must be numbers that PyTorch can hold.
        held = whole and math.prod(max(n, 1) for n in shape) * dtype.itemsize < 2**62
        if held and end - start == math.prod(shape) * dtype.itemsize and len(shape) <= 64:
            return Place(dtype, shape, start, end)
    except (TypeError, KeyError, ValueError):
        pass  # refused below
    raise Damaged(f"{path} has an invalid description of the tensor {name!r}")


def _follow(places: Iterable[Place], path: Path) -> int:
    """Check that each tensor begins where the one before ends; returns the end of the last."""
    end = 0
    for place in places:
        if place.start != end:
            raise Damaged(f"{path} has tensors that overlap, or gaps between them")
        end = place.end
    return end


def _tied(places: Mapping[str, Place], metadata: Any, path: Path) -> dict[str, str]:
    text = metadata.get(TIED, "{}") if isinstance(metadata, dict) else None
    tied = parse_json(text.encode(), path) if isinstance(text, str) else None
    if not isinstance(tied, dict) or not all(
        isinstance(kept, str) and kept in places and name not in places
        for name, kept in tied.items()
    ):
        raise Damaged(f"{path} ties tensors that it does not have")
    return tied
