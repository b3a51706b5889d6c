"""The memory layout of tensors, as kernels need it."""

from torch import Tensor


def dense(x: Tensor) -> Tensor:
    """A tensor with no gaps along its last axis, and no lazy negation; other strides are free.

    PyTorch may mark a tensor as negated and leave it to its reader to negate the numbers.
    """
    x = x.resolve_neg()
    return x if x.stride(-1) == 1 else x.contiguous()


def broadcast(x: Tensor | None, axes: int) -> tuple[int, ...]:
    """Strides of the first axes: zero along an axis of size one, and all of them without x."""
    if x is None:
        return (0,) * axes
    pairs = zip(x.shape[:axes], x.stride()[:axes], strict=True)
    return tuple(0 if n == 1 else step for n, step in pairs)
