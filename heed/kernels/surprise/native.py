"""Cross entropy on the CPU: the call of `native.c`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from heed.kernels import native
from heed.kernels.ability import recorded, transformed
from heed.kernels.choose import is_on
from heed.kernels.native import address

ROWS = 16  # of a task, as in native.c
Judge = Callable[[Tensor, Tensor | None, Tensor, float, bool], tuple[Tensor, Tensor, Tensor]]

_judge = native.Function("heed_surprise", "8qd")


def judging(weight: Tensor) -> Judge | None:
    """`judge` where it can serve logits of such weights; None where PyTorch must."""
    plain = weight.is_cpu and weight.dtype == torch.float32
    if not plain or recorded() or transformed() is not None:
        return None
    return judge if is_on("surprise") and native.missing() is None else None


def judge(
    logits: Tensor, bias: Tensor | None, right: Tensor, smoothing: float, learning: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """-log p of the right symbols, its mean over all symbols, and the gradient of the bias.

    Logits come without their bias, and are overwritten in place with the gradient of the smoothed
    sum: p, less 1 - ε at the right symbol, less ε/V. Without `learning` they are left undefined.

    n V, V, n -> n, n, V
    """
    n, V = logits.shape
    low, high = right.aminmax()
    if low < 0 or high >= V:  # the library checks no bounds
        raise IndexError(f"labels must be from 0 to {V - 1}; got {low} to {high}")
    right, bias = right.long().contiguous(), None if bias is None else bias.contiguous()
    found = logits.new_empty(2, n)
    tasks = -(-n // ROWS) if learning else 0
    d_bias = logits.new_empty(tasks, V)
    _judge(
        address(logits),
        address(bias),
        address(right),
        address(found[0]),
        address(found[1]),
        address(d_bias if learning else None),
        n,
        V,
        smoothing,
    )
    return found[0], found[1], d_bias.sum(0)
