"""Heat maps for the terminal: source across, target down.

    rich.print(HeatMap(panel))

On a colour terminal each cell is a coloured background, so that it looks the same in dark and light
terminals. Elsewhere it is a number, or a block if numbers do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from heed.viewing.escaping import escaped
from heed.viewing.panels import Panel

# Viridis: perceptually uniform, also in grey and for the colour-blind, and unlike the background of
# dark and light terminals.
SCALE = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
TALLEST = 12  # lines that upright column labels may take
WIDEST = 8  # cells that a level column label may take


BETWEEN = "source across, target down"
WITHIN = "keys across, queries down"
"""The axes of attention between two sequences, and within one."""


def axes_of(panel: Panel) -> str:
    """The axes of a panel, in words; a single row is one query for a whole text."""
    within = panel.rows == panel.columns or len(panel.rows) == 1
    return WITHIN if within else BETWEEN


class HeatMap:
    """A panel as a heat map that fits the console; a note says what was cut."""

    def __init__(self, panel: Panel, axes: str = "") -> None:
        self.panel, self.axes = panel, axes or axes_of(panel)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        panel = self.panel
        colour = console.is_terminal and console.color_system in ("256", "truecolor", "windows")
        layout = _fit(panel, options.max_width, _paints(panel, colour, options.ascii_only))
        yield Text(shown(panel.title), style="bold")
        yield from layout.header(panel)
        for label, weights in zip(panel.rows, panel.weight, strict=True):
            yield layout.line(label, weights[: layout.columns].tolist())
        yield Text()
        yield _indented(layout, layout.paint.legend())
        yield _indented(layout, Text(shown(self.axes), style="dim"))
        for note in layout.notes(panel):
            yield _indented(layout, Text(note, style="dim"))


class Paint(Protocol):
    """A style of cells."""

    @property
    def least(self) -> int:
        """The least width of a cell."""

    def cell(self, weight: float, width: int) -> Text:
        """One weight, `width` cells wide."""

    def legend(self) -> Text:
        """The key to the colours, numbers or shades."""


@dataclass(frozen=True, slots=True)
class Range:
    """The lowest weight of a panel (or zero) and the highest."""

    low: float
    high: float

    @classmethod
    def of(cls, panel: Panel) -> Range:
        """The range of a panel's weights."""
        low = min(0.0, float(panel.weight.min(initial=0.0)))
        return cls(low, float(panel.weight.max(initial=low)))

    def share(self, weight: float) -> float:
        """A weight as a share of the range, 0 to 1."""
        return (weight - self.low) / (self.high - self.low) if self.high > self.low else 0.0


@dataclass(frozen=True, slots=True)
class Colours:
    """A patch of colour."""

    range: Range
    least: int = 1

    def cell(self, weight: float, width: int) -> Text:
        return Text(" " * width, Style(bgcolor=_colour(self.range.share(weight))))

    def legend(self) -> Text:
        bar = Text.assemble(f"{self.range.low:.2g} ")
        for step in range(24):
            bar.append(" ", Style(bgcolor=_colour(step / 23)))
        return bar.append(f" {self.range.high:.2f}")


@dataclass(frozen=True, slots=True)
class Numbers:
    """A number of hundredths."""

    dot: str = "·"
    least: int = 4

    def cell(self, weight: float, width: int) -> Text:
        hundredths = round(100 * weight)
        return Text(f"{hundredths or self.dot:>{(width + 1) // 2}}".ljust(width))

    def legend(self) -> Text:
        return Text(f"weights in %; {self.dot} is below 0.5")


