"""Forms of answer to documents, which caches and run folders hold in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from heed.answers.form import Example, Form, Given


class OfDocuments(Form[bool, Given]):
    """A form of answer to documents. An example is a piece of one, such as a sentence; what stands
    for its answer says whether a document opens with it."""

    column = "opens"

    @property
    def fingerprint(self) -> str:
        """The same for all documents."""
        return self.name

    @property
    def sizes(self) -> dict[str, int]:
        """Yes or no."""
        return {self.column: 2}

    def rows(self, examples: Sequence[Example]) -> dict[str, list[Any]]:
        """1 where a document opens, else 0."""
        return {self.column: [[int(each.answer)] for each in examples]}

    def as_data(self, gold: bool) -> bool:
        """Whether a document opens."""
        return gold

    def of_data(self, found: Any) -> bool:
        """The same, checked."""
        if not isinstance(found, bool):
            raise ValueError
        return found


def gathered(pieces: Iterable[Example]) -> Iterator[list[Any]]:
    """The pieces of each document; the first piece opens one, whatever it says."""
    found: list[Any] = []
    for each in pieces:
        if each.answer and found:
            yield found
            found = []
        found.append(each.inputs[0])
    if found:
        yield found
