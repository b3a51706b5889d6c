"""A question to the kernel, as plain tensors and numbers, and how it is cut into tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from heed.kernels.statistics.tuned import Walk, walk
from heed.kernels.strides import broadcast

LONG = 4096
"""Keys beyond which more than ten bits of a weight give way to its place."""
LONGEST = 131_072
"""Keys beyond which too few would be left."""


@dataclass(slots=True, eq=False)
class Question:
    """Queries, keys, who sees whom, and which statistics are wanted; what is missing is None."""

    q: Tensor  # B H T D
    k: Tensor  # B G N D, the last `sinks` of them seen by all
    log_sum: Tensor | None  # B H T
    stop: Tensor | None  # B|1
    exists: Tensor | None  # B|1 S
    centre: Tensor | None  # B|1 H|1 T
    table: Tensor | None  # B|1 H|1 T|1 S
    bias: Tensor | None  # broadcasts to B H T N
    gain: Tensor | None  # the centre of a Gaussian  B|1 H|1 T
    scale: float
    sigma: float
    first: int
    half: int  # -1: no window
    radius: int
    causal: bool
    sinks: int
    top: int
    map: tuple[int, int]  # rows and columns; 0, 0: none

    def __post_init__(self) -> None:
        for name in ("q", "k", "centre", "gain", "table", "exists"):
            x = getattr(self, name)
            if x is not None and x.stride(-1) != 1:
                setattr(self, name, x.contiguous())
        for name in ("centre", "gain"):
            x = getattr(self, name)
            setattr(self, name, None if x is None else x.float())

    @property
    def S(self) -> int:
        """The number of keys that have a place: all but the sinks."""
        return self.k.shape[2] - self.sinks

    @property
    def everything(self) -> bool:
        """Whether every query sees every key."""
        return not any(on for name, on in self.flags().items() if name not in ("BIAS", "SINKS"))

    @property
    def sharpness(self) -> float:
        """The factor of a squared distance taken from an energy, in units of log 2."""
        return math.log2(math.e) / (2 * self.sigma**2) if self.gain is not None else 0.0

    def given(self, x: Tensor | None) -> Tensor:
        """A pointer; what is missing is never read."""
        return self.q if x is None else x

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of visibility, for pointers."""
        parts = (self.stop, self.exists, self.centre, self.table, self.bias)
        return tuple(self.given(x) for x in parts)

    def strides(self) -> tuple[int, ...]:
        """The strides of these: stop b, exists b, centre b h, table b h t, bias b h t s."""
        parts = ((self.stop, 1), (self.exists, 1), (self.centre, 2), (self.table, 3))
        return tuple(n for x, axes in (*parts, (self.bias, 4)) for n in broadcast(x, axes))

    def strides_of_gain(self) -> tuple[int, ...]:
        """The strides of the gain's centre: b h."""
        return broadcast(self.gain, 2)

    def flags(self) -> dict[str, bool]:
        """Constants that say which restrictions and additions a kernel must look at."""
        return {
            "CAUSAL": self.causal,
            "FIXED": self.half >= 0,
            "NEAR": self.centre is not None,
            "STOP": self.stop is not None,
            "EXISTS": self.exists is not None,
            "TABLE": self.table is not None,
            "SINKS": self.sinks > 0,
            "BIAS": self.bias is not None,
        }


@dataclass(slots=True, frozen=True)
class Plan:
    """The division of a question into tiles."""

    width: int
    BD: int
    walk: Walk
    exact: bool  # the largest is found by comparing whole numbers, not all but the last bits
    full: bool  # places are averaged in float32, not on the matrix unit
    K: int  # slots for the largest
    C: int  # groups of keys that are kept to find them in; 0: none are asked for
    lists: bool  # they are found in lists of groups, not by looking through tiles again
    RC: int  # rows of cells that a tile of queries can touch, one more, up to a power of two
    GROUP: int  # keys whose weights are summed before they are written for the map

    @staticmethod
    def of(question: Question) -> Plan:
        """The plan for a question's shapes."""
        _, _, T, width = question.q.shape
        N, dtype = question.k.shape[2], question.q.dtype
        rows, columns = question.map
        half = dtype != torch.float32
        looked_up = question.table is not None or question.bias is not None
        how = walk(T, width, dtype, long=N > LONG, looked_up=looked_up)
        K = _power(max(question.top, 1))
        lists = question.top > 0 and half and N <= LONGEST
        # Few bits of a weight are left beside its place in a long row: more are looked at again.
        C = 2 * K if lists and N > LONG else K
        return Plan(
            width,
            max(16, _power(width)),
            how,
            not half,
            not half,
            K,
            C if question.top else 0,
            lists,
            max(8, _power(touched(how.queries, T, rows) + 1)),
            grouped(how.keys, N, columns),
        )

    def taken(self, N: int) -> int:
        """A mask without the bits of a weight that give way to its place among N."""
        tiles = -(-N // self.BN)
        return -(self.BN // 4 << (tiles - 1).bit_length())

    @property
    def BM(self) -> int:
        """Queries of a tile."""
        return self.walk.queries

    @property
    def BN(self) -> int:
        """Keys of a tile."""
        return self.walk.keys

    def launched(self) -> dict[str, int | None]:
        """The options that Triton compiles with."""
        how = self.walk
        return {"num_warps": how.warps, "num_stages": how.stages, "maxnreg": how.registers}


def touched(tile: int, of: int, cells: int) -> int:
    """The most cells a tile of so many places can touch, `of` places being cut into `cells`."""
    if cells == 0:
        return 1
    if (of % cells) == 0 and (tile % (of // cells) == 0 or (of // cells) % tile == 0):
        return max(1, tile * cells // of)
    return min(cells, tile * cells // of + 2)


def grouped(tile: int, of: int, cells: int) -> int:
    """The number of neighbours that never fall into different cells, wherever a tile begins."""
    size = of // cells if cells and of % cells == 0 else 1
    return min(tile, size & -size)


def _power(n: int) -> int:
    """The power of two that is n or the next above it."""
    return 1 << max(0, n - 1).bit_length()
