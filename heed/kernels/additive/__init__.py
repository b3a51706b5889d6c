"""Additive attention, fused: energies w·tanh(q + k), visibility, softmax, gain, dropout, read.

Its twin is the reference with an additive score, `softmax` and `blend`. Nothing of size T S D, and
nothing that grows with T S, is ever formed. README.md derives the forms of tanh.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from heed.kernels import native as library
from heed.kernels.ability import lowered, no_triton, transformed
from heed.kernels.additive import native, operator, steps
from heed.kernels.additive.comparing import compares, energies
from heed.kernels.additive.plan import plan
from heed.kernels.linear.native import mark
from heed.kernels.refusing import (
    additions,
    long_numbers,
    more_than_context,
    other_weights,
    several_dtypes,
)
from heed.kernels.strides import dense
from heed.records import Call

__all__ = ["NAME", "WIDEST", "again", "compares", "energies", "prepare", "refusal", "run"]

NAME = "additive"
"""The kernel, and the scores that it computes."""

WIDEST = 2048
"""The largest D and R on a GPU: a tile holds whole rows of values."""


def refusal(call: Call) -> str | None:
    """The reason why this kernel cannot serve the call; None where it can."""
    return (
        other_weights(call, NAME)
        or more_than_context(call)
        or additions(call)
        or _unfit(call)
        or transformed()
    )


def _unfit(call: Call) -> str | None:
    """The reason why the tensors do not suit this kernel; None where they do."""
    q, k, v = call.q, call.k, call.v
    reason = several_dtypes(q, k, v) if _lowered(call) is None else None
    reason = reason or long_numbers(q)
    if reason is not None:
        return reason
    if q.device.type == "cpu":
        return native.refusal(q, k, v)
    if max(q.shape[3], v.shape[3]) > WIDEST:
        return f"it serves widths up to {WIDEST}"
    return no_triton(q.device)


def run(call: Call) -> Tensor:
    """The context.    B H T R"""
    q, k, v, w = call.q, call.k, call.v, call.vector
    assert w is not None
    dtype = _lowered(call)
    if dtype is not None:
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    seen = plan(call)
    seed = torch.randint(1 << 62, (1,), device=q.device) if call.dropout else None
    keys = None if q.is_cuda or dtype is not None else _prepared(call)
    plainly = not operator.watched(q, k, v, w)
    return operator.attend(q, k, v, w, seen, call.dropout, seed, keys, plainly=plainly)


def again(call: Call) -> Callable[[Tensor], Tensor] | None:
    """A function for any further query to the same memory.    B H 1 D -> B H 1 R

    None if steps differ by more than their query: by dropout, or a dtype.
    """
    if call.dropout or _lowered(call) is not None:
        return None
    k, v, w, seen = call.k, call.v, call.vector, plan(call)
    keys = None if k.is_cuda else _prepared(call)
    assert w is not None
    if (found := steps.looking(k, v, w, seen, keys)) is not None:
        return found

    def look(q: Tensor) -> Tensor:
        plainly = not operator.watched(q, k, v, w)
        return operator.attend(q, k, v, w, seen, prepared=keys, plainly=plainly)

    return look


def prepare(k: Tensor) -> Tensor | None:
    """The part of the energies that depends only on the keys, cached between steps; None on a GPU.

    There a step is memory-bound, and e^{2k} in float32 is more to read than k.
    """
    return native.prepare(k) if k.device.type == "cpu" else None


def _prepared(call: Call) -> Tensor | None:
    """The prepared keys from the memory's cache; None without a cache or a library."""
    kept = call.prepared
    if kept is None or library.missing() is not None:
        return None
    numbers = _numbers(call.k)
    found: Tensor | None
    k, known, found = kept.get("additive", (None, None, None))
    if k is not call.k or known != numbers:  # other keys, or changed, or nothing is cached yet
        with torch.inference_mode(False):  # a later call may want gradients
            found = prepare(call.k.detach())
        kept["additive"] = call.k, numbers, found
    return found


def _numbers(k: Tensor) -> int | bytes:
    """A version of the keys, which changes when they are written to.    B G S D

    PyTorch counts writes, except to tensors made in inference mode: those have a checksum.
    """
    if not k.is_inference():
        return k._version
    order = sorted(range(3), key=k.stride, reverse=True)  # as in memory, to copy nothing
    return mark(dense(k.float()).permute(*order, 3).flatten(0, 2))


def _lowered(call: Call) -> torch.dtype | None:
    """The dtype of autocast, as fused attention would use it."""
    return None if call.q.dtype == torch.float64 else lowered(call.q.device)
