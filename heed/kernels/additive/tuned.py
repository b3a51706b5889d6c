"""Tile sizes, as measured: nothing is searched for at run time."""

from typing import NamedTuple


class Tile(NamedTuple):
    """Queries in a tile, and the warps that share it."""

    queries: int
    warps: int


class Sum(NamedTuple):
    """The layout of 64 rows of a gradient, 64 wide, in registers while slopes are summed.

    More warps wait for memory side by side; more numbers in a thread read less of it.
    """

    side: int  # neighbours along the width in one thread: 2, 4 or 8
    warps: int
    registers: int | None  # at most, for a thread; None: as the compiler likes


TALL, LOW = Tile(64, 4), Tile(32, 4)
"""Tiles of energies."""

ENOUGH = 264
"""Programs that keep a large GPU busy: two for each of 132 multiprocessors."""

SCRATCH = 1 << 28
"""Bytes of energies that are formed at a time; more where 64 queries of all heads need it."""

SCRATCH_BACK = 3 << 27
"""Bytes of their gradients (two copies) and weights at a time: enough to fill a large GPU."""


def energy(T: int, *, few: bool = False) -> Tile:
    """Queries in a tile of energies: a tall one reads the keys less often.

    few  tiles are so few that the width is cut as well: then low ones, so that more warps wait
    """
    if T <= 32:
        return Tile(16 if T <= 16 else 32, 4)
    return LOW if few else TALL


def depth(D: int, programs: int) -> int:
    """The width that one program sums: a slice, where whole rows would be too few.

    A slice divides the width: kernels mask nothing beyond it.
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

BY_QUERY = Sum(4, 8, 128)
"""How slopes are summed over keys."""

BY_KEY = Sum(4, 8, 128)
"""How slopes are summed over queries."""
