"""Tile sizes, by what was measured: no search at run time, and none that depends on a length."""

from typing import NamedTuple


class Tile(NamedTuple):
    """Queries in a tile, and the warps that share it."""

    queries: int
    warps: int


ENOUGH = 264
"""Programs that keep a large GPU busy: two for each of 132 multiprocessors."""

SCRATCH = 1 << 28
"""Bytes of energies (or of their gradients, and weights) that are written down at a time."""


def energy(T: int) -> int:
    """Queries in a tile of energies: a tall one reads the keys less often."""
    return 16 if T <= 16 else 32 if T <= 32 else 64


def depth(D: int, programs: int) -> int:
    """How much of the width one program sums: a slice, where whole rows would be too few.

    It divides the width: nothing is there beyond it.
    """
    return 128 if programs < ENOUGH and D % 128 == 0 else D


def read(T: int, R: int) -> Tile:
    """Queries whose contexts a program holds; wide ones leave room for few."""
    if R <= 128 and T > 32:
        return Tile(64, 4)
    return Tile(32, 4) if R <= 256 and T > 16 else Tile(16, 4 if R <= 512 else 8)


def row(width: int) -> tuple[int, int]:
    """Keys that one query meets at a time, and warps, where a call has a query or a few."""
    if width <= 256:
        return 8, 2
    return (4, 2) if width <= 512 else (4, 4)


ENERGY_REGISTERS = 168
"""For a thread of the energy kernel: three programs to a multiprocessor, not two, and no spills."""

KEY_REGISTERS = 168
"""Likewise where slopes are summed over queries; over keys the compiler's own choice is faster."""
