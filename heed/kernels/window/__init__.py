"""Attention within windows, for the dot family: each query visits only its window.

`local-m`, `local-p` (predicted centres, the Gaussian after the softmax, gradients to the centres),
`fixed-window` and `expanded-window`. Time and memory grow with T, for any centres (those of
`expanded-window` with T·S / block, too); no mask is ever formed. Its twin is the reference with the
same reach; README.md explains the algorithm and its cost.
"""

from dataclasses import replace

import torch
from torch import Tensor

from heed.kernels.ability import known, lowered, transformed
from heed.kernels.deferred_gradients import Deferred
from heed.kernels.native import unbuilt
from heed.kernels.refusing import additions, long_numbers, more_than_context, other_weights
from heed.kernels.sight import Sight, peaks, sight
from heed.kernels.window import operator, steps
from heed.kernels.window.geometry import Geometry
from heed.records import Call
from heed.visible import Causal, Coarse, Near, Window, conjuncts

WIDEST = 8192
"""The largest D and R on a GPU: a single query's row is held whole."""

LAST = 2**31 - 1


def refusal(call: Call) -> str | None:
    """The reason why this kernel cannot serve the call; None where it can."""
    return (
        other_weights(call, "dot")
        or more_than_context(call)
        or _no_window(call)
        or _no_machine(call)
    )


def _no_window(call: Call) -> str | None:
    """The reason why what is visible is not a window."""
    parts = conjuncts(call.visible)
    coarse = call.visible if isinstance(call.visible, Coarse) else None
    if coarse is not None:
        parts = conjuncts(coarse.inner)
    narrow = [x for x in parts if isinstance(x, Window | Near)]
    if not narrow and coarse is None:
        return "there is no window"
    if coarse is not None and (narrow or coarse.sinks or call.bias is not coarse.bias):
        return "it cannot add a bias, a second window or keys without a position to blocks"
    if coarse is None and (reason := additions(call)) is not None:
        return reason
    if sum(isinstance(x, Near) for x in parts) > 1:
        return "it supports one predicted window, not several"
    if not all(isinstance(x, Window | Near | Causal) or x.about_keys_alone for x in parts):
        return "it supports windows, causal masks and hidden keys, but no other mask"
    return _too_short(call, coarse, narrow)


def _too_short(call: Call, coarse: Coarse | None, narrow: list[Window | Near]) -> str | None:
    """The reason why a mask is as good, if it is: most of it would be visited anyway."""
    if call.gain is not None and call.q.device.type == "cuda":
        return None  # the reference takes a dozen launches, even for a short text
    halves = [x.half for x in narrow]
    if coarse is not None:
        halves.append(coarse.half + coarse.member.shape[-1])
    half = min(halves)
    if known(4 * max(half, 16) >= call.places.S):
        return "the text is short enough for one mask"
    return None


def _no_machine(call: Call) -> str | None:
    """The reason why it cannot run on this machine or these tensors; None where it can."""
    q, D, R = call.q, call.q.shape[3], call.v.shape[3]
    if (reason := long_numbers(q)) is not None:
        return reason
    if call.gain is not None and call.gain.sigma == 0:
        return "a gain with sigma 0 is not a number"
    if q.device.type != "cpu" and not 0 < min(D, R) <= max(D, R) <= WIDEST:
        return f"it takes heads up to {WIDEST} wide"
    return unbuilt(q.device) or transformed()


def run(call: Call) -> Tensor:
    """The context.    B H T R"""
    kind = call.q.device.type
    dtype = lowered(call.q.device) or call.v.dtype
    wide = torch.float32 if kind == "cpu" else dtype
    with torch.autocast(kind, enabled=False):
        deferred = _deferred(call)
        if deferred is not None:
            return steps.attend(deferred, call.q, call.k, call.v, geometry(call), dtype)
        q, k, v = (x.to(dtype).to(wide) for x in (call.q, call.k, call.v))
        context = operator.window(q, k, v, geometry(call))
    return context.to(dtype)


def _deferred(call: Call) -> Deferred | None:
    """The place where a step of a loop leaves its rows; None where the operator must serve."""
    if not call.q.is_cuda or call.q.shape[2] != 1 or isinstance(call.visible, Coarse):
        return None
    return steps.deferred_of(call.k, call.v)


def geometry(call: Call) -> Geometry:
    """The call's visibility, gain and dropout, as the operator takes them."""
    coarse = call.visible if isinstance(call.visible, Coarse) else None
    if coarse is not None:
        return _coarse(call, coarse)
    near = [x for x in conjuncts(call.visible) if isinstance(x, Near)]
    see = _described(call, sight(call))
    see.rising = near[0].rising if near else False
    return see


def _described(call: Call, view: Sight) -> Geometry:
    gain, peak = call.gain, peaks(call)
    return Geometry(
        centre=None if view.centre is None else view.centre.float().contiguous(),
        order=None,
        ranked=None,
        peak=None if peak is None else peak.float().contiguous(),
        stop=None if view.stop is None else view.stop.contiguous(),
        exists=None if view.exists is None else view.exists.contiguous(),
        opens=None,
        logs=None,
        seed=_seed(call),
        first=view.first,
        half=-1 if view.half is None else view.half,
        radius=view.radius,
        block=0,
        sigma=0.0 if gain is None else gain.sigma,
        scale=call.scale,
        causal=view.causal,
        rising=False,
        dropout=call.dropout,
    )


def _coarse(call: Call, coarse: Coarse) -> Geometry:
    """The geometry with blocks: the position from which each is seen, and its energy's bias."""
    see = _described(call, sight(replace(call, visible=coarse.inner)))
    N, size = coarse.member.shape[1:]
    place = torch.arange(N * size, device=call.q.device, dtype=torch.int32).view(N, size)
    last = torch.where(coarse.member, place, -1).amax(-1)  # B N
    see.first, see.half, see.block = call.places.first, coarse.half, size
    see.opens = torch.where(last < 0, LAST, last if see.causal else -LAST).to(torch.int32)
    see.logs = coarse.bias[:, 0, 0, coarse.S :].float().contiguous()
    return see


def _seed(call: Call) -> Tensor | None:
    """A seed drawn on the device, so that a captured graph has new dropout at each replay."""
    return torch.randint(2**62, (1,), device=call.q.device) if call.dropout else None
