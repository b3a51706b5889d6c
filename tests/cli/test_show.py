"""heed show: in the terminal, as a picture, as a page."""

from __future__ import annotations

import re
import struct
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running.writing import written

SENTENCES = ["我 爱 我", "你 爱 他们"]


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory)


@pytest.fixture
def translations(command: Callable[..., Any], writer: Path, tmp_path: Path) -> list[str]:
    path = tmp_path / "in.txt"
    path.write_text("\n".join(SENTENCES))
    lines: list[str] = command("predict", str(writer), str(path)).out.splitlines()
    assert all(lines)
    return lines


def test_the_terminal_has_source_translation_and_a_map(
    command: Callable[..., Any],
    writer: Path,
    translations: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    done = command("show", str(writer), *SENTENCES)
    assert (done.code, done.err) == (0, "")
    for source, text in zip(SENTENCES, translations, strict=True):
        assert f"{source} → {text}\n" in done.out
    assert done.out.count("alignment") == 2
    words = translations[0].split()
    block = done.out.partition(SENTENCES[1])[0]
    rows = [line.split()[0] for line in block.splitlines()[1:] if line.split()]
    assert [row for row in rows if row in words] == words  # a row for each, in order


def test_without_a_sentence_the_run_shows_its_own(
    command: Callable[..., Any], writer: Path
) -> None:
    done = command("show", str(writer))
    assert done.code == 0
    assert done.out.count(" → ") == 5


def test_pictures_and_pages_are_written(
    command: Callable[..., Any], writer: Path, translations: list[str], tmp_path: Path
) -> None:
    page, png, svg = (tmp_path / f"a.{end}" for end in ("html", "png", "svg"))
    done = command(
        "show", str(writer), *SENTENCES, "--html", str(page), "--png", str(png), "--svg", str(svg)
    )
    assert (done.code, done.out, done.err) == (0, "", "")
    html = page.read_text("utf-8")
    assert all(text in html for text in (*SENTENCES, *translations))
    assert set(re.findall(r"https?://[^/\"]*", html)) <= {"http://www.w3.org"}
    data = png.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert min(width, height) > 100
    drawn = "".join(ElementTree.parse(svg).getroot().itertext())
    assert all(word in drawn for text in translations for word in text.split())


def test_every_head_is_one_panel_more(
    command: Callable[..., Any], writer: Path, tmp_path: Path
) -> None:
    few, many = command("show", str(writer), "我"), command("show", str(writer), "我", "--heads")
    assert "decoder.attention" in many.out
    assert many.out.startswith(few.out.rstrip("\n"))
    svg = tmp_path / "heads.svg"
    command("show", str(writer), "我 爱", "--heads", "--svg", str(svg))
    assert "decoder.attention" in svg.read_text("utf-8")


def test_nothing_to_draw_is_refused(
    command: Callable[..., Any], writer: Path, tmp_path: Path
) -> None:
    done = command("show", str(writer), " ", "--png", str(tmp_path / "a.png"))
    assert done.code == 2
    assert "there is nothing to draw" in done.err
    assert list(tmp_path.iterdir()) == []
    done = command("show", str(writer), " ")
    assert (done.code, "no attention to show" in done.out) == (0, True)
