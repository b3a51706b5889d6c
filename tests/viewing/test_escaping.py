"""No text from a vocabulary, a label or a file controls what shows it."""

from __future__ import annotations

import re
import unicodedata
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from heed.viewing.blocks import Column, Example, Examples, Facts, Heading, Paragraph, Table
from heed.viewing.chart import BarChart, Bars, Line, LineChart
from heed.viewing.escaping import JOINERS, SPACES, escaped
from heed.viewing.history import History, Moment
from heed.viewing.page import Page
from heed.viewing.panels import Panel
from heed.viewing.small import SmallMaps
from heed.viewing.terminal import HeatMap
from heed.viewing.walk import Key, Stage, Told
from heed.viewing.words import Said, Weighed

EVIL = "a\x1b[2J\x9b5A\x07\r\n\u2028\u202e\u2066\ufeff\u200bz"
PANEL = Panel.of(EVIL, [[0.2, 0.8]], [EVIL], [EVIL, "b"])
WORDS = Weighed(EVIL, [EVIL, "b"], [0.2, 0.8])
CURVE = LineChart(EVIL, [Line(EVIL, [1, 2], [3, 4])], x=EVIL, y=EVIL, ticks=[(1.0, EVIL)])
BARS = BarChart(EVIL, [EVIL, "b"], [Bars(EVIL, [0.2, 0.8])], EVIL, note=EVIL)
WALK = Told(
    EVIL,
    [Stage(EVIL, EVIL, [EVIL])],
    [EVIL],
    [Key(EVIL, [0.5], [1.0]), Key(EVIL, [0.5], [0.0], hidden=EVIL)],
    [1.0],
    EVIL,
    True,
    EVIL,
    EVIL,
)
HISTORY = History(EVIL, [CURVE], [Moment(1, [PANEL], EVIL)], EVIL)


def wrong(text: str) -> list[str]:
    """The characters that control something; line ends and joiners are a picture's own."""
    own = f"\n{JOINERS}"
    kinds = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return [repr(c) for c in text if unicodedata.category(c) in kinds and c not in own]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("我 爱 ##中国 ▁é a\u0301", "我 爱 ##中国 ▁é a\u0301"),
        ("\x1b[31m\x07\x00\x7f\x9b", r"\x1b[31m\x07\x00\x7f\x9b"),
        ("a\nb\r\tc\u2028", r"a\nb\r\tc\u2028"),
        ("\u202eevil\u2066\u200b\ufeff", r"\u202eevil\u2066\u200b\ufeff"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_only_what_cannot_be_seen_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown
    assert escaped(text, text) == text


def test_spaces_are_the_spaces_of_unicode() -> None:
    every = map(chr, range(0x110000))
    assert {c for c in every if unicodedata.category(c) == "Zs"} == {" ", *SPACES}


VIEWS: dict[str, Any] = {
    "heat map": HeatMap(PANEL, EVIL),
    "small maps": SmallMaps([PANEL]),
    "words": WORDS,
    "curves": CURVE,
    "bars": BARS,
    "walk": WALK,
    "history": HISTORY,
}


@pytest.mark.parametrize("colour", [None, "truecolor"])
@pytest.mark.parametrize("name", VIEWS)
def test_no_view_passes_on_a_control_character(name: str, colour: Any) -> None:
    file = StringIO()
    looks: dict[str, Any] = {"force_terminal": bool(colour), "color_system": colour}
    Console(file=file, width=300, **looks).print(VIEWS[name])
    said = re.sub("\x1b\\[[0-9;]*m", "", file.getvalue())
    assert not wrong(said)
    assert r"a\x1b[2J" in said, said


def test_no_page_passes_on_a_control_character() -> None:
    table = Table([Column(EVIL)], [[EVIL]], EVIL)
    blocks: list[Any] = [Heading(EVIL), Paragraph(EVIL), Facts([(EVIL, EVIL)]), table]
    example = Example(EVIL, EVIL, EVIL, [PANEL], EVIL)
    said = Said([(EVIL, EVIL), (EVIL, EVIL)], WORDS, [PANEL], EVIL)
    blocks += [Examples([example, said]), *WALK.blocks()]  # type: ignore[list-item]
    for page in (Page(EVIL, blocks), HISTORY.page()):
        html = page.html()
        assert r"a\x1b[2J" in html
        assert not wrong(html.replace("\t", " "))
    for drawn in (WORDS, CURVE, BARS):
        assert not wrong(drawn.svg())
