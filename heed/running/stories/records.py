"""Protocols of what stories pass to the loop and to the commands; each task has its own records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from heed.training.objective import Objective
from heed.viewing.blocks import Block, Table
from heed.viewing.panels import Panel

if TYPE_CHECKING:
    from heed.watching.walk import Walk


class Movable(Objective, Protocol):
    """An objective that can be moved to a device, as an nn.Module can."""

    def to(self, device: torch.device) -> Objective:
        """The same objective, on that device."""


class Validated(Protocol):
    """The result of a validation."""

    @property
    def loss(self) -> float:
        """Lower is better: it decides which weights are kept as the best."""

    @property
    def figures(self) -> dict[str, Any]:
        """The values for metrics.jsonl."""

    def line(self) -> str:
        """A summary in one line."""


class Validator(Protocol):
    """Validates a model on the same examples each time."""

    def loss(self) -> float:
        """The loss of `Validated`, and nothing else."""

    def judge(self, step: int) -> Validated:
        """Loss and figures; a sample is written to samples/ under the step's name."""


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
    """An input, the model's answer to it, and its attention.

    A `remark` is a warning, such as that the input was cut. If the text is not an answer to the
    input, `named` is its name.
    """

    @property
    def source(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def panels(self) -> Sequence[Panel]:
        """The panels of pictures, the most telling first; none without attention."""

    def drawn(self) -> Sequence[Any]:
        """What a terminal shows, as renderables of rich."""

    def block(self, note: str = "") -> Block:
        """What a page shows, an item of a list."""


class Answer(Protocol):
    """The answer of `heed predict` to a line. Its `remark`, if it has one, goes to stderr."""

    def line(self) -> str:
        """The line to print; blank for a blank line."""

    def as_data(self) -> dict[str, Any]:
        """The answer as plain data, for --json."""

    def shown(self) -> Shown:
        """The answer with its attention, for --html."""


class Listened(Protocol):
    """A text, and every attention that supports walks (heed.running.passes.Pass)."""

    @property
    def calls(self) -> Mapping[str, Sequence[Any]]:
        """The calls of each attention by its path, the lowest layer first."""

    @property
    def chosen(self) -> int:
        """The most telling attention, as an index in that order."""

    @property
    def first(self) -> int:
        """The query that is walked with by default."""

    def words(self, path: str) -> Sequence[str]:
        """The words of an attention's queries."""

    def asked(self, path: str) -> Sequence[str]:
        """The words of its keys."""

    def walk(self, path: str, position: int, head: int) -> Walk:
        """The walk of one query of one head."""
