"""Visibility: arguments of the operator, and pointers, numbers and flags for the kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from heed.kernels.strides import broadcast
from heed.kernels.window.tuned import SLICE


@dataclass(slots=True, eq=False)
class Geometry:
    """The keys that each query sees, and their gain; every tensor may be missing.

    Windows are fixed (|s - place| <= half), near a centre (|s - centre| <= radius), or the blocks
    that a fixed window touches, beside which all other blocks stand as one key each.
    """

    centre: Tensor | None  # B|1 H|1 T float32
    order: Tensor | None  # the queries sorted by centre  B|1 H|1 T int64
    ranked: Tensor | None  # their sort keys  B|1 H|1 T int16
    peak: Tensor | None  # the centre of the gain  B|1 H|1 T float32
    stop: Tensor | None  # one past the last key that exists  B|1 int32
    exists: Tensor | None  # which keys exist  B|1 S bool
    opens: Tensor | None  # the place from which a block is seen  B|1 N int32
    logs: Tensor | None  # what is added to a block's energies  B|1 N float32
    seed: Tensor | None  # of dropout  1 int64
    first: int
    half: int  # -1: no fixed window
    radius: int
    block: int  # 0: no blocks
    sigma: float
    scale: float
    causal: bool
    rising: bool  # centres never go back
    dropout: float

    @property
    def N(self) -> int:
        """The number of blocks that stand as one key each, after the single keys."""
        return 0 if self.opens is None else self.opens.shape[-1]

    def S(self, k: Tensor) -> int:
        """The number of single keys."""
        return k.shape[2] - self.N

    def tensors(self, nothing: Tensor) -> tuple[Tensor, ...]:
        """Pointers; what is missing is never read."""
        parts = (self.order, self.centre, self.peak, self.stop, self.exists, self.opens, self.logs)
        return tuple(nothing if x is None else x for x in (*parts, self.seed))

    @property
    def threshold(self) -> int:
        """The threshold that a number of 31 random bits must reach for dropout to keep a weight."""
        return min(round(self.dropout * 2**31), 2**31 - 1)

    @property
    def boost(self) -> float:
        """The factor on a kept weight."""
        return 1 / (1 - self.dropout) if self.dropout < 1 else 0.0

    def numbers(self) -> tuple[int, ...]:
        """Whole numbers; what is missing is never used."""
        return self.first, max(self.half, 0), self.radius, max(self.block, 1), self.threshold

    def rates(self) -> tuple[float, float, float]:
        """The energies' scale to base 2, the gain's steepness to base 2, a kept weight's factor."""
        rate = math.log2(math.e) / (2 * self.sigma * self.sigma) if self.sigma else 0.0
        return self.scale * math.log2(math.e), rate, self.boost

    def flags(self) -> dict[str, bool | int]:
        """Constants that say what is used: the compiler leaves out the rest."""
        return {
            "CAUSAL": self.causal,
            "FIXED": self.half >= 0 and not self.block,
            "NEAR": self.centre is not None,
            "BLOCKS": self.block > 0,
            "ORDERED": self.order is not None,
            "STOPS": self.stop is not None,
            "SOME": self.exists is not None,
            "GAIN": self.peak is not None,
            "DROP": self.dropout > 0,
            "GAPS": self.centre is not None and (self.causal or self.half >= 0 or not self.rising),
        }


def strides(see: Geometry) -> tuple[int, ...]:
    """Strides of centres and peaks by row and head; of `exists`, `stop` and `opens` by row."""
    return (
        *broadcast(see.centre, 2),
        *broadcast(see.peak, 2),
        *broadcast(see.exists, 1),
        *broadcast(see.stop, 1),
        *broadcast(see.opens, 1),
    )


def coarseness(S: int) -> int:
    """The number of low bits of a place to drop, so that S places fit into two bytes."""
    return max(0, S.bit_length() - 15)


def padded(width: int) -> int:
    """The next power of two that a tensor core takes."""
    return max(16, 1 << (width - 1).bit_length())


def widths(D: int, R: int) -> dict[str, int]:
    """The widths of keys and values: as they are, padded, and how much is held at a time."""
    DP, RP = padded(D), padded(R)
    return {"D": D, "DP": DP, "R": R, "RP": RP, "SD": min(DP, SLICE), "SR": min(RP, SLICE)}


def unit(*tensors: Tensor) -> int:
    """The largest number, 8 at most, that divides every stride: loads of that many are aligned."""
    return math.gcd(8, *(n for x in tensors for n in x.stride()[:3]))


def precision(x: Tensor) -> str:
    """The precision of products: float32 must not be rounded to TF32."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


def by_rows(x: Tensor) -> Tensor:
    """A tensor whose rows are contiguous, as loads need them."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
