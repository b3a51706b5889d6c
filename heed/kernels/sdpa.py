"""PyTorch's fused attention, for the dot family: masks, causal, grouped heads, dropout, bias.

Its twin is the reference with `dot`, `softmax` and `blend`. PyTorch's own treatment of a row that
sees nothing differs between back ends, so such rows are opened here and zeroed afterwards.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from heed.kernels.ability import forward_mode, known, needs_grad
from heed.kernels.refusing import more_than_context, other_weights
from heed.records import Call
from heed.visible import Causal, Visible


def refusal(call: Call) -> str | None:
    """The reason why this kernel cannot serve the call; None where it can."""
    reason = other_weights(call, "dot") or more_than_context(call)
    if reason is not None:
        return reason
    if call.gain is not None:
        return "it cannot multiply the weights by a gain"
    if call.even and needs_grad(call.q, call.k, call.v, call.bias):
        return (
            "a log-sum, which its gradients take, cannot count energies that are all one low number"
        )
    return forward_mode()


def run(call: Call) -> Tensor:
    """The context.    B H T R"""
    visible, places = call.visible, call.places
    if call.bias is None:
        if visible is None or _sees_all(visible, call):
            return _fused(call, call.q, call.k, call.v)
        # Sinks are columns beside the keys that all queries see: with sinks, no call is square.
        square = known(places.S == places.T) and known(places.last_at_end) and not call.sinks
        if type(visible) is Causal and square:
            return _fused(call, call.q, call.k, call.v, causal=True)
    ok = call.dense_visible()
    return masked(call, call.q, *call.cleaned(ok), ok, call.bias)


def plain(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scaled: bool
) -> tuple[Tensor, int, int] | None:
    """softmax(q·k) v of well-formed tensors by one call of PyTorch; and T and S.

    None for any others: the general way serves them, or says what is wrong with them.
    """
    try:
        (B, H, T, D), (Bk, G, S, Dk), (Bv, Gv, Sv, _) = q.shape, k.shape, v.shape
        if not (B == Bk == Bv and Gv == G and Sv == S and Dk == D and T and S and H % G == 0):
            return None
        if causal and T != S:
            return None
        if scaled and G == H:  # every further argument would cost a good part of a microsecond
            attend = scaled_dot_product_attention
            return attend(q, k, v, is_causal=True) if causal else attend(q, k, v), T, S
        told = {"enable_gqa": True} if G != H else {}  # for a compiler, G != H may be symbolic
        scale = None if scaled else 1.0
        attended = scaled_dot_product_attention(q, k, v, None, 0.0, causal, scale=scale, **told)
        return attended, T, S
    except torch.OutOfMemoryError:
        raise
    except (ValueError, ZeroDivisionError, RuntimeError):
        return None


def masked(
    call: Call, q: Tensor, k: Tensor, v: Tensor, ok: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Fused attention under any table; a row that sees nothing is opened, and zeroed after."""
    sighted = None
    if bias is not None and bias.dtype != q.dtype:  # rounding would move the energies
        bias = bias.to(torch.promote_types(q.dtype, torch.float32))
    if ok is not None:
        sighted = ok.any(-1, keepdim=True)  # B|1 H|1 T 1
        ok, q = ok | ~sighted, q.where(sighted, 0)
        if bias is not None:  # of an opened row nothing is kept, NaN neither
            bias = torch.where(ok, bias.where(sighted, 0), -torch.inf)
        bias = ok if bias is None else bias
    context = _fused(call, q, k, v, mask=bias)
    return context if sighted is None else context.where(sighted, 0)


def _sees_all(visible: Visible, call: Call) -> bool:
    """A single causal query at the end, as in decoding, sees every key."""
    return type(visible) is Causal and call.places.T == 1 and known(call.places.last_at_end)


def _fused(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    # A branch: a compiler with symbolic sizes would pass the comparison itself on.
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    return scaled_dot_product_attention(
        q, k, v, mask, call.dropout, causal, scale=call.scale, **grouped
    )
