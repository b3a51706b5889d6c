"""One self-contained HTML file without network or other files, from a disk or from a server.

    Page("Translate", [Facts([("BLEU", 97.4)]), Examples([...])]).write("report.html")

Its policy allows only its own script and style, by their hashes, so no text shown on it could run
as a script even if the escaping failed.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

from heed.viewing import chart, drawing
from heed.viewing.blocks import (
    Block,
    Charts,
    Column,
    Example,
    Examples,
    Facts,
    Heading,
    Maps,
    Paragraph,
    Table,
)

__all__ = [
    "Block",
    "Charts",
    "Column",
    "Example",
    "Examples",
    "Facts",
    "Heading",
    "Maps",
    "Page",
    "Paragraph",
    "Table",
]


@dataclass(frozen=True, slots=True)
class Page:
    """A title and blocks below it."""

    title: str
    blocks: Sequence[Block]
    language: str = "en"

    def html(self) -> str:
        """The text of the file."""
        title = drawing.written(self.title)
        scale = " ".join(",".join(map(str, colour)) for colour in drawing.INK)
        body = "\n".join(block.html() for block in self.blocks)
        kinds = _kinds(self.blocks)
        return (
            f'<!doctype html>\n<html lang="{escape(self.language)}" data-scale="{scale}">\n'
            f'<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy(kinds)}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title>\n<style>{style(kinds)}</style>\n</head>\n"
            f"<body>\n<main>\n<h1>{title}</h1>\n{body}\n</main>\n{_WITHOUT}\n"
            f"<script>{script(kinds)}</script>\n</body>\n</html>\n"
        )

    def write(self, path: str | Path) -> None:
        """Write the file, whole or not at all."""
        drawing.write(path, self.html().encode())

    def _repr_html_(self) -> str:
        """The page in its own frame, so that its style and a notebook's do not mix."""
        return (
            f'<iframe srcdoc="{escape(self.html())}" sandbox="allow-scripts" width="100%" '
            f'height="640" style="border:0" title="{drawing.written(self.title)}"></iframe>'
        )


_WITHOUT = "<noscript><p>The heat maps of this page are drawn by a script.</p></noscript>"


SHARED = ("draw", "map", "lines", "controls", "figure", "page")
SCRIPTS = {
    "atlas": (
        *("strings", "store", "field", "sources", "paint", "labels", "layout", "plate", "stage"),
        *("threads", "thumbs", "figures", "reading", "phrases", "atlas"),
    ),
    "history": ("phrases", "history"),
}
"""The scripts that a page with this kind of block needs beside the shared ones."""


def _kinds(blocks: Sequence[Block]) -> tuple[str, ...]:
    """The kinds of blocks that have their own style and scripts."""
    return tuple(sorted({getattr(block, "kind", "") for block in blocks} & set(SCRIPTS)))


@cache
def style(kinds: tuple[str, ...] = ()) -> str:
    """The page's style, with that of its charts."""
    own = "".join(_asset(f"{kind}.css") for kind in kinds)
    return drawing.STYLE + chart.STYLE + _asset("page.css") + own


@cache
def script(kinds: tuple[str, ...] = ()) -> str:
    """The script that draws the heat maps and sorts the tables."""
    own = dict.fromkeys(name for kind in kinds for name in SCRIPTS[kind])
    parts = "".join(_asset(f"{name}.js") for name in (*SHARED, *own))
    ready = 'document.documentElement.dataset.ready = "yes";'
    return f'"use strict";\n(() => {{\n{parts}{ready}\n}})();\n'


@cache
def policy(kinds: tuple[str, ...] = ()) -> str:
    """The content security policy: nothing is loaded or sent; only this script and style apply."""
    own = f"script-src {_hash(script(kinds))}; style-src {_hash(style(kinds))}"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _asset(name: str) -> str:
    return files("heed.viewing").joinpath("assets", name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
