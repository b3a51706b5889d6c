"""Tile sizes that were measured to be good, by pass, width and precision: nothing is tried out
while a program runs.
"""

from typing import NamedTuple

import torch

SLICE = 256
"""How much of the width of a head is held at a time: wider ones are cut."""


class Tile(NamedTuple):
    """The division of a pass into tiles."""

    rows: int  # queries
    columns: int  # keys
    warps: int
    stages: int
    registers: int | None = None  # at most so many a thread, so that more programs share a core


HALF: dict[str, dict[int, Tile]] = {
    "forward": {64: Tile(64, 32, 4, 3), 128: Tile(64, 32, 4, 2, 128), 256: Tile(64, 32, 4, 2)},
    "queries": {64: Tile(64, 32, 4, 3), 128: Tile(64, 32, 4, 3), 256: Tile(64, 32, 8, 1)},
    "keys": {64: Tile(32, 64, 4, 2), 128: Tile(32, 64, 4, 2), 256: Tile(32, 64, 8, 1)},
    "keys in order": {64: Tile(32, 64, 4, 1), 128: Tile(32, 64, 4, 1), 256: Tile(32, 64, 8, 1)},
}
FLOAT: dict[str, dict[int, Tile]] = {
    "forward": {64: Tile(32, 32, 8, 1), 128: Tile(16, 32, 8, 1), 256: Tile(16, 16, 8, 1)},
    "queries": {64: Tile(32, 32, 8, 1), 128: Tile(16, 32, 8, 1), 256: Tile(16, 16, 8, 1)},
    "keys": {64: Tile(32, 32, 8, 1), 128: Tile(16, 32, 8, 1), 256: Tile(16, 16, 8, 1)},
    "keys in order": {64: Tile(32, 32, 8, 1), 128: Tile(16, 32, 8, 1), 256: Tile(16, 16, 8, 1)},
}
WIDE_HALF, WIDE_FLOAT = Tile(32, 32, 8, 1), Tile(16, 16, 8, 1)


def tile(task: str, dtype: torch.dtype, width: int) -> Tile:
    """The tile for a pass over rows of this width."""
    if width > SLICE:
        return WIDE_FLOAT if dtype == torch.float32 else WIDE_HALF
    sizes = (FLOAT if dtype == torch.float32 else HALF)[task]
    return sizes[next(most for most in sizes if width <= most)]


def row(width: int) -> tuple[int, int]:
    """Keys that a single query reads at a time, and warps: as many loads in flight as fit."""
    return max(1, min(32, 8192 // width)), 4 if width <= 1024 else 8
