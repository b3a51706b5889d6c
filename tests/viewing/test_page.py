"""The page: one self-contained file, in which text cannot act, and which draws in a browser."""

import base64
import hashlib
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heed.viewing.chart import Line, LineChart
from heed.viewing.page import Charts, Column, Example, Examples, Facts, Heading, Maps, Page, Table
from heed.viewing.panels import Panel

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
)
LOVE = Panel.of(
    "additive",
    [[0.75, 0.25, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5]],
    ["i", "love", HOSTILE],
    ["我", "爱", "中国"],
)
PAGE = Page(
    "What it looked at",
    [
        Facts([("BLEU", 97.4)]),
        Heading(HOSTILE),
        Charts([LineChart("BLEU", [Line("attention", [1, 2], [3, 4])])]),
        Table([Column("attention"), Column("BLEU", ".1f", "high")], [("a", 9.0), ("b", 10.0)]),
        Examples([Example("我 爱 中国", HOSTILE, "i love china", [LOVE, LOVE], HOSTILE)]),
        Maps([LOVE]),
    ],
)


def test_it_needs_no_other_file() -> None:
    html = PAGE.html()
    inert = html.replace("http://www.w3.org/2000/svg", "")
    assert "http:" not in inert
    assert "https:" not in inert
    assert not re.search(r"<link|@import|url\(|<img|<iframe", inert)
    assert html.startswith("<!doctype html>")
    assert '<meta charset="utf-8">' in html


def test_only_its_own_script_and_style_may_run() -> None:
    html = PAGE.html()
    policy = unescape(re.search(r'Security-Policy" content="(.*?)"', html)[1])
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.S)
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.S)
    for text, source in ((script, "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{source} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert 'style="' not in html  # which the policy would block


def test_many_heads_make_a_small_page() -> None:
    rng = np.random.default_rng(0)
    words = [f"word-{i}" for i in range(30)]
    panels = [Panel.of(f"head {h}", rng.random((30, 30)), words, words) for h in range(8)]
    page = Page("t", [Examples([Example("a", "b", "c", panels)] * 50)])
    assert len(page.html()) < 1_000_000


def test_a_page_is_written(tmp_path: Path) -> None:
    PAGE.write(tmp_path / "deep" / "page.html")
    assert (tmp_path / "deep" / "page.html").read_text("utf-8") == PAGE.html()


def test_a_notebook_frames_it() -> None:
    frame = PAGE._repr_html_()
    assert unescape(re.search(r'srcdoc="(.*?)"', frame, re.S)[1]) == PAGE.html()
    assert frame.count("<") == 2
    assert 'sandbox="allow-scripts"' in frame


def rendered(html: str, folder: Path) -> str:
    """The page in a browser, after its script ran."""
    if not BROWSER:
        pytest.skip("no browser")
    (folder / "page.html").write_text(html, "utf-8")
    options = "--headless --no-sandbox --disable-gpu --window-size=1280,4000 --dump-dom"
    command = [BROWSER, *options.split(), f"--user-data-dir={folder}", f"file://{folder}/page.html"]
    home = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=home)
    if "<main>" not in done.stdout:
        pytest.skip("the browser does not run here")
    return done.stdout


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    return rendered(PAGE.html(), tmp_path_factory.mktemp("page"))


def test_a_browser_draws_the_maps(shown: str) -> None:
    maps = shown.split('<figure class="map"')[1:]
    assert len(maps) == 2
    for drawn in maps:
        assert drawn.count('fill="rgb(255 255 255)"') == 4
        assert drawn.count('fill="rgb(18 42 102)"') == 1
        assert len(re.findall(r'fill="rgb\(13[12] 16[89] 22[12]\)"', drawn)) == 2
        assert ">中国</text>" in drawn or ">中</tspan>" in drawn
        assert "Arrow keys choose a word" in drawn
    assert maps[0].count("<option") == 2
    assert "<option" not in maps[1]


def test_hostile_text_does_nothing_in_a_browser(shown: str) -> None:
    assert "<title>What it looked at</title>" in shown
    assert "<img" not in shown
    assert shown.count("&lt;img src=x onerror") == 5


def test_choosing_a_word_highlights_what_it_looks_at(tmp_path: Path) -> None:
    """Keys in the map, then the pointer in the lines; the page's policy is relaxed for the test."""
    open_page = re.sub('<meta http-equiv="Content-Security-Policy".*?>', "", PAGE.html())
    drive = """<script>{
    const [first, second] = document.querySelectorAll("figure.map");
    const press = (key) =>
      first.querySelector(".stage").dispatchEvent(new KeyboardEvent("keydown", { key }));
    press("ArrowDown"); press("ArrowRight"); press("ArrowRight");
    second.querySelectorAll("button")[1].click();
    const stage = second.querySelector(".stage"), word = stage.querySelector("text");
    const { left, top, width, height } = word.getBoundingClientRect();
    const place = { clientX: left + width / 2, clientY: top + height / 2 };
    stage.dispatchEvent(new PointerEvent("pointermove", place));
    }</script></body>"""
    html = rendered(open_page.replace("</body>", drive), tmp_path)
    by_key, by_pointer = html.split('<figure class="map"')[1:]
    assert "<b>爱</b> → love 1.00, " in by_key
    assert lit(by_key) == pytest.approx([0.25, 1, 0.5, 0, 0.25, 0], abs=0.003)
    assert "<b>i</b> ← 我 0.75, 爱 0.25" in by_pointer
    assert lit(by_pointer) == pytest.approx([0.25, 0, 0, 0.75, 0.25, 0], abs=0.003)


def lit(drawn: str) -> list[float]:
    """The brightness of each word: i, love, ..., then 我 爱 中国."""
    patches = re.findall(r'<rect class="lit".*?>', drawn)
    return [float(re.search(r'opacity="(.*?)"', patch)[1]) for patch in patches]


def test_heads_of_a_layer_are_aligned_and_no_map_needs_scrolling(
    browser: Any, tmp_path: Path
) -> None:
    words = ["<s>", "the", "<mask>", "is", "bl", "ue", "▁", ".", "</s>"]
    soft = np.full((9, 9), 1 / 9)
    heads = [Panel.of(f"layer {n} · head {h}", soft, words, words) for n in "01" for h in range(4)]
    long = [
        Panel.of(p.title, np.eye(18), "ROMEO: they say so", "ROMEO: they say so") for p in heads
    ]
    Page("t", [Maps(heads), Maps(long), Maps(heads[:2])]).write(tmp_path / "page.html")
    for width in (1360, 1000, 420):
        tab = browser.open(tmp_path / "page.html", width=width, height=9000)
        tab.until("document.querySelectorAll('.stage svg').length === 18")
        over = (
            "[...document.querySelectorAll('.stage')].filter((x) => x.scrollWidth > x.clientWidth)"
        )
        assert tab.get(f"{over}.length") == 0
        box = "(x) => { const b = x.getBoundingClientRect(); return [b.left, b.top]; }"
        places = tab.get(f"[...document.querySelectorAll('figure.map')].map({box})")
        for some in (places[:8], places[8:16]):
            assert [x for x, _ in some[:4]] == [x for x, _ in some[4:]]
            assert some[4][1] > some[3][1]  # a layer begins a line
        if width == 1360:
            assert len({y for _, y in places[:4]}) == 1
            assert len({y for _, y in places[8:12]}) == 2  # of long texts there are two per line
        tab.close()
