"""Atlases: plain arrays in, one block out; errors name the wrong part."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from heed.errors import Refused, UnknownName
from heed.viewing import measure
from heed.viewing.atlas import Atlas, Layer, Take
from heed.viewing.blocks import Facts
from heed.viewing.page import Page

WORDS = ["the", "cat", "sat"]


def weights(H: int = 2, T: int = 3, S: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(S), (H, T))


def index(atlas: Atlas) -> dict:
    (text,) = re.findall(r'class="index">(.*?)</script>', atlas.html(), re.S)
    return json.loads(text)


def test_an_empty_atlas_is_refused() -> None:
    with pytest.raises(Refused, match="'beam 1' has no layers to show"):
        Take("beam 1", [])
    with pytest.raises(Refused, match="'t' has nothing to show"):
        Atlas("t", [])
    with pytest.raises(Refused, match="opens=1: there are 1 layers"):
        Take("", [Layer.of("x", weights(), WORDS)], opens=1)
    with pytest.raises(UnknownName, match="no language of a page is called 'fr'"):
        Atlas("t", [Take("", [Layer.of("x", weights(), WORDS)])], language="fr")  # type: ignore[arg-type]


def test_sides_records_and_words_appear_once_each() -> None:
    layer = Layer.of("x", weights(), WORDS)
    other = Layer.of("y", weights(S=2), WORDS, ["我", "爱"])
    takes = [
        Take("beam 1", [layer, other], "dot", -1.5, True),
        Take("beam 2", [layer], "dot", -2.5, True),
        Take("beam 1", [layer], "additive", float("-inf")),
        Take("beam 2", [layer], "additive", np.float32(-0.5)),
    ]
    data = index(Atlas("t", takes))
    assert data["sides"] == ["dot", "additive"]
    assert data["words"] == [WORDS, ["我", "爱"]]
    assert [take["side"] for take in data["takes"]] == [0, 0, 1, 1]
    assert [take["score"] for take in data["takes"]] == [-1.5, -2.5, None, -0.5]
    assert (data["takes"][0]["layers"][1]["queries"], data["takes"][0]["layers"][1]["keys"]) == (
        0,
        1,
    )


def test_an_atlas_from_arrays_alone() -> None:
    atlas = Atlas.of("t", {"layer 0": weights(), "layer 1": weights()}, WORDS)
    assert [layer["name"] for layer in index(atlas)["takes"][0]["layers"]] == ["layer 0", "layer 1"]


def test_no_word_can_end_its_block() -> None:
    hostile = ["</script><script>alert(1)</script>", "\u2028<!--", "\u202eevil\x00", "\ud800", "  "]
    layer = Layer.of("</script>", weights(1, 5, 5), hostile)
    html = Atlas("t", [Take("</script>", [layer], "</script>")]).html()
    assert html.count("</script>") == html.count("<script") == 2
    assert "\u2028" not in html
    html.encode()  # no lone surrogate is left
    words = index(Atlas("t", [Take("", [layer])]))["words"][0]
    assert words == [hostile[0], "\\u2028<!--", "\\u202eevil\\x00", "\\ud800", "␣␣"]


def test_an_atlas_can_be_a_page_or_a_part_of_one(tmp_path: Path) -> None:
    atlas = Atlas.of("What it saw", {"layer 0": weights()}, WORDS)
    atlas.write(tmp_path / "a.html")
    html = (tmp_path / "a.html").read_text("utf-8")
    assert html == Page("What it saw", [atlas]).html()
    assert "buildAtlas" in html
    assert "buildAtlas" not in Page("t", [Facts([("a", 1)])]).html()
    assert "<dt>a</dt>" in atlas.page(Facts([("a", 1)])).html()
    frame = atlas._repr_html_()
    assert unescape(re.search(r'srcdoc="(.*?)"', frame, re.S)[1]) == html
    policy = unescape(re.search(r'Security-Policy" content="(.*?)"', html)[1])
    assert "base-uri 'none'; form-action 'none'" in policy


def test_every_language_has_every_message() -> None:
    folder = Path(measure.__file__).parent / "assets"
    text = (folder / "strings.js").read_text("utf-8")
    keys = [re.findall(r"^    (\w+):", part, re.M) for part in text.split("  zh: {")]
    assert keys[0] == keys[1]
    used = "".join(path.read_text("utf-8") for path in folder.glob("*.js"))
    for key in set(re.findall(r'say\("(\w+)"', used)):
        assert key in keys[0]
