"""Charts for the terminal: lines as dots of braille, bars as blocks; letters in plain ASCII."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from heed.viewing.drawing import number, steps, ticks
from heed.viewing.terminal import cut, shown

if TYPE_CHECKING:
    from heed.viewing.chart import BarChart, Line, LineChart

COLOURS = ("bright_blue", "yellow", "bright_green", "bright_magenta", "bright_red", "white")
TALL = 10  # lines of a chart
WIDEST = 72
# The dots of a braille cell, two across and four down, as bits of its Unicode number.
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
LETTERS = "*o+x#@"


class Canvas:
    """Cells of 2 × 4 dots, each in the colour of the last line drawn there, or one letter each."""

    def __init__(self, width: int, height: int, letters: bool) -> None:
        self.width, self.height, self.letters = width, height, letters
        self.dots = [[0] * width for _ in range(height)]
        self.owner = [[0] * width for _ in range(height)]

    def dot(self, x: float, y: float, n: int) -> None:
        """A dot at a share of the width and of the height, from the lower left."""
        across = round(x * (2 * self.width - 1))
        down = round((1 - y) * (4 * self.height - 1))
        row, column = down // 4, across // 2
        self.dots[row][column] |= DOTS[down % 4][across % 2]
        self.owner[row][column] = n

    def spot(self, x: float, y: float, n: int) -> None:
        """All dots of a cell, so that a point without a line can be seen."""
        row, column = round((1 - y) * (self.height - 1)), round(x * (self.width - 1))
        self.dots[row][column], self.owner[row][column] = 0xFF, n

    def stroke(self, a: tuple[float, float], b: tuple[float, float], n: int) -> None:
        """A straight line of dots."""
        long = max(abs(b[0] - a[0]) * 2 * self.width, abs(b[1] - a[1]) * 4 * self.height)
        for step in range(math.ceil(long) + 1):
            t = step / max(1, math.ceil(long))
            self.dot(a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t, n)

    def row(self, row: int) -> Text:
        """A row of cells as a line of text."""
        line = Text()
        for dots, n in zip(self.dots[row], self.owner[row], strict=True):
            glyph = LETTERS[n % len(LETTERS)] if self.letters else chr(0x2800 + dots)
            line.append(glyph if dots else " ", COLOURS[n % len(COLOURS)] if dots else "")
        return line


def lines(chart: LineChart, width: int, ascii_only: bool) -> Iterator[Text]:
    """A line chart; each line is named at its end, so that no colour is needed."""
    left, right, low, high = chart.bounds()
    places = steps(low, high, 4)
    bottom, top = places[0], places[-1]
    margin = max(map(cell_len, ticks(places))) + 1
    names = _ends(chart, bottom, top)
    room = min(WIDEST, width) - margin - 2
    beside = min(max((cell_len(name) for _, name in names.values()), default=0) + 1, room // 3)
    canvas = Canvas(max(4, room - beside), TALL, ascii_only)
    for n, line in enumerate(chart.lines):
        _draw(canvas, line, n, (left, right, bottom, top))
    rows = [round((1 - (tick - bottom) / (top - bottom)) * (TALL - 1)) for tick in places]
    at = dict(zip(rows, ticks(places), strict=True))
    yield Text(shown(chart.title), style="bold", no_wrap=True, overflow="ellipsis")
    if chart.y:
        yield Text(f"{'':{margin}}{shown(chart.y)}", style="dim")
    side = "|" if ascii_only else "│"
    for row in range(TALL):
        text = Text.assemble(
            (f"{at.get(row, ''):>{margin}}", "dim"), (side, "dim"), canvas.row(row)
        )
        if row in names:
            n, name = names[row]
            text.append(" " + cut(name, beside - 1), COLOURS[n % len(COLOURS)])
        text.no_wrap = True
        yield text
    yield from _foot(chart, margin, canvas.width, (left, right), ascii_only)


def _draw(canvas: Canvas, line: Line, n: int, bounds: tuple[float, float, float, float]) -> None:
    left, right, bottom, top = bounds
    for piece in line.pieces():
        places = [((x - left) / (right - left), (y - bottom) / (top - bottom)) for x, y in piece]
        for a, b in pairwise(places):
            canvas.stroke(a, b, n)
        if len(places) == 1:
            canvas.spot(*places[0], n)


def _ends(chart: LineChart, bottom: float, top: float) -> dict[int, tuple[int, str]]:
    """The row beside which each line is named: that of its end, or the nearest free one."""
    rows: dict[int, tuple[int, str]] = {}
    for n, line in enumerate(chart.lines[:TALL]):
        points = line.points()
        wish = round((1 - (points[-1][1] - bottom) / (top - bottom)) * (TALL - 1)) if points else 0
        row = min((row for row in range(TALL) if row not in rows), key=lambda row: abs(row - wish))
        value = f" {number(points[0][1])}" if len(points) == 1 else ""
        rows[row] = (n, f"{shown(line.name)}{value}")
    return rows


def _foot(
    chart: LineChart, margin: int, width: int, bounds: tuple[float, float], ascii_only: bool
) -> Iterator[Text]:
    """The x axis: its line, the names that fit, its title."""
    corner, rule = ("+", "-") if ascii_only else ("└", "─")
    yield Text(" " * margin + corner + rule * width, style="dim")
    labels = Text()
    for x, name in chart.marks():
        start = round((x - bounds[0]) / (bounds[1] - bounds[0]) * (width - 1)) - cell_len(name) // 2
        start = max(0, min(start, width - cell_len(name)))
        if start > labels.cell_len or not labels:
            labels.append(" " * (start - labels.cell_len) + shown(name))
    yield Text.assemble(" " * (margin + 1), labels, style="dim", no_wrap=True)
    if chart.x:
        yield Text(" " * (margin + 1) + shown(chart.x).center(width).rstrip(), style="dim")


def bars(chart: BarChart, width: int, ascii_only: bool) -> Iterator[Text]:
    """A bar chart."""
    width = min(WIDEST, width)
    labels = [shown(label) for label in chart.labels]
    margin = min(max(map(cell_len, labels), default=0), width // 3)
    room = max(1, width - margin - 10)
    figures = chart.figures()
    yield Text(shown(chart.title), style="bold", no_wrap=True, overflow="ellipsis")
    if len(chart.bars) > 1:
        yield _key(chart, margin, ascii_only)
    for place, label in enumerate(labels):
        for n, each in enumerate(chart.bars):
            name = cut(label, margin) if n == 0 else ""
            value = each.values[place]
            share = max(0.0, value / chart.highest()) if math.isfinite(value) else 0.0
            bar = _bar(share * room, LETTERS[n % len(LETTERS)] if ascii_only else "")
            line = Text(" " * (margin - cell_len(name)) + name + " ", no_wrap=True)
            line.append(bar, COLOURS[n % len(COLOURS)])
            yield line.append(f" {figures[n][place]}" if math.isfinite(value) else "-", "dim")
    if chart.note:
        yield Text(shown(chart.note), "dim")


def _bar(long: float, letter: str) -> str:
    """A bar to an eighth of a cell."""
    if letter:
        return letter * round(long)
    whole, eighths = divmod(round(long * 8), 8)
    return "█" * whole + ("" if not eighths else "▏▎▍▌▋▊▉"[eighths - 1])


def _key(chart: BarChart, margin: int, ascii_only: bool) -> Text:
    key = Text(" " * (margin + 1), no_wrap=True, overflow="ellipsis")
    for n, each in enumerate(chart.bars):
        key.append(LETTERS[n % len(LETTERS)] if ascii_only else "█", COLOURS[n % len(COLOURS)])
        key.append(f" {shown(each.name)}  ")
    return key
