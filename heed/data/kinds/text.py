"""Text, as pieces of a vocabulary: heed's own tokeniser, or that of a pretrained model."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from heed.data import vocabularies
from heed.data.kinds.kind import Kind
from heed.data.tokenise import BOS, LARGEST, Tokeniser
from heed.data.verbatim import Verbatim
from heed.data.vocabularies import Vocabulary
from heed.errors import HeedError, Refused

LONGEST = 100_000  # characters of an item
MOST = 2_000_000  # symbols of a vocabulary
MASKED = re.compile(r"\[MASK\]|<mask>")
"""How a hidden word is written in a line."""
Gathers = Literal["first", "last"]
MARKS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}  # what would separate lines and columns


class Pieces(Protocol):
    """A tokeniser of text; heed/data/ has several."""

    @property
    def size(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...
    def save(self, path: Path) -> None: ...


class Text(Kind[str]):
    """Text as symbols.

    pieces   cuts text into symbols
    gathers  where the symbol that stands for a whole text goes, as a pretrained model expects it
    """

    name = "text"

    def __init__(
        self, pieces: Any, *, longest: int | None = None, gathers: Gathers | None = None
    ) -> None:
        self.pieces, self.longest, self.gathers = pieces, longest, gathers
        self.marked = getattr(pieces, "kind", "") != "character"  # otherwise all cuts are seen

    @property
    def size(self) -> int:
        """The number of symbols."""
        return int(self.pieces.size)

    @property
    def fingerprint(self) -> str:
        """A hash of vocabulary and rules."""
        told = [self.pieces.fingerprint, self.gathers, self.longest]
        return hashlib.sha256(repr(told).encode()).hexdigest()

    @property
    def front(self) -> tuple[int, ...]:
        """The symbols in front of every text, where heed's own tokeniser cuts it."""
        return (BOS,) if self.gathers == "first" else ()

    @property
    def is_framed(self) -> bool:
        """Whether the vocabulary puts symbols around a text by itself, such as [CLS] and [SEP]."""
        return isinstance(self.pieces, Vocabulary)

    def whole(self, items: Sequence[str]) -> list[list[int]]:
        """Each text's symbols, however many."""
        coded: list[list[int]] = self.pieces.encode(items)
        if self.gathers is None or self.is_framed:
            return coded
        first = self.gathers == "first"
        return [[BOS, *ids] if first else [*ids, BOS] for ids in coded]

    def cut(self, row: list[int]) -> list[int]:
        """Cut a text to what the model reads; the end stays."""
        most, end = self.longest, 2 if self.gathers == "last" else 1
        return row if most is None or len(row) <= most else [*row[: most - end], *row[-end:]]

    def spelt(self, row: Sequence[int], item: str | None = None) -> list[str]:
        """The piece of each symbol, with the space before it; with the text, unknown ones too."""
        return spelt(self.pieces, row, item)

    def words(self, item: str) -> list[int]:
        """The word that each symbol of a text belongs to, from 0; -1 for none."""
        found: list[int] = self.pieces.words(item)
        return found

    def is_blank(self, item: str) -> bool:
        """Whether there is nothing but white space."""
        return not item.strip()

    def of_line(self, line: str) -> str:
        """The line itself."""
        return line

    def as_line(self, item: str) -> str:
        """The text itself."""
        return item

    def of_data(self, found: Any) -> str:
        """A kept text, checked."""
        return text_of(found)


class RawText(Text):
    r"""Text as it stands: every space and line break counts. In a line, a line break is \n."""

    def is_blank(self, item: str) -> bool:
        """Not even a text without a character is."""
        return False

    def of_line(self, line: str) -> str:
        """The text that a line stands for."""
        return unescaped(line)

    def as_line(self, item: str) -> str:
        """The text in one line."""
        return escaped(item)

    def of_data(self, found: Any) -> str:
        """A kept text of any length, checked."""
        if not isinstance(found, str) or not found:
            raise ValueError
        found.encode()  # half a surrogate pair is a ValueError, too
        return found

    def continued(self, before: Sequence[int], row: Sequence[int]) -> str:
        """The text of symbols that come after others."""
        own = isinstance(self.pieces, Verbatim)
        text: str = self.pieces.decode(row) if own else self.pieces.continued(before, row)
        return text


class MaskedText(Text):
    """Text in which some words are hidden: [MASK] or <mask>. A row has the symbols of one text, or
    of two that stand in a line with a tab between them.

    mask    the symbol of a hidden word
    paired  whether two texts are told apart
    """

    def __init__(self, pieces: Any, mask: int, *, paired: bool) -> None:
        super().__init__(pieces)
        self.mask, self.paired = mask, paired

    def whole(self, items: Sequence[str]) -> list[list[Any]]:
        """The symbols of each text, without an end."""
        every = (item.split("\t", 1) if self.paired else [item] for item in items)
        return [[self._coded(side) for side in sides if side.strip()] for sides in every]

    def _coded(self, item: str) -> list[int]:
        ids: list[int] = []
        for number, part in enumerate(MASKED.split(item)):
            if number:
                ids.append(self.mask)
            if number and unicodedata.category(part[:1] or " ")[0] in "PS":
                # Punctuation right after a mask has no space before it; at a text's start it has.
                before, with_it = self.pieces.encode(["x", f"x{part}"])
                ids += with_it[len(before) - 1 : -1]
            elif part.strip():
                ids += self.pieces.encode([part])[0][:-1]
        return ids


def escaped(text: str) -> str:
    r"""A text in one line, and one column: a line break is \n, a tab \t, and a backslash \\."""
    text = text.replace("\\", "\\\\")
    for plain, told in MARKS.items():
        text = text.replace(plain, told)
    return text


def unescaped(line: str) -> str:
    r"""The inverse of `escaped`; other backslashes stay as they are."""
    parts = line.split("\\\\")
    for plain, told in MARKS.items():
        parts = [part.replace(told, plain) for part in parts]
    return "\\".join(parts)


def text_of(found: Any) -> str:
    """A kept text: not blank, of at most `LONGEST` characters; anything else is a ValueError."""
    if not isinstance(found, str) or found.isspace() or not 0 < len(found) <= LONGEST:
        raise ValueError
    found.encode()  # half a surrogate pair is a ValueError, too
    return found


def spelt(pieces: Any, ids: Iterable[int], text: str | None = None) -> list[str]:
    """The pieces of some symbols; heed's own tokeniser can spell unknown ones of a text."""
    ids = list(ids)
    own = isinstance(pieces, Tokeniser)
    found: list[str] = pieces.spelt(ids, text) if own else pieces.spelt(ids)
    return found


def load(path: Path, symbols: int = MOST, own: Any = Tokeniser) -> Any:
    """The tokeniser in a tokenizer.json: heed's `own`, or the vocabulary of a pretrained model.

    Where it is neither, heed's own loader says why. A file is only data; one that is too large for
    so many symbols is not read.
    """
    if path.is_file() and path.stat().st_size > min(LARGEST, vocabularies.largest(symbols)):
        raise Refused(f"{path}: too large for a tokeniser of {symbols:,} symbols")
    try:
        return own.load(path)
    except Refused as error:
        found = _read_vocabulary(path, symbols)
        if found is None:
            raise error from None
        return found


def _read_vocabulary(path: Path, symbols: int) -> Vocabulary | None:
    """The vocabulary of a pretrained model in a tokenizer.json; None: there is none in it."""
    if not path.is_file():
        return None
    try:
        return vocabularies.read({"tokenizer.json": path.read_bytes()}, symbols, str(path))
    except HeedError:
        return None
