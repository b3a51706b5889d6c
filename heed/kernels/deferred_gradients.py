"""Gradients of what all steps of a training loop share, each summed once, at the end of the loop.

    k, v = share(k, v)                     # before the loop: a memory, or weights
    deferred = Deferred.of(k, v)           # where the backward pass of each step leaves rows for
    deferred.add((de, q), (a, dc))         # the sums  dk = Σ_t de_tᵀ q_t,  dv = Σ_t a_tᵀ dc_t

A step's gradient of a weight or a memory is a product of few rows, but as large as what it belongs
to. Autograd forms one at every step and adds them up. Here a step leaves the rows alone, and the
backward pass of `share`, which follows those of all steps, forms one product of all of them.

Memories are shared by the steps of the dot family (single.py) and of additive scores
(additive/steps.py) on the CPU, and of windows (window/steps.py) on a GPU; weights by maps
(linear/steps.py) and cells (models/unrolled.py) on the CPU. `heed.kernels.off("single")` switches
all of it off, on a GPU too: autograd then sees every operation of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from heed.errors import Refused
from heed.kernels.ability import many_in_one, needs_grad, recorded, transformed

Backward = Callable[..., tuple[Any, ...]]
Pair = tuple[Tensor, Tensor | None]
"""Rows a, ... n N, and b, ... n K: their part of a gradient is aᵀ b; without b, the sum of a."""


def may_defer(*tensors: Tensor) -> bool:
    """Whether the steps of a loop may share these: they need gradients, and nothing traces."""
    from heed.kernels.choose import is_on  # which imports kernels that import this one

    return (
        needs_grad(*tensors)
        and tensors[0].device.type in ("cpu", "cuda")
        and not recorded()
        and transformed() is None
        and is_on("single")
    )


def may_defer_on_cpu(*tensors: Tensor) -> bool:
    """Whether steps that serve the CPU alone, and no autocast, may share these."""
    return tensors[0].is_cpu and not torch.is_autocast_enabled("cpu") and may_defer(*tensors)


def share(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same tensors for the steps of one loop, and a `Deferred` behind them."""
    shared: tuple[Tensor, ...] = _Shared.apply(Deferred(), *tensors)  # type: ignore[no-untyped-call]
    return shared


class Deferred:
    """The rows that the steps of a loop leave while a backward pass goes through them."""

    def __init__(self) -> None:
        self.task = -1
        self.left: list[tuple[Pair, ...]] = []
        self.sums: tuple[Tensor, ...] | None = None

    @staticmethod
    def of(*shared: Tensor) -> Deferred | None:
        """The one behind all of these tensors; None where `share` was not called for them."""
        node = shared[0].grad_fn
        found: Deferred | None = getattr(node, "deferred", None)
        return found if all(x.grad_fn is node for x in shared) else None

    def add(self, *pairs: Pair) -> None:
        """Leave the rows of one step: a pair for each shared tensor, or for the first of them."""
        self._begin()
        self.left.append(pairs)

    def added(self, make: Callable[[], tuple[Tensor, ...]]) -> tuple[tuple[Tensor, ...], bool]:
        """The sums to which steps add gradients in place, and whether any step has.

        They are as large as the shared tensors, with as much padding as the kernel needs.
        """
        self._begin()
        more = self.sums is not None
        if self.sums is None:
            self.sums = make()
        return self.sums, more

    def take(self, shapes: list[torch.Size], wanted: tuple[bool, ...]) -> list[Tensor | None]:
        """The gradients of the shared tensors, None where no step left any; nothing stays left."""
        self._begin()
        left, sums, self.left, self.sums = self.left, self.sums, [], None
        joined: dict[tuple[int, ...], Tensor] = {}

        def join(rows: tuple[Tensor, ...]) -> Tensor:
            """The rows of all steps, once for all gradients that need them."""
            key = tuple(map(id, rows))
            if key not in joined:
                joined[key] = torch.cat(rows, -2)
            return joined[key]

        def total(i: int) -> Tensor | None:
            own = None if sums is None else sums[i][..., : shapes[i][-1]]
            pairs = [step[i] for step in left if i < len(step)]
            if not pairs:
                return own
            a, b = zip(*pairs, strict=True)
            found = join(a).sum(-2) if b[0] is None else join(a).mT @ join(b)
            return _plus(own, found.view(shapes[i]))

        return [total(i) if want else None for i, want in enumerate(wanted)]

    def _begin(self) -> None:
        """Start empty in a new backward pass: one that ended early may have left something."""
        task = torch._C._current_graph_task_id()
        if task != self.task:
            self.task, self.left, self.sums = task, [], None


class _Shared(torch.autograd.Function):
    """Passes tensors through; its backward pass comes after those of all steps."""

    @staticmethod
    def forward(ctx: Any, deferred: Deferred, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.deferred, ctx.kind = deferred, tensors[0].device.type
        ctx.shapes = [x.shape for x in tensors]
        ctx.set_materialize_grads(False)
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *others: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients from other uses pass with all their derivatives."""
        with torch.autocast(ctx.kind, enabled=False):  # as in the steps
            totals = ctx.deferred.take(ctx.shapes, ctx.needs_input_grad[1:])
        return None, *map(_plus, totals, others)


def _plus(x: Tensor | None, y: Tensor | None) -> Tensor | None:
    return y if x is None else x if y is None else x + y


def first_derivatives_only(backward: Backward) -> Backward:
    """Guard the backward pass of a step in one piece: it refuses second derivatives at once.

    Gradients that a step defers reach their tensors outside the graph: `once_differentiable` would
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
