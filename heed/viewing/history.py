"""The history of a training: statistics as lines over its steps, and maps with a slider.

rich.print(history)                       lines, in the terminal
history.page().write("history.html")      the same, and the maps under a slider

The maps come from pictures that were saved during training. Only numbers and words are read from
these files, which are not trusted; none of their markup reaches a page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar
from xml.etree import ElementTree

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from heed.viewing.blocks import (
    Block,
    Charts,
    Column,
    Heading,
    Paragraph,
    Table,
    answered,
    heat_map,
    laid_out,
)
from heed.viewing.chart import LineChart
from heed.viewing.drawing import number, written
from heed.viewing.image import TOLD
from heed.viewing.page import Page
from heed.viewing.panels import Panel
from heed.viewing.terminal import shown

SVG = "{http://www.w3.org/2000/svg}"
LINES = 40  # of a sample's text that a page shows
LONGEST = 300  # letters of each
MAPS = 16  # side by side
_SIZE = re.compile(r"heat map, (\d{1,4}) target rows, (\d{1,4}) source columns")
_NAMED = re.compile(r"[a-z]+ {2,}.*")
_CELL = re.compile(r"(.*) ← (.*)  (-?\d+\.\d{3})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Moment:
    """The sample of a step: the maps, and the model's text."""

    step: int
    panels: Sequence[Panel] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Scrub:
    """The maps of all moments under one slider; without its script each map has a list of steps."""

    moments: Sequence[Moment]
    kind: ClassVar[str] = "history"

    def html(self) -> str:
        """Markup, with all text escaped."""
        steps = " ".join(str(moment.step) for moment in self.moments)
        texts = "".join(_said(moment) for moment in self.moments if moment.text)
        fullest = max((moment.panels for moment in self.moments), key=len, default=())[:MAPS]
        every = [panel for moment in self.moments for panel in moment.panels]
        maps = laid_out(fullest, every, self._map)
        return f'<section class="scrub" data-steps="{steps}">{maps}{texts}</section>'

    def _map(self, n: int) -> str:
        """The n-th map of every moment that has it."""
        found = [(moment.step, moment.panels[n]) for moment in self.moments if moment.panels[n:]]
        panels = [
            Panel(f"step {step} · {panel.title}", panel.weight, panel.rows, panel.columns)
            for step, panel in found
        ]
        steps = " ".join(str(step) for step, _ in found)
        return heat_map(panels, f' data-steps="{steps}"')


@dataclass(frozen=True, slots=True)
class Languages:
    """A choice of the page's language; empty without the page's script."""

    kind: ClassVar[str] = "history"

    def html(self) -> str:
        """Markup of the place that the script fills."""
        return '<div class="languages"></div>'


def _said(moment: Moment) -> str:
    """The text of a sample; lines with names become names and values."""
    lines = [line[:LONGEST] for line in moment.text.splitlines()[:LINES]]
    step = f"<span>step {moment.step}</span>"
    texts = [list(some) for filled, some in groupby(lines, bool) if filled]
    # A single line may be any text of a model.
    if not all(len(text) > 1 and all(map(_NAMED.fullmatch, text)) for text in texts):
        said = "<br>".join(map(written, lines))
        return f'<p class="note" data-step="{moment.step}" dir="auto">{step}<br>{said}</p>'
    each = (
        answered([(name.capitalize(), value) for name, value in map(_parted, text)], "", None)
        for text in texts
    )
    return f'<div data-step="{moment.step}"><p class="note">{step}</p>{"".join(each)}</div>'


def _parted(line: str) -> tuple[str, str]:
    name, _, value = line.partition(" ")
    return name, value.strip()


@dataclass(frozen=True, slots=True)
class Once:
    """The numbers of the only step, since a chart of one step would be a single dot."""

    step: float
    charts: Sequence[LineChart]

    def rows(self) -> list[tuple[str, float, str]]:
        """The name, value and unit of each number."""
        return [
            (chart.title if len(chart.lines) == 1 else f"{chart.title} · {line.name}", y, chart.y)
            for chart in self.charts
            for line in chart.lines
            for _, y in line.points()
        ]

    def drawn(self) -> Grid:
        """A table for the terminal."""
        grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
        for name, side in ((self.title, "left"), ("", "right"), ("", "left")):
            grid.add_column(name, justify=side)  # type: ignore[arg-type]
        for name, value, unit in self.rows():
            grid.add_row(Text(shown(name)), Text(number(value)), Text(shown(unit), "dim"))
        return grid

    @property
    def title(self) -> str:
        """The number of the step."""
        return f"step {number(self.step)}, the only validation"

    def html(self) -> str:
        """Markup, with all text escaped."""
        return Table([Column(self.title), Column("value"), Column("unit")], self.rows()).html()


@dataclass(frozen=True, slots=True)
class History:
    """Charts over the steps of a training, and the samples of some steps."""

    title: str
    charts: Sequence[LineChart]
    moments: Sequence[Moment] = field(default=())
    note: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        told = self._once()
        for chart in () if told else self.charts:
            yield chart
            yield Text()
        if told:
            yield told.drawn()
            yield Text()
        if self.note:
            yield Text(shown(self.note), "dim")

    def blocks(self) -> list[Block]:
        """The blocks of a page."""
        blocks: list[Block] = [Languages(), self._once() or Charts(self.charts)]
        if self.moments:
            blocks += [Heading("Samples during training"), Scrub(self.moments)]
        if self.note:
            blocks.append(Paragraph(self.note))
        return blocks

    def _once(self) -> Once | None:
        """The numbers of the only step; None if there are several."""
        steps = {x for chart in self.charts for line in chart.lines for x, _ in line.points()}
        return Once(steps.pop(), self.charts) if len(steps) == 1 else None

    def page(self) -> Page:
        """A page of its own."""
        return Page(self.title, self.blocks())

    def _repr_html_(self) -> str:
        return self.page()._repr_html_()


def panels(svg: str) -> list[Panel]:
    """The panels of a picture by `heed.viewing.image.svg`; none for any other picture, or one with
    too many cells for tooltips."""
    if "<!" in svg:  # no document type, no entity: heed writes none
        return []
    try:
        root = ElementTree.fromstring(svg)
    except (ElementTree.ParseError, ValueError, RecursionError):
        return []
    sizes = [(int(r), int(c)) for r, c in _SIZE.findall(root.get("aria-label", ""))]
    plots = root.findall(f"{SVG}g")
    if root.tag != f"{SVG}svg" or not sizes or len(sizes) != len(plots):
        return []
    found = [_panel(plot, size) for plot, size in zip(plots, sizes, strict=True)]
    return [panel for panel in found if panel is not None]


def _panel(plot: ElementTree.Element, size: tuple[int, int]) -> Panel | None:
    rows, columns = size
    title = plot.find(f"{SVG}text")
    tips = [tip.text or "" for tip in plot.findall(f"{SVG}g/{SVG}path/{SVG}title")]
    cells = [match for match in map(_CELL.fullmatch, tips) if match]
    if not cells or len(cells) != rows * columns or len(cells) > TOLD:
        return None
    weights = [float(cell[3]) for cell in cells]
    return Panel.of(
        "" if title is None else title.text or "",
        [weights[r * columns : (r + 1) * columns] for r in range(rows)],
        [cells[r * columns][1] for r in range(rows)],
        [cells[c][2] for c in range(columns)],
    )
