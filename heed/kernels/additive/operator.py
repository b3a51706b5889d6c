"""The operators heed::additive and heed::additive_backward: one name on every device.

On a CUDA device they run Triton kernels, on the CPU the native library. Being registered, they
work under torch.compile, torch.export and fake tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import Parameter

from heed.errors import Refused
from heed.kernels.ability import many_in_one, needs_grad, recorded
from heed.kernels.additive import native
from heed.kernels.additive.plan import Plan
from heed.kernels.strides import dense

_PLAN = (
    "Tensor? stop, Tensor? exists, Tensor? table, Tensor? centre, Tensor? gain_centre, "
    "float sigma, SymInt first, bool causal, SymInt half, SymInt radius"
)
_REST = f"{_PLAN}, float dropout, Tensor? seed, Tensor? prepared"

_library = torch.library.Library("heed", "FRAGMENT")
_library.define(
    f"additive(Tensor q, Tensor k, Tensor v, Tensor w, {_REST}) -> (Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
_library.define(
    "additive_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor w, Tensor context, "
    f"Tensor log_sum, {_REST}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)

_STEPS = len(Plan._fields)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    seen: Plan,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    prepared: Tensor | None = None,
    *,
    plainly: bool = False,
) -> Tensor:
    """The context.    B H T D, B G S D, B G S R, H D -> B H T R

    plainly  no transform or trace is active, so the dispatcher may be bypassed
    """
    if not plainly:
        context: Tensor = torch.ops.heed.additive(q, k, v, w, *seen, dropout, seed, prepared)[0]
        return context
    if needs_grad(q, k, v, w, seen.gain_centre):
        context = _Attend.apply(q, k, v, w, *seen, dropout, seed, prepared)  # type: ignore[no-untyped-call]
        return context
    serve = _on_cuda if q.is_cuda else _on_cpu
    return serve(q, k, v, w, *seen, dropout, seed, prepared)[0]


def _on_cpu(q: Tensor, k: Tensor, v: Tensor, w: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return native.forward(q, k, v, w, Plan(*rest[:_STEPS]), *rest[_STEPS:])


def _on_cuda(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, *rest: Any, back: bool = False
) -> tuple[Tensor, Tensor]:
    from heed.kernels.additive import forward

    given = (dense(q), dense(k), dense(v), w, Plan(*rest[:_STEPS]), *rest[_STEPS : _STEPS + 2])
    if q.device.index == torch.cuda.current_device():
        compile_ahead(*given, back=back)
        return forward.forward(*given)
    with torch.cuda.device(q.device):
        compile_ahead(*given, back=back)
        return forward.forward(*given)


_met: set[tuple[Any, ...]] = set()


def compile_ahead(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    seen: Plan,
    dropout: float,
    seed: Tensor | None,
    *,
    back: bool,
) -> None:
    """Compile the kernels of a call in parallel, unless a call like it was met before."""
    several = min(q.shape[2], 5)  # up to four queries take other kernels
    dtypes = (q.dtype, k.dtype, v.dtype, w.dtype)
    sights = tuple([x is None for x in seen[:5]])
    sizes = (several, q.shape[1] == k.shape[1], q.shape[3], v.shape[3])
    key = (q.device, back, sizes, dtypes, sights, dropout > 0)
    if key in _met or (q.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    from heed.kernels import launching
    from heed.kernels.additive import backward, forward

    _met.add(key)
    with launching.rehearsal():
        context, log_sum = forward.forward(q, k, v, w, seen, dropout, seed)
        if back:
            backward.backward(context, q, k, v, w, context, log_sum, seen, dropout, seed)


def _back_on_cpu(*given: Any) -> tuple[Tensor, ...]:
    grad, q, k, v, w, context, log_sum, *rest = given
    seen = Plan(*rest[:_STEPS])
    return _five(native.backward(grad, q, k, v, w, context, log_sum, seen, *rest[_STEPS:]))


def _back_on_cuda(*given: Any) -> tuple[Tensor, ...]:
    from heed.kernels.additive import backward

    grad, q, k, v, w, context, log_sum, *rest = given
    seen = (Plan(*rest[:_STEPS]), *rest[_STEPS : _STEPS + 2])
    given = (grad, dense(q), dense(k), dense(v), w, context, log_sum, *seen)
    if q.device.index == torch.cuda.current_device():
        return _five(backward.backward(*given))
    with torch.cuda.device(q.device):
        return _five(backward.backward(*given))


def _five(grads: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """An operator returns tensors: an empty one stands for no gradient of centres."""
    *four, last = grads
    first = four[0]
    assert first is not None
    return (*(x for x in four if x is not None), first.new_empty(0) if last is None else last)


_library.impl("additive", _on_cpu, "CPU")
_library.impl("additive", _on_cuda, "CUDA")
_library.impl("additive_backward", _back_on_cpu, "CPU")
_library.impl("additive_backward", _back_on_cuda, "CUDA")


def _fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    B, H, T, _ = q.shape
    return v.new_empty(B, H, T, v.shape[3]), q.new_empty(B, H, T, dtype=torch.float32)


def _fake_back(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, w: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    gain_centre = rest[2 + Plan._fields.index("gain_centre")]
    fresh = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v, w))
    none = q.new_empty(0)
    return (*fresh, none if gain_centre is None else torch.empty_like(gain_centre))


_PLACE = 4 + Plan._fields.index("gain_centre")


def _remember(ctx: FunctionCtx, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    context, log_sum = output
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    ctx.save_for_backward(*tensors, context, log_sum)
    ctx.others = [None if isinstance(x, Tensor) else (x,) for x in inputs]  # type: ignore[attr-defined]
    ctx.set_materialize_grads(False)


def _remember_both(
    ctx: FunctionCtx, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]
) -> None:
    _remember(ctx, inputs, output)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    *tensors, context, log_sum = ctx.saved_tensors
    nothing: list[Tensor | None] = [None] * len(ctx.others)
    if grad is None:
        return tuple(nothing)
    kept = iter(tensors)
    q, k, v, w, *rest = [next(kept) if x is None else x[0] for x in ctx.others]
    grads = _backwards(grad, q)(grad, q, k, v, w, context, log_sum, *rest)
    nothing[:4] = grads[:4]
    if ctx.needs_input_grad[_PLACE]:
        nothing[_PLACE] = grads[4]
    return tuple(nothing)


def _backwards(grad: Tensor, q: Tensor) -> Any:
    """The operator under a trace or where second derivatives (which it refuses) may be wanted."""
    if torch.is_grad_enabled() or watched(q) or many_in_one(grad):
        return torch.ops.heed.additive_backward
    return _back_on_cuda if q.is_cuda else _back_on_cpu


def watched(*tensors: Tensor) -> bool:
    """Whether a trace is active, or a tensor is of a subclass: then the dispatcher must be used."""
    return recorded() or any(type(x) is not Tensor and type(x) is not Parameter for x in tensors)


class _Attend(torch.autograd.Function):
    """heed::additive without the dispatcher."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        found = _on_cuda(*inputs, back=True) if inputs[0].is_cuda else _on_cpu(*inputs)
        _remember(ctx, inputs, found)
        return found[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, *grads)


def _once_only(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    raise Refused(
        "fused additive attention has first derivatives only; for second ones switch it off: "
        'with heed.kernels.off("additive"): ...'
    )


torch.library.register_fake("heed::additive", _fake, lib=_library)
torch.library.register_fake("heed::additive_backward", _fake_back, lib=_library)
torch.library.register_autograd(
    "heed::additive", _differentiate, setup_context=_remember_both, lib=_library
)
torch.library.register_autograd("heed::additive_backward", _once_only, lib=_library)
