"""A watch in a file: safetensors, with everything but the tensors as JSON in its metadata.

A file may come from anybody: everything it says is checked before a tensor of it is read, nothing
in it is ever executed, and tensors are read one record at a time, when they are asked for.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from heed.errors import HeedError, Refused
from heed.records import Attended, State
from heed.storage import atomic
from heed.watching.hypotheses import When, WrittenText, fields, of_fields, told
from heed.watching.watched import AxisWords, Records, Watched

FORMAT = "heed.watch"
VERSION = 1
LARGEST_TEXT = 2**26
"""The most bytes of JSON that are read or written."""

AXES = {
    "weight": "BHnS",
    "energy": "BHnS",
    "log_prob": "BHT",
    "entropy": "BHT",
    "penalty": "BHT",
    "statistics.mass": "BHT",
    "statistics.entropy": "BHT",
    "statistics.peak": "BHT",
    "statistics.place": "BHT",
    "statistics.expected": "BHT",
    "statistics.spread": "BHT",
    "statistics.received": "BHS",
    "statistics.log_sum": "BHT",
    "statistics.largest": "BHT",
    "statistics.top": "BHTk",
    "statistics.share": "BHTk",
    "statistics.map": "BHrc",
    "statistics.rows": "BHmS",
}
"""The axes of every tensor of a record; a letter is one number throughout a record."""

WHOLE = ("statistics.place", "statistics.top")
NEEDED = [name for name in AXES if name.startswith("statistics.")][:6]
RECEIVED = "statistics.received"

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
}
REAL = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class Kept:
    """A record that lies in a file; calling it reads it."""

    file: Path
    prefix: str
    names: tuple[str, ...]
    shapes: tuple[tuple[tuple[int, ...], str], ...]  # and dtypes, of each name
    kernel: str
    refusals: tuple[tuple[str, str], ...]
    state: State

    @staticmethod
    def of(file: Path, prefix: str, record: Attended) -> Kept:
        """The record that was written there."""
        told = fields(record)
        shapes = tuple((tuple(x.shape), DTYPES[x.dtype]) for x in told.values())
        state = State(record.state.step, record.state.origin)
        return Kept(file, prefix, tuple(told), shapes, record.kernel, record.refusals, state)

    def __call__(self) -> Attended:
        with _opened(self.file) as file:
            tensors = {name: file.get_tensor(self.prefix + name) for name in self.names}
        found = tuple((tuple(x.shape), DTYPES.get(x.dtype)) for x in tensors.values())
        if found != self.shapes:
            raise HeedError(f"{self.file} has changed since it was opened")
        return of_fields(tensors, self.kernel, refusals=self.refusals, state=self.state)


def save(seen: Watched, path: Path) -> None:
    """Write a watch; records that are on disk already are copied one by one."""
    entries = [entry for records in seen.records.values() for entry in records.entries]
    kept = [entry if isinstance(entry, Kept) else _in_memory(entry) for entry in entries]
    layout = {
        f"{i}.{name}": shape
        for i, one in enumerate(kept)
        for name, shape in zip(one.names, one.shapes, strict=True)
    }

    def numbers(size: int) -> Iterator[Tensor]:
        for entry, one in zip(entries, kept, strict=True):
            if any(SIZES[dtype] == size for _, dtype in one.shapes):
                record = entry if isinstance(entry, Attended) else entry()
                yield from (x for x in fields(record).values() if x.element_size() == size)

    metadata = json.dumps(_told(seen, kept), separators=(",", ":"))
    _write(path, layout, numbers, {"format": "pt", FORMAT: metadata})


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name, at once or not at all."""
    layout = {name: (tuple(x.shape), _dtype(x)) for name, x in tensors.items()}

    def numbers(size: int) -> Iterator[Tensor]:
        return (x for x in tensors.values() if x.element_size() == size)

    _write(path, layout, numbers, {"format": "pt"})


