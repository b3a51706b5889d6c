"""Changes to the file system that fail, one after the other: a full disk, or a kill."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heed.errors import HeedError


class Killed(BaseException):
    """Ends the process, as far as the code under test can see."""


class Faults:
    """Makes the k-th change to the file system fail: after a full disk the code goes on, after a
    kill not.

    A write that fails has written half of its bytes.
    """

    CHANGES = ("open", "write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir")

    def __init__(self, patch: pytest.MonkeyPatch, at: int, kill: bool) -> None:
        self.count, self.at, self.kill = 0, at, kill
        for name in self.CHANGES:
            patch.setattr(os, name, self.wrap(name, getattr(os, name)))

    def wrap(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count == self.at and name == "write":
                operation(args[0], args[1][: len(args[1]) // 2])
            if self.kill and self.count >= self.at:
                raise Killed
            if self.count == self.at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return operation(*args, **kwargs)

        return changed


def every_fault(
    root: Path, action: Callable[[Path], object], kill: bool, prepare: Callable[[Path], object]
) -> Iterator[tuple[Path, bool]]:
    """The folder after the action failed at its first change, at its second, and so on; and whether
    the caller saw an error."""
    for at in range(1, 200):
        checkpoints = root / str(at)
        prepare(checkpoints)
        told = False
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, at, kill)
            try:
                action(checkpoints)
            except (OSError, HeedError, Killed):
                told = True
        if faults.count < at:
            assert at > 10, "hardly anything was changed: are the operations still the same?"
            return
        yield checkpoints, told
    raise AssertionError("it never came to an end")
