"""One head at several resolutions, so that a map of any size can be zoomed.

The exact level has a cell for each weight; in every coarser one a cell is its queries' mean mass
on its keys, as in `Statistics.map`. Levels are cut into tiles of bytes, where 255 is the largest
weight of a row; a head small enough to be read in numbers has two bytes for each weight.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.errors import Refused, ShapeError
from heed.viewing.measure import RANKED, Tally, effective_rank

Floats = NDArray[np.float64]
Rows = Callable[[int, int], NDArray[Any]]
"""From a first query and one past the last to their weights.    -> n S"""

TILE = 128
FEW = 64 * 64  # weights of a head; up to so many take two bytes each
LEAST = 64  # cells along a side; a level of fewer is not pooled further
WHOLE = 2048  # cells along a side; a level of more is not kept as a whole
KEPT = 4096  # exact tiles that are held until it is known how many of them fit


@dataclass(frozen=True, slots=True)
class Tile:
    """A piece of a level, as bytes; those with more worth have priority."""

    row: int
    column: int
    bytes: NDArray[np.uint8] | NDArray[np.uint16]  # two for each weight if there are few
    worth: float


@dataclass(frozen=True, slots=True)
class Level:
    """One resolution, with cells of `down` queries by `across` keys."""

    down: float
    across: float
    shape: tuple[int, int]
    high: float  # the largest cell
    scale: NDArray[np.float32]  # the largest cell of each row, exactly as it is written
    tiles: Sequence[Tile]

    def values(self) -> Floats:
        """The cells as numbers; zero without a tile."""
        cells = np.zeros(self.shape)
        for tile in self.tiles:
            rows, columns = tile.bytes.shape
            top, left = tile.row * TILE, tile.column * TILE
            share = tile.bytes / np.iinfo(tile.bytes.dtype).max
            cells[top : top + rows, left : left + columns] = share
        return cells * self.scale.astype(np.float64)[:, None]


@dataclass(frozen=True, slots=True)
class Pyramid:
    """One head: its levels, the coarsest first, some exact rows, and its statistics."""

    shape: tuple[int, int]  # T S
    levels: Sequence[Level]
    rows: Mapping[int, tuple[float, NDArray[np.uint8]]] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)


def of_weights(weight: NDArray[Any]) -> Pyramid:
    """A head from all its weights.    T S"""
    T, S = weight.shape
    head = of_rows(lambda start, stop: weight[start:stop], T, S)
    if 0 < T * S <= RANKED:
        rank = float(effective_rank(weight))
        return Pyramid(head.shape, head.levels, head.rows, {**head.measured, "rank": rank})
    return head


def of_rows(rows: Rows, T: int, S: int) -> Pyramid:
    """A head from a function of its weights, which is called once for each block."""
    steps = levels(T, S)
    down, across = next(each for each in steps if _cells((T, S), each) <= WHOLE)
    exact = (down, across) == (1, 1)
    tally, best = Tally(T, S), _Best()
    sums = np.zeros((-(-T // down), -(-S // across)))  # over queries and keys
    top = np.zeros(T)
    for start in range(0, T, _block(down)):
        weight = _checked(rows(start, min(start + _block(down), T)), start, S)
        tally.add(start, weight)
        part = _pooled(weight, down, across)
        sums[start // down : start // down + len(part)] = part
        if not exact:
            top[start : start + len(weight)] = weight.max(-1, initial=0.0)
            best.add(start, weight)
    levels_ = [_level(each, T) for each in _coarser(sums, (down, across), steps)]
    if not exact:
        levels_.append(best.level(T, S, top))
    return Pyramid((T, S), levels_, {}, tally.result())


def of_map(
    map: NDArray[Any],
    T: int,
    S: int,
    rows: Mapping[int, NDArray[Any]] | None = None,
    measured: Mapping[str, float] | None = None,
) -> Pyramid:
    """A head from a pooled map, as the fast path makes it, and perhaps some exact rows.

    A map of fewer cells than weights has cells of T / rows by S / columns weights.
    """
    cells = _checked(map, 0, np.shape(map)[-1])
    R, C = cells.shape
    if R > T or C > S or not R or not C:
        raise ShapeError(f"a map of {R} × {C} does not fit weights of T={T} S={S}")
    levels_, every = [], levels(R, C)
    for down, across in every:
        mean = _pooled(cells, down, across) / _counts(R, down)[:, None]
        # Cells of the map may differ in width by one weight: the page gets their mean width.
        levels_.append(_tiled((down * T / R, across * S / C), mean))
    levels_.reverse()
    every_row = sorted((rows or {}).items())
    kept = {int(t): _row(_checked(np.atleast_2d(row), t, S)[0], t, T) for t, row in every_row}
    return Pyramid((T, S), levels_, kept, dict(measured or {}))


def levels(T: int, S: int) -> list[tuple[int, int]]:
    """Queries and keys per cell of each level, from the exact one to the coarsest."""
    most = [max(0, int(np.ceil(np.log2(max(n, 1) / LEAST)))) for n in (T, S)]
    return [(2 ** min(k, most[0]), 2 ** min(k, most[1])) for k in range(max(most) + 1)]


def _cells(shape: tuple[int, int], cell: tuple[int, int]) -> int:
    return max(-(-n // size) for n, size in zip(shape, cell, strict=True))


def _block(down: int) -> int:
    """Rows that are requested together: whole tiles of exact weights, and whole cells."""
    return max(TILE, down)


def _checked(weight: NDArray[Any], start: int, S: int) -> NDArray[Any]:
    weight = np.asarray(weight)
    if weight.dtype not in (np.float32, np.float64):
        weight = weight.astype(np.float64)
    if weight.ndim != 2 or weight.shape[1] != S:
        size = " × ".join(map(str, weight.shape))
        raise ShapeError(f"the weights from row {start} on are {size}, not n × S={S}")
    if not np.isfinite(weight).all():
        row, column = np.argwhere(~np.isfinite(weight))[0]
        raise Refused(f"the weight of row {start + row}, column {column} is {weight[row, column]}")
    if weight.min(initial=0.0) < 0:
        row, column = np.argwhere(weight < 0)[0]
        raise Refused(f"the weight of row {start + row}, column {column} is below zero")
    return weight


def _pooled(weight: NDArray[Any], down: int, across: int) -> NDArray[Any]:
    """Sums over cells; the last of a row or column may have fewer weights."""
    spare = (-weight.shape[0] % down, -weight.shape[1] % across)
    if any(spare):
        weight = np.pad(weight, ((0, spare[0]), (0, spare[1])))
    if down > 1:
        weight = weight.reshape(-1, down, weight.shape[1]).sum(1)
    if across > 1:
        weight = weight.reshape(len(weight), -1, across).sum(2)
    return weight


def _counts(T: int, down: int) -> NDArray[np.int64]:
    """The number of queries in each cell."""
    return np.minimum(down, T - np.arange(0, T, down))


def _coarser(
    sums: Floats, cell: tuple[int, int], steps: Sequence[tuple[int, int]]
) -> list[tuple[tuple[int, int], Floats]]:
    """Levels from the coarsest to the one given."""
    found = [(cell, sums)]
    for down, across in steps[steps.index(cell) + 1 :]:
        (d, a), last = found[-1]
        found.append(((down, across), _pooled(last, down // d, across // a)))
    return found[::-1]


def _level(level: tuple[tuple[int, int], Floats], T: int) -> Level:
    (down, across), sums = level
    return _tiled((down, across), sums / _counts(T, down)[:, None])


def _tiled(cell: tuple[float, float], values: Floats) -> Level:
    """A level that is kept as a whole."""
    largest = values.max(-1, initial=0.0)
    read = cell == (1, 1) and values.size <= FEW
    bytes_ = quantised(values, largest, 65535 if read else 255)
    tiles = []
    for row in range(0, values.shape[0], TILE):
        for column in range(0, values.shape[1], TILE):
            part = values[row : row + TILE, column : column + TILE]
            piece = bytes_[row : row + TILE, column : column + TILE]
            worth = float(np.einsum("ts,ts->", part, part))
            tiles.append(Tile(row // TILE, column // TILE, piece, worth))
    shape = (values.shape[0], values.shape[1])
    return _scaled(cell, shape, largest, tiles)


def _scaled(
    cell: tuple[float, float], shape: tuple[int, int], largest: Floats, tiles: Sequence[Tile]
) -> Level:
    return Level(*cell, shape, float(largest.max(initial=0.0)), largest.astype(np.float32), tiles)


def quantised(values: NDArray[Any], largest: Floats, steps: int = 255) -> NDArray[Any]:
    """Each row as integers up to `steps`, its largest value: 255 in a byte, 65535 in two."""
    scale = np.where(largest > 0, steps / np.where(largest > 0, largest, 1), 0)
    shares = np.minimum(values * scale[:, None], steps)
    return np.asarray(np.rint(shares).astype("<u2" if steps > 255 else "u1"))


def _row(row: Floats, t: int, T: int) -> tuple[float, NDArray[np.uint8]]:
    if not 0 <= t < T:
        raise Refused(f"there is no row {t} to keep the weights of: T={T}")
    high = float(row.max(initial=0.0))
    return high, quantised(row[None], np.array([high]))[0]


class _Best:
    """The exact tiles of the most worth, of a head that has too many."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, int, NDArray[np.uint8]]] = []

    def add(self, start: int, weight: NDArray[Any]) -> None:
        spare = -weight.shape[1] % TILE
        edge = np.pad(weight, ((0, 0), (0, spare))) if spare else weight
        cut = edge.reshape(len(weight), -1, TILE)
        worth = np.einsum("rtc,rtc->t", cut, cut)
        top = weight.max(-1, initial=0.0).astype(np.float64)
        for column in np.argsort(-worth, kind="stable"):
            full = len(self.heap) >= KEPT
            if not worth[column] or (full and worth[column] <= self.heap[0][0]):
                break
            bytes_ = quantised(weight[:, column * TILE : (column + 1) * TILE], top)
            for row in range(0, len(bytes_), TILE):
                place = (start + row) // TILE
                item = (float(worth[column]), place, int(column), bytes_[row : row + TILE])
                (heapq.heapreplace if full else heapq.heappush)(self.heap, item)

    def level(self, T: int, S: int, top: Floats) -> Level:
        tiles = [Tile(row, column, bytes_, worth) for worth, row, column, bytes_ in self.heap]
        return _scaled((1, 1), (T, S), top, tiles)
