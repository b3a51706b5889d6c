"""The parts of a page: packed numbers are accurate enough, the best are marked, text is inert."""

import base64
import json
import math
from html.parser import HTMLParser

import numpy as np
import pytest

from heed.errors import ShapeError
from heed.viewing.blocks import (
    Charts,
    Column,
    Example,
    Examples,
    Facts,
    Heading,
    Maps,
    Paragraph,
    Table,
    embedded,
    packed,
    side_by_side,
)
from heed.viewing.chart import BarChart, Bars, Line, LineChart
from heed.viewing.panels import Panel

HOSTILE = "</script></title><!-- <script><img src=x onerror=alert(1)>\"'&amp;\u2028\x00"


class Seen(HTMLParser):
    """How an HTML parser reads a page: elements, their attributes, and the text of each."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append((self.elements[-1][0] if self.elements else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [facts for name, facts in self.elements if name == tag]

    def inside(self, tag: str) -> list[str]:
        return [text for name, text in self.text if name == tag]


def every_block(text: str) -> list:
    panel = Panel.of(text, [[1.0, 0.0]], [text], [text, text])
    lines = LineChart(text, [Line(text, [1, 2], [1, 2])] * 2, x=text, y=text, ticks=[(1, text)])
    return [
        Heading(text),
        Paragraph(text),
        Facts([(text, text)]),
        Table([Column(text), Column(text, ".1f", "high")], [(text, 1.0), (text, 2.0)], text),
        Charts([lines, BarChart(text, [text], [Bars(text, [1])] * 2, text)]),
        Maps([panel]),
        Examples([Example(text, text, text, [panel, panel], text)]),
    ]


@pytest.mark.parametrize("block", every_block(HOSTILE), ids=lambda block: type(block).__name__)
def test_hostile_text_is_escaped(block) -> None:
    hostile, tame = Seen(block.html()), Seen(type(block).html(_like(block)))
    assert [tag for tag, _ in hostile.elements if tag != "title"] == [
        tag for tag, _ in tame.elements if tag != "title"
    ]
    assert not hostile.all("img")
    assert not any(name.startswith("on") for _, facts in hostile.elements for name in facts)
    for text in hostile.inside("script"):
        assert HOSTILE[:9] in json.dumps(json.loads(text))


def _like(block) -> object:
    return next(each for each in every_block("tame") if type(each) is type(block))


def test_embedded_json_cannot_end_its_element() -> None:
    text = embedded({"a": "</script><!--&"})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": "</script><!--&"}


def test_packing_keeps_what_a_page_shows() -> None:
    rng = np.random.default_rng(0)
    panels = [
        Panel.of(f"{i}", rng.dirichlet(np.ones(7) * 0.3, 5), "abcde", "1234567") for i in range(3)
    ]
    whole = packed([*panels, Panel.of("below zero", [[-2.0, 3.0]], "a", "xy")])
    assert whole["labels"] == [list("abcde"), list("1234567"), ["a"], ["x", "y"]]
    for panel, pack in zip(panels, whole["panels"], strict=False):
        share = np.frombuffer(base64.b64decode(pack["weight"]), "<u2").reshape(5, 7) / 65535
        weight = pack["low"] + (pack["high"] - pack["low"]) * share
        assert abs(weight - panel.weight).max() <= 1e-5  # no two digits are exchanged
        assert (pack["rows"], pack["columns"]) == (0, 1)
    assert (whole["panels"][3]["low"], whole["panels"][3]["high"]) == (-2, 3)


def test_the_best_of_each_column_is_marked() -> None:
    columns = [Column("name"), Column("BLEU", ".1f", "high"), Column("AER", ".2f", "low")]
    rows = [("a", 20.04, 0.5), ("b", 20.01, None), ("c", 3.0, math.nan), ("d", 19.9, 0.25)]
    html = Table([*columns, Column("plain")], [(*row, 7) for row in rows]).html()
    best = html.split('class="number best"')[1:]
    marked = [cell.split("</td>")[0] for cell in best]
    assert ["20.0" in cell for cell in marked] == [True, True, False]  # a tie, as it is printed
    assert "0.25" in marked[2]
    assert len(marked) == 3
    assert html.count("–") == 2


def test_columns_of_dashes_alone_are_left_out() -> None:
    rows = [["a", None, 1.0, math.nan], ["b", None, None, math.nan]]
    columns = [Column("mechanism"), Column("AER"), Column("BLEU", best="high"), Column("MiB")]
    found = Table(columns, rows, "t").filled()
    assert found == Table([columns[0], columns[2]], [["a", 1.0], ["b", None]], "t")
    nothing = Table(columns[:2], [[None, None]])
    assert nothing.filled().columns == [columns[0]]
    assert Table(columns, []).filled() == Table(columns, [])


def test_cells_are_sorted_by_value() -> None:
    html = Table([Column("n", ",.0f"), Column("text")], [(12000.0, "x"), (None, "y")]).html()
    values = [cell.get("data-value") for cell in Seen(html).all("td")]
    assert values == ["12000.0", None, "", None]
    assert "12,000" in html
    assert len(Seen(html).all("button")) == 2


def test_a_row_must_fit_the_columns() -> None:
    with pytest.raises(ShapeError, match="row 2 of the table has 1 values for 2 columns"):
        Table([Column("a"), Column("b")], [(1, 2), (3,)])


def test_a_map_needs_a_panel_and_an_example_does_not() -> None:
    assert "<figure" not in Example("a", "b").html()
    assert "Reference" not in Example("a", "b").html()
    assert Maps([]).html() == ""


def test_long_sentences_take_the_whole_width() -> None:
    short = Panel.of("t", np.eye(4), "abcd", "abcd")
    long = Panel.of("t", np.eye(20), ["a"] * 20, ["b"] * 20)
    assert 'class="example"' in Example("a", "b", panels=[short]).html()
    assert 'class="example wide"' in Example("a", "b", panels=[long]).html()


def test_paragraphs_are_separated_by_blank_lines() -> None:
    assert Paragraph("one\ntwo\n\nthree").html() == "<p>one two</p><p>three</p>"


@pytest.mark.parametrize(
    ("words", "wanted", "across"),
    [(9, 4, 4), (9, 8, 4), (9, 5, 4), (14, 4, 2), (14, 6, 3), (20, 3, 2), (20, 1, 1), (60, 4, 1)],
)
def test_maps_are_placed_side_by_side_if_their_words_allow(
    words: int, wanted: int, across: int
) -> None:
    panel = Panel.of("t", np.eye(words), ["a"] * words, ["b"] * words)
    assert side_by_side([panel], wanted) == f"maps by-{across}"
