"""heed show --walk and --history: in the terminal and as a page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running.writing import written

SENTENCE = "我 爱 我"
Command = Callable[..., Any]


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory)


def test_a_walk_fits_a_screen(
    command: Command, writer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = command("show", str(writer), SENTENCE, "--walk", "--at", "0", "--layer", "0")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert len(lines) <= 24
    for text in ("score", "align", "read", "爱", "= the model's context"):
        assert text in done.out


def test_a_walk_is_a_section_of_the_page(command: Command, writer: Path, tmp_path: Path) -> None:
    path = tmp_path / "look.html"
    done = command("show", str(writer), SENTENCE, "--walk", "--html", str(path))
    assert (done.code, done.err) == (0, "")
    html = path.read_text("utf-8")
    assert "<h2>Step by step</h2>" in html
    assert 'class="examples"' in html
    assert set(re.findall(r"https?://[^/\"]*", html)) <= {"http://www.w3.org"}


def test_the_history_is_printed_and_written(command: Command, writer: Path, tmp_path: Path) -> None:
    done = command("show", str(writer), "--history")
    assert done.code == 0
    assert "entropy of decoder.attention" in done.out
    path = tmp_path / "history.html"
    done = command("show", str(writer), "--history", "--html", str(path))
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{path}: the history of writing; ")
    html = path.read_text("utf-8")
    assert 'class="scrub" data-steps="60"' in html
    assert set(re.findall(r"https?://[^/\"]*", html)) <= {"http://www.w3.org"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--at", "x"], "--at is for --walk"),
        (["--head", "0"], "--head is for --walk"),
        (["--history", "--walk"], "leave out --walk"),
        (["--history", "--heads"], "leave out --heads"),
        (["--walk", "--png", "a.png"], "write a page: --html"),
        (["--walk", "--at", "elephant"], "neither a word of the queries"),
    ],
)
def test_incompatible_options_are_refused(
    command: Command, writer: Path, words: list[str], said: str
) -> None:
    done = command("show", str(writer), *words)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert said in done.err


def test_the_history_takes_no_input(command: Command, writer: Path) -> None:
    done = command("show", str(writer), SENTENCE, "--history")
    assert done.code == 2
    assert "leave out an INPUT" in done.err
