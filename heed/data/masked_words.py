"""Masked words: some symbols are hidden, and the model predicts them (Devlin 2019 §3.1, A.1).

    the cat sat on the mat     chosen: cat, mat
    the [M] sat on the dog     80 % become the mask, 10 % any symbol, 10 % stay as they are

What is chosen, and what becomes of it, follows from (seed, epoch, row, place) alone.
"""

import json
import unicodedata
from typing import Annotated, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from heed.data import vocabulary
from heed.data.chance import below, uniform
from heed.data.plan import Ints
from heed.data.tokenise import SPECIALS, Tokeniser
from heed.data.vocabulary import SPACE, UNSPACED_RUN
from heed.errors import Refused
from heed.settings import Settings

Flags = NDArray[np.bool_]
Share = Annotated[float, Field(ge=0, le=1)]
MASK = "<mask>"
CHOOSE, BECOME, OTHER = 11, 12, 13  # these tell the draws of a place apart


class Masking(Settings):
    """The share of the symbols that is hidden, and the way of hiding it."""

    share: float = Field(0.15, gt=0, lt=1, description="of the symbols are to be found again")
    masked: Share = Field(0.8, description="of those become the mask")
    replaced: Share = Field(0.1, description="of those become any symbol; the others stay")
    whole_words: bool = Field(False, description="all pieces of a word, or none")

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.masked + self.replaced > 1 + 1e-9:
            raise ValueError(
                f"masked={self.masked} and replaced={self.replaced} add up to more than 1"
            )
        return self


class Symbols(NamedTuple):
    """The facts about a vocabulary that masking needs.

    mask    the number of the mask
    plain   for each number, whether it is an ordinary symbol: only those are hidden, or put in
            another's place    V
    begins  for each number, whether a word begins with it    V
    alone   for each number, whether it is a word of its own: a mark, a character of a script that
            is written without spaces    V
    """

    mask: int
    plain: Flags
    begins: Flags
    alone: Flags


def with_mask(tokeniser: Tokeniser) -> Tokeniser:
    """The same tokeniser with one more piece, its last: the mask.

    The piece is spelt "<mask>", and no text can become it: "<" and ">" always stand alone. A
    tokeniser that has it already comes back as it is.
    """
    if mask_of(tokeniser) is not None:
        return tokeniser
    rules = json.loads(tokeniser.rules)
    pieces = rules["model"]["vocab"]
    if isinstance(pieces, list):  # unigram: the least likely of all
        pieces.append([MASK, min(score for _, score in pieces) - 10.0])
    else:
        pieces[MASK] = len(pieces)
    return Tokeniser(*vocabulary.parse(json.dumps(rules), "the tokeniser"))


def mask_of(tokeniser: Tokeniser) -> int | None:
    """The number of the mask, if there is one."""
    return tokeniser.number(MASK)


def symbols(tokeniser: Tokeniser) -> Symbols:
    """The facts that masking needs, of a tokeniser that has a mask."""
    mask = mask_of(tokeniser)
    if mask is None:
        raise Refused("the tokeniser has no mask: it was not made for pre-training")
    surfaces = [tokeniser.surface(i) for i in range(tokeniser.size)]
    plain = np.arange(len(surfaces)) >= len(SPECIALS)
    plain[mask] = False
    if not plain.any():
        raise Refused("the tokeniser has no piece beside its special symbols")
    begins = np.array([each.startswith(SPACE) for each in surfaces])
    alone = np.array([_alone(each.removeprefix(SPACE)) for each in surfaces])
    return Symbols(mask, plain, begins, alone)


def _alone(piece: str) -> bool:
    mark = unicodedata.category(piece[0])[0] in "PS" if piece else False
    return mark or UNSPACED_RUN.match(piece) is not None


def masked(
    tokens: Ints,
    rows: Ints,
    symbols: Symbols,
    settings: Masking,
    *,
    seed: int,
    epoch: int,
    most: int | None = None,
) -> tuple[Ints, Ints]:
    """The symbols that the model reads, and those to predict, 0 elsewhere.    B L, B -> B L, B L

    Of the n ordinary symbols of a row max(1, round(share · n)) are chosen, or none where there is
    none. Whole words are taken in a random order if they fit into that number; the first always,
    unless it has more than `most` pieces.

    rows  the number of each row, which its random draws belong to
    most  how many symbols of a row can be asked for; None: any number
    """
    row, place = rows[:, None], np.arange(tokens.shape[1])
    can = symbols.plain[tokens]
    count = np.where(can.any(1), np.maximum(1, np.rint(settings.share * can.sum(1))), 0)
    if settings.whole_words:
        begins, room = _begins(tokens, can, symbols), tokens.shape[1] if most is None else most
        chosen = _words(can, begins, count, room, seed, epoch, row)
    else:
        chosen = _first(np.where(can, uniform(seed, epoch, row, place, CHOOSE), np.inf), count)
    become = uniform(seed, epoch, row, place, BECOME)
    plain = np.flatnonzero(symbols.plain)
    other = plain[below(len(plain), seed, epoch, row, place, OTHER)]
    read = np.where(become < settings.masked, symbols.mask, tokens)
    swapped = (become >= settings.masked) & (become < settings.masked + settings.replaced)
    read = np.where(swapped, other, read)
    return np.where(chosen, read, tokens), np.where(chosen, tokens, 0)


def _first(draws: NDArray[np.float64], count: NDArray[np.float64]) -> Flags:
    """The places of the `count` smallest draws of each row.    B L, B -> B L"""
    rank = np.argsort(np.argsort(draws, 1, kind="stable"), 1, kind="stable")
    return rank < count[:, None]


def _begins(tokens: Ints, can: Flags, symbols: Symbols) -> Flags:
    """The beginnings of words: by their pieces, or after what is no word.    B L -> B L"""
    apart = ~can | symbols.alone[tokens]
    after = np.concatenate([np.ones_like(apart[:, :1]), apart[:, :-1]], 1)
    begun: Flags = can & (symbols.begins[tokens] | symbols.alone[tokens] | after)
    return begun


def _words(
    can: Flags,
    begins: Flags,
    count: NDArray[np.float64],
    most: int,
    seed: int,
    epoch: int,
    row: Ints,
) -> Flags:
    """Words in a random order, each of them whole, as long as they fit.    B L -> B L"""
    B, L = can.shape
    word = np.where(can, np.cumsum(begins, 1), 0)  # from 1
    sizes = np.zeros((B, L + 1), np.int64)
    np.add.at(sizes, (np.arange(B)[:, None], word), can)
    draws = uniform(seed, epoch, row, np.arange(L + 1), CHOOSE)
    order = np.argsort(np.where(sizes > 0, draws, np.inf), 1, kind="stable")
    taken, total = np.zeros((B, L + 1), bool), np.zeros(B, np.int64)
    for at in order.T[: int(word.max(initial=0))]:
        size = sizes[np.arange(B), at]
        first = (total == 0) & (size <= most)
        fits = (size > 0) & ((total + size <= count) | first)
        taken[np.arange(B), at] = fits
        total += size * fits
    return np.take_along_axis(taken, word, 1) & can
