"""A kind of input: from an item, such as a text or a series, to a row of numbers and back.

A kind is fitted to the data of a run: it has the tokeniser, or the scale of the numbers. The same
class serves as a part of an answer where that is of the same kind, as in translation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Item = TypeVar("Item")


class Kind(ABC, Generic[Item]):
    """A kind of input, fitted to the data of a run.

    longest  positions of an item that a model reads; what follows is cut off
    """

    name: ClassVar[str]
    positions: ClassVar[str] = "symbols"  # what an item is read by
    width: int = 0  # real numbers at each position; 0: positions are symbols
    longest: int | None = None
    marked: bool = False  # whether labels of positions mark where words are cut

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of all that decides the numbers, the same for the same rules alone."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of different symbols; of real numbers, how many at each position."""

    @abstractmethod
    def whole(self, items: Sequence[Item]) -> list[Any]:
        """The row of each item, however long.    N or N F each"""

    def cut(self, row: Any) -> Any:
        """A row as far as the model reads it."""
        return row if self.longest is None else row[: self.longest]

    def rows(self, items: Sequence[Item]) -> list[Any]:
        """The row of each item, as far as the model reads it."""
        return [self.cut(row) for row in self.whole(items)]

    @abstractmethod
    def spelt(self, row: Any, item: Item) -> list[str]:
        """A name for each position of a row, for pictures."""

    def is_blank(self, item: Item) -> bool:
        """Whether an item has nothing to read."""
        return False

    @abstractmethod
    def of_line(self, line: str) -> Item:
        """The item that a line of a file, or an argument of a command, stands for."""

    @abstractmethod
    def as_line(self, item: Item) -> str:
        """An item in a line."""

    def as_data(self, item: Item) -> Any:
        """An item as plain data, as a run folder keeps it."""
        return item

    @abstractmethod
    def of_data(self, found: Any) -> Item:
        """The inverse of `as_data`; a ValueError if it is no item: folders are not trusted."""

    def padded(self, rows: Sequence[Any], device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows as a batch, and their lengths.    -> B N or B N F, B"""
        lengths = torch.tensor([len(row) for row in rows])
        table = pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True)
        return table.to(device), lengths.to(device)
