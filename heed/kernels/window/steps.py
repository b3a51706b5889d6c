"""Single queries of a loop over steps in training, to a memory made for it, on a GPU.

The gradients of keys and values are as large as the memory, and nearly all of them are zero at any
one step. Here a step only leaves its rows, and two products form the gradients of the whole loop at
its end (deferred_gradients.py). Nor is anything cast beforehand: a step reads numbers as they are,
so that all it keeps is as small as its query. The twin is the operator, step by step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heed.kernels.ability import recorded, transformed
from heed.kernels.deferred_gradients import Deferred, first_derivatives_only
from heed.kernels.window.geometry import Geometry, by_rows


def deferred_of(k: Tensor, v: Tensor) -> Deferred | None:
    """The place where steps leave their rows; None for a memory that no loop shares, or a trace."""
    return None if recorded() or transformed() is not None else Deferred.of(k, v)


def attend(
    deferred: Deferred, q: Tensor, k: Tensor, v: Tensor, see: Geometry, dtype: torch.dtype
) -> Tensor:
    """The context of one query a head.    B H 1 D, B G S D, B G S R -> B H 1 R"""
    q, k, v = (by_rows(x) for x in (q, k, v))
    peak = see.peak
    see = replace(see, peak=None if peak is None else peak.detach())
    context: Tensor = _Step.apply(deferred, see, dtype, q, k, v, peak)  # type: ignore[no-untyped-call]
    return context


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        deferred: Deferred,
        see: Geometry,
        dtype: torch.dtype,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        peak: Tensor | None,
    ) -> Tensor:
        from heed.kernels.window import row

        context, lse = row.forward(q, k, v, see, dtype)
        ctx.deferred, ctx.see = deferred, see
        ctx.save_for_backward(q, k, v, context, lse)
        return context

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, by: Tensor) -> tuple[Any, ...]:
        from heed.kernels.window import row

        (q, k, v, context, lse), see = ctx.saved_tensors, ctx.see
        by = by_rows(by)
        by_q, by_peak, slopes, weights = row.backward(q, k, v, context, lse, by, see)
        B, H, S, G = q.shape[0], q.shape[1], slopes.shape[3], k.shape[1]
        shape = (B * G, H // G)
        ctx.deferred.add(
            (slopes.view(*shape, S), q.reshape(*shape, q.shape[3])),
            (weights.view(*shape, S), by.reshape(*shape, by.shape[3])),
        )
        if by_peak is not None:
            by_peak = by_peak.sum_to_size(see.peak.shape)
        return None, None, None, by_q, None, None, by_peak