def _in_memory(entry: Any) -> Kept:
    if not isinstance(entry, Attended):
        raise Refused("a record that was moved to disk in a file of another watch cannot be saved")
    return Kept.of(Path(), "", entry)


def _told(seen: Watched, kept: list[Kept]) -> dict[str, Any]:
    """Everything of a watch but its tensors."""
    each = iter(kept)
    modules = {
        path: [
            {
                "fields": list(one.names),
                "kernel": one.kernel,
                "refusals": list(one.refusals),
                "state": [one.state.step, one.state.origin],
                "when": when,
            }
            for when, one in zip(records.when, each, strict=False)
        ]
        for path, records in seen.records.items()
    }
    return {
        "version": VERSION,
        "modules": modules,
        "heads": seen.heads,
        "rows": seen.rows,
        "words": {path: [told.queries, told.keys] for path, told in seen.words.items()},
        "texts": [told(text) for text in seen.texts],
    }


def _dtype(x: Tensor) -> str:
    if x.dtype not in DTYPES:
        raise Refused(f"weights of {x.dtype} cannot be written to a file")
    return DTYPES[x.dtype]


SIZES = {"F64": 8, "I64": 8, "F32": 4, "F16": 2, "BF16": 2}


def _write(
    path: Path,
    layout: Mapping[str, tuple[tuple[int, ...], str]],
    numbers: Callable[[int], Iterable[Tensor]],
    metadata: Mapping[str, str],
) -> None:
    """Write the header, then one tensor after the other, so that not all need be in memory.

    The widest dtypes come first, so that each tensor is aligned.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, (shape, dtype) in sorted(layout.items(), key=lambda entry: -SIZES[entry[1][1]]):
        size = SIZES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LARGEST_TEXT:
        raise Refused(f"this watch has too many records or words for one file: {len(text):,} bytes")

    def parts() -> Iterator[bytes | memoryview]:
        yield len(text).to_bytes(8, "little") + text
        for x in (x for size in (8, 4, 2) for x in numbers(size)):
            plain = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            yield memoryview(cast(Any, plain.numpy()))

    try:
        atomic.replace(path, parts())
    except OSError as error:
        raise Refused(f"cannot write '{path}': {error.strerror}") from error


def load_watch(path: str | os.PathLike[str]) -> Watched:
    """Read what `Watched.save` wrote. Records are fetched from the file when they are asked for."""
    file = Path(path)
    with _opened(file) as opened:
        told = _json((opened.metadata() or {}).get(FORMAT), file)
        names = set(opened.keys())
        try:
            seen = _watched(told, names, lambda name: opened.get_slice(name), file)
        except HeedError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise Refused(f"{file} describes an invalid watch") from error
    if names:
        raise Refused(f"{file} holds tensors that belong to no record, such as {min(names)!r}")
    return seen


def _opened(file: Path) -> Any:
    """The file, its header checked by safetensors: no gaps, no overlaps, nothing beyond the end."""
    from safetensors import SafetensorError, safe_open

    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise Refused(f"{file} is not a plain file")
        return safe_open(file, "pt")
    except FileNotFoundError as error:
        raise Refused(f"there is no file {file}") from error
    except (SafetensorError, OSError) as error:
        raise Refused(f"{file} is not a safetensors file, or is incomplete: {error}") from error


def _json(text: Any, file: Path) -> dict[str, Any]:
    if not isinstance(text, str):
        raise Refused(f"{file} is not a saved watch: its metadata has no {FORMAT}")
    if len(text) > LARGEST_TEXT:
        raise Refused(f"{file} has too much metadata: {len(text):,} bytes")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{file} has metadata that cannot be read") from error
    if not isinstance(told, dict) or told.get("version") != VERSION:
        raise Refused(f"{file} was written by another version of heed")
    return told


def _watched(
    told: dict[str, Any], names: set[str], place: Callable[[str], Any], file: Path
) -> Watched:
    """A watch from what a file says; each tensor that belongs to a record is taken from `names`."""
    _check(set(told) == {"version", "modules", "heads", "rows", "words", "texts"}, file)
    seen = Watched(_table(told["modules"], file))
    seen.texts = [_text(entry, file) for entry in _list(told["texts"], file)]
    seen.heads, seen.rows = (_numbers(told[name], file) for name in ("heads", "rows"))
    number = 0
    for path, entries in told["modules"].items():
        for entry in _list(entries, file):
            _record(seen.records[path], entry, number, names, place, file, seen.texts)
            number += 1
    for path, pair in _table(told["words"], file).items():
        queries, keys = (
            tuple(tuple(_string(word, file) for word in _list(row, file)) for row in _list(x, file))
            for x in pair
        )
        _check(path in seen and len(pair) == 2, file)
        seen.words[path] = AxisWords(queries, keys)
    return seen


def _record(
    records: Records,
    entry: dict[str, Any],
    number: int,
    names: set[str],
    place: Callable[[str], Any],
    file: Path,
    texts: list[WrittenText],
) -> None:
    told = _list(entry["fields"], file)
    _check(len(set(told)) == len(told) and all(name in AXES for name in told), file)
    stated = [name for name in told if name.startswith("statistics.")]
    needed = [*NEEDED, RECEIVED] if "statistics.map" in told else NEEDED
    _check(not stated or all(name in told for name in needed), file)
    _check(("statistics.top" in told) == ("statistics.share" in told), file)
    sizes: dict[str, int] = {}
    shapes = []
    for name in told:
        names.remove(f"{number}.{name}")
        found = place(f"{number}.{name}")
        shape, dtype = tuple(found.get_shape()), str(found.get_dtype())
        _check(len(shape) == len(AXES[name]), file)
        _check(dtype == "I64" if name in WHOLE else dtype in REAL, file)
        for axis, size in zip(AXES[name], shape, strict=True):
            _check(sizes.setdefault(axis, size) == size, file)
        shapes.append((shape, dtype))
    refusals = tuple(
        (_string(name, file), _string(reason, file))
        for name, reason in _list(entry["refusals"], file)
    )
    step, origin = entry["state"]
    _check(type(step) is int and type(origin) is int, file)
    kernel, state = _string(entry["kernel"], file), State(step, origin)
    kept = Kept(file, f"{number}.", tuple(told), tuple(shapes), kernel, refusals, state)
    records.append(kept, _when(entry["when"], texts, file))


def _when(entry: Any, texts: list[WrittenText], file: Path) -> When | None:
    if entry is None:
        return None
    text, step = entry
    _check(type(text) is int and type(step) is int and 0 <= text < len(texts), file)
    _check(0 <= step < texts[text].steps, file)
    return text, step


def _text(entry: Any, file: Path) -> WrittenText:
    """A text from what a file says; each row must continue one of the step before."""
    symbols, parents = entry
    symbols, parents, before = _list(symbols, file), _list(parents, file), None
    for read, come in zip(symbols, parents, strict=True):
        _check(all(type(x) is int for x in (*_list(read, file), *_list(come, file))), file)
        _check(len(read) == len(come) and all(x >= 0 for x in come), file)
        _check(before is None or all(x < before for x in come), file)
        before = len(read)
    return WrittenText(parents, symbols, len(parents))


def _numbers(entry: Any, file: Path) -> tuple[int, ...] | None:
    if entry is None:
        return None
    _check(all(type(x) is int for x in _list(entry, file)), file)
    return tuple(entry)


def _table(entry: Any, file: Path) -> dict[str, Any]:
    _check(isinstance(entry, dict), file)
    return dict(entry)


def _list(entry: Any, file: Path) -> list[Any]:
    _check(isinstance(entry, list), file)
    return list(entry)


def _string(entry: Any, file: Path) -> str:
    _check(isinstance(entry, str), file)
    return str(entry)


def _check(right: bool, file: Path) -> None:
    if not right:
        raise Refused(f"{file} describes an invalid watch")
