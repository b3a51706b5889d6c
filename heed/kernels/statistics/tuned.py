"""How large the tiles are: by width and dtype, measured once and kept; never searched for."""

import torch

SCRATCH = 256 * 2**20
"""Bytes that what keys and cells receive, tile by tile of queries, may take before it is summed."""

Tiles = tuple[int, int, int, int]
"""Queries and keys of a tile, warps, stages of the pipeline."""

ONE_PASS_HALF: tuple[Tiles, ...] = (
    *((128, 128, 8, 3), (64, 64, 4, 3), (64, 64, 4, 2), (32, 32, 4, 2)),
    *((16, 64, 4, 2), (16, 32, 4, 2), (16, 16, 4, 1)),
)
ONE_PASS_FLOAT: tuple[Tiles, ...] = ((32, 32, 4, 2), (16, 32, 4, 2), (16, 16, 4, 1))
"""For context and statistics of rows in one pass, the fastest first."""


def tiles(T: int, width: int, dtype: torch.dtype, top: bool) -> Tiles:
    """The tiles for queries of this width; `top` looks through a tile again, and holds it twice."""
    if T <= 16:
        return 16, 64, 4, 2
    if dtype == torch.float32:
        return (64, 32, 4, 2) if width <= 64 else (32, 32, 4, 2)
    return (128, 64, 4, 3) if width <= 128 and not top else (64, 64, 4, 2)
