"""Labels for the pieces of a text: "##" marks a piece that continues a word.

    labels([" stir", "ring", " film", "."])        stir  ##ring  film  .

This is the mark of BERT's vocabularies. Here it stands between two letters or digits without a
space between them, for any kind of tokeniser. Punctuation is never marked, nor are scripts that
are written without spaces, where any character may begin a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

CONTINUES = "##"
JOINERS = "\u00ad\u200c\u200d\u2060"
"""Signs within words that cannot be seen, as Persian and the scripts of India have them."""
UNSPACED = {
    *("CJK", "IDEOGRAPHIC", "HANGZHOU", "HIRAGANA", "KATAKANA"),
    *("THAI", "LAO", "KHMER", "MYANMAR"),
}
"""The names of scripts in Unicode whose words are not separated by spaces."""


def labels(pieces: Sequence[str]) -> list[str]:
    """The label of each piece of a text. A piece has the space before it, if there is one."""
    found, within = [], False
    for piece in pieces:
        found.append(label(piece, within))
        if seen := piece.strip(JOINERS):  # otherwise the word goes on behind it, if there is one
            within = _of_word(seen[-1])
    return found


def label(piece: str, within: bool = True) -> str:
    """The label of a piece; `within` if it may continue a word that another piece begins."""
    mark = CONTINUES if within and _of_word(piece.lstrip(JOINERS)[:1]) else ""
    return mark + sign(piece).strip(" ")


def sign(piece: str) -> str:
    """A piece with signs for line breaks, for tabs, and for spaces if it has nothing else."""
    if not piece.strip(" "):
        return "␣" * len(piece)
    return piece.replace("\n", "↵").replace("\t", "⇥")


def _of_word(character: str) -> bool:
    """Whether a character is a letter or digit, or combines with one, of words with spaces."""
    if not character or unicodedata.category(character)[0] not in "LNM":
        return False
    name = re.split("[ -]", unicodedata.name(character, ""))
    return UNSPACED.isdisjoint(name[:2])  # the second, as in HALFWIDTH KATAKANA
