"""Files written to outlast a crash, a kill or a full disk, and read with suspicion.

Files are written as `atomic` says, and hashed. Nothing is pickled, and no link is followed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from io import FileIO
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from heed.errors import HeedError, Refused
from heed.storage import atomic

LIMIT = 2 * 2**20
"""The most bytes of JSON that are read."""

DEPTH = 64
"""The deepest nesting of JSON."""

# Large enough for few calls, small enough that what was hashed is still cached when written.
CHUNK = 2**20


class Damaged(HeedError):
    """A file that is not what was written: truncated, changed, missing, or a link elsewhere."""


class Digest(NamedTuple):
    """The size and the hash that tell a file from its damaged copies."""

    size: int
    sha256: str


def write(path: Path, parts: Iterable[bytes | memoryview]) -> Digest:
    """Write a new file, one part after the other, and sync it; hashed in the same pass."""
    digest, size = hashlib.sha256(), 0

    def hashed() -> Iterator[memoryview]:
        nonlocal size
        for part in parts:
            for piece in _pieces(memoryview(part)):
                digest.update(piece)
                size += len(piece)
                yield piece

    atomic.write(path, hashed())
    return Digest(size, digest.hexdigest())


def _pieces(part: memoryview) -> Iterable[memoryview]:
    return (part[start : start + CHUNK] for start in range(0, len(part), CHUNK))


def make_folder(path: Path) -> list[Path]:
    """Make a folder, and those above it, where there is none; returns those made, inner first."""
    missing = list(takewhile(lambda folder: not folder.is_dir(), (path, *path.parents)))
    made: list[Path] = []
    for folder in reversed(missing):
        try:
            os.mkdir(folder)
            made.insert(0, folder)
        except FileExistsError as error:
            if not folder.is_dir():
                raise Refused(f"{folder} is not a folder, and a folder is needed there") from error
        atomic.sync(folder.parent)
    return made


def remove(path: Path) -> None:
    """Remove a file, a link or a folder as far as that goes; what stays is swept later."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        atomic.discard(path)


def sweep(folder: Path) -> None:
    """Remove what was left half-written in a folder, where no other process may be writing."""
    if folder.is_dir():
        for name in os.listdir(folder):
            if atomic.TEMPORARY.fullmatch(name):
                remove(folder / name)


def open_plain(path: Path) -> FileIO:
    """Open a plain file for reading, unbuffered; a link, a folder or a pipe is refused."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise Damaged(f"{path} is not a plain file")
        return FileIO(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from error


def digest_of(path: Path) -> Digest:
    """Size and hash of a file."""
    with open_plain(path) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            return Digest(size, hashlib.file_digest(file, "sha256").hexdigest())
        except OSError as error:
            raise Damaged(f"{path} cannot be read: {error.strerror}") from error


def read_bytes(path: Path, limit: int = LIMIT) -> bytes:
    """Read all of a file that has at most `limit` bytes."""
    with open_plain(path) as file:
        try:
            data = file.read(limit + 1)
        except OSError as error:
            raise Damaged(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > limit:
        raise Damaged(
            f"{path} is larger than {limit:,} bytes: heed does not write such files there"
        )
    return data


def read_json(path: Path, limit: int = LIMIT) -> Any:
    """The value in a JSON file; too large, too deep or with a name twice is refused."""
    return parse_json(read_bytes(path, limit), path)


def parse_json(data: bytes, where: Path) -> Any:
    """Parse JSON; `where` is the file that error messages name."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise Damaged(f"{where} is not valid JSON: {reason}") from error
    if not _within(value, DEPTH):
        raise Damaged(f"{where} is not valid JSON: it is nested deeper than {DEPTH}")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that is given twice, since readers differ in which value they take."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name!r} is given twice")
        found[name] = value
    return found


def _within(value: Any, levels: int) -> bool:
    return levels >= 0 and all(_within(part, levels - 1) for part in _inner(value))


def dump_json(value: Any, where: Path) -> bytes:
    """A value as JSON; one that would be read back as something else is refused."""
    try:
        if not _within(value, DEPTH):
            raise TypeError(f"nested deeper than {DEPTH}")
        _check_names(value)
        data = json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8")
    except (TypeError, ValueError) as error:
        raise Refused(f"{where} cannot be written as JSON: {error}") from error
    if len(data) >= LIMIT:
        raise Refused(f"{where} would be larger than {LIMIT:,} bytes")
    return data + b"\n"


def _check_names(value: Any) -> None:
    for name in value if isinstance(value, dict) else ():
        if not isinstance(name, str):  # 1 would come back as "1"
            raise TypeError(f"the name {name!r} is not a text")
    for part in _inner(value):
        _check_names(part)


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()
