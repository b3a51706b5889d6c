"""Shared by all drawings: colours, safe text, an SVG around a body, a file written whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from heed.errors import Refused
from heed.storage import atomic
from heed.viewing.escaping import JOINERS, escaped
from heed.viewing.panels import Panel
from heed.viewing.terminal import Range, cut, shown

LONGEST = 22  # letters of a label in a picture; its tooltip has the whole label
FONTS = (
    "'Helvetica Neue','Segoe UI',Roboto,'Noto Sans',Arial,'PingFang SC','Microsoft YaHei',"
    "'Noto Sans CJK SC','WenQuanYi Micro Hei',sans-serif"
)
INK = (
    *((255, 255, 255), (227, 235, 247), (169, 194, 232)),
    *((95, 143, 211), (43, 95, 180), (18, 42, 102)),
)
"""Weights as ink on paper, from nothing to the highest."""
FILLS = {"ground": "#ffffff", "ink": "#1d1d24", "soft": "#666672"}
# Rules without variables, which some viewers of SVG do not support; a printed page is light. On a
# dark page a map is inverted: its white becomes the ground, its dark blue a pale one.
STYLE = f"""
.heed-drawing text {{ font-family: {FONTS}; font-variant-numeric: tabular-nums; }}
@media screen and (prefers-color-scheme: dark) {{
  .heed-ground {{ fill: #17171d; }}
  .heed-ink {{ fill: #ececf1; }}
  .heed-soft {{ fill: #a3a3b0; }}
  .heed-rule {{ stroke: #35353f; }}
  .heed-cells {{ filter: invert(0.91) hue-rotate(180deg); }}
}}
"""


def written(text: str) -> str:
    """Any text, safe inside HTML and XML: without markup and control characters."""
    return escape(escaped("".join(" " if c.isspace() else c for c in text), JOINERS))


def token(text: str) -> str:
    """A piece of text, not yet safe inside HTML, with every character visible: those that change
    the direction of writing, end a line or are invisible are escaped."""
    if not text.strip(" "):
        return "␣" * len(text)
    return escaped(text, JOINERS)


def shortened(label: str, longest: int = LONGEST) -> str:
    """A label that fits a picture."""
    return cut(shown(label), longest)


def extent(text: str, size: float) -> float:
    """The approximate width of a text, for any font."""
    return 0.56 * size * cell_len(text)


def shares(panel: Panel) -> NDArray[np.float64]:
    """Each weight as a share of the range from the lowest to the highest, 0 to 1."""
    range = Range.of(panel)
    return (panel.weight - range.low) / ((range.high - range.low) or 1.0)


def colours(
    share: NDArray[np.float64], scale: Sequence[tuple[int, int, int]] = INK
) -> NDArray[np.uint8]:
    """Shares of a scale as red, green and blue.    ... -> ... 3"""
    stops = np.linspace(0, 1, len(scale))
    channels = [np.interp(share, stops, channel) for channel in zip(*scale, strict=True)]
    return np.stack(channels, -1).round().astype(np.uint8)


def figure(weight: float) -> str:
    """A weight in few characters, such as .93, for a small cell."""
    if abs(weight) < 0.995:
        return f"{weight:.2f}".replace("0.", ".", 1)
    return f"{weight:.1f}" if abs(weight) < 9.5 else f"{weight:.0f}"


def steps(low: float, high: float, about: int) -> list[float]:
    """About `about` round numbers, from at most `low` to at least `high`."""
    rough = (high - low) / max(1, about - 1)
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, max(last, first + 1) + 1)]


def number(value: float) -> str:
    """A number, as short as it can be written: 12,000; 27.4; 0.031."""
    if not math.isfinite(value):
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def others(count: int) -> str:
    """The number of others beside those that are shown."""
    return f"{count:,} other{'' if count == 1 else 's'}"


def alike(values: Sequence[float]) -> list[str]:
    """Numbers that stand below each other: all with as many decimals, three digits of the greatest
    and at least one of the smallest. Where six decimals are too few, each as it is shortest."""
    sizes = [abs(value) for value in values if math.isfinite(value) and value]
    if not sizes:
        return [number(value) for value in values]
    greatest = 3 - math.ceil(math.log10(max(sizes)))  # 100 %, too, is written 100.0
    decimals = max(0, greatest, -math.floor(math.log10(min(sizes))))
    if decimals > 6:
        return [number(value) for value in values]
    while decimals and all(f"{value:.{decimals}f}"[-1] == "0" for value in sizes):
        decimals -= 1
    return [f"{value:,.{decimals}f}" if math.isfinite(value) else "–" for value in values]


def ticks(values: Sequence[float]) -> list[str]:
    """The labels of an axis: all with the decimals that give them exactly, or nearly; in powers of
    ten if even six are too few."""
    apart = min((b - a for a, b in pairwise(sorted(set(values)))), default=1.0)
    if max(map(abs, values), default=0) < 1e9:
        for decimals in range(7):
            if all(abs(round(x, decimals) - x) < apart / 200 for x in values):
                # + 0.0, since a number rounded to zero may keep its sign
                return [f"{round(x, decimals) + 0.0:,.{decimals}f}" for x in values]
    digits = range(3, 17)
    found = ([f"{x:.{n}g}" for x in values] for n in digits)
    return next(
        (names for names in found if len(set(names)) == len(set(values))), [*map(str, values)]
    )


def lettered(
    at: tuple[float, float],
    text: str,
    size: float,
    look: str = "ink",
    anchor: str = "start",
    longest: int = LONGEST,
    more: str = "",
) -> str:
    """A line of text; if it is cut, its tooltip has the whole text."""
    cut = shortened(text, longest)
    tip = f"<title>{written(text)}</title>" if cut != shown(text) else ""
    return (
        f'<text class="heed-{look}" x="{at[0]:.5g}" y="{at[1]:.5g}" font-size="{size:.3g}" '
        f'fill="{FILLS[look]}" text-anchor="{anchor}"{more}>{written(cut)}{tip}</text>'
    )


def drawing(width: float, height: float, about: str, body: str, style: str = STYLE) -> str:
    """An SVG of some size around a body; `about` is its description for screen readers."""
    width, height = math.ceil(width), math.ceil(height)
    rules = f"<style>{style}</style>" if style else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="heed-drawing" role="img" '
        f'aria-label="{written(about)}" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="{FONTS}">{rules}'
        f'<rect class="heed-ground" width="{width}" height="{height}" fill="{FILLS["ground"]}"/>'
        f"{body}</svg>\n"
    )


def write(path: str | Path, content: bytes) -> None:
    """Write a file whole or not at all: a reader never sees half of it."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.replace(path, [content])
    except OSError as error:
        raise Refused(f"cannot write '{path}': {error.strerror}") from error
