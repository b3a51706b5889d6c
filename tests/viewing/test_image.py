"""Pictures of panels: every cell has its colour, labels are readable and escaped."""

import io
import re
import struct
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from heed.errors import Refused
from heed.viewing import image
from heed.viewing.drawing import INK
from heed.viewing.panels import Panel

SVG = "{http://www.w3.org/2000/svg}"
LOVE = Panel.of(
    "additive",
    [[0.9, 0.1, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5]],
    ["i", "love", "china"],
    ["我", "爱", "中国"],
)
HOSTILE = '</text><script>alert("1")</script>&\x1b'


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def texts(tree: ElementTree.Element) -> list[str]:
    return [node.text or "" for node in tree.iter(f"{SVG}text")]


def cells(tree: ElementTree.Element) -> list[str]:
    return [node.attrib["fill"] for node in tree.iter(f"{SVG}path")]


def test_every_cell_has_its_colour() -> None:
    low, high = (f"#{r:02x}{g:02x}{b:02x}" for r, g, b in (INK[0], INK[-1]))
    fills = cells(parsed(image.svg(LOVE)))
    assert [fills[i] for i in (2, 3, 5, 6)] == [low] * 4
    assert [fills[i] for i in (7, 8)] == ["#84a8de"] * 2  # between the third and the fourth
    assert fills[4] == high
    assert len(fills) == 9


def test_cells_are_under_their_column_and_beside_their_row() -> None:
    tree = parsed(image.svg(LOVE))
    places = {node.text: node.attrib for node in tree.iter(f"{SVG}text")}
    corners = [
        tuple(map(float, re.findall(r"[\d.]+", node.attrib["d"])[:3]))
        for node in tree.iter(f"{SVG}path")
    ]
    x, y, side = corners[5]  # love, china
    assert x < float(places["中国"]["x"]) < x + side
    assert y < float(places["love"]["y"]) < y + side
    assert float(places["中国"]["y"]) < corners[0][1]


def test_small_maps_show_numbers_and_all_have_tooltips() -> None:
    tree = parsed(image.svg(LOVE))
    assert {".90", ".10", "1.0", ".50"} <= set(texts(tree))
    titles = [node.text for node in tree.iter(f"{SVG}title")]
    assert "i ← 我  0.900" in titles
    assert len(titles) == 9


@pytest.mark.parametrize("size", [1, 3, 10, 30, 80])
@pytest.mark.parametrize("word", ["a", "我", "transformation", "图书馆"])
def test_everything_is_inside_the_picture(size: int, word: str) -> None:
    panel = Panel.of("t", np.eye(size), [word] * size, [word] * size)
    text = image.svg(panel)
    tree = parsed(text)
    width, height = float(tree.attrib["width"]), float(tree.attrib["height"])
    assert max(width, height) < 1250
    plot = image.Plot(panel)
    assert plot.left + plot.cell * size <= width - image.GAP
    assert plot.top + plot.cell * size <= height - image.GAP
    assert len(cells(tree)) == size * size
    assert len(text) < 500_000


def test_long_labels_are_cut_and_have_a_tooltip() -> None:
    word = "Donaudampfschifffahrtsgesellschaft"
    tree = parsed(image.svg(Panel.of("t", [[1.0]], [word], ["b"])))
    assert "Donaudampfschifffahrt…" in texts(tree)
    assert word not in texts(tree)
    assert word in [node.text for node in tree.iter(f"{SVG}title")]


def test_words_are_rotated_and_chinese_is_upright() -> None:
    panel = Panel.of("t", np.eye(30), ["a"] * 30, ["standards", "委员会"] * 15)
    tree = parsed(image.svg(panel))
    words = [node for node in tree.iter(f"{SVG}text") if node.text == "standards"]
    assert len(words) == 15
    assert all("rotate(-90" in word.attrib["transform"] for word in words)
    stacked = [float(node.attrib["y"]) for node in tree.iter(f"{SVG}text") if node.text in "委员会"]
    assert stacked[:3] == sorted(stacked[:3], reverse=True)
    assert texts(tree).count("委") == 15


def test_hostile_labels_are_escaped() -> None:
    tree = parsed(image.svg(Panel.of(HOSTILE, [[1.0]], [HOSTILE], [HOSTILE])))
    assert not list(tree.iter(f"{SVG}script"))
    assert HOSTILE[:-1] + "\\x1b" in "".join(texts(tree)) + "".join(tree.itertext())
    assert "script" in tree.attrib["aria-label"]


def test_panels_in_a_grid() -> None:
    def size(**given: int) -> tuple[float, float]:
        tree = parsed(image.svg([LOVE] * 6, **given))
        assert len(cells(tree)) == 54
        return float(tree.attrib["width"]), float(tree.attrib["height"])

    wide, high = size(columns=3), size(columns=1)
    assert wide == size()
    assert wide[0] > 2 * high[0]
    assert high[1] > 2 * wide[1]


