"""A label as a whole input: one thing out of a few, such as the style of what is to be written."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from heed.data.kinds.kind import Kind
from heed.errors import UnknownName


class Label(Kind[str]):
    """One of several labels; it is read as a single symbol.

    labels  in the order of their numbers
    called  the name of a label in messages, such as "style"
    """

    name = "label"

    def __init__(self, labels: Sequence[str], called: str = "label") -> None:
        self.labels, self.called = tuple(labels), called
        self._numbers = {label: number for number, label in enumerate(self.labels)}

    @property
    def size(self) -> int:
        """The number of labels."""
        return len(self.labels)

    @property
    def fingerprint(self) -> str:
        """A hash of the labels."""
        return hashlib.sha256(repr(self.labels).encode()).hexdigest()

    def whole(self, items: Sequence[str]) -> list[list[int]]:
        """The number of each label."""
        return [[self._numbers[item]] for item in items]

    def spelt(self, row: Sequence[int], item: str | None = None) -> list[str]:
        """The label."""
        return [self.labels[number] for number in row]

    def is_blank(self, item: str) -> bool:
        """Whether no label is named."""
        return not item.strip()

    def of_line(self, line: str) -> str:
        """The label in a line, refused if the model has not learnt it."""
        label = line.strip()
        if label and label not in self._numbers:
            raise UnknownName(self.called, label, self.labels)
        return label

    def as_line(self, item: str) -> str:
        """The label itself."""
        return item

    def of_data(self, found: Any) -> str:
        """A kept label, checked."""
        if found not in self._numbers:
            raise ValueError
        return str(found)
