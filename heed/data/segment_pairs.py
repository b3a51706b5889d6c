"""Next sentences: does B follow A in its document, or is it from another? (Devlin 2019 §3.1, A.1)

    <s> it was late . </s> she went home . </s>        B follows A
    <s> it was late . </s> cells divide . </s>         it does not
      0  0  0   0  0   0    1   1    1  1   1          segments

A and B are each one or more whole sentences. Documents are cut into stretches that fill a row; a
stretch is parted between two of its sentences; in half of the cases B is then left for the next row
and replaced by sentences of another document, chosen so that every sentence is as likely.
"""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from heed.data.chance import below, uniform
from heed.data.documents import Documents
from heed.data.plan import Ints
from heed.data.tokenise import BOS, EOS
from heed.errors import Refused

FRAME = 3
"""Symbols of a row that are of neither segment: the one at the beginning, and two ends."""
SHORT, LENGTH, PART, FOLLOWS, OTHER = 21, 22, 23, 24, 25  # these tell a row's draws apart


class Pairs(NamedTuple):
    """Two stretches of the stream for each row, and whether the second follows the first.    N"""

    first: Ints  # where A begins
    first_end: Ints
    second: Ints  # where B begins
    second_end: Ints
    follows: Ints  # 1 or 0

    @property
    def lengths(self) -> Ints:
        """Symbols of each row, its frame included."""
        return self.first_end - self.first + self.second_end - self.second + FRAME


def pair_segments(
    documents: Documents, *, longest: int, seed: int, epoch: int, short: float = 0.1
) -> Pairs:
    """The pairs of one epoch: the same from the same (seed, epoch).

    longest  symbols of a row, its frame included. What is longer is cut: A at its beginning, B at
             its end, the longer one first
    short    of the stretches aim at a random shorter length, so that short rows are known, too

    A document of one sentence has no B; its sentence only serves as the B of other documents.
    """
    room = longest - FRAME
    if room < 2:
        raise Refused(f"rows of {longest} symbols have no room for two segments and {FRAME} more")
    if len(documents) < 2:
        raise Refused(
            "next sentences need two documents at least: separate them by blank lines in the text, "
            "or learn without next sentences: objective.next_sentence=false"
        )
    ends = np.asarray(documents.offsets)
    parted = _parted(documents, room, seed, epoch, short)
    found = np.fromiter(chain.from_iterable(parted), np.int64).reshape(-1, 5)
    if not len(found):
        raise Refused(
            "no document has two sentences, so there are no next sentences; learn without them: "
            "objective.next_sentence=false"
        )
    a, middle, b, b_end, follows = found.T
    return Pairs(*_fitted(ends[a], ends[middle], ends[b], ends[b_end], room), follows)


def _parted(
    documents: Documents, room: int, seed: int, epoch: int, short: float
) -> Iterator[tuple[int, int, int, int, int]]:
    """For each row, by numbers of sentences: A from, A to, B from, B to; and whether B follows."""
    at, row = _Sentences(documents), 0
    draw = _Draws(seed, epoch, short, room)
    for low, high in zip(at.borders, at.borders[1:], strict=False):
        start = low
        while high - low > 1 and start < high:
            aim, part, follows, other = draw(row)
            row += 1
            last = start == high - 1  # a sentence left alone takes the one before it
            start -= last
            end = max(at.fitting(start, high, aim), start + 2)
            middle = start + 1 + int(part * (end - start - 1))
            if follows:
                yield start, middle, middle, end, 1
                start = end
                continue
            foreign = int(other * (at.count - (high - low)))
            foreign += (high - low) * (foreign >= low)
            rest = aim - at.length(start, middle)
            stop = max(at.fitting(foreign, at.after(foreign), rest), foreign + 1)
            yield start, middle, foreign, stop, 0
            start = high if last else middle


class _Sentences:
    """The ends of sentences, and those of their documents."""

    def __init__(self, documents: Documents) -> None:
        self.ends, self._documents = np.asarray(documents.offsets), documents.documents
        self.borders = documents.documents.tolist()
        self.count = len(self.ends) - 1

    def length(self, start: int, end: int) -> int:
        """Symbols of the sentences from `start` to before `end`."""
        return int(self.ends[end] - self.ends[start])

    def fitting(self, start: int, high: int, aim: int) -> int:
        """The end of the longest stretch from `start` that has no more than `aim` symbols."""
        most = self.ends[start] + max(0, aim)
        return start - 1 + int(np.searchsorted(self.ends[start : high + 1], most, "right"))

    def after(self, sentence: int) -> int:
        """The end of the document that a sentence is in."""
        return int(self._documents[np.searchsorted(self._documents, sentence, "right")])


class _Draws:
    """The random draws of each row, made for many rows at a time."""

    AHEAD = 4096

    def __init__(self, seed: int, epoch: int, short: float, room: int) -> None:
        self.place, self.short, self.room = (seed, epoch), short, room
        self.from_, self.held = 0, self._drawn(0)

    def __call__(self, row: int) -> tuple[int, float, bool, float]:
        """The length aimed at, where to part, whether B follows, and which B otherwise."""
        if row >= self.from_ + self.AHEAD:
            self.from_, self.held = row, self._drawn(row)
        return self.held[row - self.from_]

    def _drawn(self, start: int) -> list[tuple[int, float, bool, float]]:
        rows = np.arange(start, start + self.AHEAD)
        shorter = uniform(*self.place, rows, SHORT) < self.short
        less = 2 + below(self.room - 1, *self.place, rows, LENGTH)
        aims = np.where(shorter, less, self.room)
        part, other = (uniform(*self.place, rows, which) for which in (PART, OTHER))
        follows = uniform(*self.place, rows, FOLLOWS) < 0.5
        drawn = (aims.tolist(), part.tolist(), follows.tolist(), other.tolist())
        return list(zip(*drawn, strict=True))


def _fitted(a: Ints, a_end: Ints, b: Ints, b_end: Ints, room: int) -> tuple[Ints, Ints, Ints, Ints]:
    """A loses its beginning and B its end, the longer of them first, until both fit."""
    A, B = a_end - a, b_end - b
    kept = np.minimum(B, np.maximum(room - A, room // 2))
    return np.maximum(a, a_end - (room - kept)), a_end, b, b + kept


def laid_out(documents: Documents, pairs: Pairs, rows: Ints, width: int = 0) -> tuple[Ints, Ints]:
    """<s> A </s> B </s>, padded with 0, and the segment of each place.    N -> N L, N L"""
    pairs = Pairs(*(side[rows] for side in pairs))
    a, b, A, length = pairs.first, pairs.second, pairs.first_end - pairs.first, pairs.lengths
    place = np.arange(max(width, int(length.max(initial=1))))
    # Places of B are counted from B, those of A from A; <s> and the ends are written over.
    in_b = place > (A + 1)[:, None]
    at = np.where(in_b, (b - A - 2)[:, None] + place, (a - 1)[:, None] + place)
    text = documents.stream.take(np.clip(at, 0, len(documents.stream) - 1)).astype(np.int64)
    text[:, 0] = BOS
    np.put_along_axis(text, (A + 1)[:, None], EOS, 1)
    np.put_along_axis(text, (length - 1)[:, None], EOS, 1)
    inside = place < length[:, None]
    return text * inside, (in_b & inside).astype(np.int64)
