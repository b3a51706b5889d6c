"""Windows on the CPU: the native library, called with pointers."""

import torch
from torch import Tensor

from heed.kernels import native
from heed.kernels.native import address
from heed.kernels.window.geometry import Geometry, strides

_LAYOUT = "51q3d"
_forward = native.Function("heed_window_forward", _LAYOUT)
_backward = native.Function("heed_window_backward", _LAYOUT)


def forward(q: Tensor, k: Tensor, v: Tensor, see: Geometry) -> tuple[Tensor, Tensor]:
    """Context B H T R and log-sum-exp B H T of float32 queries B H T D."""
    out, lse = q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])
    _call(_forward, q, k, v, out, lse, (q, *(None,) * 4), see)
    return out, lse


def backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad: Tensor, see: Geometry
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of queries, keys, values, and of each query's peak (B H T, where there is one)."""
    dq, dk, dv = q.new_empty(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
    dpeak = None if see.peak is None else torch.empty_like(lse)
    _call(_backward, q, k, v, out, lse, (grad, dq, dk, dv, dpeak), see)
    return dq, dk, dv, dpeak


def _call(
    function: native.Function,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    back: tuple[Tensor | None, ...],
    see: Geometry,
) -> None:
    grad = back[0]
    assert grad is not None
    seen = (see.order, see.centre, see.peak, see.stop, see.opens, see.exists, see.logs)
    pointers = (address(x) for x in (q, k, v, out, lse, *back, *seen))
    B, H, T, D = q.shape
    function(
        *pointers,
        *(B, H, k.shape[1], T, see.S(k), see.N, D, v.shape[3]),
        *(n for x in (q, k, v, grad) for n in x.stride()[:3]),
        *strides(see),
        *(see.first, see.half, see.radius, see.block, int(see.causal)),
        0 if see.seed is None else int(see.seed),
        see.threshold if see.dropout else -1,
        *(see.scale, see.sigma or 1.0, see.boost),
    )
