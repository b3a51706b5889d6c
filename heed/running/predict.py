"""Predict: one answer for every line that came in, whatever the line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from heed.data.text import read_lines
from heed.running.devices import chosen
from heed.running.opening import open_run
from heed.tasks.translator import Translation

CHUNK = 2000  # lines that are held at a time: answers flow while a long file is still being read


def predict(
    path: Path,
    file: str,
    *,
    device: str = "auto",
    decoding: Mapping[str, Any] | None = None,
    look: bool = False,
    best: int = 1,
    at_once: int = CHUNK,
) -> Iterator[list[Translation]]:
    """For each line of a file ("-" is the standard input) its translations, best first.

    at_once  lines to wait for before answering; 1 answers each line as it comes
    """
    run = open_run(path, chosen(device))
    choice = run.decoding(decoding or {})
    lines = (text for _, text in read_lines(file))
    chance = run.translator.chance(choice)
    while chunk := list(islice(lines, at_once)):
        yield from run.translator.translate(chunk, choice, look=look, best=best, chance=chance)
