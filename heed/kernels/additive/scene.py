"""The arguments that all launches of a pass share, and which queries are taken at a time."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from heed.kernels.additive import tuned
from heed.kernels.additive.device import ROWS, SLICES
from heed.kernels.additive.plan import Plan
from heed.kernels.launching import At, Room, at

FAR = 1 << 30
"""Further than any key stands from any query."""

_ROWS: int = ROWS.value


def power_of_2(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()


class Scene:
    """The arguments that all launches of a pass share: sizes, inputs, who sees what."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        w: Tensor,
        seen: Plan,
        dropout: float,
        seed: Tensor | None,
    ) -> None:
        B, H, T, D = self.shape = q.shape
        _, G, S, R = v.shape
        self.lengths, self.S, self.R = (T, S, H, G), S, R
        self.G, self.rows, self.groups = G, B * H, B * G
        self.blocks_t, self.blocks_s = -(-T // _ROWS), -(-S // _ROWS)
        self.width, self.read = max(16, power_of_2(D)), max(16, power_of_2(R))
        self.q, self.k, self.v = at(q), at(k), at(v)
        self.q_steps, self.k_steps, self.v_steps = (x.stride()[:3] for x in (q, k, v))
        self.w = at(w if w.is_contiguous() else w.contiguous())
        self.precise = q.dtype == torch.float32
        self._look(seen, B, H, T, S)
        self.sights = (
            *(self.stop, self.exists, self.table, self.centre, self.gain_centre),
            at(seed) if dropout and seed is not None else None,
        )
        boost = 1 / (1 - dropout) if dropout < 1 else 0.0
        self.factors = (float(seen.sigma), float(dropout), boost)

    def _look(self, seen: Plan, B: int, H: int, T: int, S: int) -> None:
        """Set who sees what: addresses, the strides of a table, and how far a query sees."""
        self.stop = self.exists = self.table = self.centre = self.gain_centre = None
        self.table_steps: tuple[int, ...] = (0, 0, 0, 0)
        if seen.stop is not None:
            self.stop = at(seen.stop.expand(B).contiguous())
        if seen.exists is not None:
            self.exists = at(seen.exists.view(torch.uint8).expand(B, S).contiguous())
        if seen.table is not None:
            table = seen.table.view(torch.uint8).expand(B, H, T, S)
            self.table, self.table_steps = at(table), table.stride()
        if seen.centre is not None:
            self.centre = at(seen.centre.expand(B, H, T).contiguous())
        if seen.gain_centre is not None:
            self.gain_centre = at(seen.gain_centre.expand(B, H, T).contiguous())
        ahead, behind = 0 if seen.causal else FAR, FAR
        if seen.half >= 0:
            behind, ahead = min(seen.half, FAR), min(ahead, seen.half)
        self.edges = (seen.first, behind, ahead, seen.radius)

    def unit(self, *names: str) -> int:
        """The number of elements in one load: 16 bytes' worth where all strides allow it."""
        many = 1
        for name in names:
            where = getattr(self, name)
            many = 16 // where.kind[0].itemsize
            if not where.kind[1] or any(n % many for n in getattr(self, name + "_steps")):
                return 1
        return many

    def steps(self, unit: int, *names: str) -> list[int]:
        """Strides, in units of a load."""
        return [n // unit for name in names for n in getattr(self, name + "_steps")]


class Stretch(NamedTuple):
    """Some queries of all the heads of some batch rows."""

    b0: int
    rows: int
    block0: int
    blocks: int

    @property
    def place(self) -> tuple[int, int, int]:
        """Its first batch row and first block of queries, and how many blocks it has."""
        return self.b0, self.block0, self.blocks


class Back(NamedTuple):
    """The tensors that only a backward pass has."""

    grad: At
    context: At
    dtype: torch.dtype  # of the values


Found = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""Gradients of q, k, v, the score vector and, where there is a Gaussian, its centres."""


class Layout(NamedTuple):
    """The division of a call into tiles, and the buffers that it needs."""

    parts: tuple[Stretch, ...]
    size: int  # energies of the largest stretch
    tile: tuned.Tile  # of energies
    depth: int  # widths that one program sums
    sliced: int  # how many such slices there are
    room: Room


@lru_cache(4096)
def layout(
    shape: tuple[int, int, int, int],
    keys: tuple[int, int],
    precise: bool,
    back: torch.dtype | None,
    gains: bool,
    cast: bool,
) -> Layout:
    """The layout for queries B H T D, and for how many heads of keys there are, and keys in each.

    back  the dtype of values, if gradients are wanted; gains  of the gain's centres too
    cast  the score vector is not float32 yet
    """
    (B, H, T, D), (groups, S) = shape, keys
    blocks_t, blocks_s = -(-T // _ROWS), -(-S // _ROWS)
    padded, block = (D + 3) // 4 * 4, _ROWS * blocks_s * _ROWS
    held = 4 if back is None else 4 + 4 + back.itemsize  # two copies of slopes, and weights
    budget = tuned.SCRATCH if back is None else tuned.SCRATCH_BACK
    parts = stretches(B, H, blocks_t, block * held, budget)
    size = max(part.rows * part.blocks for part in parts) * H * block
    tile = tuned.energy(T)
    depth = tuned.depth(D, size // (min(tile.queries, _ROWS) * _ROWS))
    sliced = -(-D // depth)
    tile = tuned.energy(T, few=sliced > 1)
    tile = tile._replace(queries=min(tile.queries, _ROWS))
    heads = ((B * H, blocks_t), (groups, blocks_s))
    pairs = [n * padded * m * (_ROWS // 2) + 64 for n, m in heads]  # the last is read beyond
    backwards, double, single = back is not None, torch.int64, torch.float32
    room = Room(
        *[(n, double) for n in pairs],
        *[(n * precise, double) for n in pairs],
        *[(n * backwards, double) for n in pairs],
        *[(n * m * SLICES.value, single) for n, m in heads],
        (sliced * size, single),
        (size * backwards, single),
        (size * backwards, back or single),
        (B * H * T * backwards, single),
        (size // _ROWS * gains, single),
        (H * D * cast, single),
    )
    return Layout(tuple(parts), size, tile, depth, sliced, room)


def stretches(B: int, H: int, blocks_t: int, bytes_per_block: int, budget: int) -> list[Stretch]:
    """Batch rows and blocks of queries to take at a time: a block at least, whatever the budget."""
    fit = max(1, budget // (H * bytes_per_block))  # blocks of queries, of all the heads of a row
    if fit >= blocks_t:
        rows = fit // blocks_t
        return [Stretch(b, min(rows, B - b), 0, blocks_t) for b in range(0, B, rows)]
    starts = range(0, blocks_t, fit)
    return [Stretch(b, 1, i, min(fit, blocks_t - i)) for b in range(B) for i in starts]
