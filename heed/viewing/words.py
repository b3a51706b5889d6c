"""A text with a weight for each word: coloured words, and bars for the largest weights.

rich.print(Weighed("attention weights", ["a", "fine", "film"], [0.1, 0.8, 0.1]))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from heed.errors import Refused, ShapeError
from heed.viewing import drawing as draw
from heed.viewing.blocks import Maps, answered
from heed.viewing.chart import BarChart, Bars
from heed.viewing.drawing import number, others
from heed.viewing.panels import Panel
from heed.viewing.terminal import SCALE, shown

MOST = 8  # words with a bar
WIDTH, SIZE, LINE, HIGH = 680.0, 15.0, 27.0, 22  # of the picture


@dataclass(frozen=True, slots=True)
class Weighed:
    """Words in their order, each with a weight."""

    title: str
    words: Sequence[str]
    weights: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.words) != len(self.weights):
            raise ShapeError(f"{len(self.words)} words have {len(self.weights)} weights")
        pairs = zip(self.words, self.weights, strict=True)
        broken = next((pair for pair in pairs if not math.isfinite(pair[1])), None)
        if broken is not None:
            raise Refused(f"'{self.title}' has a weight that is {broken[1]}: '{broken[0]}'")

    @property
    def panel(self) -> Panel:
        """The words and weights as a panel of one row."""
        return Panel.of(self.title, [list(self.weights)], [""], self.words)

    def heaviest(self) -> list[tuple[str, float]]:
        """The words of the largest weights, the largest first."""
        pairs = zip(self.words, map(float, self.weights), strict=True)
        return sorted(pairs, key=lambda pair: -pair[1])[:MOST]

    def bars(self) -> BarChart:
        """The largest weights as bars, on a scale from 0 to 1: equal weights have short bars."""
        found = self.heaviest()
        values = [weight for _, weight in found]
        labels, note = [word for word, _ in found], " · ".join(self._remarks())
        return BarChart(self.title, labels, [Bars("weight", values)], full=1.0, note=note)

    def _remarks(self) -> list[str]:
        """Remarks on the words without a bar, and on the weight of an even distribution."""
        rest = sorted(map(float, self.weights))[: max(0, len(self.weights) - MOST)]
        more = [f"{others(len(rest))}: {number(sum(rest))} in total"] if rest else []
        count = len(self.words)
        return [*more, f"uniform weights: {number(1 / count)} each"] if count > 1 else more

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if console.color_system:  # without colours the words alone tell nothing
            yield self._coloured()
        yield self.bars()

    def _coloured(self) -> Text:
        """The words of the text, each on the colour of its weight."""
        line = Text()
        for word, (red, green, blue) in zip(self.words, self._colours(SCALE), strict=True):
            ink = "black" if _bright(red, green, blue) else "white"
            line.append(shown(word), Style(color=ink, bgcolor=Color.from_rgb(red, green, blue)))
            line.append(" ")
        return line

    def svg(self, style: bool = True) -> str:
        """The coloured words as the text of an SVG file."""
        x, y, right, body = 8.0, 22.0, 8.0, ""
        for label, wide, weight, colour in self._boxes():
            if x > 8 and x + wide > WIDTH - 8:
                x, y = 8.0, y + LINE
            body += _word((x, y), wide, label, weight, colour)
            right = max(right, x + wide)
            x += wide + 3
        rules = draw.STYLE if style else ""
        words = f'<g class="heed-cells">{body}</g>'
        return draw.drawing(
            right + 8, y + 12, f"{self.title}: words coloured by weight", words, rules
        )

    def html(self) -> str:
        """The coloured words as running text of a page, with line breaks if it is narrow."""
        each = (
            f'<svg width="{math.ceil(wide)}" height="{HIGH}">'
            f"{_word((0, 16), math.ceil(wide), label, weight, colour)}</svg>"
            for label, wide, weight, colour in self._boxes()
        )
        about = f'role="group" aria-label="{draw.written(self.title)}: words coloured by weight"'
        return f'<p class="weighed heed-drawing heed-cells" {about}>{" ".join(each)}</p>'

    def _boxes(self) -> Iterator[tuple[str, float, float, tuple[int, int, int]]]:
        """Each word as it is written, its width, weight and colour."""
        colours = self._colours(draw.INK)
        for word, weight, colour in zip(self.words, self.weights, colours, strict=True):
            label = draw.shortened(word)
            yield label, draw.extent(label, SIZE) + 8 if label else 8.0, float(weight), colour

    def _colours(self, scale: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        # A word with no more than an even share is at most half as bright: if all weights are
        # equal, no word stands out.
        weight = np.asarray(self.weights, np.float64)
        brightest = max(weight.max(initial=0), min(1, 2 / max(1, len(weight))))
        colours = draw.colours(weight / brightest, scale)
        return [(int(red), int(green), int(blue)) for red, green, blue in colours]

    def _repr_html_(self) -> str:
        return self.svg()


def _bright(red: int, green: int, blue: int) -> bool:
    """Whether dark letters are easier to read on this colour."""
    return 0.299 * red + 0.587 * green + 0.114 * blue > 140


def _word(
    at: tuple[float, float], wide: float, label: str, weight: float, colour: tuple[int, int, int]
) -> str:
    fill, ink = "#{:02x}{:02x}{:02x}".format(*colour), "#000000" if _bright(*colour) else "#ffffff"
    (x, y), said = at, draw.written(label)
    return (
        f'<g><title>{said}: {weight:.3f}</title><rect x="{x:.5g}" y="{y - 16:.5g}" '
        f'width="{wide:.5g}" height="{HIGH}" rx="3" fill="{fill}"/><text x="{x + wide / 2:.5g}" '
        f'y="{y:.5g}" font-size="{SIZE:g}" text-anchor="middle" fill="{ink}">{said}</text></g>'
    )


@dataclass(frozen=True, slots=True)
class Said:
    """A text, the answer, and the attention: an item of a page's list.

    facts    names and values, in the order of reading
    weighed  the words with their weights by one query for the whole text
    panels   every other attention
    answer   which of the facts is the answer; None if none is
    """

    facts: Sequence[tuple[str, str]]
    weighed: Weighed | None = None
    panels: Sequence[Panel] = ()
    note: str = ""
    answer: int | None = 1

    def html(self) -> str:
        """Markup, with all text escaped."""
        picture = ""
        if self.weighed is not None:
            bars = self.weighed.bars()
            # Title and note break their lines; in the drawing a long one would make it small.
            drawn = replace(bars, title="", note="").svg(style=False)
            title = f'<p class="chart-name">{draw.written(bars.title)}</p>'
            note = f'<figcaption class="note">{draw.written(bars.note)}</figcaption>'
            picture = f'{self.weighed.html()}{title}<figure class="chart">{drawn}{note}</figure>'
        maps = Maps(self.panels).html() if self.panels else ""
        texts = answered(self.facts, self.note, self.answer)
        look = "example wide" if self.panels else "example"
        return f'<li class="{look}">{texts}{picture}{maps}</li>'
