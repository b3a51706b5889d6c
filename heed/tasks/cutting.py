"""Tokenisers of several kinds behind one interface, for tasks that read whole texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heed.data import vocabularies
from heed.data.letters import Letters
from heed.data.tokenise import BOS, LARGEST, SPECIALS, Tokeniser
from heed.data.vocabularies import Vocabulary
from heed.errors import HeedError, Refused

MOST = 2_000_000  # symbols of a vocabulary


@dataclass(frozen=True, slots=True)
class Cutting:
    """heed's own tokeniser, or the vocabulary of a pretrained model."""

    tokeniser: Tokeniser | Vocabulary

    @property
    def framed(self) -> bool:
        """Whether it sets a text into a frame by itself, as [CLS] and [SEP] around it."""
        return isinstance(self.tokeniser, Vocabulary)

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return self.tokeniser.size

    @property
    def fingerprint(self) -> str:
        """The same for the same vocabulary and rules, and for no others."""
        return self.tokeniser.fingerprint

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text's numbers."""
        return self.tokeniser.encode(texts)

    def pieces(self, ids: Sequence[int], text: str | None = None) -> list[str]:
        """A label for each number, for pictures; of a text, what is unknown as it is there."""
        if isinstance(self.tokeniser, Tokeniser):
            return self.tokeniser.pieces(ids, text)
        return self.tokeniser.pieces(ids)

    def letters(self, shortest: int, longest: int) -> Letters:
        """What its words are spelled with; refused where they are pieces of words."""
        kind = getattr(self.tokeniser, "kind", "of a pretrained model")
        if kind != "word":
            raise Refused(f"letters are of whole words, and the tokens are {kind}; leave them out")
        words = self.pieces(range(self.size))
        return Letters(["" for _ in SPECIALS] + words[len(SPECIALS) :], shortest, longest)

    def save(self, path: Path) -> None:
        """Write tokenizer.json, whole or not at all."""
        self.tokeniser.save(path)


def load_cutting(path: Path, symbols: int = MOST) -> Cutting:
    """What `save` wrote, of whichever kind it is; a file is only data.

    symbols  that it has at most: a larger file is not read
    """
    check_size(path, symbols)
    try:
        return Cutting(Tokeniser.load(path))
    except Refused as error:
        found = read_vocabulary(path, symbols)
        if found is None:
            raise error from None
        return Cutting(found)


def check_size(path: Path, symbols: int) -> None:
    """Refuse a file that is too large for so many symbols, before it is read."""
    if path.is_file() and path.stat().st_size > min(LARGEST, vocabularies.largest(symbols)):
        raise Refused(f"{path}: too large for a tokeniser of {symbols:,} symbols")


def read_vocabulary(path: Path, symbols: int = MOST) -> Vocabulary | None:
    """The vocabulary of a pretrained model in a tokenizer.json; None: it is none."""
    if not path.is_file():
        return None
    try:
        return vocabularies.read({"tokenizer.json": path.read_bytes()}, symbols, str(path))
    except HeedError:
        return None


@dataclass(frozen=True, slots=True)
class Words:
    """How texts are cut for a model, and the labels they may get.

    framed   a symbol stands before each text, as a model that was pretrained on such texts has it
    longest  symbols of a text that the model reads; what comes after is cut off
    letters  what words are spelled with, for a model that asks
    """

    tokeniser: Cutting
    labels: tuple[str, ...]
    framed: bool = False
    longest: int | None = None
    letters: Letters | None = None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text's numbers, none of them too long; the end stays."""
        return [self.cut(ids) for ids in self.whole(texts)]

    def whole(self, texts: Sequence[str]) -> list[list[int]]:
        """The same, however long."""
        coded = self.tokeniser.encode(texts)
        bare = self.framed and not self.tokeniser.framed
        return [[BOS, *ids] for ids in coded] if bare else coded

    def cut(self, ids: list[int]) -> list[int]:
        """No longer than the model reads."""
        most = self.longest
        return ids if most is None or len(ids) <= most else [*ids[: most - 1], ids[-1]]

    def pieces(self, ids: Sequence[int], text: str | None = None) -> list[str]:
        """A label for each number, for pictures; of a text, what is unknown as it is there."""
        return self.tokeniser.pieces(ids, text)

    @property
    def fingerprint(self) -> str:
        """The same for the same tokens and labels, and for no others."""
        told = [self.tokeniser.fingerprint, self.framed, self.longest, *self.labels]
        return hashlib.sha256(repr(told).encode()).hexdigest()
