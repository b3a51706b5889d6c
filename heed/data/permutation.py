"""Permutation language modelling: symbols are predicted in a random order (Yang 2019 §2.2, §3).

    the cat sat on the mat     to be predicted, in this order: "on the", then "cat"
                               "on" sees the, sat, mat; "the" sees "on" too; "cat" sees all others

One number for each place, its order, says who sees whom: places that are only read come first, and
the others in the order in which they are predicted. A place sees those of a smaller order; a place
that is not predicted sees itself, too. So the table of who sees whom is formed where it is needed.
"""

from typing import NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from heed.data.chance import below, uniform
from heed.data.masked_words import Flags
from heed.data.plan import Ints
from heed.settings import Settings

SPAN, OFFSET, ORDER = 31, 32, 33  # these tell the draws of a place apart


class Permuting(Settings):
    """The choice of the symbols that are predicted, and of their order."""

    span: int = Field(5, ge=1, le=100, description="symbols predicted side by side, at most")
    context: int = Field(6, ge=2, le=100, description="one in so many symbols is predicted")
    reuse: int = Field(
        0, ge=0, le=100_000, description="places at the beginning that never see what comes after"
    )

    @model_validator(mode="after")
    def _room(self) -> Self:
        if self.span * self.context > 10_000:
            raise ValueError(f"span={self.span} times context={self.context} is above 10,000")
        return self

    def most(self, length: int) -> int:
        """The most symbols that are predicted in a row of some length."""
        return min(length, -(-length // self.context) + self.span)


class Permuted(NamedTuple):
    """The symbols predicted in each row, and the order that says who sees whom.

    order      B L
    predicted  B L, 1 or 0
    places     which places are predicted, from left to right; -1 where there are fewer    B K
    labels     the symbols to be predicted there; 0 where there is none    B K
    """

    order: Ints
    predicted: Ints
    places: Ints
    labels: Ints


def permuted(
    tokens: Ints,
    rows: Ints,
    plain: Flags,
    settings: Permuting,
    *,
    seed: int,
    epoch: int,
) -> Permuted:
    """Spans to be predicted, and a random order of each row.    B L, B, V -> B L and B K

    A row is gone through from left to right: a length n from 1 to `span` is drawn, and n symbols
    side by side are chosen somewhere in the next n · context. Special symbols are never predicted;
    each has its place in the order, as in the published model. At least one symbol of a row is
    predicted where there is an ordinary one.

    plain   for each number, whether it is an ordinary symbol
    reuse   the places before it have an order of their own, before all others: what they know can
            be kept for the next row. The places after it see all of them
    """
    L = tokens.shape[1]
    can = plain[tokens]
    chosen = _spans(rows, L, settings, seed, epoch) & can
    chosen |= _one(can & ~chosen.any(1, keepdims=True), rows, seed, epoch)
    order = _order(tokens, can, chosen, rows, min(settings.reuse, L), seed, epoch)
    K = settings.most(L)
    found = np.argsort(~chosen, 1, kind="stable")[:, :K]
    there = np.take_along_axis(chosen, found, 1)
    labels = np.take_along_axis(tokens, found, 1) * there
    return Permuted(order, chosen.astype(np.int64), np.where(there, found, -1), labels)


def sees(order: Ints, predicted: Ints) -> Flags:
    """The table of who sees whom, by its definition, for tests and small data.    B L, B L -> B L L

    This is the query stream, where a place that is predicted does not see itself; in the content
    stream every place does.
    """
    own = order + (predicted == 0)
    seen: Flags = own[:, :, None] > order[:, None, :]
    return seen


def _spans(rows: Ints, L: int, settings: Permuting, seed: int, epoch: int) -> Flags:
    """The places in the spans.    B -> B L"""
    start, place = np.zeros(len(rows), np.int64), np.arange(L)
    chosen = np.zeros((len(rows), L), bool)
    for turn in range(-(-L // settings.context)):
        n = 1 + below(settings.span, seed, epoch, rows, turn, SPAN)
        room = n * settings.context
        first = start + below(room - n + 1, seed, epoch, rows, turn, OFFSET)
        chosen |= (place >= first[:, None]) & (place < (first + n)[:, None])
        start = start + room
        if start.min(initial=L) >= L:
            break
    return chosen


def _one(can: Flags, rows: Ints, seed: int, epoch: int) -> Flags:
    """One place of each row that has any, by chance.    B L -> B L"""
    draws = uniform(seed, epoch, rows[:, None], np.arange(can.shape[1]), OFFSET, SPAN)
    best = np.where(can, draws, -1).argmax(1)
    one: Flags = can & (np.arange(can.shape[1]) == best[:, None])
    return one


def _order(
    tokens: Ints, can: Flags, chosen: Flags, rows: Ints, reuse: int, seed: int, epoch: int
) -> Ints:
    """The order: -1 to reuse - 1 in the part that is reused, from there on in the rest.    -> B L

    Padding comes after all others, and only padding sees it.
    """
    B, L = tokens.shape
    order = np.zeros((B, L), np.int64)
    for low, high, base in ((0, reuse, 0), (reuse, L, reuse + 1)):
        places = np.arange(low, high)
        draws = uniform(seed, epoch, rows[:, None], places, ORDER)
        rank = np.argsort(np.argsort(draws, 1, kind="stable"), 1, kind="stable")
        read = can[:, low:high] & ~chosen[:, low:high]
        order[:, low:high] = base + np.where(read, -1, rank)
    return np.where(tokens == 0, 2 * L + 2, order)
