"""Panels as pictures: SVG by hand, PNG by matplotlib; source across, target down.

    image.save(panel, "love.svg")
    image.save([head_0, head_1, head_2], "heads.png", columns=3)

An SVG has its own light and dark colours, and needs no other file.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len

from heed.errors import Refused
from heed.viewing import drawing as draw
from heed.viewing.panels import Panel, abreast
from heed.viewing.terminal import Range, axes_of, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOLD = 1600  # cells; with more, there are no tooltips, which would be most of the file
GAP = 28.0  # around and between panels
LINE, LETTERS, LONGEST = 20.0, 13.0, 72  # of a line above a group: height, size, most letters
# Fonts with Chinese, Japanese and Korean, by matplotlib's names.
CJK = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "PingFang SC"),
    *("PingFang HK", "Hiragino Sans GB", "Heiti SC", "Heiti TC", "STHeiti", "Microsoft YaHei"),
    *("SimHei", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback"),
    *("AR PL UMing CN", "Arial Unicode MS", "Unifont"),
)


@dataclass(frozen=True, slots=True)
class Group:
    """Panels below lines that tell what they are of: a text and its answer."""

    text: str
    panels: Sequence[Panel]
    answer: str = ""

    @property
    def lines(self) -> list[str]:
        """The lines, each cut so that it fits a picture."""
        said = (self.text, f"→ {self.answer}" if self.answer else "")
        return [draw.shortened(" ".join(line.split()), LONGEST) for line in said if line.strip()]


Panels = Panel | Sequence[Panel] | Sequence[Group]


def save(panels: Panels, path: str | Path, columns: int | None = None) -> None:
    """Write panels as the kind of picture that the file's ending tells: .svg or .png."""
    kinds = {".svg": lambda: svg(panels, columns).encode(), ".png": lambda: png(panels, columns)}
    ending = Path(path).suffix.lower()
    if ending not in kinds:
        raise Refused(
            f"'{path}' is not a picture that heed can write; end its name in .svg or .png"
        )
    draw.write(path, kinds[ending]())


def svg(panels: Panels, columns: int | None = None) -> str:
    """One panel, or several in a grid, as the text of an SVG file; groups one below the other."""
    rows = _rows(panels, columns)
    body, y = "", GAP
    for row in rows:
        for n, line in enumerate(row.lines):
            bold = "" if n else ' font-weight="600"'
            body += draw.lettered((GAP, y + LETTERS), line, LETTERS, longest=LONGEST, more=bold)
            y += LINE
        x, y = GAP, y + (LINE / 2 if row.lines else 0)
        for plot in row.plots:
            body += f'<g transform="translate({x:.5g} {y:.5g})">{plot.body()}</g>'
            x += plot.width + GAP
        y += row.height
    about = "; ".join(plot.about for row in rows for plot in row.plots)
    return draw.drawing(max(row.width for row in rows) + GAP, y, about, SCALE_BAR + body)


@dataclass(frozen=True, slots=True)
class Row:
    """Plots side by side, and the lines above them if they are the first of a group."""

    plots: list[Plot]
    lines: list[str]

    @property
    def width(self) -> float:
        """The room from the left to the end of the last plot, or of a longer line."""
        lines = [1.08 * draw.extent(line, LETTERS) for line in self.lines]  # one is bold
        return GAP + max([sum(plot.width + GAP for plot in self.plots) - GAP, *lines])

    @property
    def height(self) -> float:
        """The height of the plots, with the gap below."""
        return max(plot.height for plot in self.plots) + GAP


def _rows(panels: Panels, columns: int | None) -> list[Row]:
    """`columns` side by side; by default the heads of one attention."""
    given = [panels] if isinstance(panels, Panel) else list(panels)
    groups = [each for each in given if isinstance(each, Group)]
    groups += [Group("", [each for each in given if isinstance(each, Panel)])]
    found = []
    for group in groups:
        rows = abreast(group.panels)
        if columns is not None:
            every = list(group.panels)
            rows = [every[i : i + columns] for i in range(0, len(every), columns)]
        found += [
            Row([Plot(one) for one in row], [] if n else group.lines) for n, row in enumerate(rows)
        ]
    if not found:
        raise Refused("there is nothing to draw: no panel was given")
    return found


_STOPS = "".join(
    f'<stop offset="{place:.2f}" stop-color="rgb{colour}"/>'
    for place, colour in zip(np.linspace(0, 1, len(draw.INK)), draw.INK, strict=True)
)
SCALE_BAR = f'<defs><linearGradient id="heed-scale">{_STOPS}</linearGradient></defs>'


