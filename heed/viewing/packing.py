"""Pyramids of any size in a file of bounded size: pooled maps first, exact tiles while they fit.

Tiles are deflated and put into one store by priority: first all coarse ones, then fine ones, those
with the largest weights first. Tiles that do not fit are left out, and a page shows the next
coarser level there.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from heed.viewing.pyramid import LEAST, TILE, Level, Pyramid, Tile


class Store:
    """One text that holds all bytes, in deflated pieces with an offset and a length each."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.parts: list[str] = []
        self.size = 0

    def put(self, content: bytes, must: bool = False) -> tuple[int, int] | None:
        """Add a piece; its offset and length in characters, or None if it does not fit."""
        pack = zlib.compressobj(6, zlib.DEFLATED, -15)
        text = b64encode(pack.compress(content) + pack.flush()).decode()
        if not must and self.size + len(text) > self.budget:
            return None
        self.parts.append(text)
        self.size += len(text)
        return self.size - len(text), len(text)

    def text(self) -> str:
        return "".join(self.parts)


def packed(heads: Sequence[Pyramid], store: Store) -> list[dict[str, Any]]:
    """Heads as plain data with the places of their tiles in the store.

    The coarsest level of every head is always included, and each level has the scales of its rows.
    """
    data = [_plain(head) for head in heads]
    queue: list[tuple[tuple[float, float], int, int, int | None]] = []
    for h, head in enumerate(heads):
        for n, level in enumerate(head.levels):
            # By the size of a level and not by its number, so that long and short heads are equal.
            size = 0.0 if n == 0 else float(max(level.shape))
            queue += [((size, -tile.worth), h, n, i) for i, tile in enumerate(level.tiles)]
        queue += [((4.0 * LEAST + 1, t), h, t, None) for t in head.rows]
    queue.sort(key=lambda each: each[0])
    misses = 0
    for worth, h, at, i in queue:
        if i is None:
            fits = _put_row(heads[h], data[h], at, store)
        else:
            level, plain = heads[h].levels[at], data[h]["levels"][at]
            fits = _put_tile(level, level.tiles[i], plain, store, worth[0] == 0)
        misses += not fits
        if misses > 64:  # the rest would not fit either
            break
    return data


def _plain(head: Pyramid) -> dict[str, Any]:
    levels_: list[dict[str, Any]] = [
        {
            "down": level.down,
            "across": level.across,
            "rows": level.shape[0],
            "columns": level.shape[1],
            "high": level.high,
            "scale": None,
            "tiles": {},
        }
        for level in head.levels
    ]
    return {"T": head.shape[0], "S": head.shape[1], "levels": levels_, "rows": {}}


def _put_tile(level: Level, tile: Tile, data: dict[str, Any], store: Store, must: bool) -> bool:
    if data["scale"] is None:
        data["scale"] = store.put(level.scale.astype("<f4").tobytes(), must)
        if data["scale"] is None:
            return False
    # A tile of zeros takes no bytes.
    place = store.put(tile.bytes.tobytes(), must) if tile.bytes.any() else (0, 0)
    if place is None:
        return False
    across = -(-level.shape[1] // TILE)
    data["tiles"][str(tile.row * across + tile.column)] = place
    return True


def _put_row(head: Pyramid, data: dict[str, Any], t: int, store: Store) -> bool:
    high, bytes_ = head.rows[t]
    place = store.put(bytes_.tobytes())
    if place is not None:
        data["rows"][str(t)] = [high, *place]
    return place is not None
