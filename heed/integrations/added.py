"""What both integrations need: masks of other conventions as visibility and an added bias."""

from __future__ import annotations

import torch
from torch import Tensor

from heed.attention.position import Position
from heed.errors import Refused
from heed.visible import Places


class Added(Position):
    """Adds a given table to the energies."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = table  # broadcasts to B H T S

    def bias(self, places: Places) -> Tensor:
        return self.table

    def cut(self, row: int, start: int, stop: int) -> Added:
        table = self.table.reshape((1,) * (4 - self.table.ndim) + self.table.shape)
        table = table if table.shape[0] == 1 else table[row : row + 1]
        return Added(table if table.shape[2] == 1 else table[:, :, start:stop])


def parted(name: str, mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Split a mask of numbers that are added to energies: what may be seen, and what is added.

    Places with -inf or nearly the lowest number of the dtype are hidden. (Added to every energy of
    a row, that number would make the row uniform or NaN; here such a row sees nothing.)
    """
    if not mask.is_floating_point():
        raise Refused(f"{name} holds booleans, or numbers that are added; got {mask.dtype}")
    seen = mask > torch.finfo(mask.dtype).min / 2
    added = mask.where(seen, 0)
    # Kernels that take no bias can serve a mask that only hides; on a GPU to look would be to wait.
    known = mask.is_cpu and not torch.compiler.is_compiling() and not mask.requires_grad
    return seen, None if known and not bool(added.any()) else added


def sum_of(*tables: Tensor | None) -> Tensor | None:
    """The sum of the tables given; None without any."""
    there = [table for table in tables if table is not None]
    return sum(there[1:], there[0]) if there else None
