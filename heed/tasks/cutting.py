"""Tokenisers of several kinds behind one interface, for tasks that read whole texts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from heed.data import vocabularies
from heed.data.letters import Letters
from heed.data.tokenise import BOS, LARGEST, SPECIALS, Tokeniser
from heed.data.vocabularies import Vocabulary
from heed.errors import HeedError, Refused
from heed.viewing import pieces
from heed.viewing.pieces import label, sign

MOST = 2_000_000  # symbols of a vocabulary
Gathers = Literal["first", "last"]
Own = TypeVar("Own")


@dataclass(frozen=True, slots=True)
class Cutting:
    """heed's own tokeniser, or the vocabulary of a pretrained model."""

    tokeniser: Tokeniser | Vocabulary

    @property
    def framed(self) -> bool:
        """Whether it puts symbols around a text by itself, such as [CLS] and [SEP]."""
        return isinstance(self.tokeniser, Vocabulary)

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return self.tokeniser.size

    @property
    def fingerprint(self) -> str:
        """A hash of vocabulary and rules, the same for the same ones alone."""
        return self.tokeniser.fingerprint

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text's numbers."""
        return self.tokeniser.encode(texts)

    def spelt(self, ids: Sequence[int], text: str | None = None) -> list[str]:
        """The piece of each number, with the space before it; with the text, unknown ones too."""
        return _spelt(self.tokeniser, ids, text)

    def pieces(self, ids: Sequence[int], text: str | None = None) -> list[str]:
        """A label for each number, for pictures; with the text, unknown ones as they are there."""
        return labels(self.tokeniser, ids, text)

    def letters(self, shortest: int, longest: int) -> Letters:
        """The runs of letters in its words; refused where its symbols are pieces of words."""
        kind = getattr(self.tokeniser, "kind", "of a pretrained model")
        if kind != "word":
            raise Refused(f"letters need whole words, but the tokens are {kind}; leave them out")
        words = [word.strip() for word in self.spelt(range(self.size))]
        return Letters(["" for _ in SPECIALS] + words[len(SPECIALS) :], shortest, longest)

    def save(self, path: Path) -> None:
        """Write tokenizer.json, whole or not at all."""
        self.tokeniser.save(path)


class Spells(Protocol):
    """A tokeniser of any kind."""

    def spelt(self, ids: Sequence[int]) -> list[str]:
        """The piece of each number, with the space before it."""


def labels(tokeniser: Spells, ids: Sequence[int], text: str | None = None) -> list[str]:
    """A label for each number, for pictures; with the text, unknown ones as they are there."""
    spelt = _spelt(tokeniser, ids, text)
    return pieces.labels(spelt) if _marks(tokeniser) else list(map(sign, spelt))


def alternatives(tokeniser: Spells, ids: Sequence[int]) -> list[str]:
    """A label for each of several numbers that may stand in one place."""
    return [label(piece, within=_marks(tokeniser)) for piece in tokeniser.spelt(ids)]


def _marks(tokeniser: Spells) -> bool:
    """Whether marks tell anything: where every character is a piece, all cuts are seen."""
    return getattr(tokeniser, "kind", "") != "character"


def _spelt(tokeniser: Spells, ids: Sequence[int], text: str | None) -> list[str]:
    """The pieces of some numbers; heed's own tokeniser can spell unknown ones of a text."""
    return tokeniser.spelt(ids, text) if isinstance(tokeniser, Tokeniser) else tokeniser.spelt(ids)


def load_cutting(path: Path, symbols: int = MOST) -> Cutting:
    """Load what `save` wrote, of whichever kind it is; a file is only data.

    symbols  how many it may have; a larger file is not read
    """
    return Cutting(own_or_borrowed(Tokeniser.load, path, symbols))


def own_or_borrowed(load: Callable[[Path], Own], path: Path, symbols: int) -> Own | Vocabulary:
    """What heed's own `load` reads in a tokenizer.json, or the vocabulary of a pretrained model.

    Where it is neither, heed's own loader says why. A file too large for so many symbols is not
    read.
    """
    if path.is_file() and path.stat().st_size > min(LARGEST, vocabularies.largest(symbols)):
        raise Refused(f"{path}: too large for a tokeniser of {symbols:,} symbols")
    try:
        return load(path)
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


@dataclass(frozen=True, slots=True)
class Words:
    """How texts are cut for a model, and the labels they may get.

    gathers  where the symbol for the whole text goes, as a pretrained model expects it
    longest  symbols of a text that the model reads; what comes after is cut off
    letters  the runs of letters in words, for a model that reads them
    """

    tokeniser: Cutting
    labels: tuple[str, ...]
    gathers: Gathers | None = None
    longest: int | None = None
    letters: Letters | None = None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text's numbers, cut to what the model reads; the end stays."""
        return [self.cut(ids) for ids in self.whole(texts)]

    def whole(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text's numbers, however many."""
        coded = self.tokeniser.encode(texts)
        if self.gathers is None or self.tokeniser.framed:
            return coded
        first = self.gathers == "first"
        return [[BOS, *ids] if first else [*ids, BOS] for ids in coded]

    def cut(self, ids: list[int]) -> list[int]:
        """Cut a text to what the model reads; the end stays."""
        most, end = self.longest, 2 if self.gathers == "last" else 1
        return ids if most is None or len(ids) <= most else [*ids[: most - end], *ids[-end:]]

    def pieces(self, ids: Sequence[int], text: str | None = None) -> list[str]:
        """A label for each number, for pictures; with the text, unknown ones as they are there."""
        return self.tokeniser.pieces(ids, text)

    @property
    def fingerprint(self) -> str:
        """A hash of tokens and labels, the same for the same ones alone."""
        # "first" and none keep the hashes that were written before there was "last".
        gathers = {None: False, "first": True}.get(self.gathers, self.gathers)
        told = [self.tokeniser.fingerprint, gathers, self.longest, *self.labels]
        return hashlib.sha256(repr(told).encode()).hexdigest()
