"""Attention within windows as an operator, heed::window: for graphs, gradients and devices."""

from typing import Any, cast

import torch
from torch import Tensor

from heed.kernels.ability import known
from heed.kernels.window import native, plain
from heed.kernels.window.geometry import Geometry, by_rows

ALONE = 64
"""Up to this many queries form one tile, in whatever order they come."""

_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? centre, Tensor? peak, Tensor? stop, Tensor? exists, "
    "Tensor? opens, Tensor? logs, Tensor? seed, SymInt first, int half, int radius, SymInt block, "
    "float sigma, float scale, bool causal, bool rising, float dropout"
)
_FOUND = "Tensor context, Tensor lse, Tensor order, Tensor ranked, Tensor grad"
Four = tuple[Tensor, Tensor, Tensor, Tensor]

_library = torch.library.Library("heed", "FRAGMENT")
_library.define(f"window({_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)")
_library.define(f"window_backward({_INPUTS}, {_FOUND}) -> (Tensor, Tensor, Tensor, Tensor)")


def window(q: Tensor, k: Tensor, v: Tensor, see: Geometry) -> Tensor:
    """The context of queries B H T D over keys B G S+N D and values B G S+N R.    -> B H T R"""
    q, k, v = (by_rows(x) for x in (q, k, v))
    return cast(Tensor, torch.ops.heed.window(q, k, v, *_told(see))[0])


def _told(see: Geometry) -> tuple[Any, ...]:
    """A geometry as arguments of the operator."""
    return (
        *(see.centre, see.peak, see.stop, see.exists, see.opens, see.logs, see.seed),
        *(see.first, see.half, see.radius, see.block, see.sigma, see.scale),
        *(see.causal, see.rising, see.dropout),
    )


def _heard(told: tuple[Any, ...], order: Tensor | None, ranked: Tensor | None) -> Geometry:
    """The geometry that such arguments describe."""
    return Geometry(told[0], order, ranked, *told[1:])


def _sorts(centre: Tensor | None, rising: bool, T: int) -> bool:
    """Whether queries must be sorted, so that a tile of them touches few keys."""
    return centre is not None and not rising and known(T > ALONE)


def _forward_cuda(q: Tensor, k: Tensor, v: Tensor, *told: Any) -> Four:
    from heed.kernels.window import forward, row

    see = _heard(told, None, None)
    if row.serves(q, see):
        return *row.forward(q, k, v, see), *_or_nothing(q, None, None)
    if see.centre is not None and _sorts(see.centre, see.rising, q.shape[2]):
        see.order, see.ranked = forward.ordered(see.centre, see.S(k))
    context, lse = forward.forward(q, k, v, see)
    return context, lse, *_or_nothing(q, see.order, see.ranked)


def _forward_cpu(q: Tensor, k: Tensor, v: Tensor, *told: Any) -> Four:
    see = _heard(told, None, None)
    if see.centre is not None and _sorts(see.centre, see.rising, q.shape[2]):
        see.order = torch.argsort(see.centre, dim=-1, stable=True)
    context, lse = native.forward(q, k, v, see)
    return context, lse, *_or_nothing(q, see.order, None)


def _backward_cuda(*inputs: Any) -> Four:
    from heed.kernels.window import backward, row

    alone = row.serves(inputs[0], _heard(inputs[3:-5], None, None))
    return _backward(row.gradients if alone else backward.backward, *inputs)


def _backward_cpu(*inputs: Any) -> Four:
    return _backward(native.backward, *inputs)


def _backward(run: Any, q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> Four:
    told, (context, lse, order, ranked, grad) = inputs[:-5], inputs[-5:]
    see = _heard(told, *(x if x.numel() else None for x in (order, ranked)))
    dq, dk, dv, dpeak = run(q, k, v, context, lse, by_rows(grad), see)
    if dpeak is None or see.peak is None:
        return dq, dk, dv, lse.new_empty(0)
    axes = [i for i in (0, 1) if see.peak.shape[i] == 1 < dpeak.shape[i]]
    return dq, dk, dv, dpeak.sum(axes, keepdim=True) if axes else dpeak


def _or_nothing(like: Tensor, order: Tensor | None, ranked: Tensor | None) -> tuple[Tensor, Tensor]:
    """Order and ranks, as empty tensors where there are none: an operator returns tensors."""
    nothing = like.new_empty(0, dtype=torch.int64), like.new_empty(0, dtype=torch.int16)
    return nothing[0] if order is None else order, nothing[1] if ranked is None else ranked


def _shapes(q: Tensor, k: Tensor, v: Tensor, *told: Any) -> Four:
    centre, rising = told[0], told[-2]
    context = q.new_empty(*q.shape[:3], v.shape[3])
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    order = ranked = None
    if _sorts(centre, rising, q.shape[2]):
        order = torch.empty_like(centre, dtype=torch.int64)
        if q.device.type != "cpu":
            ranked = torch.empty_like(centre, dtype=torch.int16)
    return context, lse, *_or_nothing(q, order, ranked)


def _backward_shapes(q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> Four:
    peak = inputs[1]
    dpeak = q.new_empty(0 if peak is None else peak.shape, dtype=torch.float32)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dpeak


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Four) -> None:
    tensors, ctx.numbers = inputs[:10], inputs[10:]
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    q, k, v, *tensors, context, lse, order, ranked = ctx.saved_tensors
    nothing = (None,) * len(ctx.numbers)
    if grad is None:
        return (None,) * 10 + nothing
    told = (*tensors, *ctx.numbers)
    if torch.is_grad_enabled():  # a derivative of the derivative: through the plain form
        return *plain.gradients(q, k, v, _heard(told, None, None), grad), *nothing
    dq, dk, dv, dpeak = torch.ops.heed.window_backward(
        q, k, v, *told, context, lse, order, ranked, grad
    )
    dpeak = None if tensors[1] is None else dpeak
    return dq, dk, dv, None, dpeak, *(None,) * 5, *nothing


for _name, _cpu, _cuda in (
    ("window", _forward_cpu, _forward_cuda),
    ("window_backward", _backward_cpu, _backward_cuda),
):
    _library.impl(_name, _cpu, "CPU")
    _library.impl(_name, _cuda, "CUDA")
torch.library.register_fake("heed::window", _shapes, lib=_library)
torch.library.register_fake("heed::window_backward", _backward_shapes, lib=_library)
torch.library.register_autograd("heed::window", _gradients, setup_context=_keep, lib=_library)
