"""The blocks of a page: plain records, each with its HTML.

The text of a block is shown as it is: markup in it never takes effect.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from heed.errors import ShapeError
from heed.viewing import chart
from heed.viewing.drawing import number, shares, written
from heed.viewing.panels import Panel, abreast
from heed.viewing.terminal import Range, shown

FEW = 64 * 64  # weights of a figure; up to so many take two bytes each
BROAD = 11  # source or target words; an example with so many takes the whole width
TITLE = 24  # letters of a title; a longer one does not fit a third of the width
ABREAST = ((10, 4), (16, 3), (34, 2))  # up to so many words, so many maps fit a line

Value = str | float | int | None


class Block(Protocol):
    """A part of a page."""

    def html(self) -> str:
        """Markup, with all text escaped."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading within the page."""

    text: str
    level: Literal[2, 3] = 2

    def html(self) -> str:
        return f"<h{self.level}>{written(self.text)}</h{self.level}>"


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text; a blank line begins a new paragraph."""

    text: str

    def html(self) -> str:
        return "".join(f"<p>{written(part)}</p>" for part in self.text.split("\n\n"))


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values in large print: the most important results."""

    facts: Sequence[tuple[str, Value]]

    def html(self) -> str:
        each = (
            f"<div><dt>{written(name)}</dt><dd>{written(said(value))}</dd></div>"
            for name, value in self.facts
        )
        return f'<dl class="facts">{"".join(each)}</dl>'


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the format of its numbers, and whether the best is high or low."""

    name: str
    form: str = ""  # as for format(): ".1f"
    best: Literal["high", "low"] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows to compare. Columns can be sorted; the best of each column is marked."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    title: str = ""

    def __post_init__(self) -> None:
        for n, row in enumerate(self.rows, 1):
            if len(row) != len(self.columns):
                raise ShapeError(
                    f"row {n} of the table has {len(row)} values for {len(self.columns)} columns"
                )

    def filled(self) -> Table:
        """The table without columns that have only dashes; the first has the names, and stays."""
        kept = [
            place
            for place in range(len(self.columns))
            if not place or not self.rows or any(said(row[place]) != "–" for row in self.rows)
        ]
        rows = [[row[place] for place in kept] for row in self.rows]
        return Table([self.columns[place] for place in kept], rows, self.title)

    def html(self) -> str:
        numeric = [self._numeric(place) for place in range(len(self.columns))]
        best = [self._best(place) for place in range(len(self.columns))]
        heads = "".join(map(_head, self.columns, numeric))
        body = "".join(
            f"<tr>{''.join(map(_cell, row, self.columns, numeric, best))}</tr>" for row in self.rows
        )
        caption = f"<caption>{written(self.title)}</caption>" if self.title else ""
        return (
            f'<div class="scroll"><table class="sortable">{caption}'
            f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _numeric(self, place: int) -> bool:
        return all(isinstance(row[place], int | float | None) for row in self.rows)

    def _best(self, place: int) -> str | None:
        """The best value as it is written; all values written like it are marked."""
        column = self.columns[place]
        values = [row[place] for row in self.rows]
        numbers = [v for v in values if isinstance(v, int | float) and math.isfinite(v)]
        if column.best is None or len(numbers) < 2:
            return None
        return said(max(numbers) if column.best == "high" else min(numbers), column.form)


def _head(column: Column, numeric: bool) -> str:
    look = ' class="number"' if numeric else ""
    first = ' data-first="down"' if column.best == "high" else ""
    name = written(column.name)
    return f'<th scope="col"{look}{first}><button type="button">{name}</button></th>'


def _cell(value: Value, column: Column, numeric: bool, best: str | None) -> str:
    text = said(value, column.form)
    if not numeric:
        return f"<td>{written(text)}</td>"
    sort = repr(float(value)) if isinstance(value, int | float) and math.isfinite(value) else ""
    if sort and text == best:
        inside = f'<span title="best">{written(text)}</span>'
        return f'<td class="number best" data-value="{sort}">{inside}</td>'
    return f'<td class="number" data-value="{sort}">{written(text)}</td>'


def said(value: Value, form: str = "") -> str:
    """A value as text; None and NaN are a dash."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, str):
        return value
    return format(value, form) if form else number(value)


@dataclass(frozen=True, slots=True)
class Charts:
    """Charts side by side if there is room."""

    charts: Sequence[chart.Chart]

    def html(self) -> str:
        each = (f'<figure class="chart">{one.svg(style=False)}</figure>' for one in self.charts)
        return f'<div class="charts">{"".join(each)}</div>'


