"""Charts for the terminal: they fit, points are at their values, and no colour is needed."""

import io
import math

import pytest
from rich.cells import cell_len
from rich.console import Console

from heed.viewing.chart import BarChart, Bars, Line, LineChart

X = [5, 10, 20, 40]
BLEU = LineChart(
    "BLEU by length",
    [Line("attention", X, [98, 97, 95, 90]), Line("fixed vector", X, [96, 80, 50, 5])],
    x="words",
    y="BLEU",
    low=0,
)
BARS = BarChart("BLEU", ["dot", "加性", "none"], [Bars("a", [80, 40, math.nan])])


def drawn(chart: LineChart | BarChart, width: int = 80, encoding: str = "utf-8", **looks) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, width=width, **{"color_system": None, **looks}).print(chart)
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def test_lines_are_named_at_their_ends() -> None:
    lines = drawn(BLEU).splitlines()
    assert lines[0] == "BLEU by length"
    names = ("attention", "fixed vector")
    row = {name: i for i, line in enumerate(lines) for name in names if line.endswith(name)}
    assert row["attention"] < row["fixed vector"]
    assert lines[2].startswith(" 100│")
    assert lines[11].startswith("   0│")
    assert row["fixed vector"] >= 10
    assert lines[-2].split() == ["5", "10", "20", "40"]
    assert lines[-1].strip() == "words"


def test_a_falling_line_falls() -> None:
    chart = LineChart("t", [Line("a", range(100), [100 - x for x in range(100)])])
    lines = drawn(chart, 60).splitlines()[1:11]
    first = [line.split("│")[1] for line in lines]
    starts = [len(line) - len(line.lstrip()) for line in first]
    assert starts == sorted(starts)
    assert starts[0] == 0
    assert starts[-1] > 20


def test_bars_are_as_long_as_their_values() -> None:
    lines = drawn(BARS, 70).splitlines()
    dot, additive, none = lines[1:]
    assert dot.count("█") == 2 * additive.count("█") == 56
    assert dot.startswith(" dot █")
    assert additive.startswith("加性 █")
    assert none.strip() == "none -"


def test_the_values_beside_bars_have_as_many_decimals() -> None:
    bars = BarChart("t", ["a", "b", "c"], [Bars("weight", [0.325, 0.26, 0.0493])])
    assert [line.split()[-1] for line in drawn(bars).splitlines()[1:]] == [
        "0.325",
        "0.260",
        "0.049",
    ]


def test_no_two_marks_of_an_axis_have_one_label() -> None:
    chart = LineChart("t", [Line("a", [10, 20], [2.411, 2.4212])])
    names = [line.partition("│")[0].strip() for line in drawn(chart).splitlines()[1:11]]
    found = [name for name in names if name]
    assert found == ["2.425", "2.420", "2.415", "2.410"]


def test_a_single_point_is_in_the_middle_with_its_value() -> None:
    *lines, _, x = drawn(LineChart("t", [Line("a", [60], [0.874])]), 40).splitlines()[1:]
    (row,) = [line for line in lines if "⣿" in line]
    assert row.endswith("a 0.874")
    assert x.split() == ["60"]
    assert abs(x.index("60") - row.index("⣿")) <= 1
    assert lines[0].startswith(" 1.0│")
    assert lines[9].startswith(" 0.0│")


@pytest.mark.parametrize("width", [20, 30, 50, 80, 200])
@pytest.mark.parametrize("chart", [BLEU, BARS])
def test_nothing_is_wider_than_the_page(width: int, chart: LineChart | BarChart) -> None:
    assert max(map(cell_len, drawn(chart, width).splitlines())) <= width


def test_an_old_terminal_gets_ascii() -> None:
    text = drawn(BLEU, encoding="ascii")
    assert "*" in text
    assert "o" in text.splitlines()[6]
    bars = BarChart("t", ["dot"], [Bars("a", [1.0]), Bars("b", [0.5])])
    lines = drawn(bars, 40, encoding="ascii").splitlines()
    assert lines[2].count("*") == 27
    assert lines[3].count("o") == 14


def test_lines_have_colours_on_a_terminal() -> None:
    text = drawn(BLEU, force_terminal=True, color_system="standard")
    assert "\x1b[94m" in text
    assert "\x1b[33m" in text
    assert "\x1b" not in drawn(BLEU)


def test_names_cannot_control_the_terminal() -> None:
    evil = "\x1b[31m\n"
    chart = LineChart(evil, [Line(evil, [1, 2], [1, 2])], x=evil, y=evil)
    assert "\x1b" not in drawn(chart)
    assert "\x1b" not in drawn(BarChart(evil, [evil], [Bars(evil, [1])] * 2))


@pytest.mark.parametrize("y", [[], [3.0], [3.0, 3.0], [math.nan, math.nan]])
def test_empty_charts(y: list[float]) -> None:
    for chart in (
        LineChart("t", [Line("a", range(len(y)), y)]),
        BarChart("t", [str(v) for v in y], [Bars("a", y)]),
    ):
        assert drawn(chart).splitlines()[0] == "t"
