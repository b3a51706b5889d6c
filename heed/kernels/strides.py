"""How tensors lie in memory, where a kernel asks it of them."""

from torch import Tensor


def dense(x: Tensor) -> Tensor:
    """The same with no gaps along the last axis, and signs as in memory; all else may lie anywhere.

    PyTorch may leave it to whoever reads a tensor to negate its numbers.
    """
    x = x.resolve_neg()
    return x if x.stride(-1) == 1 else x.contiguous()


def broadcast(x: Tensor | None, axes: int) -> tuple[int, ...]:
    """Strides of the first axes: zero along one where one entry speaks for all, or without x."""
    if x is None:
        return (0,) * axes
    pairs = zip(x.shape[:axes], x.stride()[:axes], strict=True)
    return tuple(0 if n == 1 else step for n, step in pairs)
