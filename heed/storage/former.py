"""The run that a new one replaces: kept aside until the new one has weights.

    .heed.former/         all that the former run had written, while the new one has no weights
    .heed.moving/         the same while it is moved there or back

Each move is a rename, so it takes no time and no room. A kill in between is mended by the next
`give_back`: whatever is in either folder belongs to the former run. A kill between the first
weights of the new run and `forget` is mended when the folder is locked again (see folder.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from heed.storage import atomic, durable

FORMER = ".heed.former"
MOVING = ".heed.moving"


def set_aside(folder: Path, files: Sequence[Path]) -> None:
    """Move a run's files out of the way, in this order."""
    moving = folder / MOVING
    os.mkdir(moving)
    for path in files:
        os.rename(path, moving / path.name)
    os.rename(moving, folder / FORMER)
    atomic.sync(folder)


def give_back(folder: Path, clear: Callable[[], None]) -> None:
    """Move a former run's files back, if there are any, the config last.

    clear  removes what the new run has written
    """
    moving, former = folder / MOVING, folder / FORMER
    for path in (moving, former):
        if path.is_symlink() or not path.is_dir():  # not made here
            atomic.discard(path)
    if former.is_dir():
        clear()
        os.rename(former, moving)
    if moving.is_dir():
        for name in sorted(os.listdir(moving), key=lambda name: name == "config.json"):
            os.rename(moving / name, folder / name)
        os.rmdir(moving)
        atomic.sync(folder)


def kept(folder: Path) -> bool:
    """Whether a run that was to be replaced is still kept aside."""
    return any((folder / name).is_dir() for name in (FORMER, MOVING))


def forget(folder: Path) -> None:
    """Remove a former run's files, if there are any.

    They are renamed first: those that a kill leaves are swept, and no part of a run comes back.
    """
    former = folder / FORMER
    if former.is_dir():
        gone = atomic.aside(former)
        os.rename(former, gone)
        durable.remove(gone)
