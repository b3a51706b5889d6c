"""The heads of one attention with their words: from weights, from rows, or from the fast path.

Layer.of("encoder.0", weight, words)                                  # H T S, in memory
Layer.of_rows("encoder.0", rows, 12, words)                           # requested block by block
Layer.of_map("encoder.0", map, words, statistics={"entropy": ...})    # pooled, H rows columns
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heed.errors import Refused, ShapeError, UnknownName
from heed.viewing import measure, pyramid
from heed.viewing.panels import Panel
from heed.viewing.pyramid import Pyramid

Kind = Literal["self", "cross", "static"]
"""Whether a sequence attends to itself, to another, or is attended to by a learned query."""

OF_SEVERAL = {"distance", "diagonality", "coverage", "rank"}
"""Measures that mean nothing of a single query: it has no place, and no other to differ from."""

COMPARED = 128 * 128  # weights of a head; larger ones are not compared with the others of a layer


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """The heads of one attention, with a word for every query and every key."""

    name: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    heads: tuple[Pyramid, ...]
    kind: Kind = "self"
    statistics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # one for each head

    @classmethod
    def of(
        cls,
        name: str,
        weight: ArrayLike,
        queries: Iterable[str],
        keys: Iterable[str] | None = None,
        kind: Kind | None = None,
    ) -> Layer:
        """From weights in memory; without keys it is self-attention.    H T S"""
        array = _three(name, weight)
        words = cls._words(queries, keys, kind)
        heads = _heads(name, len(array), lambda h: pyramid.of_weights(array[h]))
        layer = cls(name, *words[:2], heads, words[2])
        T, S = array.shape[1:]
        if len(array) > 1 and 0 < T * S <= COMPARED:
            alike = measure.agreement(array)
            others = (alike.sum(-1) - 1) / (len(array) - 1)
            return layer.knowing(agreement=others)
        return layer

    @classmethod
    def of_rows(
        cls,
        name: str,
        rows: Callable[[int, int, int], NDArray[Any]],
        heads: int,
        queries: Iterable[str],
        keys: Iterable[str] | None = None,
        kind: Kind | None = None,
    ) -> Layer:
        """From a function of a head, a first query and one past the last, called once per block of
        rows, so that no head is ever held as a whole.    -> n S"""
        words = cls._words(queries, keys, kind)
        T, S = len(words[0]), len(words[1])

        def one(h: int) -> Pyramid:
            return pyramid.of_rows(lambda start, stop: rows(h, start, stop), T, S)

        each = _heads(name, heads, one)
        return cls(name, *words[:2], each, words[2])

    @classmethod
    def of_map(
        cls,
        name: str,
        map: ArrayLike,
        queries: Iterable[str],
        keys: Iterable[str] | None = None,
        kind: Kind | None = None,
        statistics: Mapping[str, ArrayLike] | None = None,
        rows: Mapping[int, ArrayLike] | None = None,
    ) -> Layer:
        """From a pooled map, which the fast path makes without weights.    H rows columns

        statistics  by the names of `heed.records.Statistics` (entropy, peak, received, ...), each
                    H T, `received` H S; or by any name, one number for each head
        rows        the exact weights of some queries, by their number    H S
        """
        array = _three(name, map)
        words = cls._words(queries, keys, kind)
        T, S = len(words[0]), len(words[1])
        kept = {t: np.asarray(row, np.float64) for t, row in (rows or {}).items()}

        def one(h: int) -> Pyramid:
            return pyramid.of_map(array[h], T, S, {t: row[h] for t, row in kept.items()})

        each = _heads(name, len(array), one)
        layer = cls(name, *words[:2], each, words[2])
        told = _summarised(statistics or {})
        if T == 1:
            told.pop("coverage", None)
        return layer.knowing(**told)

    def knowing(self, **statistics: ArrayLike) -> Layer:
        """The layer with further numbers for each head, such as an alignment error."""
        given = {key: np.asarray(value, np.float64) for key, value in statistics.items()}
        for key, value in given.items():
            if value.shape != (len(self.heads),):
                raise ShapeError(
                    f"'{key}' of '{self.name}' has {' × '.join(map(str, value.shape))} numbers for "
                    f"{len(self.heads)} heads"
                )
        more = {key: tuple(map(float, value)) for key, value in given.items()}
        both = {**self.statistics, **more}
        return Layer(self.name, self.queries, self.keys, self.heads, self.kind, both)

    @staticmethod
    def _words(
        queries: Iterable[str], keys: Iterable[str] | None, kind: Kind | None
    ) -> tuple[tuple[str, ...], tuple[str, ...], Kind]:
        rows = tuple(queries)
        columns = rows if keys is None else tuple(keys)
        return rows, columns, kind or ("self" if keys is None else "cross")

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UnknownName("kind of attention", self.kind, get_args(Kind))
        if not self.heads or not self.queries or not self.keys:
            raise Refused(f"'{self.name}' has nothing to show: no heads, no queries or no keys")
        named = (len(self.queries), len(self.keys))
        for head in self.heads:
            if head.shape != named:
                raise ShapeError(
                    f"weights and words of '{self.name}' disagree\n"
                    f"  weights: T={head.shape[0]} S={head.shape[1]}\n"
                    f"  words: T={named[0]} S={named[1]}"
                )

    def panels(self) -> list[Panel]:
        """Every head at its coarsest level, for a terminal: some 64 to 128 cells along a side, or
        one for each weight if there are fewer."""
        found = []
        for h, head in enumerate(self.heads):
            cells = head.levels[0].values()
            title = f"{self.name} · head {h}" if len(self.heads) > 1 else self.name
            names = (_spans(self.queries, cells.shape[0]), _spans(self.keys, cells.shape[1]))
            found.append(Panel(title, cells, *names))
        return found

    def measured(self) -> dict[str, list[float | None]]:
        """Every statistic that any head has, by name; of one query, only those that tell of it."""
        names = list(dict.fromkeys(name for head in self.heads for name in head.measured))
        names = [name for name in names if len(self.queries) > 1 or name not in OF_SEVERAL]
        found = {name: [head.measured.get(name) for head in self.heads] for name in names}
        found |= {name: list(values) for name, values in self.statistics.items()}
        return {
            name: [x if x is not None and math.isfinite(x) else None for x in values]
            for name, values in found.items()
        }


def _spans(words: tuple[str, ...], cells: int) -> tuple[str, ...]:
    """A name for every cell: its word, or the first of several words."""
    if cells == len(words):
        return words
    return tuple(f"{words[n * len(words) // cells]} …" for n in range(cells))


def _three(name: str, weight: ArrayLike) -> NDArray[Any]:
    array = np.asarray(weight)
    if array.ndim != 3:
        size = " × ".join(map(str, array.shape))
        raise ShapeError(f"'{name}' takes one batch row, H T S; got {size}")
    return array


def _heads(name: str, count: int, build: Callable[[int], Pyramid]) -> tuple[Pyramid, ...]:
    """Build every head; an error names the head."""
    found = []
    for h in range(count):
        try:
            found.append(build(h))
        except (Refused, ShapeError) as error:
            raise type(error)(f"'{name}', head {h}: {error}") from error
    return tuple(found)


def _summarised(statistics: Mapping[str, ArrayLike]) -> dict[str, NDArray[np.float64]]:
    """One number for each head, from statistics of each query or key."""
    found: dict[str, NDArray[np.float64]] = {}
    for name, values in statistics.items():
        array = np.asarray(values, np.float64)
        if name == "received":
            found["sink"] = array[:, 0] / np.maximum(array.sum(-1), measure.TINY)
            found["coverage"] = np.minimum(array, 1).mean(-1)
        else:
            key = {"peak": "sharpness"}.get(name, name)
            found[key] = array.mean(-1) if array.ndim == 2 else array
    return found
