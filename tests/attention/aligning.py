"""What the tests of aligns share: aligns by name, calls, and masks."""

import torch
from torch import Tensor

import heed
from heed.attention.align import Align

WIDTH = 3


def made(name: str, **options: object) -> Align:
    """The align of a name, in double precision."""
    built = heed.Attention(name, query=WIDTH, key=WIDTH, **options)
    return built.mechanism.align.double()


def queries(B: int, H: int, T: int) -> Tensor:
    return torch.randn(B, H, T, WIDTH, dtype=torch.float64)


def table(*shape: int, chance: float = 0.7) -> Tensor:
    """A random mask; every row sees its first key."""
    ok = torch.rand(shape) < chance
    ok[..., 0] = True
    return ok
