"""Batches whose rows are made anew in each epoch: other words hidden, other sentences paired.

What a `Maker` makes of an epoch follows from (seed, epoch) alone, and so does the order of the
batches; nothing is remembered between them, so a run resumes in the middle of an epoch.
"""

from dataclasses import dataclass
from typing import Protocol, Unpack

import numpy as np
import torch

from heed.data.batches import FILLER, Batch, Planned, Planning
from heed.data.chance import below
from heed.data.documents import Documents
from heed.data.masked_words import Masking, Symbols, masked
from heed.data.permutation import Permuting, permuted
from heed.data.plan import Ints
from heed.data.segment_pairs import Pairs, laid_out, pair_segments
from heed.data.tokenise import BOS, EOS
from heed.errors import Refused

PHASE = 41  # this tells the draw of a document from other draws


class Rows(Protocol):
    """The rows of one epoch."""

    @property
    def lengths(self) -> Ints:
        """Symbols of each row.    N"""

    def columns(self, rows: Ints, width: int) -> dict[str, Ints]:
        """Some rows, padded with 0 to `width` places or, if that is 0, to the longest of them.

        "text" is B L; the other columns are as wide as they need be.
        """


class Maker(Protocol):
    """Makes the rows of an epoch."""

    def __call__(self, seed: int, epoch: int) -> Rows:
        """The rows of an epoch, the same from the same seed and epoch."""


class Remade(Planned):
    """Batches of rows that are made anew in each epoch; shuffle=False: those of epoch 0."""

    def __init__(self, make: Maker, **planning: Unpack[Planning]) -> None:
        super().__init__(**planning)
        self.make = make

    def _rows(self, number: int) -> tuple[Rows, Ints]:
        rows = self.make(self.seed, number)
        return rows, rows.lengths[:, None]  # N 1

    def _batch(self, rows: Rows, chosen: Ints, fill: int, shape: Ints | None) -> Batch:
        columns = rows.columns(chosen, 0 if shape is None else int(shape[1]))
        tokens = {n: torch.from_numpy(np.pad(x, ((0, fill), (0, 0)))) for n, x in columns.items()}
        real = np.concatenate([rows.lengths[chosen], np.ones(fill, np.int64)])
        numbers = torch.from_numpy(np.concatenate([chosen, np.full(fill, FILLER)]))
        lengths = torch.from_numpy(real)
        return Batch(tokens, dict.fromkeys(tokens, lengths), numbers)


@dataclass(frozen=True, slots=True)
class MaskedPairs:
    """Two segments with words hidden.

    text      <s> A </s> B </s>, some of it hidden    B L
    segments  0 for A, 1 for B    B L
    places    where symbols are to be predicted; 0 where there is none    B K
    labels    the symbols there; 0 where there is none    B K
    follows   1 where B follows A, 2 where it does not; 0 for a filler    B 1
    """

    documents: Documents
    symbols: Symbols
    masking: Masking
    longest: int

    def __call__(self, seed: int, epoch: int) -> Rows:
        pairs = pair_segments(self.documents, longest=self.longest, seed=seed, epoch=epoch)
        return _Pairs(self, pairs, seed, epoch, pairs.lengths)


@dataclass(frozen=True, slots=True)
class _Pairs:
    of: MaskedPairs
    pairs: Pairs
    seed: int
    epoch: int
    lengths: Ints

    def columns(self, rows: Ints, width: int) -> dict[str, Ints]:
        text, segments = laid_out(self.of.documents, self.pairs, rows, width)
        columns = _hidden(text, rows, width, self.of, self.seed, self.epoch)
        follows = 2 - self.pairs.follows[rows]
        return {**columns, "segments": segments, "follows": follows[:, None]}


@dataclass(frozen=True, slots=True)
class MaskedStretches:
    """One segment with words hidden, <s> A </s>: the columns text, places and labels."""

    documents: Documents
    symbols: Symbols
    masking: Masking
    longest: int

    def __call__(self, seed: int, epoch: int) -> Rows:
        starts, lengths = stretches(self.documents, self.longest - 2, seed, epoch)
        return _Stretches(self, starts, lengths + 2, seed, epoch)


