"""Evaluate: the task's metrics, on the run's own data or on other files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heed.events import Work
from heed.running.devices import chosen
from heed.running.opening import open_run


def evaluate(
    path: Path,
    data: str | Sequence[Path] = "test",
    *,
    device: str = "auto",
    **options: Any,
) -> Work[Any]:
    """Score a run on files, or on a part that it keeps (valid, test ...): a story's `Evaluated`.

    options  those of the run's task, such as width=1 for a translation's beam; `out` and `links`
             if the result's answers or word links will be used
    """
    run = open_run(path, chosen(device), options)
    return (yield from run.story.evaluate(run, data, options))
