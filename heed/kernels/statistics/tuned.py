"""The sizes of tiles by width and dtype, measured once and kept; never searched for."""

from typing import NamedTuple

import torch

SCRATCH = 256 * 2**20
"""The most bytes of what keys and cells receive from tiles of queries, before it is summed."""

Tiles = tuple[int, int, int, int]
"""Queries and keys of a tile, warps, stages of the pipeline."""

ONE_PASS_HALF: tuple[Tiles, ...] = (
    *((128, 128, 8, 3), (64, 64, 4, 3), (64, 64, 4, 2), (32, 32, 4, 2)),
    *((16, 64, 4, 2), (16, 32, 4, 2), (16, 16, 4, 1)),
)
ONE_PASS_FLOAT: tuple[Tiles, ...] = ((32, 32, 4, 2), (16, 32, 4, 2), (16, 16, 4, 1))
"""For context and statistics of rows in one pass, the fastest first."""


class Walk(NamedTuple):
    """The settings with which a tile of queries walks over the keys."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None  # at most, for a thread; None: as the compiler likes


def walk(T: int, width: int, dtype: torch.dtype, *, long: bool, looked_up: bool) -> Walk:
    """The walk for queries of this width.

    long       rows do not stay in the cache: fewer programs side by side read more of it again
    looked_up  a table or a bias is read for every pair, which takes registers
    """
    if T <= 16:
        return Walk(16, 64, 4, 2)
    if dtype == torch.float32:
        return Walk(64, 32, 4, 2) if width <= 64 else Walk(32, 32, 4, 2)
    if width > 128 or looked_up:
        return Walk(64, 64, 4, 2)
    # A tile waits for itself again and again: three programs on a multiprocessor hide some of it.
    return Walk(64, 128, 4, 2) if long else Walk(64, 64, 4, 3, 168)
