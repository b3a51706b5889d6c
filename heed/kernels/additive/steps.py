"""Single queries of a loop over steps in training, to a memory made for it, on the CPU.

The gradients of keys and values are as large as the memory at every step. Here each step adds its
own in place to one sum, which is handed over once, at the end of the loop
(deferred_gradients.py). The twin is the operator, step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from heed.kernels import native as library
from heed.kernels.additive import native, operator
from heed.kernels.additive.plan import Plan
from heed.kernels.deferred_gradients import Deferred, first_derivatives_only


def looking(
    k: Tensor, v: Tensor, w: Tensor, seen: Plan, prepared: Tensor | None
) -> Callable[[Tensor], Tensor] | None:
    """A function that answers single queries, B H 1 D -> B H 1 R; None: the operator must serve."""
    deferred = Deferred.of(k, v)
    if (
        deferred is None
        or prepared is None
        or seen.gain_centre is not None
        or library.missing() is not None
    ):
        return None
    if operator.watched(k, v, w) or any(x.dtype != torch.float32 for x in (k, v, w)):
        return None

    def look(q: Tensor) -> Tensor:
        if operator.watched(q):
            return operator.attend(q, k, v, w, seen, prepared=prepared)
        context: Tensor = _Step.apply(deferred, seen, prepared, q, k, v, w)  # type: ignore[no-untyped-call]
        return context

    return look


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        deferred: Deferred,
        seen: Plan,
        prepared: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        w: Tensor,
    ) -> Tensor:
        context, log_sum = native.forward(q, k, v, w, seen, prepared=prepared)
        ctx.deferred, ctx.seen, ctx.prepared = deferred, seen, prepared
        ctx.save_for_backward(q, k, v, w, log_sum)
        return context

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, by: Tensor) -> tuple[Any, ...]:
        q, k, v, w, log_sum = ctx.saved_tensors
        sums, more = ctx.deferred.added(lambda: native.step_sums(k, v))
        by_q, by_w = native.backward_step(
            by, q, k, v, w, log_sum, ctx.seen, ctx.prepared, sums, more
        )
        return None, None, None, by_q, None, None, by_w