@dataclass(frozen=True)
class Plot:
    """The layout of one panel: title, labels above and beside, cells, colour bar."""

    panel: Panel

    @cached_property
    def about(self) -> str:
        rows, columns = self.panel.weight.shape
        return f"{self.panel.title}: heat map, {rows} target rows, {columns} source columns"

    @cached_property
    def cell(self) -> int:
        """The side of a cell: larger if there are few."""
        return min(44, max(10, 640 // max(1, len(self.panel.rows), len(self.panel.columns))))

    @cached_property
    def font(self) -> float:
        return min(14.0, max(8.0, self.cell * 0.62))

    @cached_property
    def left(self) -> float:
        """The room for the row labels."""
        labels = map(draw.shortened, self.panel.rows)
        return max((draw.extent(label, self.font) for label in labels), default=0.0) + 8

    @cached_property
    def level(self) -> bool:
        """Whether every column label fits above its cell without being rotated."""
        return all(draw.extent(label, self.font) <= self.cell - 3 for label in self.panel.columns)

    @cached_property
    def top(self) -> float:
        """The room for the title and the column labels."""
        if self.level:
            return 32 + self.font + 6
        labels = map(draw.shortened, self.panel.columns)
        return 32 + max((self._standing(label) for label in labels), default=0.0) + 6

    @cached_property
    def width(self) -> float:
        title = draw.extent(draw.shortened(self.panel.title, 48), 15)
        cells = self.left + self.cell * len(self.panel.columns)
        return max(title, cells, self.left + 150)

    @cached_property
    def height(self) -> float:
        return self.top + self.cell * len(self.panel.rows) + 48

    def body(self) -> str:
        """The markup of the whole plot, with its corner at zero."""
        title = draw.lettered((0, 15), self.panel.title, 15, longest=48, more=' font-weight="600"')
        return title + self._columns() + self._rows() + self._cells() + self._legend()

    def _standing(self, label: str) -> float:
        """The height of an upright label."""
        return self.font * 1.05 * len(label) if wide(label) else draw.extent(label, self.font)

    def _columns(self) -> str:
        """Level labels if they fit; otherwise Chinese from top to bottom, the rest rotated."""
        parts = []
        for place, label in enumerate(self.panel.columns):
            x, y = self.left + self.cell * (place + 0.5), self.top - 6
            if self.level:
                parts.append(draw.lettered((x, y), label, self.font, anchor="middle"))
            elif wide(draw.shortened(label)):
                parts.append(self._stacked(x, y, label))
            else:
                x += self.font * 0.35
                turn = f' transform="rotate(-90 {x:.5g} {y:.5g})"'
                parts.append(draw.lettered((x, y), label, self.font, more=turn))
        return "".join(parts)

    def _stacked(self, x: float, y: float, label: str) -> str:
        letters = draw.shortened(label)
        lines = [
            draw.lettered((x, y - self.font * 1.05 * above), letter, self.font, anchor="middle")
            for above, letter in enumerate(reversed(letters))
        ]
        return f"<g>{''.join(lines)}<title>{draw.written(label)}</title></g>"

    def _rows(self) -> str:
        place = (self.left - 8, self.top + self.cell / 2 + self.font * 0.35)
        return "".join(
            draw.lettered((place[0], place[1] + self.cell * row), label, self.font, anchor="end")
            for row, label in enumerate(self.panel.rows)
        )

    def _cells(self) -> str:
        """Squares of colour, with numbers if there is room, and tooltips unless too many."""
        share = draw.shares(self.panel)
        colour = draw.colours(share)
        told = share.size <= TOLD
        side = self.cell - (self.cell >= 12)
        parts = [self._edge(), '<g class="heed-cells" shape-rendering="crispEdges">']
        for (row, column), weight in np.ndenumerate(self.panel.weight):
            x, y = self.left + self.cell * column, self.top + self.cell * row
            red, green, blue = colour[row, column]
            tip = f"<title>{self._told(row, column)}</title>" if told else ""
            parts.append(
                f'<path d="M{x:.5g} {y:.5g}h{side}v{side}h-{side}z" '
                f'fill="#{red:02x}{green:02x}{blue:02x}"' + (f">{tip}</path>" if tip else "/>")
            )
            if self.cell >= 34 and share[row, column] >= 0.05:
                ink = "#ffffff" if share[row, column] > 0.6 else "#1d1d24"
                parts.append(
                    f'<text x="{x + side / 2:.5g}" y="{y + side / 2 + 4:.5g}" font-size="11" '
                    f'text-anchor="middle" pointer-events="none" fill="{ink}">'
                    f"{draw.figure(weight)}</text>"
                )
        return "".join([*parts, "</g>"])

    def _edge(self) -> str:
        """A line around the cells, since the lightest have the colour of the ground."""
        rows, columns = self.panel.weight.shape
        return (
            f'<rect class="heed-rule" x="{self.left - 1:.5g}" y="{self.top - 1:.5g}" '
            f'width="{self.cell * columns + 1}" height="{self.cell * rows + 1}" fill="none" '
            'stroke="#e2e2e8" shape-rendering="crispEdges"/>'
        )

    def _told(self, row: int, column: int) -> str:
        target, source = shown(self.panel.rows[row]), shown(self.panel.columns[column])
        return draw.written(f"{target} ← {source}  {self.panel.weight[row, column]:.3f}")

    def _legend(self) -> str:
        range, y = Range.of(self.panel), self.height - 30
        low, high = f"{range.low:.2g}", f"{range.high:.2f}"
        start = self.left + draw.extent(low, 11) + 4
        return (
            draw.lettered((self.left, y + 9), low, 11, "soft")
            + f'<rect x="{start:.5g}" y="{y:.5g}" width="100" height="10" '
            + 'class="heed-cells" fill="url(#heed-scale)"/>'
            + draw.lettered((start + 104, y + 9), high, 11, "soft")
            + draw.lettered((self.left, y + 26), axes_of(self.panel), 11, "soft", longest=30)
        )


def wide(label: str) -> bool:
    """Whether a label is all Chinese or the like, which can be read from top to bottom."""
    return bool(label) and cell_len(label) == 2 * len(label)


def png(panels: Panels, columns: int | None = None, dpi: int = 160) -> bytes:
    """One panel, or several in a grid, as the bytes of a PNG file; groups one below the other."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Refused("a PNG needs matplotlib: pip install heed-attention[plot]") from error
    rows = _rows(panels, columns)
    columnwise = zip_longest(*(row.plots for row in rows))  # from top to bottom
    widths = [max(plot.width for plot in line if plot) + 2 * GAP for line in columnwise]
    widest = max(row.width for row in rows)
    if widest > sum(widths):  # a line is longer than its maps, which do not shrink
        widths.append(widest - sum(widths))
    heights = [size for row in rows for size in (LINE * len(row.lines), row.height) if size]
    figure = Figure((sum(widths) / 72, sum(heights) / 72), layout="constrained")
    shape = (len(heights), len(widths))
    grid, down = figure.add_gridspec(*shape, width_ratios=widths, height_ratios=heights), 0
    for row in rows:
        if row.lines:
            _say(figure.add_subplot(grid[down, :]), row.lines)
            down += 1
        for across, plot in enumerate(row.plots):
            _paint(figure.add_subplot(grid[down, across]), plot)
        down += 1
    return _rendered(figure, dpi)


def _say(axes: Axes, lines: Sequence[str]) -> None:
    """The lines above a group, in the place of a plot."""
    axes.set_axis_off()
    look: dict[str, Any] = {"fontfamily": _fonts(), "parse_math": False, "va": "top"}
    for n, line in enumerate(lines):
        weight = "normal" if n else "bold"
        down = 1 - n / len(lines)
        axes.text(0, down, line, fontsize=LETTERS * 0.85, fontweight=weight, **look)


def _paint(axes: Axes, plot: Plot) -> None:
    """One panel on matplotlib's axes."""
    from matplotlib.colors import LinearSegmentedColormap

    panel, range = plot.panel, Range.of(plot.panel)
    scale = LinearSegmentedColormap.from_list("heed", [np.divide(stop, 255) for stop in draw.INK])
    top = range.high if range.high > range.low else range.low + 1
    rows, columns = max(1, len(panel.rows)), max(1, len(panel.columns))
    image = axes.imshow(
        panel.weight if panel.weight.size else np.full((1, 1), range.low),
        scale,
        vmin=range.low,
        vmax=top,
        interpolation="nearest",
        extent=(-0.5, columns - 0.5, rows - 0.5, -0.5),
    )
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_color("#e2e2e8")
    axes.set_anchor("NW")
    _name(axes, plot)
    beside = 1 / (plot.cell * columns)
    place = axes.inset_axes((1 + 10 * beside, 0, 8 * beside, 1))
    bar = axes.figure.colorbar(image, cax=place)
    bar.outline.set_visible(False)
    place.tick_params(labelsize=9)


def _name(axes: Axes, plot: Plot) -> None:
    """The title, the labels above and beside. A dollar sign does not start mathematics here."""
    look: dict[str, Any] = {"fontfamily": _fonts(), "parse_math": False}
    columns = [draw.shortened(label) for label in plot.panel.columns]
    rows = [draw.shortened(label) for label in plot.panel.rows]
    if not plot.level:
        columns = ["\n".join(label) if wide(label) else label for label in columns]
    axes.set_xticks(range(len(columns)), columns, fontsize=plot.font, **look)
    axes.set_yticks(range(len(rows)), rows, fontsize=plot.font, **look)
    for label, text in zip(axes.get_xticklabels(), columns, strict=True):
        label.set_rotation(0 if plot.level or "\n" in text or wide(text) else 90)
    title = draw.shortened(plot.panel.title, 48)
    axes.set_title(title, loc="left", fontsize=13, pad=14, **look)


def _fonts() -> list[str]:
    """matplotlib's own font, then one with Chinese if the machine has it."""
    from matplotlib.font_manager import fontManager

    known = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *[name for name in CJK if name in known][:1]]


def _rendered(figure: Figure, dpi: int) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        # A glyph that no font has is drawn as a box, which the user sees without a warning.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(file, format="png", dpi=dpi, bbox_inches="tight", pad_inches=0.25)
    return file.getvalue()
