"""The vocabulary of a pretrained model behind the interfaces of heed's own tokenisers.

Borrowed(vocabulary)      for a language model, as `data/verbatim.py`: its own numbers
Renumbered(vocabulary)    for hidden words, as `data/tokenise.py`: the special ones come first; its
                          model goes on reading its own
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from heed.data import masked_words
from heed.data.kinds.text import MOST, load
from heed.data.masked_words import Symbols
from heed.data.plan import Ints
from heed.data.tokenise import BOS, EOS, PAD, UNK, Tokeniser
from heed.data.verbatim import Verbatim
from heed.data.vocabularies import Vocabulary
from heed.data.vocabulary import SPACE
from heed.errors import Refused


class Marks(NamedTuple):
    """Numbers that stand for no text.

    end      what a text ends with
    opening  what is read where nothing else stands before a text
    unknown  what unknown text becomes; None: there is no such number
    never    what is never written
    """

    end: int
    opening: tuple[int, ...]
    unknown: int | None
    never: frozenset[int]


class Borrowed:
    """The vocabulary of a pretrained language model, its numbers as they are."""

    def __init__(self, vocabulary: Vocabulary, where: str) -> None:
        roles = vocabulary.roles
        if "eos" not in roles:
            raise Refused(f"{where}: its vocabulary does not name its end symbol (eos)")
        self.vocabulary, end = vocabulary, roles["eos"]
        unknown = roles.get("unk")
        self.marks = Marks(
            end,
            (roles.get("bos", end),),
            None if unknown == end else unknown,
            frozenset(roles.values()) - {end},
        )

    @property
    def size(self) -> int:
        """The count of numbers."""
        return self.vocabulary.size

    @property
    def fingerprint(self) -> str:
        """A hash of vocabulary and rules, the same for the same ones alone."""
        return self.vocabulary.fingerprint

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text's numbers, and nothing before or after them."""
        return self.vocabulary.encode(texts, plain=True)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some numbers; pieces with a role are left out."""
        return self.vocabulary.decode(int(i) for i in ids)

    def continued(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text of numbers that come after others; alone they would have no space in front."""
        opened, whole = self.decode(before), self.decode([*before, *ids])
        return whole[len(opened) :] if whole.startswith(opened) else self.decode(ids)

    def spelt(self, ids: Iterable[int]) -> list[str]:
        """The piece of each number, with its spaces and line breaks."""
        return self.vocabulary.spelt(ids)

    def save(self, path: Path) -> None:
        """Write tokenizer.json, whole or not at all."""
        self.vocabulary.save(path)


Unchanging = Verbatim | Borrowed
"""A tokeniser of text of which every space and line break counts."""


def load_unchanging(path: Path, symbols: int = MOST) -> Unchanging:
    """Load what `save` wrote, of whichever kind it is; a file is only data.

    symbols  how many it may have; a larger file is not read
    """
    found = load(path, symbols, Verbatim)
    return Borrowed(found, str(path)) if isinstance(found, Vocabulary) else found


def marks_of(pieces: Unchanging) -> Marks:
    """The numbers that stand for no text. With heed's own vocabulary, a text opens after "\\n"."""
    if isinstance(pieces, Borrowed):
        return pieces.marks
    (line,) = pieces.encode(["\n"])
    opening = tuple(line) if line and UNK not in line else (EOS,)
    return Marks(EOS, opening, UNK, frozenset((PAD, UNK, BOS)))


ROLES = {PAD: ("pad",), UNK: ("unk",), BOS: ("cls", "bos"), EOS: ("sep", "eos")}
"""heed's first numbers, and what the pieces in their places are called elsewhere."""


class Renumbered:
    """The vocabulary of a pretrained BERT or XLNet under heed's numbers: padding, unknown, [CLS]
    and [SEP] are the first four, and the pieces that had these numbers get theirs.

    rows   how many the model's table has, which may be larger than the vocabulary
    order  for each number here the model's own    V
    """

    def __init__(self, vocabulary: Vocabulary, rows: int, where: str) -> None:
        if vocabulary.size > rows:
            raise Refused(
                f"{where}: its vocabulary has {vocabulary.size:,} symbols, and the model {rows:,}"
            )
        roles, order = vocabulary.roles, np.arange(rows)
        special = {here: _role(vocabulary, names, where) for here, names in ROLES.items()}
        mask = _role(vocabulary, ("mask",), where)
        if len({*special.values(), mask}) < len(special) + 1:
            raise Refused(f"{where}: two of [PAD], [UNK], [CLS], [SEP] and [MASK] are the same")
        for here, there in special.items():
            at = int(np.flatnonzero(order == there)[0])
            order[[here, at]] = order[[at, here]]
        self.vocabulary, self.rows, self.order = vocabulary, rows, order
        self._here = np.argsort(order)
        pieces = vocabulary.pieces(order)
        named = np.array([bool(piece) for piece in pieces])
        plain = named & ~np.isin(order, list(roles.values()))
        if not plain.any():
            raise Refused(f"{where}: its vocabulary has no piece beside its special symbols")
        spaced = any(piece.startswith(SPACE) for piece in pieces)
        begins = [p.startswith(SPACE) if spaced else not p.startswith("##") for p in pieces]
        nothing = np.zeros(rows, bool)  # marks begin words already
        self.symbols = Symbols(int(self._here[mask]), plain, np.array(begins), nothing)

    @property
    def size(self) -> int:
        """The count of numbers."""
        return self.rows

    @property
    def fingerprint(self) -> str:
        """The same for the same vocabulary and rules, and for no others."""
        return self.vocabulary.fingerprint

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text's numbers, the end of a text after them."""
        coded = self.vocabulary.encode(texts, plain=True)
        return [[*self._here[_ints(ids)].tolist(), EOS] for ids in coded]

    def spelt(self, ids: Sequence[int]) -> list[str]:
        """The piece of each number, with the space before it."""
        return self.vocabulary.spelt(self.order[_ints(list(ids))])

    def save(self, path: Path) -> None:
        """Write tokenizer.json, whole or not at all: the vocabulary under its own numbers."""
        self.vocabulary.save(path)


Hiding = Tokeniser | Renumbered
"""A tokeniser of text whose words are hidden."""


def load_hiding(path: Path, symbols: int | None = None) -> Hiding:
    """Load what `save` wrote, of whichever kind it is; a file is only data.

    symbols  that the model has; None: as many as the vocabulary
    """
    found: Tokeniser | Vocabulary = load(path, MOST if symbols is None else symbols)
    if isinstance(found, Vocabulary):
        return Renumbered(found, symbols or found.size, str(path))
    return found


def symbols_of(tokeniser: Hiding) -> Symbols:
    """The facts about its symbols that masking needs."""
    return (
        tokeniser.symbols if isinstance(tokeniser, Renumbered) else masked_words.symbols(tokeniser)
    )


def _role(vocabulary: Vocabulary, names: Sequence[str], where: str) -> int:
    found = next((vocabulary.roles[name] for name in names if name in vocabulary.roles), None)
    if found is None:
        name = names[0].upper()
        raise Refused(f"{where}: its vocabulary does not name its piece for [{name}]")
    return found


def _ints(ids: list[int]) -> Ints:
    return np.array(ids, np.int64)
