"""Heat maps in colour on a terminal, otherwise as numbers or blocks, never wider than the page."""

import io
import re

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from heed.viewing.panels import Panel
from heed.viewing.terminal import SCALE, HeatMap, shown

REVERSED = Panel.of("dot · abc", [[0, 0.001, 0.999], [0.1, 0.9, 0], [1, 0, 0]], "cba", "abc")


def drawn(panel: Panel, width: int = 80, encoding: str = "utf-8", **looks) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    looks = {"color_system": None, **looks}
    Console(file=file, width=width, **looks).print(HeatMap(panel))
    file.flush()
    return raw.getvalue().decode(encoding)


def in_colour(panel: Panel, width: int = 80) -> str:
    return drawn(panel, width, force_terminal=True, color_system="truecolor")


def plain(coloured: str) -> list[str]:
    return re.sub("\x1b.*?m", "", coloured).splitlines()


def patches(line: str) -> list[str]:
    """The background of each cell of a line."""
    return re.findall(r"\x1b\[48;2;([\d;]+)m", line)


def test_numbers_are_shown_without_colour() -> None:
    assert drawn(REVERSED).splitlines() == [
        "dot · abc",
        "   a   b   c",
        "c  ·   ·  100",
        "b 10  90   ·",
        "a 100  ·   ·",
        "",
        "  weights in %; · is below 0.5",
        "  source across, target down",
    ]


def test_colours_on_a_terminal() -> None:
    text = in_colour(REVERSED)
    low, high = (";".join(map(str, SCALE[i])) for i in (0, -1))
    row_c, row_b, row_a = (patches(line) for line in text.splitlines()[2:5])
    assert row_c[0] == row_b[2] == row_a[1] == low
    assert row_a[0] == high
    assert len({*row_b}) == 3
    assert plain(text)[1].split() == ["a", "b", "c"]
    assert "1.00" in plain(text)[6]
    assert len(set(patches(text.splitlines()[6]))) == 24  # the legend shows the whole scale


@pytest.mark.parametrize("system", ["standard", None])
def test_few_colours_count_as_none(system: str | None) -> None:
    text = drawn(REVERSED, force_terminal=True, color_system=system)
    assert "100" in text
    assert "48;" not in text


def test_a_file_gets_no_escape_codes() -> None:
    assert "\x1b" not in drawn(REVERSED)


@pytest.mark.parametrize("width", [10, 20, 40, 80, 200])
@pytest.mark.parametrize("columns", [1, 9, 70])
@pytest.mark.parametrize("word", ["a", "我", "transformation", "中国"])
def test_nothing_is_wider_than_the_page(width: int, columns: int, word: str) -> None:
    weight = np.random.default_rng(0).dirichlet(np.ones(columns), 2)
    panel = Panel.of("t", weight, ["x", word], [word] * columns)
    for text in (drawn(panel, width), in_colour(panel, width)):
        picture = plain(text)
        assert max(map(cell_len, picture)) <= width


def test_what_does_not_fit_is_reported() -> None:
    panel = Panel.of("t", np.full((2, 100), 0.01), "ab", [f"{i}" for i in range(100)])
    text = drawn(panel, 60)
    assert "columns 59 to 100 of 100 do not fit this width" in text
    assert "do not fit" not in drawn(panel, 120)
    assert "do not fit" not in in_colour(panel, 120)


def test_many_columns_become_blocks() -> None:
    panel = Panel.of("t", np.eye(30), [f"{i}" for i in range(30)], [f"{i:02}" for i in range(30)])
    lines = drawn(panel, 70).splitlines()
    assert lines[3].startswith(" 0 ██")
    assert lines[4].startswith(" 1   ██")
    assert "|" in lines[-2]


def test_wide_characters_are_over_their_cells() -> None:
    panel = Panel.of("t", np.eye(3), ["i", "love", "china"], ["我", "爱", "中国"])
    _, header, *rows = drawn(panel).splitlines()[:5]
    for row, label in zip(rows, ("我", "爱", "中国"), strict=True):
        start = cell_len(header[: header.index(label)])
        where = row.index("100")
        assert start <= where + 2
        assert where <= start + cell_len(label)


def test_cells_are_narrower_before_words_are_turned() -> None:
    source = ["我们", "昨天", "在", "图书馆", "看", "的", "电影", "很", "有趣", "</s>"]
    panel = Panel.of("t", np.eye(10), [*"abcdefghi", "interesting"], source)
    for text in (drawn(panel, 80), in_colour(panel, 80)):
        _, header, *rows = plain(text)[:12]
        assert header.split() == source
        assert max(map(cell_len, rows)) < 80
    _, header, *rows = drawn(panel).splitlines()[:12]
    for row, label in zip(rows, source, strict=True):
        start = cell_len(header[: header.index(label)])
        assert start - 1 <= row.index("100") <= start + cell_len(label)


def test_long_labels_are_vertical_and_cut() -> None:
    labels = ["extraordinary-words", "is"]
    panel = Panel.of("t", np.eye(2), ["extraordinarily-long-row-label", "b"], labels)
    lines = drawn(panel, 60).splitlines()
    assert "".join(line[21:26].strip() for line in lines[1:13]) == "extraordina⋮"
    assert lines[12].split()[-1] == "s"
    assert lines[13].startswith("extraordinarily-lon…")
    assert "long labels are cut" in lines[-1]


def test_labels_cannot_control_the_terminal() -> None:
    assert shown("\x1b[31mred\n") == "\\x1b[31mred\\n"
    assert shown("  ") == "␣␣"
    assert shown("é 我") == "é 我"
    panel = Panel.of("\x1b[31m\u202e", [[1.0]], ["\x1b[31m"], ["\n"])
    assert not {"\x1b", "\u202e"} & set(drawn(panel))


def test_an_old_terminal_gets_ascii() -> None:
    panel = Panel.of("t", np.eye(30), ["a"] * 30, ["b"] * 30)
    drawn(panel, 40, encoding="ascii").encode("ascii")
    assert "#" in drawn(panel, 40, encoding="ascii")
    assert " . " in drawn(Panel.of("t", [[0.0, 1.0]], "a", "bc"), encoding="ascii")


@pytest.mark.parametrize("weight", [[[0.0, 0.0]], [[-1.0, 2.0]], [[3.0, 30.0]]])
def test_weights_may_be_no_distribution(weight: list[list[float]]) -> None:
    panel = Panel.of("t", weight, "a", "bc")
    assert f"{max(*weight[0]):.2f}" in plain(in_colour(panel))[4]
    assert drawn(panel).splitlines()[2].startswith("a ")


def test_an_empty_panel() -> None:
    assert drawn(Panel.of("t", np.zeros((0, 0)), [], [])).splitlines()[0] == "t"
