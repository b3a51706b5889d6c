"""A stream of symbols cut into rows of one length, each with the symbols that follow.

    a b c d e f g h i      rows of 4 symbols      a b c d -> b c d e    e f g h -> f g h i
    a b c d e | f g h i    within documents       a b c d -> b c d e    f g h . -> g h i .
    a b c d e f g h i      onward, two by two     a b, e f, then c d, g h

Nothing is copied: the stream may be a memory-mapped file of any size. As in `batches.py` an epoch
follows from (seed, epoch) alone, so a run resumes in the middle of one, in any process.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heed.data.batches import FILLER, Batch
from heed.data.plan import Ints, permutation
from heed.errors import Refused


class PackedRows:
    """Batches of rows of `length` symbols: the columns "text" and "labels", the next symbols.

    stream   all symbols, one after the other
    rows     how many a batch has
    borders  where documents begin, from 0 on, and the end: no row reaches over one. The rest of a
             document is a shorter row, padded with 0. None: rows go over borders, and only the
             rest of the stream, less than a row, is left out
    shuffle  False: the rows in their order, from the beginning of the stream. True: in a random
             order, and, where rows go over borders, cut somewhere else in each epoch
    onward   each row continues the one at the same place of the batch before; rows left over at the
             end, fewer than a batch has, are left out
    shard    (rank, world): this process's part of each batch, as in `Batches`
    fixed    the last batch filled up with rows of padding, so that there is one shape
    """

    def __init__(
        self,
        stream: NDArray[Any],
        *,
        length: int,
        rows: int,
        seed: int,
        borders: Ints | None = None,
        shuffle: bool = True,
        onward: bool = False,
        shard: tuple[int, int] = (0, 1),
        fixed: bool = False,
    ) -> None:
        if onward and borders is not None:
            raise Refused("rows that continue from batch to batch cross the borders of documents")
        if length < 1 or rows < 1 or seed < 0 or not 0 <= shard[0] < shard[1]:
            raise Refused(
                "a batch takes rows >= 1, a length >= 1, a seed >= 0 and a shard (rank, of how "
                f"many); got rows={rows}, length={length}, seed={seed}, shard={shard}"
            )
        if len(stream) < 2 or (borders is None and len(stream) <= length):
            raise Refused(
                f"{len(stream):,} symbols are too few for a row of {length} and the one that "
                "follows: give more text, or shorter rows"
            )
        self.stream, self.length, self.rows, self.seed = stream, length, rows, seed
        self.shuffle, self.onward, self.shard, self.fixed = shuffle, onward, shard, fixed
        self._documents = None if borders is None else _within(borders, length)
        self._starts = lru_cache(maxsize=2)(self._planned)

    def count(self, number: int) -> int:
        """The number of batches of this epoch, the same on every rank."""
        return -(-len(self._starts(number if self.shuffle else 0)[0]) // self.rows)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch `start` on."""
        starts, lengths = self._starts(number if self.shuffle else 0)
        for at in range(start * self.rows, len(starts), self.rows):
            yield self._batch(starts[at : at + self.rows], lengths[at : at + self.rows])

    def _planned(self, number: int) -> tuple[Ints, Ints]:
        """The place where each row begins, and the number of its symbols that another follows."""
        draw = np.random.Philox(np.random.SeedSequence([self.seed, number]))
        starts, lengths = self._documents or self._whole(draw)
        if self.onward:
            rows = min(self.rows, len(starts))
            lanes = starts[: len(starts) // rows * rows].reshape(rows, -1)
            return lanes.T.flatten(), lengths[: lanes.size]
        if not self.shuffle:
            return starts, lengths
        order = permutation(draw, len(starts))
        return starts[order], lengths[order]

    def _whole(self, draw: np.random.Philox) -> tuple[Ints, Ints]:
        last = len(self.stream) - 1  # this symbol is predicted, and never read
        slack = min(self.length, last - self.length + 1)
        phase = int(draw.random_raw()) % slack if self.shuffle else 0
        starts = np.arange(phase, last - self.length + 1, self.length, dtype=np.int64)
        return starts, np.full_like(starts, self.length)

    def _batch(self, starts: Ints, lengths: Ints) -> Batch:
        rank, world = self.shard
        starts, lengths = starts[rank::world], lengths[rank::world]
        size = -(-self.rows // world) if self.fixed else 1
        fill = max(0, size - len(starts))
        rows = np.concatenate([starts, np.full(fill, FILLER)])
        real = np.concatenate([lengths, np.zeros(fill, np.int64)])
        place = np.arange(self.length + 1)
        at = np.clip(rows[:, None] + place, 0, len(self.stream) - 1)
        text = torch.from_numpy(self.stream.take(at).astype(np.int64))
        inside = torch.from_numpy(place[:-1] < real[:, None])
        known = torch.from_numpy(np.where(rows == FILLER, 1, real))
        tokens = {"text": text[:, :-1] * inside, "labels": text[:, 1:] * inside}
        return Batch(tokens, dict.fromkeys(tokens, known), torch.from_numpy(rows))


def _within(borders: Ints, length: int) -> tuple[Ints, Ints]:
    """Rows that stay inside documents; a document of one symbol has nothing that follows."""
    sizes = np.diff(borders) - 1  # symbols that one follows
    pieces = np.maximum(0, -(-sizes // length))
    document = np.repeat(np.arange(len(sizes)), pieces)
    first = np.cumsum(pieces) - pieces
    into = (np.arange(len(document)) - first[document]) * length
    if not len(document):
        raise Refused("no document has two symbols: there is nothing to predict")
    starts = np.asarray(borders, np.int64)[document] + into
    return starts, np.minimum(length, sizes[document] - into)
