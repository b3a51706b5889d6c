"""What stories hand to the loop and to the verbs, as protocols: each task has its own records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from heed.training.objective import Objective
from heed.viewing.blocks import Block, Table
from heed.viewing.panels import Panel

if TYPE_CHECKING:
    from heed.tasks.walking import Walk


class Movable(Objective, Protocol):
    """An objective that can be moved to a device, as an nn.Module can."""

    def to(self, device: torch.device) -> Objective:
        """The same objective, on that device."""


class Validated(Protocol):
    """What a validation found."""

    @property
    def loss(self) -> float:
        """The lower, the better: the best weights so far are kept by it."""

    @property
    def figures(self) -> dict[str, Any]:
        """What goes into metrics.jsonl."""

    def line(self) -> str:
        """A summary in one line."""


class Validator(Protocol):
    """Judges a model by the same examples each time."""

    def loss(self) -> float:
        """The loss of `Validated`, and nothing else."""

    def judge(self, step: int) -> Validated:
        """Loss, figures, and what goes into samples/ under the step's name."""


class Scores(Protocol):
    """How good a model is: a frozen dataclass of plain data."""

    def line(self) -> str:
        """A summary in one line."""


class Evaluated(Protocol):
    """What `heed evaluate` reports."""

    @property
    def scores(self) -> Any:
        """A dataclass: --json prints its fields."""

    def facts(self) -> list[tuple[str, str, str]]:
        """Name, figure and remark, a row each."""

    def tables(self) -> list[Table]:
        """The tables that follow the facts."""

    def answers(self) -> list[str]:
        """A line for each example, for --out."""


class Shown(Protocol):
    """An input, what the model made of it, and what it looked at.

    Where there is something to know about it, such as that it was cut, it also has a `remark`; and
    where the text is no answer to the input, `named` says what it is.
    """

    @property
    def source(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def panels(self) -> Sequence[Panel]:
        """The panels of pictures, the most telling first; none without attention."""

    def drawn(self) -> Sequence[Any]:
        """What a terminal shows, each of them something that rich prints."""

    def block(self, note: str = "") -> Block:
        """What a page shows, an item of a list."""


class Answer(Protocol):
    """What `heed predict` has for a line. A `remark`, where it has one, goes to stderr."""

    def line(self) -> str:
        """The line to print; blank for a blank line."""

    def as_data(self) -> dict[str, Any]:
        """The answer as plain data, for --json."""

    def shown(self) -> Shown:
        """The answer with what was looked at, for --html."""


class Listened(Protocol):
    """A text, and every attention that can be walked through (heed.tasks.walking.Heard)."""

    @property
    def calls(self) -> Mapping[str, Sequence[Any]]:
        """The calls of each attention by its path, the lowest layer first."""

    @property
    def chosen(self) -> int:
        """The most telling attention, as a place in that order."""

    @property
    def first(self) -> int:
        """The query that is walked with by default."""

    def words(self, path: str) -> Sequence[str]:
        """The words that ask an attention."""

    def asked(self, path: str) -> Sequence[str]:
        """The words that are asked."""

    def walk(self, path: str, position: int, head: int) -> Walk:
        """The walk of one query of one head."""
