"""The visibility in XLNet's two streams, the positions of its queries, and its memories.

visible B T T    in the order of prediction; a symbol always sees itself in the content stream, and
                 never in the query stream
memories B L M   of the segments before, which every query sees
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

import heed
from heed.attention.memory import as_keys, key_table
from heed.errors import ShapeError
from heed.models.positioned_words import Real, sight
from heed.records import State
from heed.visible import Places, Visible, as_visible


class Memories(NamedTuple):
    """The memories of earlier segments: the inputs of each layer, without gradient."""

    layers: tuple[Tensor, ...]  # B L M each
    exists: Tensor | None = None  # which of them are not padding, B L; None: all

    @property
    def length(self) -> int:
        """The number of positions that they hold.    L"""
        return self.layers[0].shape[1]

    def select(self, rows: Tensor) -> Memories:
        """The memories of the chosen rows, in that order."""
        exists = None if self.exists is None else self.exists[rows]
        return Memories(tuple(layer[rows] for layer in self.layers), exists)


class Sights(NamedTuple):
    """The visibility in both streams, and the positions of the query stream's queries."""

    content: Visible | None
    query: Visible | None = None
    state: State | None = None  # None: at the positions of the symbols
    places: int = 0  # the number of symbols  T


class Segment(NamedTuple):
    """The symbols of a call with their padding, and the memories before them."""

    symbols: Tensor  # B T
    exists: Visible | None = None  # which of them are not padding; None: all
    memories: Memories | None = None

    @staticmethod
    def of(symbols: Tensor, lengths: Real | None, memories: Memories | None = None) -> Segment:
        """A segment from lengths B, or from which symbols are not padding, B T."""
        return Segment(symbols, as_keys(sight(lengths, symbols)), memories)

    @property
    def before(self) -> int:
        """The length of the memories.    L"""
        return 0 if self.memories is None else self.memories.length

    @property
    def table(self) -> Tensor | None:
        """The positions that are not padding, those of memories first; None: all.    B L+T"""
        remembered = None if self.memories is None else self.memories.exists
        if self.exists is None and remembered is None:
            return None
        B, T = self.symbols.shape
        there = torch.ones(B, self.before + T, dtype=torch.bool, device=self.symbols.device)
        if self.exists is not None:
            own = key_table(self.exists, T, self.symbols.device)
            if own.shape[0] not in (1, B) or own.shape[1] != T:
                raise ShapeError(
                    "the lengths or padding do not fit the symbols\n"
                    f"  given: B={own.shape[0]} T={own.shape[1]}\n  symbols: B={B} T={T}"
                )
            there = there & pad(own, (self.before, 0), value=True)
        return there if remembered is None else there & pad(remembered, (0, T), value=True)

    def entered(self, h: Tensor) -> Tensor:
        """The input of the layers, with padding made harmless.    B T M"""
        table = self.table
        return h if table is None else harmless(h, table[:, self.before :])

    def remembered(self, layer: int) -> Tensor | None:
        """The memories of a layer, with padding made harmless.    B L M"""
        if self.memories is None:
            return None
        kept, exists = self.memories.layers[layer], self.memories.exists
        return kept if exists is None else harmless(kept, exists)

    def sights(
        self,
        *,
        causal: bool,
        visible: Tensor | Visible | None = None,
        targets: Tensor | None = None,
        ahead: bool = False,
    ) -> Sights:
        """The visibility. The query stream has queries at the targets, or at each position for the
        next symbol.

        If no order is given, neither left to right nor by a table, targets are hidden from every
        symbol: otherwise their content would reach the queries one layer later.
        """
        (B, T), L, device = self.symbols.shape, self.before, self.symbols.device
        there, causal = self.table, causal or ahead
        asks = ahead or targets is not None
        if there is None and visible is None and not asks:
            return Sights(heed.causal() if causal else None)
        places = Places(T, L + T, 0, L, device)
        table = torch.ones(1, 1, T, L + T, dtype=torch.bool, device=device)
        if causal:
            table = heed.causal().dense(places)
        if there is not None:
            table = table & there[:, None, None]
        if visible is None and targets is not None and not causal:
            visible = Visible.keys(~placed(targets, T))
        if visible is not None:
            own = as_visible(visible).dense(Places(T, T, 0, 0, device))
            _check_table(own, B, T)
            table = table & pad(own.expand(*own.shape[:2], T, T), (L, 0), value=True)
        itself = places.key == places.query[:, None]  # T S
        content = Visible.mask(table | itself)
        if not asks:
            return Sights(content)
        table = table if ahead else table & ~itself
        state = State(0, L + 1) if ahead else None  # each query is one position after its symbol
        return Sights(content, Visible.mask(table), state, T)


def harmless(x: Tensor, exists: Tensor) -> Tensor:
    """Zero for NaN and inf in padding, since 0 times NaN is NaN.    B T M, B T

    Finite numbers stay: padding sees itself and enters the memories, as in the published model.
    """
    return x.where(exists[..., None] | x.isfinite(), 0)


def spread(g: Tensor, targets: Tensor, T: int) -> Tensor:
    """Queries at their positions, zero elsewhere; a target below 0 is none.    B P M -> B T M"""
    place = targets.where(targets >= 0, T)[..., None].expand_as(g)
    return g.new_zeros(len(g), T + 1, g.shape[-1]).scatter(1, place, g)[:, :T]


def placed(targets: Tensor, T: int) -> Tensor:
    """A table of the positions that are targets.    B P -> B T"""
    one = torch.ones_like(targets, dtype=torch.bool)
    place = targets.where(targets >= 0, T)
    return one.new_zeros(len(targets), T + 1).scatter(1, place, one)[:, :T]


def picked(x: Tensor, targets: Tensor) -> Tensor:
    """The rows of the targets, zero for none.    B (H) T M, B P -> B (H) P M"""
    shape = (len(x), *(1,) * (x.ndim - 3), targets.shape[1], 1)
    there = (targets >= 0).view(shape)
    place = targets.clamp(min=0).view(shape).expand(*x.shape[:-2], -1, x.shape[-1])
    return x.gather(-2, place).where(there, 0)


def _check_table(own: Tensor, B: int, T: int) -> None:
    """Refuse a visibility table that does not fit these rows and symbols."""
    if own.shape[0] not in (1, B) or own.shape[2] not in (1, T) or own.shape[3] != T:
        axes = " ".join(f"{a}={n}" for a, n in zip("BHTT", own.shape, strict=True))
        raise ShapeError(f"visible does not fit\n  given: {axes}\n  symbols: B={B} T={T}")
