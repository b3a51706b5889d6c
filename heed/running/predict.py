"""Predict: one answer for every input line, even for a blank one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from heed.running.devices import chosen
from heed.running.opening import open_run
from heed.running.stories.story import Answer

CHUNK = 2000  # lines held at a time: answers come while a long file is still being read


def predict(
    path: Path,
    file: str,
    *,
    device: str = "auto",
    look: bool = False,
    at_once: int = CHUNK,
    **options: Any,
) -> Iterator[Answer]:
    """For each line of a file ("-" is the standard input) its answer; a classifier may be given
    the column of a table, text="review".

    at_once  lines to wait for before answering; 1 answers each line as it comes
    options  those of the run's task, such as best=3 for translations
    """
    run = open_run(path, chosen(device), options)
    lines = run.story.lines(file, options)
    yield from run.story.predict(run, lines, options, look=look, at_once=at_once)
