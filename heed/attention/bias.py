"""Bias: a table that a call adds to its energies, or a mask of numbers that are added."""

from __future__ import annotations

import torch
from torch import Tensor

from heed.attention.position import Position, four_axes
from heed.errors import Refused, ShapeError
from heed.visible import Places


class Bias(Position):
    """A position that adds a given table to the energies, beside what another position does."""

    def __init__(self, table: Tensor, position: Position | None = None) -> None:
        super().__init__()
        self.table = table  # broadcasts to B H T S
        self.position = Position() if position is None else position
        self.turns = self.position.turns

    def turn(self, x: Tensor, places: Tensor) -> Tensor:
        return self.position.turn(x, places)

    def bias(self, places: Places) -> Tensor:
        more = self.position.bias(places)
        return self.table if more is None else self.table + more

    def cut(self, row: int, start: int, stop: int) -> Bias:
        table = four_axes(self.table)
        table = table if table.shape[0] == 1 else table[row : row + 1]
        table = table if table.shape[2] == 1 else table[:, :, start:stop]
        return Bias(table, self.position.cut(row, start, stop))


def check_bias(bias: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """A bias as a user gives it, refused unless it broadcasts to B H T S."""
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        kind = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
        raise Refused(
            f"bias holds numbers that are added to the energies; got {kind} "
            "(a boolean mask, True = visible, is visible=mask)"
        )
    if bias.ndim != 4:
        raise ShapeError(
            f"bias has four axes, B H T S, all but S may be 1; got {tuple(bias.shape)} (T S is "
            "bias[None, None], H T S is bias[None], B T S is bias[:, None])"
        )
    fits = all(n == 1 or n == m for n, m in zip(bias.shape, shape, strict=True))
    if not fits or bias.shape[3] != shape[3]:
        given, wanted = (
            " ".join(f"{a}={n}" for a, n in zip("BHTS", x, strict=True))
            for x in (bias.shape, shape)
        )
        raise ShapeError(f"bias does not fit\n  bias: {given}\n  attention: {wanted}")
    return bias


def split_mask(name: str, mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Split a mask of numbers that are added to energies: what may be seen, and what is added.

    Places with -inf or nearly the lowest number of the dtype are hidden. (Bias to every energy of
    a row, that number would make the row uniform or NaN; here such a row sees nothing.)
    """
    if not mask.is_floating_point():
        raise Refused(f"{name} holds booleans, or numbers that are added; got {mask.dtype}")
    seen = ~(mask <= torch.finfo(mask.dtype).min / 2)  # NaN is added, as a user would see
    added = mask.where(seen, 0)
    # Kernels that take no bias can serve a mask that only hides; on a GPU to look would be to wait.
    known = mask.is_cpu and not torch.compiler.is_compiling() and not mask.requires_grad
    return seen, None if known and not bool(added.any()) else added


def summed(*tables: Tensor | None) -> Tensor | None:
    """The sum of the tables given; None without any."""
    there = [table for table in tables if table is not None]
    return sum(there[1:], there[0]) if there else None