def test_each_text_stands_above_its_maps_with_its_answer() -> None:
    long = "word " * 40
    groups = [image.Group("我 爱\n中国", [LOVE, LOVE], "i love china"), image.Group(long, [LOVE])]
    tree = parsed(image.svg(groups))
    said = [node.text or "" for node in tree.findall(f"{SVG}text")]
    assert said[:2] == ["我 爱 中国", "→ i love china"]
    assert said[2].startswith("word word")
    assert said[2].endswith("…")
    assert 0.5 * 13 * max(map(len, said)) < float(tree.attrib["width"])
    heights = [float(node.attrib["y"]) for node in tree.findall(f"{SVG}text")]
    maps = [float(node.attrib["transform"].split()[1][:-1]) for node in tree.findall(f"{SVG}g")]
    assert heights[0] < heights[1] < maps[0] == maps[1] < heights[2] < maps[2]
    with pytest.raises(Refused, match="nothing to draw"):
        image.svg([image.Group("a text without attention", [])])


def test_the_heads_of_a_layer_are_side_by_side() -> None:
    heads = [
        Panel.of(f"layer {n} · head {h}", LOVE.weight, LOVE.rows, LOVE.columns)
        for n in range(2)
        for h in range(4)
    ]
    groups = parsed(image.svg(heads)).findall(f"{SVG}g")
    places = [tuple(re.findall(r"[\d.]+", group.attrib["transform"])) for group in groups]
    assert len({y for _, y in places[:4]}) == 1
    assert [x for x, _ in places[:4]] == [x for x, _ in places[4:]]
    read_back = size_of(image.png(heads, dpi=20))
    assert read_back[0] > 1.5 * read_back[1]  # four across and two down


def size_of(png: bytes) -> tuple[int, int]:
    """Width and height from the header of a PNG."""
    wide, high = struct.unpack(">II", png[16:24])
    return wide, high


@pytest.mark.parametrize("weight", [[[0.0, 0.0]], [[-1.0, 2.0]], [[3.0, 30.0]]])
def test_weights_may_be_no_distribution(weight: list[list[float]]) -> None:
    tree = parsed(image.svg(Panel.of("t", weight, "a", "bc")))
    assert f"{max(weight[0]):.2f}" in texts(tree)


def test_an_empty_panel_and_no_panel() -> None:
    empty = Panel.of("t", np.zeros((0, 0)), [], [])
    assert "t" in texts(parsed(image.svg(empty)))
    with pytest.raises(Refused, match="nothing to draw"):
        image.svg([])


def test_a_notebook_shows_the_picture() -> None:
    assert LOVE._repr_html_() == image.svg(LOVE)


def test_png_shows_the_same_colours() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    picture = imread(io.BytesIO(image.png([LOVE, LOVE], dpi=50)))[..., :3] * 255
    flat = picture.round().astype(int).reshape(-1, 3)
    for colour, cells in ((np.add(INK[2], INK[3]) / 2, 2), (INK[-1], 1)):
        side = 44 / 72 * 50
        found = (abs(flat - colour).max(1) <= 4).sum()
        assert 0.5 * 2 * cells * side**2 < found < 1.6 * 2 * cells * side**2 + 900


def test_the_lines_above_the_maps_of_a_png_do_not_shrink_the_maps() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    def picture(*groups: image.Group) -> np.ndarray:
        return imread(io.BytesIO(image.png(list(groups), dpi=50)))[..., :3]

    def blue(pixels: np.ndarray) -> int:
        return int((pixels[..., 2] - pixels[..., 0] > 0.2).sum())

    plain, lined = picture(image.Group("", [LOVE])), picture(image.Group("a " * 70, [LOVE], "b"))
    assert len(lined) > len(plain) + 20
    assert lined.shape[1] > plain.shape[1] + 20  # as wide as the line
    assert blue(lined) > 0.9 * blue(plain)


def test_png_accepts_any_label(recwarn: pytest.WarningsRecorder) -> None:
    pytest.importorskip("matplotlib")
    labels = ["我爱", "$x^{2$", "\U00012000", HOSTILE]
    image.png(Panel.of("$\\frac{$", np.eye(4), labels, labels))
    image.png([image.Group("$x^{2$", [LOVE], HOSTILE)])
    image.png(Panel.of("empty", np.zeros((0, 0)), [], []))
    assert not recwarn.list


def test_png_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Refused, match=r"pip install heed-attention\[plot\]"):
        image.png(LOVE)


def test_the_ending_determines_the_kind(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    image.save(LOVE, tmp_path / "a.SVG")
    image.save([LOVE, LOVE], str(tmp_path / "a.png"), columns=1)
    assert (tmp_path / "a.SVG").read_text("utf-8") == image.svg(LOVE)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(Refused, match=r"end its name in \.svg or \.png"):
        image.save(LOVE, tmp_path / "a.jpg")


def test_the_axes_are_named_as_attention_within_a_text_or_between_two() -> None:
    words, others = ["a", "film"], ["ein", "Film"]
    within, between = "keys across, queries down", "source across, target down"
    for rows, columns, axes in (
        (words, words, within),
        (["the text"], words, within),
        (words, others, between),
    ):
        drawn = image.svg(Panel.of("t", np.full((len(rows), 2), 0.5), rows, columns))
        assert axes in drawn
        assert ({within, between} - {axes}).pop() not in drawn