@dataclass(frozen=True, slots=True)
class Maps:
    """Interactive heat maps, one for every panel."""

    panels: Sequence[Panel]

    def html(self) -> str:
        return laid_out(self.panels, self.panels, lambda n: heat_map([self.panels[n]]))


@dataclass(frozen=True, slots=True)
class Example:
    """A sentence, its translation, and the attention: one panel, or several to choose from."""

    source: str
    translation: str
    reference: str = ""
    panels: Sequence[Panel] = ()
    note: str = ""

    def html(self) -> str:
        facts = [("Source", self.source), ("Translation", self.translation)]
        facts += [("Reference", self.reference)] if self.reference else []
        look = "example wide" if any(map(broad, self.panels)) else "example"
        picture = heat_map(self.panels) if self.panels else ""
        return f'<li class="{look}">{answered(facts, self.note)}{picture}</li>'


def answered(facts: Sequence[tuple[str, str]], note: str, answer: int | None = 1) -> str:
    """Names and values, one of which may be the answer, and a note below them."""
    looks = ("", ' class="answer"')
    each = "".join(
        f"<dt>{written(name)}</dt><dd{looks[n == answer]} dir=auto>{written(value)}</dd>"
        for n, (name, value) in enumerate(facts)
    )
    remark = f'<p class="note">{written(note)}</p>' if note else ""
    return f'<dl class="sentences">{each}</dl>{remark}'


@dataclass(frozen=True, slots=True)
class Examples:
    """Examples one after another."""

    examples: Sequence[Block]

    def html(self) -> str:
        return f'<ol class="examples">{"".join(each.html() for each in self.examples)}</ol>'


def broad(panel: Panel) -> bool:
    """Whether its heat map takes the whole width of a page."""
    return max(len(panel.rows), len(panel.columns)) >= BROAD


def laid_out(panels: Sequence[Panel], every: Sequence[Panel], drawn: Callable[[int], str]) -> str:
    """Maps in a grid, the heads of one attention beside each other.

    every  all panels that may be shown there: their size decides how many fit a line
    drawn  the map in each place
    """
    wanted = max(map(len, abreast(panels)), default=1)
    look, places = side_by_side(every, wanted), iter(range(len(panels)))
    return "".join(
        f'<div class="{look}">{"".join(drawn(next(places)) for _ in row)}</div>'
        for row in abreast(panels, others=len(panels))
    )


def side_by_side(panels: Sequence[Panel], wanted: int) -> str:
    """The layout of maps: at most `wanted` in a line, and fewer if they have many words."""
    longest = max((len(names) for p in panels for names in (p.rows, p.columns)), default=0)
    room = next((n for words, n in ABREAST if longest <= words), 1)
    if any(len(panel.title) > TITLE for panel in panels):
        room = min(room, 2)
    even = (n for n in range(room, 1, -1) if wanted % n == 0)  # so that no line is half empty
    return f"maps by-{next(even, min(wanted, room))}"


def heat_map(panels: Sequence[Panel], more: str = "") -> str:
    """A heat map that the page's script draws from the numbers inside; `more` attributes."""
    rows = max(len(panel.rows) for panel in panels)
    return (
        f'<figure class="map" data-rows="{rows}"{more}>'
        f'<script type="application/json">{embedded(packed(panels))}</script></figure>'
    )


def packed(panels: Sequence[Panel]) -> dict[str, Any]:
    """Panels as compact data: each list of labels once, each weight in a byte, or in two if there
    are few: one byte rounds by up to 1 in 500, and other views would show other digits.
    """
    few = sum(panel.weight.size for panel in panels) <= FEW
    steps, kind = (65535, "<u2") if few else (255, "u1")
    labels: dict[tuple[str, ...], int] = {}
    each = []
    for panel in panels:
        range = Range.of(panel)
        weight = np.rint(steps * shares(panel)).astype(kind).tobytes()
        each.append(
            {
                "title": shown(panel.title),
                "rows": labels.setdefault(panel.rows, len(labels)),
                "columns": labels.setdefault(panel.columns, len(labels)),
                "low": range.low,
                "high": range.high,
                "weight": base64.b64encode(weight).decode(),
            }
        )
    return {"labels": [[shown(name) for name in names] for names in labels], "panels": each}


def embedded(data: Any) -> str:
    """JSON for the inside of a script element: nothing in it can end the element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text
