"""Files that are written whole or not at all: the old file stays until the new one is on the disk.

A new file gets a temporary name in the same folder, is synced, and then renamed, which is atomic.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

TEMPORARY = re.compile(r".+\.tmp-[0-9a-f]{8}")
"""The names of files that a killed process leaves behind."""

SOME = 60
"""Characters of a name that a temporary one begins with: file systems take 255 bytes of a name."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)  # follows no link


def aside(path: Path, mark: str = "tmp") -> Path:
    """A fresh name beside a path. `random` is not used: its state belongs to the training."""
    return path.parent / f"{path.name[:SOME]}.{mark}-{secrets.token_hex(4)}"


def replace(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file, or replace one, atomically."""
    draft = aside(path)
    try:
        write(draft, parts)
        os.replace(draft, path)
    except BaseException:
        discard(draft)
        raise
    sync(path.parent)


def write(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a new file, one part after the other, and sync it."""
    file = os.open(path, _NEW, 0o666)
    try:
        for part in parts:
            write_all(file, memoryview(part))
        os.fsync(file)
    except OSError as error:
        error.filename = error.filename or str(path)  # "no space left" should name the file
        raise
    finally:
        os.close(file)


def write_all(file: int, piece: memoryview) -> None:
    """Write to a descriptor until nothing is left: a call may take only a part."""
    while piece:
        piece = piece[os.write(file, piece) :]


def discard(path: Path) -> None:
    """Remove a file if possible; what remains is removed later."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def sync(folder: Path) -> None:
    """Sync a folder, so that its names are on the disk as its files are."""
    if os.name != "posix":  # folders cannot be opened there
        return
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
