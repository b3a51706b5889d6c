"""Tile sizes that were measured to be good, by pass, width and precision: nothing is tried out
while a program runs.
"""

from typing import NamedTuple

import torch


class Tile(NamedTuple):
    """How a pass cuts its work."""

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


def tile(task: str, dtype: torch.dtype, width: int) -> Tile:
    """The tile for a pass over rows of this width."""
    sizes = (FLOAT if dtype == torch.float32 else HALF)[task]
    return sizes[next(most for most in sizes if width <= most)]
