"""Plans of batches: rows sorted by length and cut where full, or laid out on a grid of shapes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
POOL = 1 << 16
"""The rows that are sorted by length together; beyond that the order of an epoch is random."""
SHAPES = 16
"""The shapes of a grid, beside one for each width of the longest column."""


@dataclass(frozen=True)
class BatchPlan:
    """One epoch: batch i is order[starts[i]:ends[i]], of the shape shapes[i] = B, L, L..."""

    order: Ints
    starts: Ints
    ends: Ints
    shapes: Ints | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def shuffled(self, draw: np.random.Philox) -> "BatchPlan":
        """The same batches in another order."""
        to = permutation(draw, len(self))
        shapes = None if self.shapes is None else self.shapes[to]
        return BatchPlan(self.order, self.starts[to], self.ends[to], shapes)


def permutation(draw: np.random.Philox, n: int) -> Ints:
    """0 to n - 1 in a random order, from raw bits alone."""
    return np.argsort(np.atleast_1d(draw.random_raw(n)), kind="stable").astype(np.int64)


def by_length(order: Ints, lengths: Ints, tokens: int) -> BatchPlan:
    """Sort pools of rows by length and cut them where a batch is full.    order: N, lengths: N C"""
    order = order.copy()
    starts: list[int] = []
    for low in range(0, len(order), POOL):
        pool = order[low : low + POOL]
        longest = lengths[pool].max(1)
        # lexsort's last key counts most: the longest column, then each of the others.
        by = np.lexsort((*lengths[pool].T[::-1], longest))
        order[low : low + POOL] = pool[by]
        starts += [low + cut for cut in _cuts(longest[by], tokens)]
    ends = [*starts[1:], len(order)] if starts else []
    return BatchPlan(order, np.array(starts, np.int64), np.array(ends, np.int64))


def longest_first(lengths: Mapping[int, int], tokens: int) -> Iterator[list[int]]:
    """Batches of rows of similar length, by their names; rows × longest is within `tokens`."""
    rows: list[int] = []
    for i in sorted(lengths, key=lambda i: -lengths[i]):
        if rows and (len(rows) + 1) * lengths[rows[0]] > tokens:
            yield rows
            rows = []
        rows.append(i)
    if rows:
        yield rows


def _cuts(longest: Ints, tokens: int) -> Iterator[int]:
    """The first row of each batch, of rows sorted by length: rows × longest is within `tokens`."""
    at = 0
    while at < len(longest):
        yield at
        most = max(1, tokens // max(1, int(longest[at])))
        some = longest[at : at + most]
        places = some * np.arange(1, len(some) + 1)
        at += max(1, int(np.searchsorted(places, tokens, "right")))


def grid(longest: int) -> Ints:
    """Widths, four to each doubling.    8 12 16 20 24 28 32 40 48 56 64 80 96 112 128 160 .."""
    widths = [8]
    while widths[-1] < longest:
        widths.append(widths[-1] + max(4, (1 << widths[-1].bit_length() - 1) // 4))
    return np.array(widths)


def on_grid(order: Ints, lengths: Ints, tokens: int) -> BatchPlan:
    """Batches of few shapes: each cell of the grid has its widths, and always as many rows.

    What is left when a cell's full batches are taken goes on to the next larger cell, so only the
    last cell of all, as wide as the longest of each column, has a batch that is not full.
    order: N, lengths: N C
    """
    cells, waiting = _homes(order, lengths)
    batches: list[Ints] = []
    shapes: list[list[int]] = []
    for c, cell in enumerate(cells):
        size = max(1, tokens // int(cell.max()))
        rows, last = waiting[c], c == len(cells) - 1
        full = len(rows) if last else len(rows) // size * size
        batches += [rows[i : i + size] for i in range(0, full, size)]
        shapes += [[size, *cell.tolist()]] * (len(batches) - len(shapes))
        if not last:
            on = c + 1 + int(_first(cells[c + 1 :], cell[None])[0])
            waiting[on] = np.concatenate([waiting[on], rows[full:]])
    ends = np.cumsum([0, *map(len, batches)])
    flat = np.concatenate([order[:0], *batches])
    return BatchPlan(flat, ends[:-1], ends[1:], np.array(shapes, np.int64))


def _homes(order: Ints, lengths: Ints) -> tuple[Ints, list[Ints]]:
    """The cells of a grid, and the rows of each, in the order given.    K C, K times n"""
    widths = grid(int(lengths.max(initial=1)))
    # One number for the cell of each row: numpy finds unique numbers far sooner than unique rows.
    base = len(widths) ** np.arange(lengths.shape[1])
    code = np.searchsorted(widths, lengths[order]) @ base
    codes, which, counts = np.unique(code, return_inverse=True, return_counts=True)
    wide = widths[codes[:, None] // base % len(widths)]
    cells = _cells(wide, counts)
    home = _first(cells, wide)[which]
    edges = np.cumsum(np.bincount(home, minlength=len(cells)))[:-1]
    return cells, np.split(order[np.argsort(home, kind="stable")], edges)


def _cells(cells: Ints, counts: Ints) -> Ints:
    """The cells worth a shape, small before large: those with most places, and a chain in which
    each holds all that is no longer than its longest, so that every row has somewhere to go."""
    most = cells[np.argsort(-counts * cells.sum(1), kind="stable")[:SHAPES]]
    up = cells[np.argsort(cells.max(1), kind="stable")]
    bounds = np.searchsorted(up.max(1), np.unique(up.max(1)), "right") - 1
    chain = np.maximum.accumulate(up)[bounds]
    cells = np.unique(np.concatenate([most, chain]), axis=0)
    return cells[np.lexsort((*cells.T, cells.sum(1), cells.max(1)))]


def _first(cells: Ints, wide: Ints) -> Ints:
    """For each row the first cell that holds it.    K C, N C -> N"""
    home = np.full(len(wide), len(cells) - 1)
    for c in range(len(cells) - 1, -1, -1):
        home[(wide <= cells[c]).all(1)] = c
    return home
