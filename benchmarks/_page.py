"""Tables of results in a page of docs/ that is otherwise written by hand."""

import re
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def put(page: Path, place: str, command: str, body: str) -> None:
    """Replace what is between the two marker lines of a place; the rest is kept."""
    begin, end = f"<!-- begin {place}: written by {command} -->", f"<!-- end {place} -->"
    text = page.read_text(encoding="utf-8")
    if begin not in text or end not in text:
        raise SystemExit(f"{page} has no place for {place}: it needs the lines {begin} and {end}")
    between = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    written = f"{begin}\n\n{body}\n\n{end}"
    page.write_text(between.sub(lambda _: written, text), encoding="utf-8")


def markdown_table(lines: Sequence[Sequence[str]], words: int = 1) -> str:
    """Markdown of rows of cells, headings first; numbers begin after that many columns."""
    rule = ["---"] * words + ["---:"] * (len(lines[0]) - words)
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))
