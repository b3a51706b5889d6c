"""A training's time line: pictures are read back as numbers and words, and as nothing else."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from heed.viewing.chart import Line, LineChart
from heed.viewing.history import History, Moment, Scrub, panels
from heed.viewing.image import svg
from heed.viewing.page import Page
from heed.viewing.panels import Panel

CHART = LineChart("entropy of decoder", [Line("decoder", [10, 20], [1.5, 0.5])], "step", "nats")


def panel(shift: float = 0.0, title: str = "head 0") -> Panel:
    return Panel.of(
        title, [[0.75 - shift, 0.25], [0.125, 0.5]], ["i", "love <b>"], ["我", "爱 ← x"]
    )


def test_a_picture_is_read_back() -> None:
    given = [panel(), panel(0.5, "a title: heat map; of & <things>")]
    got = panels(svg(given))
    for one, other in zip(got, given, strict=True):
        np.testing.assert_allclose(one.weight, other.weight, atol=5e-4)
        assert (one.title, one.rows) == (other.title, other.rows)
    assert got[0].columns[0] == "我"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no picture",
        "<svg/>",
        "<!DOCTYPE svg [<!ENTITY a 'aaaa'>]>" + svg(panel()),
        svg(panel()).replace("5 target", "7 target").replace("2 target", "3 target"),
        svg(Panel.of("large", np.zeros((50, 50)), map(str, range(50)), map(str, range(50)))),
        '<svg xmlns="http://www.w3.org/2000/svg" aria-label="heat map, 1 target rows, '
        '1 source columns"><g><g><path><title>a ← b  nan</title></path></g></g></svg>',
        "<a>" * 100_000,
    ],
)
def test_other_pictures_give_nothing(text: str) -> None:
    assert panels(text) == []


def test_the_terminal_has_the_lines() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(History("t", [CHART], note="a note"))
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert "entropy of decoder" in out
    assert "a note" in out


def test_a_single_validation_is_printed_as_numbers() -> None:
    charts = [
        LineChart("loss", [Line("loss", [60], [0.25])], "step", "nats"),
        LineChart("entropy", [Line(f"<{n}>", [60], [n / 8]) for n in (1, 2)], "step", "nats"),
    ]
    console = Console(file=io.StringIO(), width=80)
    console.print(History("t", charts))
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert [line.split() for line in out.splitlines()] == [
        ["step", "60,", "the", "only", "validation"],
        ["loss", "0.25", "nats"],
        ["entropy", "·", "<1>", "0.125", "nats"],
        ["entropy", "·", "<2>", "0.25", "nats"],
        [],
    ]
    html = History("t", charts).page().html()
    assert "<svg" not in html
    assert "entropy · &lt;1&gt;" in html
    assert "<svg" in History("t", [*charts, CHART]).page().html()


def test_a_page_has_a_map_of_every_step_and_escapes_the_files() -> None:
    evil = "<script>alert(1)</script>"
    moments = [Moment(10, [panel()], evil), Moment(20, [panel(0.5), panel()], "said\nmore")]
    html = Scrub(moments).html()
    assert 'data-steps="10 20"' in html
    assert html.count('<div class="maps by-') == 1
    row = Panel.of("long", [[0.05] * 20], ["liked"], [f"w{n}" for n in range(20)])
    assert '<div class="maps by-1">' in Scrub([Moment(10, [row])]).html()
    assert html.count("<figure") == 2
    assert "alert" in html
    assert "<script>" not in html
    assert "<span>step 20</span><br>said<br>more" in html
    data = [json.loads(x) for x in re.findall(r'application/json">(.*?)</script>', html)]
    titles = [each["title"] for each in data[0]["panels"]]
    assert titles == ["step 10 · head 0", "step 20 · head 0"]


def test_lines_with_names_are_shown_as_names_and_values() -> None:
    text = (
        "text       a <b>\nlabel      bad\npredicted  good 0.6\n\n"
        "text       c\nlabel      good\npredicted  good 0.9\n"
    )
    html = Scrub([Moment(10, [], text)]).html()
    assert html.count('<dl class="sentences">') == 2
    assert "<dt>Text</dt><dd dir=auto>a &lt;b&gt;</dd><dt>Label</dt><dd dir=auto>bad</dd>" in html
    for text in ("once  upon\na time", "once  upon"):
        free = Scrub([Moment(10, [], text)]).html()
        assert "<dl" not in free
        assert text.replace("\n", "<br>") in free


def test_maps_with_long_names_have_room_for_them(browser: Any, tmp_path: Path) -> None:
    name = "How many Jews were executed in concentration c…"
    Page("t", [Scrub([Moment(n, [panel(0, name)] * 5) for n in (10, 20)])]).write(
        tmp_path / "page.html"
    )
    tab = browser.open(tmp_path / "page.html", height=4000)
    tab.until("document.querySelectorAll('.map select').length === 5")
    box = "(x) => x.getBoundingClientRect()"
    tops = tab.get(f"[...document.querySelectorAll('figure.map')].map({box}).map((b) => b.top)")
    assert tops[0] == tops[1] < tops[2] == tops[3] < tops[4]
    tools = "document.querySelector('.tools')"
    assert tab.get(f"{tools}.offsetHeight") < 40  # a line
    assert tab.get(f"{tools}.querySelector('select').offsetWidth") > 320
    tab.close()


def test_the_slider_moves_maps_and_texts(browser: Any, tmp_path: Path) -> None:
    moments = [
        Moment(10, [panel()], "one"),
        Moment(20, [], "two"),
        Moment(30, [panel(0.5)], "three"),
    ]
    note = "This model has no attention; the charts show its loss."
    page = History("run: training history", [CHART], moments, note).page()
    page.write(tmp_path / "page.html")
    tab = browser.open(tmp_path / "page.html")
    tab.until("document.querySelector('figure select')?.selectedIndex === 1")
    assert tab.text(".slider output") == "step 30"
    tab.focus(".slider input")
    tab.press("ArrowLeft")
    assert tab.text(".slider output") == "step 20"
    assert tab.get("document.querySelector('figure select').selectedIndex") == 0
    shown = "[...document.querySelectorAll('[data-step]')].filter((x) => !x.hidden)"
    assert tab.get(f"{shown}.map((x) => x.dataset.step).join()") == "20"
    nodes = "h1, figure.chart text, figure.chart g > title, h2, output, .note, option, p:last-child"
    said = f"[...document.querySelectorAll('{nodes}')].map((x) => x.textContent)"
    english = tab.get(said)
    tab.click(".language [data-value=zh]")
    chinese = tab.get(said)
    assert tab.get("document.querySelector('main').lang") == "zh"
    assert [other for one, other in zip(english, chinese, strict=True) if one != other] == [
        *("run：训练过程", "decoder 的熵", "步", "纳特"),
        *("decoder：第 10 步，1.5 纳特", "decoder：第 20 步，0.5 纳特"),
        *("训练中的样例", "第 20 步", "第 10 步 · 头 0", "第 30 步 · 头 0"),
        *("第 10 步one", "第 20 步two", "第 30 步three", "这个模型没有注意力，因此只显示损失。"),
    ]
    tab.click(".language [data-value=en]")
    assert tab.get(said) == english
    assert tab.requests() == []
    assert tab.complaints() == []
    tab.close()


def test_a_single_moment_can_be_chinese_and_has_its_step_at_the_left(
    browser: Any, tmp_path: Path
) -> None:
    moment = Moment(250, [panel()], "given   a [MASK]\nfilled  a b\n")
    History("run: training history", [CHART], [moment]).page().write(tmp_path / "page.html")
    tab = browser.open(tmp_path / "page.html")
    tab.until("document.querySelector('.scrub .name') !== null")
    tab.click(".language [data-value=zh]")
    assert tab.text(".scrub .name") == "第 250 步 · 头 0"
    assert tab.get("[...document.querySelectorAll('dt')].map((x) => x.textContent).join()") == (
        "给定,填入后"
    )
    assert tab.get("getComputedStyle(document.querySelector('.slider output')).textAlign") == "left"
    tab.close()


def test_scores_can_be_chinese(browser: Any, tmp_path: Path) -> None:
    lines = [Line("accuracy", [10, 20], [50, 75]), Line("macro-F1", [10, 20], [40, 60])]
    path = Line("key", [10, 20], [1, 1])  # of an attention with that name
    charts = [LineChart("validation scores", lines, x="step", y="%")]
    charts += [LineChart("entropy of attention", [path, path], x="step", y="nats")]
    note = "This model has no attention; the charts show its loss and scores."
    History("run: training history", charts, [], note).page().write(tmp_path / "page.html")
    tab = browser.open(tmp_path / "page.html")
    tab.click(".language [data-value=zh]")
    said = tab.get(
        "[...document.querySelectorAll('.charts text, g > title')].map((x) => x.textContent)"
    )
    assert {"验证得分", "准确率", "宏平均 F1", "准确率：第 20 步，75 %"} <= set(said)
    assert not {"accuracy", "macro-F1"} & set(said)
    assert said.count("key") == 2
    assert tab.text("main > p") == "这个模型没有注意力，因此只显示损失和得分。"
    tab.close()


def test_a_notebook_shows_the_page() -> None:
    assert History("t", [CHART])._repr_html_().startswith("<iframe")
