"""Charts: points at their values, bars as long as their values, gaps for missing values."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from heed.errors import ShapeError
from heed.viewing.chart import BarChart, Bars, Line, LineChart, thinned

SVG = "{http://www.w3.org/2000/svg}"
X = [5, 10, 20, 40]
BLEU = LineChart(
    "BLEU by length",
    [Line("attention", X, [98, 97, 95, 90]), Line("none", X, [96, 80, 50, 20])],
    x="words",
    y="BLEU",
    low=0,
)
HOSTILE = "</text><script>alert(1)</script>"


def parsed(chart: LineChart | BarChart) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg())


def strokes(chart: LineChart) -> list[list[tuple[float, float]]]:
    """The points of each line."""
    paths = [
        node.attrib["d"]
        for node in parsed(chart).iter(f"{SVG}path")
        if "heed-line" in node.attrib["class"]
    ]
    pairs = [re.findall(r"([\d.]+) ([\d.]+)", path) for path in paths]
    return [[(float(x), float(y)) for x, y in pair] for pair in pairs]


def texts(chart: LineChart | BarChart) -> dict[str, dict[str, str]]:
    return {node.text or "": node.attrib for node in parsed(chart).iter(f"{SVG}text")}


def test_points_are_at_their_values() -> None:
    attention, none = strokes(BLEU)
    for (x, y), (x0, y0) in zip(attention, none, strict=True):
        assert x == x0
        assert y < y0
    assert np.diff([x for x, _ in attention]) == pytest.approx(np.diff(X) * 14, rel=0.1)
    words = texts(BLEU)
    # 20 and 50 are between the grid lines of 0 and 100, in proportion.
    zero, hundred = float(words["0"]["y"]), float(words["100"]["y"])
    scale = (zero - hundred) / 100
    assert none[2][1] - none[3][1] == pytest.approx(-30 * scale, abs=0.1)
    assert none[3][1] == pytest.approx(zero - 4 - 20 * scale, abs=0.1)


def test_everything_is_labelled() -> None:
    words = texts(BLEU)
    assert {"BLEU by length", "attention", "none", "words", "BLEU", "5", "10", "20", "40"} <= set(
        words
    )
    titles = [node.text for node in parsed(BLEU).iter(f"{SVG}title")]
    assert "none: 40 words, 20 BLEU" in titles
    assert "line chart" in parsed(BLEU).attrib["aria-label"]


def test_positions_can_have_names() -> None:
    chart = LineChart("t", [Line("a", [0, 1], [1, 2])], ticks=[(0, "1–5"), (1, "6–10")])
    assert {"1–5", "6–10"} <= set(texts(chart))


def test_names_along_an_axis_never_meet() -> None:
    steps = [48, 96, 144, 192, 240, 288, 300]  # the last validation comes whenever training ends
    words = texts(LineChart("loss", [Line("loss", steps, [1.0] * 7)]))
    assert {"48", "240", "300"} <= set(words)  # where the axis ends is always said
    assert "288" not in words


def test_a_gap_breaks_the_line() -> None:
    chart = LineChart("t", [Line("a", range(5), [1, 2, math.nan, 3, 4])])
    assert [len(stroke) for stroke in strokes(chart)] == [2, 2]
    assert strokes(LineChart("t", [Line("a", [1.0], [math.nan])])) == []
    assert strokes(LineChart("t", [])) == []


def test_one_point_and_a_level_line() -> None:
    one = LineChart("t", [Line("a", [1], [2.5])])
    assert len(strokes(one)) == 1
    words = texts(one)
    assert {"0", "1", "2", "3", "2.5"} <= set(words)  # compared with zero, which is labelled
    assert [node.text for node in parsed(one).iter(f"{SVG}text")].count("1") == 2  # x once, y once
    (level,) = strokes(LineChart("t", [Line("a", [1, 2], [3, 3])]))
    assert level[0][1] == level[1][1]


def test_long_lines_are_thinned_and_keep_their_peaks() -> None:
    rng = np.random.default_rng(0)
    points = [(float(x), float(y)) for x, y in enumerate(rng.normal(size=10_000))]
    kept = thinned(points, 400)
    assert len(kept) <= 400
    assert max(kept, key=lambda p: p[1]) == max(points, key=lambda p: p[1])
    assert min(kept, key=lambda p: p[1]) == min(points, key=lambda p: p[1])
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    chart = LineChart("t", [Line("a", *zip(*points, strict=True))])
    assert len(chart.svg()) < 25_000


def test_bars_are_as_long_as_their_values() -> None:
    chart = BarChart("t", ["dot", "none"], [Bars("BLEU", [80, 20]), Bars("AER", [40, math.nan])])
    long = [
        float(node.attrib["width"])
        for node in parsed(chart).iter(f"{SVG}rect")
        if "heed-mark" in node.attrib["class"]
    ]
    assert long == pytest.approx([long[0], long[0] / 2, long[0] / 4], rel=1e-3)
    assert {"dot", "none", "BLEU", "AER", "80", "20", "40", "–"} <= set(texts(chart))


def test_bars_fit_their_axis_and_have_their_values_beside_their_middle() -> None:
    bars = [Bars("weight", [0.2, 0.05])]
    tree = ElementTree.fromstring(BarChart("t", ["who", "is"], bars, full=1.0).svg())
    (bar, _) = (node for node in tree.iter(f"{SVG}rect") if "heed-mark" in node.attrib["class"])
    end = float(bar.attrib["x"]) + float(bar.attrib["width"])
    assert end + 20 < float(tree.attrib["width"]) < end + 80  # the value, and a margin
    (value,) = (node for node in tree.iter(f"{SVG}text") if node.text == "0.20")
    middle = float(bar.attrib["y"]) + float(bar.attrib["height"]) / 2
    assert float(value.attrib["y"]) - 0.35 * 12 == pytest.approx(middle, abs=0.5)
    (title,) = (node for node in tree.iter(f"{SVG}text") if node.text == "t")
    assert float(bar.attrib["y"]) - float(title.attrib["y"]) < 24  # no room for a missing legend
    noted = BarChart("t", ["a"], bars[:0], full=1.0, note="uniform weights: 0.0345 each").svg()
    assert float(ElementTree.fromstring(noted).attrib["width"]) > 200


def test_a_single_line_needs_no_legend() -> None:
    assert "alone" not in texts(LineChart("t", [Line("alone", [1, 2], [1, 2])]))


def test_different_lengths_are_refused() -> None:
    with pytest.raises(ShapeError, match="line 'a' has 2 x and 3 y"):
        Line("a", [1, 2], [1, 2, 3])
    with pytest.raises(ShapeError, match="'a' has 1 values for 2 labels"):
        BarChart("t", ["x", "y"], [Bars("a", [1])])


def test_hostile_names_are_escaped() -> None:
    lines = LineChart(HOSTILE, [Line(HOSTILE, [1, 2], [1, 2])] * 2, x=HOSTILE, y=HOSTILE)
    bars = BarChart(HOSTILE, [HOSTILE], [Bars(HOSTILE, [1])] * 2, unit=HOSTILE)
    for chart in (lines, bars):
        assert not list(parsed(chart).iter(f"{SVG}script"))
        assert chart._repr_html_() == chart.svg()


def test_style_can_be_left_to_the_page() -> None:
    assert "<style>" in BLEU.svg()
    assert "<style>" not in BLEU.svg(style=False)
