"""Line charts and bar charts: SVG for a page, blocks and dots for the terminal.

chart = LineChart("BLEU by length", [Line("attention", [5, 10], [98, 97])], x="words", y="BLEU")
rich.print(chart)
chart.svg()
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult

from heed.errors import ShapeError
from heed.viewing import dots
from heed.viewing import drawing as draw
from heed.viewing.drawing import number, steps

# The colour-blind can distinguish them too, and each line also has marks of its own shape.
INKS = ("#3567c8", "#d9702b", "#1b8f7a", "#8c56c2", "#c43d6d", "#7a7a86")
BRIGHT = ("#7ea6f4", "#f0a064", "#4fc4ab", "#bd94ea", "#f082a8", "#a6a6b2")
_BRIGHT = "".join(
    f"  .heed-line-{n} {{ stroke: {bright}; }} .heed-mark-{n} {{ fill: {bright}; }}\n"
    for n, bright in enumerate(BRIGHT)
)
STYLE = f"@media screen and (prefers-color-scheme: dark) {{\n{_BRIGHT}}}\n"
WIDTH, HEIGHT, MARGIN = 560, 310, 16
MARKED = 40  # points; a line with more does not mark them
DRAWN = 400  # points of a line at most


@dataclass(frozen=True, slots=True)
class Line:
    """A named line; a y that is not a number leaves a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ShapeError(f"line '{self.name}' has {len(self.x)} x and {len(self.y)} y")

    def points(self) -> list[tuple[float, float]]:
        """The points that can be drawn."""
        pairs = zip(self.x, self.y, strict=True)
        return [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]

    def pieces(self) -> Iterator[list[tuple[float, float]]]:
        """Runs of points without a gap between."""
        piece: list[tuple[float, float]] = []
        for point in zip(self.x, self.y, strict=True):
            if all(map(math.isfinite, point)):
                piece.append(point)
            elif piece:
                yield piece
                piece = []
        if piece:
            yield piece


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over one pair of axes. `ticks` names places of the x axis; `low` is always in view."""

    title: str
    lines: Sequence[Line]
    x: str = ""
    y: str = ""
    ticks: Sequence[tuple[float, str]] = ()
    low: float | None = None

    def bounds(self) -> tuple[float, float, float, float]:
        """The least and the greatest x, then y; they always differ."""
        points = [point for line in self.lines for point in line.points()] or [(0.0, 0.0)]
        xs, ys = zip(*points, strict=True)
        low = min(ys) if self.low is None else min(self.low, *ys)
        left, right, high = min(xs), max(xs), max(ys)
        if left == right:  # a single x is in the middle
            left, right = left - 1, right + 1
        if low == high:  # a single value is compared with zero
            low, high = min(low, 0.0), max(high, 0.0) if high else 1.0
        return left, right, low, high

    def marks(self) -> Sequence[tuple[float, str]]:
        """Places on the x axis and their names: those of all points if they are few."""
        left, right, *_ = self.bounds()
        places = sorted({x for line in self.lines for x, _ in line.points()})
        if len(places) > 10 or not places:
            places = [x for x in steps(left, right, 7) if left <= x <= right]
        return self.ticks or list(zip(places, draw.ticks(places), strict=True))

    def svg(self, style: bool = True) -> str:
        """The chart as the text of an SVG file; without style if the page already has it."""
        left, right, low, high = self.bounds()
        ticks = steps(low, high, 5)
        names = draw.ticks(ticks)
        frame = Frame(
            (left, right), (ticks[0], ticks[-1]), 36 + max(draw.extent(name, 12) for name in names)
        )
        body = _titled(self.title) + _legend([line.name for line in self.lines])
        for tick, name in zip(ticks, names, strict=True):
            body += _level(frame, tick, name)
        body += "".join(
            draw.lettered((x, HEIGHT - 38), name, 12, "soft", "middle")
            for x, name in _apart([(frame.across(x), name) for x, name in self.marks()])
        )
        body += _named_axes(self.x, self.y)
        body += "".join(self._line(frame, n, line) for n, line in enumerate(self.lines))
        return _framed(body, f"{self.title}: line chart", (WIDTH, HEIGHT), style)

    def _line(self, frame: Frame, n: int, line: Line) -> str:
        body = "".join(_stroke(frame, n, line.name, piece) for piece in line.pieces())
        points = line.points()
        every = max(1, math.ceil(len(points) / MARKED))
        for x, y in points[::every]:
            at = (frame.across(x), frame.up(y))
            tip = (
                f"{line.name}: {dict(self.ticks).get(x, number(x))} {self.x}, {number(y)} {self.y}"
            )
            body += _mark(n, at, tip, seen=every == 1)
            if len(points) == 1:
                body += draw.lettered((at[0] + 10, at[1] + 4), number(y), 12, "soft")
        return f"<g>{body}</g>"

    def _repr_html_(self) -> str:
        return self.svg()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from dots.lines(self, options.max_width, options.ascii_only)


@dataclass(frozen=True, slots=True)
class Bars:
    """A named value for each label of a bar chart; one that is not a number has no bar."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars from left to right, one of each name under every label.

    full  the value of a bar of full length, if it is more than the highest value
    note  a remark on the bars, written below
    """

    title: str
    labels: Sequence[str]
    bars: Sequence[Bars]
    unit: str = ""
    full: float = 0.0
    note: str = ""

    def __post_init__(self) -> None:
        for bars in self.bars:
            if len(bars.values) != len(self.labels):
                raise ShapeError(
                    f"'{bars.name}' has {len(bars.values)} values for {len(self.labels)} labels"
                )

    def highest(self) -> float:
        """The value of a bar of full length; bars start at zero."""
        values = [v for bars in self.bars for v in bars.values if math.isfinite(v)]
        return max([*values, self.full]) or 1.0

    def figures(self) -> list[list[str]]:
        """The values of each name as text, all of the chart with as many decimals."""
        said = iter(draw.alike([value for bars in self.bars for value in bars.values]))
        return [[next(said) for _ in bars.values] for bars in self.bars]

    def svg(self, style: bool = True) -> str:
        """The chart as the text of an SVG file; without style if the page already has it."""
        several = len(self.bars) > 1
        left = (
            MARGIN + 8 + max((draw.extent(draw.shortened(x), 13) for x in self.labels), default=0)
        )
        thick, y = (16, 62.0) if several else (20, 42.0)  # a legend is between them and the title
        y -= 0 if self.title else 28
        scale = (WIDTH - left - 76) / self.highest()
        names, figures = [bars.name for bars in self.bars], self.figures()
        title = _titled(self.title) if self.title else ""
        body, right = title + _legend(names), self._heading(names)
        for place, label in enumerate(self.labels):
            middle = y + thick * len(self.bars) / 2 + 4
            body += draw.lettered((left - 8, middle), label, 13, anchor="end")
            for n, bars in enumerate(self.bars):
                long = bars.values[place] * scale
                figure = figures[n][place]
                body += self._bar(n, (left, y), long, thick, place, figure)
                named = left + 6 + draw.extent(figure, 12)
                right = max(right, named + (max(long, 0) if math.isfinite(long) else 0))
                y += thick
            y += 9
        if self.note:
            y += 16
            body += draw.lettered((MARGIN, y - 2), self.note, 12.5, "soft", longest=80)
            right = max(right, MARGIN + draw.extent(draw.shortened(self.note, 80), 12.5))
        width = min(WIDTH, right + MARGIN)
        about = f"{self.title}: bar chart" if self.title else "bar chart"
        return _framed(body, about, (width, y + 14), style)

    def _heading(self, names: Sequence[str]) -> float:
        """The right end of title and legend."""
        title = 1.08 * draw.extent(draw.shortened(self.title, 70), 15)  # it is bold
        marked = [34 + draw.extent(draw.shortened(name), 12.5) for name in names]
        return MARGIN + max(title, sum(marked) if len(names) > 1 else 0)

    def _bar(
        self, n: int, at: tuple[float, float], long: float, thick: int, place: int, figure: str
    ) -> str:
        value, level = (
            self.bars[n].values[place],
            at[1] + thick / 2 + 3.2,
        )  # of letters half as high
        if not math.isfinite(value):
            return draw.lettered((at[0] + 6, level), figure, 12, "soft")
        tip = f"{self.labels[place]}, {self.bars[n].name}: {number(value)} {self.unit}"
        long, colour = max(long, 0.0), n % len(INKS)
        return (
            f'<rect class="heed-mark-{colour}" x="{at[0]:.5g}" y="{at[1]:.5g}" width="{long:.5g}" '
            f'height="{thick - 2}" rx="2" fill="{INKS[colour]}">'
            f"<title>{draw.written(tip)}</title></rect>"
            + draw.lettered((at[0] + long + 6, level), figure, 12, "soft")
        )

    def _repr_html_(self) -> str:
        return self.svg()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from dots.bars(self, options.max_width, options.ascii_only)


Chart = LineChart | BarChart


@dataclass(frozen=True, slots=True)
class Frame:
    """From numbers to coordinates of the drawing."""

    x: tuple[float, float]
    y: tuple[float, float]
    left: float

    def across(self, x: float) -> float:
        return self.left + 6 + (x - self.x[0]) / (self.x[1] - self.x[0]) * (WIDTH - self.left - 30)

    def up(self, y: float) -> float:
        return HEIGHT - 58 - (y - self.y[0]) / (self.y[1] - self.y[0]) * (HEIGHT - 130)


def thinned(points: list[tuple[float, float]], most: int = DRAWN) -> list[tuple[float, float]]:
    """At most `most` points, which keep the peaks and valleys of each stretch."""
    if len(points) <= most:
        return points
    stretch = math.ceil(2 * len(points) / (most - 2))
    kept = [points[0]]
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return [*kept, points[-1]]


def _stroke(frame: Frame, n: int, name: str, piece: list[tuple[float, float]]) -> str:
    path = "L".join(f"{frame.across(x):.5g} {frame.up(y):.5g}" for x, y in thinned(piece))
    colour = n % len(INKS)
    return (
        f'<path class="heed-line-{colour}" d="M{path}" fill="none" stroke="{INKS[colour]}" '
        f'stroke-width="2" stroke-linejoin="round"><title>{draw.written(name)}</title></path>'
    )


def _mark(n: int, at: tuple[float, float], tip: str, seen: bool) -> str:
    """A point; one that is not drawn still has a tooltip."""
    look = f'class="heed-mark-{n % len(INKS)}" fill="{INKS[n % len(INKS)]}"'
    shape = _shape(n, at, look) if seen else ""
    return (
        f'<g>{shape}<circle cx="{at[0]:.5g}" cy="{at[1]:.5g}" r="9" fill-opacity="0"/>'
        f"<title>{draw.written(tip)}</title></g>"
    )


def _shape(n: int, at: tuple[float, float], look: str) -> str:
    """A disc, a square, a diamond, a triangle."""
    x, y = at
    if n % 4 == 0:
        return f'<circle cx="{x:.5g}" cy="{y:.5g}" r="4" {look}/>'
    path = ("m-3.5-3.5h7v7h-7z", "m0-5 5 5-5 5-5-5z", "m0-5 4.8 8.4h-9.6z")[n % 4 - 1]
    return f'<path d="M{x:.5g} {y:.5g}{path}" {look}/>'


def _titled(title: str) -> str:
    return draw.lettered((16, 26), title, 15, longest=70, more=' font-weight="600"')


def _legend(names: Sequence[str]) -> str:
    """The name of each line beside its mark; a single one needs none."""
    body, x = "", 16.0
    for n, name in enumerate(names if len(names) > 1 else ()):
        look = f'class="heed-mark-{n % len(INKS)}" fill="{INKS[n % len(INKS)]}"'
        said = f' data-name="{draw.written(name)}"'  # the page's script translates by it
        body += _shape(n, (x + 5, 43), look) + draw.lettered((x + 15, 47), name, 12.5, more=said)
        x += 34 + draw.extent(draw.shortened(name), 12.5)
    return body


def _level(frame: Frame, tick: float, name: str) -> str:
    y = frame.up(tick)
    return (
        f'<path class="heed-rule" d="M{frame.left:.5g} {y:.5g}H{WIDTH - 18}" stroke="#e2e2e8" '
        'fill="none" shape-rendering="crispEdges"/>'
        + draw.lettered((frame.left - 8, y + 4), name, 12, "soft", "end")
    )


def _apart(names: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """The names along an axis that have room: the last, which says where it ends, goes first."""
    kept: list[tuple[float, str]] = []
    edge = math.inf
    for x, name in reversed(names):
        half = draw.extent(draw.shortened(name), 12) / 2
        if x + half <= edge:
            kept.append((x, name))
            edge = x - half - 4
    return kept[::-1]


def _named_axes(x: str, y: str) -> str:
    turn = f' transform="rotate(-90 18 {HEIGHT / 2})"'
    return draw.lettered((WIDTH / 2, HEIGHT - 14), x, 12, "soft", "middle", 60) + draw.lettered(
        (18, HEIGHT / 2), y, 12, "soft", "middle", 40, turn
    )


def _framed(body: str, about: str, size: tuple[float, float], style: bool) -> str:
    return draw.drawing(*size, about, body, draw.STYLE + STYLE if style else "")
