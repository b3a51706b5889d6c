"""What loops over steps share in training, where steps ask one memory or use the same weights.

The gradients of keys and values, de_tᵀ q_t and a_tᵀ dc_t, are as large as the memory at every step.
Where the memory was made for steps (`gathering`), the backward pass of a step only stores its rows,
and two products form the gradients of the whole loop at its end:

    dk = Σ_t de_t ⊗ q_t,    dv = Σ_t a_t ⊗ dc_t

Steps of the dot family (single.py) and of additive scores (additive/steps.py) do so on the CPU,
those of windows (window/steps.py) on a GPU. The gradients of weights are formed likewise, on the
CPU, by maps (linear/steps.py) and cells (models/unrolled.py). `heed.kernels.off("single")` switches
all of it off, on a GPU too: each step then forms its own gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from heed.errors import Refused
from heed.kernels.ability import many_in_one, recorded, transformed

Backward = Callable[..., tuple[Any, ...]]
Sums = Callable[[], tuple[Tensor, Tensor]]
Shapes = tuple[torch.Size, torch.Size]


def first_alone(backward: Backward) -> Backward:
    """Guard the backward pass of a step in one piece: it refuses second derivatives at once.

    Gradients from stored rows reach their tensors outside the graph: `once_differentiable` would
    see nothing to refuse there, and a penalty on them would be silently dropped.
    """

    @wraps(backward)
    def guarded(ctx: Any, *by: Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise Refused(
                "these steps have first derivatives only; for second ones go forward with "
                'them switched off: with heed.kernels.off("single", "sdpa", "additive"): ...'
            )
        if any(x is not None and many_in_one(x) for x in by):
            raise Refused(
                "these steps take one gradient at a time; for many at once go "
                'forward with them switched off: with heed.kernels.off("single"): ...'
            )
        if not torch.is_autocast_enabled("cpu"):  # the context manager costs more than the check
            return backward(ctx, *by)
        with torch.autocast("cpu", enabled=False):  # the step went forward without it
            return backward(ctx, *by)

    return guarded


def learning(*tensors: Tensor) -> bool:
    """Whether steps in one piece may serve: gradients are wanted on the CPU, and nothing traces."""
    from heed.kernels.choose import is_on  # which imports kernels that import this one

    return (
        torch.is_grad_enabled()
        and tensors[0].is_cpu
        and any(x.requires_grad for x in tensors)
        and not recorded()
        and not torch.is_autocast_enabled("cpu")
        and transformed() is None
        and is_on("single")
    )


class Rows:
    """What the steps of a loop store while a backward pass goes through them."""

    def __init__(self) -> None:
        self.task = -1
        self.left: list[tuple[Tensor, ...]] = []
        self.added: tuple[Tensor, Tensor] | None = None

    def add(self, *rows: Tensor) -> None:
        """Store the rows of one step: the gradient of its energies, its query, its weights, the
        gradient of its context.    N 1 S|D|S|R"""
        self._now()
        self.left.append(rows)

    def sums(self, room: Sums) -> tuple[tuple[Tensor, Tensor], bool]:
        """The sums to which steps add gradients of keys and values in place, and whether any has.

        B G S N, padded as the kernel needs it
        """
        self._now()
        more = self.added is not None
        if self.added is None:
            self.added = room()
        return self.added, more

    def take(self, shapes: Shapes) -> list[Tensor] | None:
        """The gradients of keys and values; nothing stays stored.    B G S D, B G S R"""
        left, added, self.left, self.added = self.left, self.added, [], None
        if self.task != torch._C._current_graph_task_id():
            return None
        total: list[Tensor] | None = None
        if left:
            by_energy, q, weight, by = (torch.cat(x, 1) for x in zip(*left, strict=True))
            pair = torch.bmm(by_energy.mT, q), torch.bmm(weight.mT, by)
            total = [x.view(shape) for x, shape in zip(pair, shapes, strict=True)]
        if added is not None:
            own = [x[..., : shape[-1]] for x, shape in zip(added, shapes, strict=True)]
            total = own if total is None else [x + y for x, y in zip(own, total, strict=True)]
        return total

    def _now(self) -> None:
        """Start empty in a new backward pass: one that ended early may have left rows."""
        task = torch._C._current_graph_task_id()
        if task != self.task:
            self.task, self.left, self.added = task, [], None


class _Gathering(torch.autograd.Function):
    """Passes keys and values through; its backward pass comes after those of all steps."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        ctx.rows, ctx.shapes, ctx.kind = Rows(), (k.shape, v.shape), k.device.type
        ctx.set_materialize_grads(False)
        return k.view_as(k), v.view_as(v)

    @staticmethod
    def backward(ctx: Any, *others: Tensor | None) -> tuple[Tensor | None, ...]:
        with torch.autocast(ctx.kind, enabled=False):  # as the steps that left them
            taken = ctx.rows.take(ctx.shapes)
        if taken is None:  # no step stored rows: other gradients pass, with all their derivatives
            return others
        return tuple(
            total if x is None else total + x for total, x in zip(taken, others, strict=True)
        )


def gathering(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values for a loop of single queries; the same tensors where `single` is off."""
    from heed.kernels.choose import is_on  # which imports kernels that import this one

    if not is_on("single"):
        return k, v
    gathered: tuple[Tensor, Tensor] = _Gathering.apply(k, v)  # type: ignore[no-untyped-call]
    return gathered
