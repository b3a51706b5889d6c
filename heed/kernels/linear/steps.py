"""A linear map for loops over steps in training, on the CPU: one product for its weight's gradient.

    ask = mapping(weight)                    # before the loop; None where PyTorch must serve
    ask(x)                                   # x Wᵀ
    mapping(weight, bends=True)(c, h)        # tanh(W [c; h])

Autograd forms a weight's gradient once per step, a matrix of its own each time, and adds them up.
Here the backward pass of a step stores its rows, and one product of all of them is formed at the
end:

    y_t = f(W x_t)        dW = Σ_t δ_tᵀ x_t,    δ_t = dy_t f'(y_t)

The twin is `torch.nn.functional.linear`, and tanh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from heed.errors import ShapeError
from heed.kernels import native as library
from heed.kernels.linear import native
from heed.kernels.looping import first_alone, learning

Map = Callable[..., Tensor]


def mapping(weight: Tensor, *, bends: bool = False) -> Map | None:
    """The map of rows by a weight N K, for the steps of a loop; None where PyTorch must serve.

    It takes one part of the K columns or two, B K₁, B K₂ -> B N.
    """
    if not learning(weight):
        return None
    loop = _Loop(weight)

    def go(*parts: Tensor) -> Tensor:
        nonlocal loop
        _check(weight, parts)
        widths = [x.shape[1] for x in parts]
        # The weight was updated within the loop, or the parts have other widths.
        if _stands(weight) != loop.stands or loop.rows.widths not in ([], widths):
            loop = _Loop(weight)
        if not loop.rows.widths:
            loop.rows.lay_out(weight, widths)
        y: Tensor = _Step.apply(loop.rows, bends, loop.weight, *parts)  # type: ignore[no-untyped-call]
        return y

    return go


class _Loop:
    """A weight in its present version, and what the steps that use it share."""

    def __init__(self, weight: Tensor) -> None:
        self.rows, self.stands = Rows(), _stands(weight)
        self.weight: Tensor = _Shared.apply(self.rows, weight)  # type: ignore[no-untyped-call]


def _stands(weight: Tensor) -> tuple[int, int, bool]:
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


class Rows:
    """What steps share in the forward pass, and store in the backward pass."""

    def __init__(self) -> None:
        self.task = -1
        self.left: list[tuple[Tensor, ...]] = []
        self.widths: list[int] = []  # of the parts
        self.panels: list[tuple[Tensor, Tensor]] = []  # of their columns, for forward and backward

    def lay_out(self, weight: Tensor, widths: list[int]) -> None:
        """Pack the columns of each part into panels, where the library serves."""
        self.widths = widths
        if len(widths) <= 2 and library.reads(weight):
            columns = weight.detach().split(widths, 1)
            self.panels = [(native.panels(w), native.panels(w, turned=True)) for w in columns]

    def add(self, *rows: Tensor) -> None:
        """Store a step's rows: the gradient before tanh, and the parts.    B N, B K₁, B K₂"""
        task = torch._C._current_graph_task_id()
        if task != self.task:  # a pass that ended early may have left some behind
            self.task, self.left = task, []
        self.left.append(rows)

    def take(self) -> Tensor | None:
        """The gradient of the weight; nothing stays stored.    N K"""
        left, self.left = self.left, []
        if not left or self.task != torch._C._current_graph_task_id():
            return None
        by, *parts = (torch.cat(x) for x in zip(*left, strict=True))
        return by.t() @ (parts[0] if len(parts) == 1 else torch.cat(parts, 1))


class _Shared(torch.autograd.Function):
    """Passes the weight through; its backward pass comes after those of all steps."""

    @staticmethod
    def forward(ctx: Any, rows: Rows, weight: Tensor) -> Tensor:
        ctx.rows = rows
        ctx.set_materialize_grads(False)
        return weight.view_as(weight)

    @staticmethod
    @first_alone
    def backward(ctx: Any, other: Tensor | None) -> tuple[Any, ...]:
        total = ctx.rows.take()
        return None, other if total is None else total if other is None else total + other


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Rows, bends: bool, weight: Tensor, *parts: Tensor) -> Tensor:
        ctx.rows, ctx.bends = rows, bends
        if rows.panels:
            y = native.ahead([w for w, _ in rows.panels], parts, len(weight), bends)
        else:
            y = torch.cat(parts, 1) @ weight.t()
            y = y.tanh_() if bends else y
        ctx.save_for_backward(weight, y if bends else None, *parts)
        return y

    @staticmethod
    @first_alone
    def backward(ctx: Any, by: Tensor) -> tuple[Any, ...]:
        weight, y, *parts = ctx.saved_tensors
        if ctx.rows.panels:
            d, by_parts = native.back([w for _, w in ctx.rows.panels], by, y, ctx.rows.widths)
        else:
            d = by if y is None else torch.ops.aten.tanh_backward(by, y)
            by_parts = list((d @ weight).split(ctx.rows.widths, 1))
        ctx.rows.add(d, *parts)
        return None, None, None, *by_parts
