"""The plain record between a model and a picture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heed.errors import Refused, ShapeError

FEW, MANY = 3, 16  # panels in a row: those that are not heads, and heads of one attention
_HEAD = re.compile(r"(.*) · head (\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Weights with a name for every row (a query) and every column (a key)."""

    title: str
    weight: NDArray[np.float64]  # rows × columns
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def of(
        cls, title: str, weight: ArrayLike, rows: Iterable[str], columns: Iterable[str]
    ) -> Panel:
        """A panel of anything numpy can read: an array, a tensor on the CPU, nested lists."""
        return cls(title, np.asarray(weight, np.float64), tuple(rows), tuple(columns))

    def __post_init__(self) -> None:
        named = (len(self.rows), len(self.columns))
        if self.weight.shape != named:
            raise ShapeError(
                "weights and labels disagree\n"
                f"  weight: {' × '.join(map(str, self.weight.shape))}\n"
                f"  labels: {named[0]} rows, {named[1]} columns"
            )
        broken = np.argwhere(~np.isfinite(self.weight))
        if len(broken):
            row, column = broken[0]
            raise Refused(
                f"'{self.title}' has a weight that is {self.weight[row, column]}: row {row} "
                f"('{self.rows[row]}'), column {column} ('{self.columns[column]}')"
            )

    def _repr_html_(self) -> str:
        """The picture, for notebooks."""
        from heed.viewing.image import svg  # it imports this module

        return svg(self)


def of_heads(weights: Mapping[str, NDArray[Any]], words: Sequence[str]) -> list[Panel]:
    """Every head of the attentions of one text, by paths such as "0.self".    H T T each"""
    return [
        Panel.of(f"layer {path.partition('.')[0]} · head {h}", weight, words, words)
        for path, heads in weights.items()
        for h, weight in enumerate(heads)
    ]


def abreast(panels: Sequence[Panel], others: int = FEW) -> list[list[Panel]]:
    """Panels in rows: the heads of one attention, so that layers line up, or `others` panels."""
    rows: list[list[Panel]] = []
    before, last = "", -1
    for panel in panels:
        match = _HEAD.fullmatch(panel.title)
        whose, head = (match[1], int(match[2])) if match else ("", -1)
        alike = rows and whose == before and (head > last or not match)
        if alike and len(rows[-1]) < (MANY if match else others):
            rows[-1].append(panel)
        else:
            rows.append([panel])
        before, last = whose, head
    return rows
