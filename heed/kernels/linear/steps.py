"""A linear map for loops over steps in training, on the CPU: one product for its weight's gradient.

    ask = mapping(weight)                    # before the loop; None where PyTorch must serve
    ask(x)                                   # x Wᵀ
    mapping(weight, bends=True)(c, h)        # tanh(W [c; h])

    y_t = f(W x_t)        dW = Σ_t δ_tᵀ x_t,    δ_t = dy_t f'(y_t)

The sum over steps is formed at the end of the loop (deferred_gradients.py). The twin is
`torch.nn.functional.linear`, and tanh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from heed.errors import ShapeError
from heed.kernels import native as library
from heed.kernels.deferred_gradients import (
    Deferred,
    first_derivatives_only,
    may_defer_on_cpu,
    share,
)
from heed.kernels.linear import native

Map = Callable[..., Tensor]


def mapping(weight: Tensor, *, bends: bool = False) -> Map | None:
    """The map of rows by a weight N K, for the steps of a loop; None where PyTorch must serve.

    It takes one part of the K columns or two, B K₁, B K₂ -> B N.
    """
    if not may_defer_on_cpu(weight):
        return None
    loop: _Loop | None = None

    def go(*parts: Tensor) -> Tensor:
        nonlocal loop
        _check(weight, parts)
        widths = [x.shape[1] for x in parts]
        if loop is None or (loop.version, loop.widths) != (_version(weight), widths):
            loop = _Loop(weight, widths)
        y: Tensor = _Step.apply(loop, bends, *loop.columns, *parts)  # type: ignore[no-untyped-call]
        return y

    return go


class _Loop:
    """A weight in its present version, as steps use it: the columns of each part of their input."""

    def __init__(self, weight: Tensor, widths: list[int]) -> None:
        self.version, self.widths = _version(weight), widths
        self.columns = share(*weight.split(widths, 1))
        self.deferred = Deferred.of(*self.columns)
        self.panels: list[tuple[Tensor, Tensor]] = []  # for forward and backward, if C serves
        if len(widths) <= 2 and library.reads(weight):
            self.panels = [(native.panels(w), native.panels(w, turned=True)) for w in self.columns]


def _version(weight: Tensor) -> tuple[int, int, bool]:
    """A version: it changes when the weight is written to, or gradients are turned on or off.

    What is written through `.data` leaves no trace in it, and is not seen until the next loop.
    """
    return weight.data_ptr(), weight._version, torch.is_grad_enabled()


def _check(weight: Tensor, parts: tuple[Tensor, ...]) -> None:
    """Refuse rows that do not fit: the library checks no bounds."""
    rows, K = {len(x) for x in parts}, sum(x.shape[-1] for x in parts)
    if any(x.dim() != 2 for x in parts) or len(rows) != 1 or weight.shape[1] != K:
        told = ", ".join(" ".join(map(str, x.shape)) for x in parts)
        raise ShapeError(
            f"a map of {weight.shape[1]} columns needs inputs of that width with equal rows; {told}"
        )


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loop: _Loop, bends: bool, *given: Tensor) -> Tensor:
        columns, parts = given[: len(loop.widths)], given[len(loop.widths) :]
        ctx.loop = loop
        if loop.panels:
            y = native.ahead([w for w, _ in loop.panels], parts, len(columns[0]), bends)
        else:
            y = torch.cat(parts, 1) @ torch.cat(columns, 1).t()
            y = y.tanh_() if bends else y
        ctx.save_for_backward(y if bends else None, *given)
        return y

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, by: Tensor) -> tuple[Any, ...]:
        y, *given = ctx.saved_tensors
        widths = ctx.loop.widths
        columns, parts = given[: len(widths)], given[len(widths) :]
        if ctx.loop.panels:
            d, by_parts = native.back([w for _, w in ctx.loop.panels], by, y, widths)
        else:
            d = by if y is None else torch.ops.aten.tanh_backward(by, y)
            by_parts = [d @ w for w in columns]
        ctx.loop.deferred.add(*((d, x) for x in parts))
        return None, None, *(None for _ in columns), *by_parts
