"""Many small heat maps side by side: every head of every layer at a glance.

    rich.print(SmallMaps(panels))

On a colour terminal a character holds two cells, one above the other; elsewhere a cell is one
character, darker for larger weights. There are no labels: rows are queries, from the top, and
columns are keys, from the left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from heed.viewing.drawing import colours
from heed.viewing.panels import Panel
from heed.viewing.terminal import SCALE, shown

LARGEST = 24  # cells along a side; if there are more, a cell is the maximum of several
BETWEEN = 2
SHADES = " ░▒▓█"
LETTERS = " .:+#"


class SmallMaps:
    """Panels in rows of the console's width."""

    def __init__(self, panels: Sequence[Panel]) -> None:
        self.panels = panels

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        colour = console.is_terminal and console.color_system in ("256", "truecolor", "windows")
        shades = LETTERS if options.ascii_only else SHADES
        drawn = [
            (shown(each.title), list(_lines(small(each.weight), colour, shades)))
            for each in self.panels
        ]
        if not drawn:
            return
        wide = max(
            max([cell_len(title), *(line.cell_len for line in map_)]) for title, map_ in drawn
        )
        across = max(1, (options.max_width + BETWEEN) // (wide + BETWEEN))
        for start in range(0, len(drawn), across):
            some = drawn[start : start + across]
            yield _beside([Text(title, "bold") for title, _ in some], wide)
            for row in range(max(len(map_) for _, map_ in some)):
                yield _beside([map_[row] if row < len(map_) else Text() for _, map_ in some], wide)
            yield Text()


def small(weight: NDArray[np.float64], largest: int = LARGEST) -> NDArray[np.float64]:
    """At most `largest` cells along a side, each the maximum of its weights."""
    for axis in (0, 1):
        count = weight.shape[axis]
        if count > largest:
            starts = np.arange(largest) * count // largest
            weight = np.maximum.reduceat(weight, starts, axis)
    return weight


def _lines(weight: NDArray[np.float64], colour: bool, shades: str) -> Iterator[Text]:
    # The root, since a weight of a twentieth would look like zero.
    share = np.sqrt(np.clip(weight, 0, 1))
    if not colour:
        for row in share:
            shade = np.minimum((row * len(shades)).astype(int), len(shades) - 1)
            # Even weights over a long text are too small for a shade. Only rows of zeros are
            # blank: weights of at least half the row's largest are always visible.
            seen = (row > 0) & (row**2 >= row.max(initial=0.0) ** 2 / 2)
            yield Text("".join(shades[n] for n in np.maximum(shade, seen)))
        return
    painted = [[Color.from_rgb(*rgb) for rgb in row] for row in colours(share, SCALE).tolist()]
    for row, upper in enumerate(painted[::2]):
        lower = painted[2 * row + 1] if 2 * row + 1 < len(painted) else [None] * len(upper)
        line = Text()
        for above, below in zip(upper, lower, strict=True):
            line.append("▀", Style(color=above, bgcolor=below))
        yield line


def _beside(texts: Sequence[Text], wide: int) -> Text:
    line = Text()
    for text in texts:
        cut = text if text.cell_len <= wide else Text(set_cell_size(text.plain, wide))
        line.append_text(cut)
        line.append(" " * (wide - cut.cell_len + BETWEEN))
    line.rstrip()
    return line
