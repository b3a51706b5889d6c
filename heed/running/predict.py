"""Predict: one answer for every input line, even for a blank one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import Any

from heed.running.devices import chosen
from heed.running.opening import open_run
from heed.running.preparing import LONGEST
from heed.running.stories.records import Answer, Shown

CHUNK = 2000  # lines held at a time: answers come while a long file is still being read


@dataclass(frozen=True, slots=True)
class Cut:
    """The answer to a part of a line that is too long to be read."""

    answer: Answer
    part: str  # "first" or "last"
    length: int  # characters of the line

    @property
    def remark(self) -> str:
        """How much of the line was read, and what its answer remarks."""
        read = f"only the {self.part} {LONGEST:,} of {self.length:,} characters were read"
        return "; ".join(filter(None, (read, getattr(self.answer, "remark", ""))))

    def line(self) -> str:
        """The answer in a line."""
        return self.answer.line()

    def as_data(self) -> dict[str, Any]:
        """The answer as plain data, for JSON, with the length of the whole line."""
        return {**self.answer.as_data(), "characters": self.length}

    def shown(self) -> Shown:
        """The answer with its attention."""
        return self.answer.shown()


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
    the column of a table, text="review". Of a longer line, `LONGEST` characters are read: the
    first, or the last where a text is continued.

    at_once  lines to wait for before answering; 1 answers each line as it comes
    options  those of the run's task, such as best=3 for translations
    """
    run = open_run(path, chosen(device), options)
    last = run.story.continues
    part = slice(-LONGEST, None) if last else slice(LONGEST)
    read, measured = tee((line[part], len(line)) for line in run.story.lines(file, options))
    texts = (text for text, _ in read)
    lengths = (length for _, length in measured)
    for found in run.story.predict(run, texts, options, look=look, at_once=at_once):
        length = next(lengths)
        yield found if length <= LONGEST else Cut(found, "last" if last else "first", length)
