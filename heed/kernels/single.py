"""One query at a time on the CPU, for loops over steps in training.

PyTorch's fused attention is made for many queries; one query of the dot family is two small
products and a softmax, and its gradient four products. The two largest, for keys and values, are
left to the end of the loop (deferred_gradients.py). Where this kernel is
switched off, nothing is left to the end, on a GPU either.

Its twin is the reference with `dot`, `softmax` and `blend`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from heed.kernels.ability import recorded, transformed
from heed.kernels.deferred_gradients import Deferred, first_derivatives_only
from heed.kernels.refusing import more_than_context, other_weights
from heed.records import Call


def refusal(call: Call) -> str | None:
    """The reason why this kernel cannot serve the call; None where it can."""
    if call.places.T != 1:
        return "it serves one query at a time"
    if recorded():
        return "a compiler or a trace must see the products"
    if Deferred.of(call.k, call.v) is None:
        return "it serves memories made for the steps of a loop that learns"
    reason = other_weights(call, "dot") or more_than_context(call)
    if reason is not None:
        return reason
    if not call.q.is_cpu:
        return "it runs on the CPU"
    if call.gain is not None or call.bias is not None or call.sinks or call.dropout:
        return "it knows no gain, bias, sinks or dropout"
    if call.visible is not None and not (call.clean and call.visible.about_keys_alone):
        return "it knows hidden keys, and no other mask"
    if call.q.shape[1] != call.k.shape[1]:
        return "it has one group of keys for each head"
    if call.q.dtype not in (torch.float32, torch.float64) or call.k.dtype != call.q.dtype:
        return "it computes in float32 or float64"
    if torch.is_autocast_enabled("cpu"):
        return "it knows no autocast"
    return transformed()


def run(call: Call) -> Tensor:
    """The context.    B H 1 R"""
    return again(call)(call.q)


def again(call: Call) -> Callable[[Tensor], Tensor]:
    """A function for any further query to the same memory.    B H 1 D -> B H 1 R"""
    k, v, scale, hidden = call.k, call.v, call.scale, _hidden(call)
    deferred = Deferred.of(k, v)

    def look(q: Tensor) -> Tensor:
        context: Tensor = _Single.apply(deferred, q, k, v, hidden, scale)  # type: ignore[no-untyped-call]
        return context

    return look


def _hidden(call: Call) -> Tensor | None:
    """The places that no query may see, if any.    N 1 S"""
    ok = call.dense_visible()
    if ok is None:
        return None
    B, H, S = call.k.shape[:3]
    return (~ok.expand(B, H, 1, S)).reshape(B * H, 1, S)


class _Single(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        deferred: Deferred,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        hidden: Tensor | None,
        scale: float,
    ) -> Tensor:
        B, H = q.shape[:2]  # sizes are named: of an empty batch none can be inferred
        q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
        energy = torch.bmm(q, k.mT)
        if scale != 1:
            energy.mul_(scale)
        if hidden is None:
            weight = energy.softmax(-1)
        else:  # a row that sees nothing is NaN, and all of it is hidden
            weight = energy.masked_fill_(hidden, -torch.inf).softmax(-1).masked_fill_(hidden, 0)
        ctx.deferred, ctx.scale, ctx.heads = deferred, scale, (B, H)
        ctx.save_for_backward(q, k, v, weight)
        return torch.bmm(weight, v).view(B, H, 1, v.shape[-1])

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, by: Tensor) -> tuple[Any, ...]:
        q, k, v, weight = ctx.saved_tensors
        by = by.flatten(0, 1)
        by_energy = torch._softmax_backward_data(torch.bmm(by, v.mT), weight, -1, weight.dtype)
        if ctx.scale != 1:
            by_energy.mul_(ctx.scale)
        ctx.deferred.add((by_energy, q), (weight, by))
        by_q = torch.bmm(by_energy, k).view(*ctx.heads, 1, q.shape[-1])
        return None, by_q, None, None, None, None
