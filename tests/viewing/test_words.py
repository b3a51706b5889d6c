"""Words with weights: the heaviest is highlighted, and no text is read as markup."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from heed.errors import Refused, ShapeError
from heed.viewing.page import Examples, Page
from heed.viewing.panels import Panel
from heed.viewing.words import MOST, Said, Weighed

WEIGHED = Weighed("it", ["a", "<fine>", "film", "\x1b[31m"], [0.1, 0.6, 0.2, 0.1])


def printed(thing: object, **how: object) -> str:
    out = io.StringIO()
    console = Console(file=out, width=60, **how)  # type: ignore[arg-type]
    console.print(thing)
    return out.getvalue()


def test_every_word_is_printed_in_colour_and_without_colours_only_bars() -> None:
    first, *rest = printed(WEIGHED, force_terminal=True, color_system="truecolor").splitlines()
    assert re.sub("\x1b.*?m", "", first).split() == ["a", "<fine>", "film", "\\x1b[31m"]
    assert [re.sub("\x1b.*?m", "", line) for line in rest] == printed(WEIGHED).splitlines()


def test_bars_are_ordered_by_weight() -> None:
    title, *bars, note = printed(WEIGHED).splitlines()
    assert title == "it"
    assert bars[0].split()[0] == "<fine>"
    assert "0.6" in bars[0]
    assert len(bars) == 4
    assert note == "uniform weights: 0.25 each"


def test_words_without_a_bar_are_counted_and_equal_weights_have_short_bars() -> None:
    even = Weighed("it", [f"w{n}" for n in range(10)], [0.103] + [0.1] * 8 + [0.097])
    _, *bars, note = printed(even).splitlines()
    assert len(bars) == MOST
    assert note == "2 others: 0.197 in total · uniform weights: 0.1 each"
    assert note in even.bars().svg()
    assert all(2 <= bar.count("█") <= 5 for bar in bars)  # a tenth of some forty cells
    (only,) = printed(Weighed("it", ["w"], [1.0])).splitlines()[1:]
    assert only.startswith("w ████")


def test_no_word_is_highlighted_if_all_weights_are_equal() -> None:
    even = Weighed("it", ["a", "b", "c", "d"], [0.26, 0.25, 0.25, 0.24]).svg()
    assert "#122a66" not in even
    assert "#122a66" in Weighed("it", ["a", "b", "c", "d"], [0.5, 0.25, 0.25, 0.0]).svg()


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_weight_of_nan_is_refused(broken: float) -> None:
    with pytest.raises(Refused, match=f"'seen' has a weight that is {broken}: 'b'"):
        Weighed("seen", ["a", "b"], [0.5, broken])


def test_colours_follow_the_weights() -> None:
    text = printed(WEIGHED, force_terminal=True, color_system="truecolor", legacy_windows=False)
    assert "48;2;253;231;37m<fine>" in text  # the brightest of the scale
    assert "\x1b[31m" not in text.replace("\\x1b[31m", "")


def test_a_picture_is_complete_and_escaped() -> None:
    root = ElementTree.fromstring(WEIGHED.svg())
    names = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert names == ["a", "<fine>", "film", "\\x1b[31m"]
    fills = [each.get("fill") for each in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert fills[1] == "#122a66"
    many = Weighed("long", ["word"] * 200, [0.005] * 200)
    height = float(ElementTree.fromstring(many.svg()).get("height", 0))
    assert height > 10 * 27  # lines, not one endless row
    assert len(many.heaviest()) == MOST


def test_a_picture_is_no_wider_than_its_words() -> None:
    root = ElementTree.fromstring(WEIGHED.svg())
    boxes = list(root.iter("{http://www.w3.org/2000/svg}rect"))[1:]
    last = float(boxes[-1].get("x", 0)) + float(boxes[-1].get("width", 0))
    assert float(root.get("width", 0)) == pytest.approx(last + 8, abs=1)


def test_a_panel_of_one_row() -> None:
    panel = WEIGHED.panel
    assert panel.weight.tolist() == [[0.1, 0.6, 0.2, 0.1]]
    with pytest.raises(ShapeError, match="2 words have 1 weights"):
        Weighed("x", ["a", "b"], [1.0])


def test_words_can_be_an_item_of_a_page() -> None:
    panel = Panel.of("layer 0", [[1.0]], ["<i>"], ["<i>"])
    html = Said([("Text", "<b>"), ("Label", "good")], WEIGHED, [panel], "cut & dried").html()
    assert "<b>" not in html
    assert '<dd class="answer" dir=auto>good</dd>' in html
    assert "cut &amp; dried" in html
    assert html.count("<svg") == 4 + 1  # each word is a picture of its own, so that lines can break
    assert 'class="map"' in html
    assert '<li class="example wide">' in html
    weighed = Said([("Text", "a"), ("Label", "good")], WEIGHED).html()
    assert '<li class="example">' in weighed  # two of them fit side by side
    bare = Said([("Text", "a"), ("Label", "")]).html()
    assert "<svg" not in bare


@pytest.mark.parametrize("width", [1360, 420])
def test_on_a_page_everything_is_aligned_with_the_text(
    browser: Any, tmp_path: Path, width: int
) -> None:
    words = Weighed("attention weights", [f"word{n}" for n in range(24)], [1 / 24] * 24)
    said = Said([("Text", "a"), ("Label", "good")], words)
    Page("t", [Examples([said, said])]).write(tmp_path / "page.html")
    tab = browser.open(tmp_path / "page.html", width=width)
    edges = tab.get(
        """(() => {
      const item = document.querySelector('.example');
      const left = (node) => Math.round(node.getBoundingClientRect().left);
      const [text, word] = ['.sentences dt', '.weighed rect'].map((x) => item.querySelector(x));
      return [text, word, item.querySelector('.chart text')].map(left);
    })()"""
    )
    assert max(edges) - min(edges) <= 1
    size = tab.get("document.querySelector('.weighed text').getBoundingClientRect().height")
    assert size >= 15  # on a narrow screen lines break, and letters keep their size
    assert tab.get("document.documentElement.scrollWidth") <= width
    tab.close()
