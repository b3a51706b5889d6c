"""The Python in README and docs runs as printed, and the table of parts is the catalogue."""

import re
from pathlib import Path

import pytest

from heed.attention.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted(ROOT.glob("docs/*.md"))]


def python_of(markdown: str) -> str:
    """The Python blocks alone, on their own lines, so that a traceback points to the right one."""
    inside = False
    lines = []
    for line in markdown.splitlines():
        inside = inside and line != "```"
        lines.append(line if inside else "")
        inside = inside or line == "```python"
    return "\n".join(lines)


def test_blocks_keep_their_lines() -> None:
    assert python_of("# a\n```python\nx = 1\n```\ntext").split("\n") == ["", "", "x = 1", "", ""]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a page may write
    source = python_of(page.read_text("utf-8"))
    assert re.search(r"^(import|from) heed", source, re.MULTILINE) or not source.strip()
    exec(compile(source, str(page), "exec"), {"__name__": "page"})


@pytest.mark.parametrize("slot", ["score", "past", "reach", "align", "read"])
def test_the_table_names_every_part(slot: str) -> None:
    row = re.search(rf"^\| {slot} \|(.*)\|$", README.read_text("utf-8"), re.MULTILINE)
    assert row
    named = re.findall(r"`([^`]+)`", row[1])
    assert sorted(named) == sorted(name for name, entry in CATALOGUE.items() if entry.slot == slot)
