"""How tensors lie in memory, where a kernel asks it of them."""

from torch import Tensor


def dense(x: Tensor) -> Tensor:
    """The same with no gaps along the last axis; the others may lie anywhere."""
    return x if x.stride(-1) == 1 else x.contiguous()
