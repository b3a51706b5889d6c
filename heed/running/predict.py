"""Predict: one answer for every input line, even for a blank one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heed.answers.form import Form
from heed.running.devices import chosen
from heed.running.opening import open_run
from heed.running.preparing import LONGEST
from heed.tasks.task import Codec

if TYPE_CHECKING:
    from heed.answers.worker import Worker
    from heed.viewing.looking import Look

CHUNK = 2000  # lines held at a time: answers come while a long file is still being read


@dataclass(frozen=True, slots=True)
class Answered:
    """The answers to a line; with a look, the attention can be shown.

    cut  what was read of a line that is too long, or ""; `characters`: of the whole line
    """

    form: Form[Any, Any]
    found: Sequence[Any]
    best: int = 1
    look: Look | None = None
    cut: str = ""
    characters: int = 0

    @property
    def remark(self) -> str:
        """A warning, such as that the input was cut."""
        own = next((each.remark for each in self.found if each.remark), "")
        return "; ".join(filter(None, (self.cut, own)))

    def line(self) -> str:
        """The answers in a line, with tabs between them; missing ones are blank."""
        return self.form.as_line(self.found, self.best)

    def as_data(self) -> dict[str, Any]:
        """As plain data, for JSON; of a line that was cut, with the length of the whole."""
        told = self.form.as_json(self.found)
        return {**told, "characters": self.characters} if self.cut else told

    def shown(self) -> Look:
        """The answer with its attention."""
        assert self.look is not None
        return self.look


def predict(
    path: Path,
    file: str,
    *,
    device: str = "auto",
    look: bool = False,
    at_once: int = CHUNK,
    **options: Any,
) -> Iterator[Answered]:
    """For each line of a file ("-" is the standard input) its answer; a classifier may be given
    the column of a table, text="review". Of a longer line, `LONGEST` characters are read: the
    first, or the last where a text is continued.

    look     keep what every attention did
    at_once  lines to wait for before answering; 1 answers each line as it comes
    options  those of the run's task, such as best=3 for translations
    """
    run = open_run(path, chosen(device), options)
    task, worker, count = run.task, run.worker, 0
    task.refuse_unknown(options, task.predict_options(), run)
    choice, best = task.chosen(run.config, options)
    codec = Codec(worker.inputs, worker.form)
    part = slice(-LONGEST, None) if task.continues else slice(LONGEST)
    read = f"only the {'last' if task.continues else 'first'} {LONGEST:,} of"
    lines = ((line[part], len(line)) for line in task.lines(file, options))
    while chunk := list(islice(lines, at_once)):
        items = [task.of_line(codec, line) for line, _ in chunk]
        found = worker.answers(items, choice, best, count)
        count += len(items)
        for item, some, (_, length) in zip(items, found, chunk, strict=True):
            seen = _looked(worker, item, some[:1]) if look else None
            cut = f"{read} {length:,} characters were read" if length > LONGEST else ""
            yield Answered(worker.form, some, best, seen, cut, length)


def _looked(worker: Worker, item: tuple[Any, ...], answers: Sequence[Any]) -> Look:
    """Every attention of the answers; pictures are loaded only here."""
    from heed.running.passes import one_pass

    return one_pass(worker, item, answers=answers).look
