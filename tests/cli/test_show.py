"""heed show: in the terminal, as a picture, as a page."""

from __future__ import annotations

import io
import re
import struct
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

import heed
from heed.cli.show import tell
from heed.viewing.words import Weighed
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


def test_an_input_that_names_a_file_is_reported_as_read_literally(
    command: Callable[..., Any], writer: Path, tmp_path: Path
) -> None:
    path = tmp_path / "in.txt"
    path.write_text("我 爱 我\n")
    done = command("show", str(writer), str(path))
    assert done.code == 0
    assert "".join(done.out.split()).startswith(f"{path}→")  # a line may be broken anywhere
    said = (
        f"'{path}' is shown as a text, not read as the file of that name; heed predict reads files"
    )
    assert done.err == f"{said}\n"
    assert command("show", str(writer), "我 爱 我").err == ""
    assert command("show", str(writer), "我" * 5000).err == ""  # no file name is that long


def test_pictures_and_pages_are_written(
    command: Callable[..., Any], writer: Path, translations: list[str], tmp_path: Path
) -> None:
    page, png, svg = (tmp_path / f"a.{end}" for end in ("html", "png", "svg"))
    done = command(
        "show", str(writer), *SENTENCES, "--html", str(page), "--png", str(png), "--svg", str(svg)
    )
    assert (done.code, done.err) == (0, "")
    first, *others = done.out.splitlines()  # a line for each file
    assert re.fullmatch(r".*a\.html: 2 texts, 1 attention, 1 head; \d\.\d MB", first)
    assert '<figure class="map"' not in (tmp_path / "a.html").read_text("utf-8")  # only once
    assert [line.rpartition(": ")[2] for line in others] == ["2 maps", "2 maps"]
    html = page.read_text("utf-8")
    assert all(text in html for text in (*SENTENCES, *translations))
    assert html.count('<section class="atlas">') == 2
    assert html.count("<h2>Step by step</h2>") == 2
    assert set(re.findall(r"https?://[^/\"]*", html)) <= {"http://www.w3.org"}
    data = png.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert min(width, height) > 100
    drawn = "".join(ElementTree.parse(svg).getroot().itertext())
    assert all(text in drawn for text in (*SENTENCES, *(f"→ {text}" for text in translations)))


def test_every_head_is_one_more_panel(
    command: Callable[..., Any], writer: Path, tmp_path: Path
) -> None:
    few, many = command("show", str(writer), "我"), command("show", str(writer), "我", "--heads")
    assert "decoder.attention" in many.out
    assert many.out.startswith(few.out.rstrip("\n"))
    svg = tmp_path / "heads.svg"
    command("show", str(writer), "我 爱", "--heads", "--svg", str(svg))
    assert "decoder.attention" in svg.read_text("utf-8")


def test_two_models_side_by_side(command: Callable[..., Any], writer: Path, tmp_path: Path) -> None:
    page = tmp_path / "two.html"
    (step,) = (writer / "checkpoints").iterdir()
    given = ("show", str(writer), SENTENCES[0], "--beside", str(step))
    done = command(*given, "--html", str(page))
    assert (done.code, done.err) == (0, "")
    html = page.read_text("utf-8")
    assert '"against":1,"sides":["writing","writing step-60"]' in html
    assert "both models read the answer of writing here" in html
    refused = command(*given)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "name it: --html" in refused.err
    drawn = command(*given, "--html", str(page), "--png", str(tmp_path / "two.png"))
    assert (drawn.code, drawn.err.count("\n")) == (2, 1)
    assert "a picture shows one model: leave out --beside" in drawn.err
    assert "<h1>writing and writing step-60: attention</h1>" in html
    assert "<h2>Step by step: writing</h2>" in html


def test_a_long_text_is_pooled(
    command: Callable[..., Any], writer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heed.viewing.taking.CELLS", (16, 16))
    done = command("show", str(writer), "我 爱 " * 30)
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) < 40
    assert "weights in %" in done.out
    assert "…" in done.out.split("alignment")[1]  # a cell has several words


def test_a_saved_watch_can_be_shown(
    command: Callable[..., Any], writer: Path, tmp_path: Path
) -> None:
    attend = heed.MultiHeadAttention(8, 2)
    holder = torch.nn.ModuleDict({"[/b]\x1b[1m": attend})  # no markup, and no control characters
    for name, more in {"a": {}, "b": {"statistics": True}}.items():
        words = ["the", "cat", "<sat>"]
        with heed.watch(attend if name == "a" else holder, tokens=words, **more) as seen:
            attend(torch.randn(1, 3, 8))
        seen.save(tmp_path / f"{name}.safetensors")
    file, page = tmp_path / "a.safetensors", tmp_path / "watch.html"
    told = command("show", str(file))
    assert (told.code, told.err) == (0, "")
    assert "attention · head 1" in told.out
    done = command("show", str(file), "--html", str(page), "--beside", str(file))
    assert done.out.startswith(f"{page}: 1 text, 1 attention, 2 heads; ")
    assert "\\u003csat\\u003e" in page.read_text("utf-8")
    for pair in ((writer, file), (file, writer)):  # a run is shown with its own input only
        both = ("show", str(pair[0]), "--beside", str(pair[1]), "--html", str(page))
        assert "give one INPUT, not" in command(*both).err
        assert command(*both, SENTENCES[0]).code == 0
        assert '"against":1,"sides":["' in page.read_text("utf-8")
    stated = command("show", str(tmp_path / "b.safetensors"))  # statistics without weights
    assert "entropy, nats" in stated.out
    assert "[/b]\\x1b[1m" in stated.out
    for words, said in {("x",): "leave out INPUT", ("--walk",): "no queries and keys"}.items():
        refused = command("show", str(file), *words)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert said in refused.err
    (tmp_path / "d.safetensors").symlink_to(tmp_path / "d.safetensors")
    assert "is a circular link" in command("show", str(tmp_path / "d.safetensors")).err
    page.rename(tmp_path / "c.safetensors")
    assert "is not a safetensors file" in command("show", str(tmp_path / "c.safetensors")).err


def test_nothing_to_draw_is_refused(
    command: Callable[..., Any], writer: Path, tmp_path: Path
) -> None:
    for option, file in (("--png", "a.png"), ("--html", "a.html")):
        done = command("show", str(writer), " ", option, str(tmp_path / file))
        assert done.code == 2
        assert "there is nothing to draw" in done.err
        assert list(tmp_path.iterdir()) == []
    done = command("show", str(writer), " ")
    assert (done.code, "no attention to show" in done.out) == (0, True)


def test_a_text_whose_words_are_in_colour_is_printed_once() -> None:
    words = Weighed("it", ["a", "fine", "film"], [0.2, 0.6, 0.2])
    shown: Any = SimpleNamespace(
        source="a fine film",
        text="liked",
        weighed=[words],
        drawn=lambda: [words],
        named="",
        remark="",
        figures=(),
    )
    said = {}
    for system in (None, "truecolor"):
        out = io.StringIO()
        tell(shown, Console(file=out, force_terminal=system is not None, color_system=system))
        said[system] = re.sub("\x1b.*?m", "", out.getvalue()).splitlines()
    assert said[None][:2] == ["a fine film → liked", "it"]
    assert [line.rstrip() for line in said["truecolor"][:3]] == ["→ liked", "a fine film", "it"]