@dataclass(frozen=True, slots=True)
class Blocks:
    """A shade of grey."""

    range: Range
    shades: str = " ░▒▓█"
    least: int = 1

    def cell(self, weight: float, width: int) -> Text:
        shade = round(self.range.share(weight) * (len(self.shades) - 1))
        return Text(self.shades[shade] * width)

    def legend(self) -> Text:
        bar = "".join(shade * 4 for shade in self.shades)
        return Text(f"{self.range.low:.2g} |{bar}| {self.range.high:.2f}")


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout that fits: the width of each cell of a row, and that of row labels."""

    paint: Paint
    cells: tuple[int, ...]
    margin: int
    upright: bool

    @property
    def columns(self) -> int:
        """The number of columns that are shown."""
        return len(self.cells)

    def header(self, panel: Panel) -> Iterator[Text]:
        """The column labels."""
        labels = [[shown(label)] for label in panel.columns[: self.columns]]
        if self.upright:
            letters = [_letters(label) for (label,) in labels]
            height = min(TALLEST, max(map(len, letters), default=0))
            labels = [_stacked(each, height) for each in letters]
        for line in zip(*labels, strict=True):
            text = "".join(map(_centred, line, self.cells))
            yield Text(" " * (self.margin + 1) + text.rstrip(), style="bold")

    def line(self, label: str, weights: list[float]) -> Text:
        """A row label and its cells."""
        label = cut(shown(label), self.margin)
        line = Text(" " * (self.margin - cell_len(label)) + label + " ", style="bold")
        cells = Text()
        for weight, width in zip(weights, self.cells, strict=True):
            cells.append_text(self.paint.cell(weight, width))
        if not any(span.style for span in cells.spans):
            cells.rstrip()
        return Text.assemble(line, cells, no_wrap=True)

    def notes(self, panel: Panel) -> Iterator[str]:
        """Notes on what was left out."""
        every = len(panel.columns)
        if self.columns < every:
            yield f"columns {self.columns + 1} to {every} of {every} do not fit this width"
        tall = self.upright and any(
            len(_letters(shown(label))) > TALLEST for label in panel.columns[: self.columns]
        )
        if tall or any(cell_len(shown(label)) > self.margin for label in panel.rows):
            yield "long labels are cut at …"


def shown(label: str) -> str:
    """A visible label that cannot control the terminal: newlines, blanks and escape codes are
    escaped."""
    if not label.strip(" "):
        return "␣" * len(label)
    return escaped(label)


def cut(label: str, width: int) -> str:
    """A label cut to a width in cells; if it is cut, it ends in …"""
    if cell_len(label) <= width:
        return label
    return set_cell_size(label, max(0, width - 1)).rstrip() + "…"


def _paints(panel: Panel, colour: bool, ascii_only: bool) -> list[Paint]:
    """The styles to try, best first; the last always fits."""
    range = Range.of(panel)
    if colour:
        return [Colours(range)]
    blocks = Blocks(range, " .:+#") if ascii_only else Blocks(range)
    sayable = range.low == 0 and range.high < 9.995
    return [Numbers("." if ascii_only else "·"), blocks] if sayable else [blocks]


def _fit(panel: Panel, width: int, paints: list[Paint]) -> Layout:
    """The widest cells that show every column; otherwise the narrowest, as many as fit.

    Tried in turn: cells of one width, cells as wide as their labels, and labels turned upright.
    """
    margin = max((cell_len(shown(label)) for label in panel.rows), default=0)
    margin = min(margin, max(3, width // 3))
    own, count = [cell_len(shown(label)) for label in panel.columns], len(panel.columns)
    longest = max(own, default=1)
    glyph = max((cell_len(c) for label in panel.columns for c in _letters(shown(label))), default=1)
    level = [[longest + 2] * count, [longest + 1] * count, [each + 1 for each in own]]
    upright = [[glyph + gap] * count for gap in (2, 1, 0)]
    room = max(1, width - margin - 1)
    for paint in paints:
        for turned, each in ((False, level if longest <= WIDEST else []), (True, upright)):
            for widths in each:
                cells = tuple(max(cell, paint.least) for cell in widths)
                if sum(cells) <= room:
                    return Layout(paint, cells, margin, turned)
    return Layout(paints[-1], (glyph,) * max(1, room // glyph), margin, True)


def _colour(share: float) -> Color:
    """A colour of the scale."""
    place = min(max(share, 0.0), 1.0) * (len(SCALE) - 1)
    first = min(int(place), len(SCALE) - 2)
    pairs = zip(SCALE[first], SCALE[first + 1], strict=True)
    return Color.from_rgb(*(round(a + (b - a) * (place - first)) for a, b in pairs))


def _letters(label: str) -> list[str]:
    """The characters of a label, each with the marks that combine with it."""
    letters: list[str] = []
    for character in label:
        if letters and cell_len(character) == 0:
            letters[-1] += character
        else:
            letters.append(character)
    return letters


def _stacked(letters: list[str], height: int) -> list[str]:
    """Letters from top to bottom, standing on the cells below."""
    if len(letters) > height:
        letters = [*letters[: height - 1], "⋮"]
    return [""] * (height - len(letters)) + letters


def _centred(piece: str, width: int) -> str:
    """A piece in the middle of a cell."""
    return set_cell_size(" " * ((width - cell_len(piece)) // 2) + piece, width)


def _indented(layout: Layout, text: Text) -> Text:
    return Text.assemble(" " * (layout.margin + 1), text)