@dataclass(frozen=True, slots=True)
class _Stretches:
    of: MaskedStretches
    starts: Ints
    lengths: Ints
    seed: int
    epoch: int

    def columns(self, rows: Ints, width: int) -> dict[str, Ints]:
        lengths = self.lengths[rows]
        text = _taken(self.of.documents, self.starts[rows] - 1, lengths, width)
        text[:, 0] = BOS
        np.put_along_axis(text, lengths[:, None] - 1, EOS, 1)
        return _hidden(text, rows, width, self.of, self.seed, self.epoch)


def _hidden(
    text: Ints,
    rows: Ints,
    width: int,
    of: MaskedPairs | MaskedStretches,
    seed: int,
    epoch: int,
) -> dict[str, Ints]:
    """Text with words hidden, their places, and the symbols to be predicted there.

    A fixed width has room for a fixed number of places.
    """
    most = int(np.rint(of.masking.share * width)) + 1 if width else None
    read, labels = masked(text, rows, of.symbols, of.masking, seed=seed, epoch=epoch, most=most)
    asked = labels != 0
    count = int(asked.sum(1).max(initial=1)) if most is None else most
    places = np.argsort(~asked, 1, kind="stable")[:, :count]
    found = np.take_along_axis(labels, places, 1)
    return {"text": read, "places": places * (found != 0), "labels": found}


@dataclass(frozen=True, slots=True)
class PermutedStretches:
    """One segment in a random order, A </s> <s>, as `permuting` has it.

    text and order    B L
    predicted         1 at the places of the text that are predicted    B L
    places, labels    which they are, and the symbols there; -1 and 0 where there is none    B K
    """

    documents: Documents
    symbols: Symbols
    permuting: Permuting
    longest: int

    def __call__(self, seed: int, epoch: int) -> Rows:
        starts, lengths = stretches(self.documents, self.longest - 2, seed, epoch)
        return _Permuted(self, starts, lengths + 2, seed, epoch)


@dataclass(frozen=True, slots=True)
class _Permuted:
    of: PermutedStretches
    starts: Ints
    lengths: Ints
    seed: int
    epoch: int

    def columns(self, rows: Ints, width: int) -> dict[str, Ints]:
        lengths, plain = self.lengths[rows], self.of.symbols.plain
        text = _taken(self.of.documents, self.starts[rows], lengths, width)
        np.put_along_axis(text, lengths[:, None] - 2, EOS, 1)
        np.put_along_axis(text, lengths[:, None] - 1, BOS, 1)
        chance = {"seed": self.seed, "epoch": self.epoch}
        found = permuted(text, rows, plain, self.of.permuting, **chance)
        return {"text": text, **found._asdict()}


def stretches(documents: Documents, room: int, seed: int, epoch: int) -> tuple[Ints, Ints]:
    """Cut every document into stretches of `room` symbols, at other places in each epoch.

    The first of a document and the last may be shorter. Returns where each begins, and its length.
    """
    if room < 1:
        raise Refused("rows have no room for a symbol beside their beginning and end")
    begin, end = documents.borders[:-1], documents.borders[1:]
    begin, end = begin[end > begin], end[end > begin]
    if not len(begin):
        raise Refused("the documents have no symbols")
    # A document that fits is never cut.
    phase = below(room, seed, epoch, np.arange(len(begin)), PHASE) * (end - begin > room)
    pieces = -(-(end - begin + phase) // room)
    document = np.repeat(np.arange(len(begin)), pieces)
    into = np.arange(len(document)) - (np.cumsum(pieces) - pieces)[document]
    start = (begin - phase)[document] + into * room
    stop = np.minimum(start + room, end[document])
    start = np.maximum(start, begin[document])
    return start, stop - start


def _taken(documents: Documents, starts: Ints, lengths: Ints, width: int) -> Ints:
    """Stretches of the stream, padded with 0.    B -> B L"""
    place = np.arange(max(width, int(lengths.max(initial=1))))
    at = np.clip(starts[:, None] + place, 0, len(documents.stream) - 1)
    text: Ints = documents.stream.take(at).astype(np.int64)
    return text * (place < lengths[:, None])
