"""Watched attention as one page to explore: layers, heads, words, steps, hypotheses, sides.

    words = ["the", "cat", "sat"]
    layers = [Layer.of(f"layer {n}", weight[n], words) for n in range(12)]  # each H T S
    Atlas("What it looked at", [Take("", layers)]).write("look.html")

These are the plain records between watched attentions and a page; they take arrays, not tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from numpy.typing import ArrayLike

from heed.errors import Refused, UnknownName
from heed.viewing import drawing
from heed.viewing.blocks import Block, embedded
from heed.viewing.layers import Kind, Layer
from heed.viewing.packing import Store, packed
from heed.viewing.page import Page

__all__ = ["Atlas", "Kind", "Language", "Layer", "Take"]

Language = Literal["en", "zh"]


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    """One pass over one input: the maps of every attention, or those of one hypothesis' steps.

    side     the name of its model, such as a mechanism or a checkpoint; two are shown side by side
    score    a hypothesis' log-probability
    written  the queries are words that were generated one after another
    opens    the layer whose mean a page shows first; by default it shows the first head
    """

    name: str
    layers: Sequence[Layer]
    side: str = ""
    score: float | None = None
    written: bool = False
    opens: int | None = None

    def __post_init__(self) -> None:
        if not self.layers:
            raise Refused(f"'{self.name or 'a take'}' has no layers to show")
        if self.opens is not None and not 0 <= self.opens < len(self.layers):
            raise Refused(f"opens={self.opens}: there are {len(self.layers)} layers, from 0")


@dataclass(frozen=True, slots=True, eq=False)
class Atlas:
    """Takes of one or several sides, as a page or as a block of one.

    budget   bytes that the maps may take; fine tiles of small weights are left out first
    against  whether it first shows the second side beside the first
    """

    title: str
    takes: Sequence[Take]
    budget: int = 9_000_000
    language: Language = "en"
    against: bool = False

    kind: ClassVar[str] = "atlas"

    def __post_init__(self) -> None:
        if not self.takes:
            raise Refused(f"'{self.title}' has nothing to show")
        if self.language not in get_args(Language):
            raise UnknownName("language of a page", self.language, get_args(Language))

    @classmethod
    def of(
        cls,
        title: str,
        weights: Mapping[str, ArrayLike],
        queries: Iterable[str],
        keys: Iterable[str] | None = None,
    ) -> Atlas:
        """From weights by the names of their layers, all over the same words.    H T S"""
        rows = tuple(queries)
        columns = None if keys is None else tuple(keys)
        layers = [Layer.of(name, weight, rows, columns) for name, weight in weights.items()]
        return cls(title, [Take("", layers)])

    def html(self) -> str:
        """Markup of this block of a page."""
        store = Store(self.budget)
        layers = [layer for take in self.takes for layer in take.layers]
        heads = packed([head for layer in layers for head in layer.heads], store)
        found = iter(heads)
        words: dict[tuple[str, ...], int] = {}
        sides = list(dict.fromkeys(take.side for take in self.takes))
        takes = [
            {
                "name": drawing.token(take.name) if take.name else "",
                "side": sides.index(take.side),
                "score": _finite(take.score),
                "written": take.written,
                "layers": [_plain(layer, words, found) for layer in take.layers],
            }
            for take in self.takes
        ]
        index = {
            "language": self.language,
            "opens": self.takes[0].opens,
            "against": 1 if self.against and len(sides) > 1 else -1,
            "sides": [drawing.token(side) for side in sides],
            "takes": takes,
            "words": [[drawing.token(word) for word in each] for each in words],
        }
        return (
            '<section class="atlas">'
            f'<script type="application/json" class="index">{embedded(index)}</script>'
            f'<script type="text/plain" class="store">{store.text()}</script></section>'
        )

    def page(self, *more: Block) -> Page:
        """A page of its own, other blocks below it."""
        return Page(self.title, [self, *more], self.language)

    def write(self, path: str | Path) -> None:
        """Write the page, whole or not at all."""
        self.page().write(path)

    def _repr_html_(self) -> str:
        return self.page()._repr_html_()


def _finite(score: float | None) -> float | None:
    return None if score is None or not math.isfinite(score) else float(score)


def _plain(
    layer: Layer, words: dict[tuple[str, ...], int], found: Iterator[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "name": drawing.token(layer.name),
        "kind": layer.kind,
        "queries": words.setdefault(layer.queries, len(words)),
        "keys": words.setdefault(layer.keys, len(words)),
        "heads": [next(found) for _ in layer.heads],
        "statistics": {drawing.token(key): value for key, value in layer.measured().items()},
    }
