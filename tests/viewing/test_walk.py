"""A walk, printed on a terminal and as a page, for any words."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from heed.errors import ShapeError
from heed.viewing.page import Page
from heed.viewing.walk import FEW, MOST, Key, Section, Stage, Told, number, vector

STAGES = [Stage("score", "e = q·k", ["q  2 wide"]), Stage("align", "a = softmax: exp(e)")]


def told(keys: list[Key], **more: object) -> Told:
    given: dict[str, object] = {"context": [0.5, -0.25], "check": "= what", "agrees": True}
    return Told("love · position 1", STAGES, ["e", "a"], keys, **{**given, **more})  # type: ignore[arg-type]


def screen(what: Told, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(what)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


KEYS = [
    Key("我", [0.5, 0.25], [0.1, 0.2]),
    Key("爱", [1.5, 0.75], [0.4, -0.45]),
    Key("他", [9.0, 0.0], [0.0, 0.0], "later position"),
]


def test_the_terminal_lists_the_heaviest_first_and_says_what_was_hidden() -> None:
    lines = screen(told(KEYS))
    assert lines[0] == "love · position 1"
    assert lines[1].split() == ["1", "score", "e", "=", "q·k"]
    assert screen(told(KEYS, choice="one of 3"))[:2] == [lines[0], "  one of 3"]
    chosen = told(KEYS, choice="one of 3", options="--head 0 to 2")
    assert screen(chosen)[1] == "  one of 3 (--head 0 to 2)"
    assert "<p>one of 3</p>" in Section("t", [chosen]).html()  # a page has no command line
    rows = [line.split()[0] for line in lines if line.startswith("  ") and "█" in line]
    assert rows == ["爱", "我"]
    assert "  1 hidden: later position" in lines
    assert lines[-1].split()[:3] == ["Σ", "0.500", "-0.250"]
    assert lines[-1].endswith("= what")


def test_the_last_line_is_not_broken() -> None:
    check, context = "= the model's context to within 2e-07", [-0.25] * 8
    *_, last = screen(told(KEYS, context=context, check=check))
    assert last.endswith(f"-0.250 …  {check}")
    wrong = "NOT the model's context: they differ by up to 1.0e-01"
    *_, sum_, last = screen(told(KEYS, context=context, check=wrong, agrees=False))
    assert (sum_.split()[0], last) == ("Σ", f"        {wrong}")


def test_it_fits_a_screen_for_any_number_of_keys() -> None:
    many = [Key(f"w{n}", [0.0, 0.001], [0.0]) for n in range(1000)]
    lines = screen(told(many))
    assert len(lines) <= 24
    assert f"  {1000 - FEW} others: {number(0.994)} in total" in lines


def test_a_pointer_sums_no_values() -> None:
    lines = screen(told(KEYS, context=(), check="the weights are the result", agrees=None))
    assert not any("Σ" in line or "a·v" in line for line in lines)


def test_a_page_lists_every_key_and_why_it_was_hidden() -> None:
    html = Page("x", [Section("Step by step", [told(KEYS)])]).html()
    assert "<h2>Step by step</h2>" in html
    for text in ("我", "爱", "他", "later position", "0.7500", "e = q·k", "= what"):
        assert text in html
    assert "hidden" not in Section("x", [told(KEYS[:2])]).html()


def test_a_page_leaves_out_what_is_too_much_and_says_so() -> None:
    many = [Key(f"w{n}", [0.0, 0.001], [0.0]) for n in range(MOST + 3)]
    html = Section("x", [told(many)]).html()
    assert "The table leaves out 3 others." in html
    assert html.count("<tr>") == MOST + 1


def test_words_are_never_read_as_markup() -> None:
    evil = "<img src=x onerror=alert(1)>[bold]\x1b[31m"
    what = told([Key(evil, [0.0, 1.0], [0.0], evil)], check=evil)
    what = replace(what, stages=[Stage(evil, evil, [evil])])
    html = Section(evil, [what]).html()
    assert "<img" not in html
    assert "\x1b" not in html
    assert "\x1b" not in "".join(screen(what))
    assert "[bold]" in "".join(screen(told([Key("[bold]", [0.0, 1.0], [0.0])])))


def test_numbers_fit_the_columns() -> None:
    with pytest.raises(ShapeError, match="1 numbers for 2 columns"):
        told([Key("a", [0.0], [])])


def test_the_format_of_numbers() -> None:
    written = [number(x) for x in (0.0, 0.1234, 0.00001, -12.5, float("inf"))]
    assert written == ["0.000", "0.123", "1e-05", "-12.500", "–"]
    assert vector([1.0, -2.0, 3.0], 2) == " 1.000 -2.000 …"
    assert vector([1.0]) == " 1.000"


def test_a_notebook_shows_the_page() -> None:
    assert told(KEYS)._repr_html_().startswith("<iframe")
