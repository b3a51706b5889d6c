"""Text that may be anybody's, made safe to show: pieces of a vocabulary, labels, answers.

A character that cannot be seen may move the cursor, forge a line, or turn the direction of writing.
"""

from __future__ import annotations

JOINERS = "\u200c\u200d"
"""Persian, the scripts of India and emoji are written with these."""

SPACES = "\u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u202f\u205f\u3000"
"""The spaces of Unicode: they do no harm, and only Python calls them unprintable."""


def escaped(text: str, keep: str = "") -> str:
    r"""A text without control characters, line ends, marks of direction and invisible signs: each
    is written as \x1b or \u202e, unless it is in `keep`."""
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )
