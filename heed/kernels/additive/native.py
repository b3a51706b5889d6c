"""Additive attention on the CPU through the native library: native.c has the mathematics.

Inputs are float32, or half precision that is converted (exactly) to it; results come back in the
dtype of what they belong to. float64 is left to the reference. Where the library is missing,
plain.py does the same in PyTorch, several times slower, and still well ahead of the reference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heed.errors import ShapeError
from heed.kernels import native
from heed.kernels.additive import plain
from heed.kernels.additive.plan import Plan
from heed.kernels.native import address
from heed.kernels.refusing import long_numbers
from heed.kernels.strides import broadcast, dense

PAD, ROWS = 16, 8  # as in native.c
TASKS = 16
"""The fewest tasks of a backward pass, where there are rows enough. It is cut by shapes alone, so
that the sums do not depend on the number of threads."""

_CALL = "26qd21qd"  # struct call of native.c
_forward = native.Function("heed_additive_forward", _CALL + "2q")
_backward = native.Function("heed_additive_backward", _CALL + "15q")
_prepare = native.Function("heed_additive_prepare", "10q")
_kept = native.Function("heed_additive_kept", "4qd")


def refusal(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """The reason why the CPU cannot serve these tensors; None where it can."""
    if (reason := long_numbers(q, k, v)) is not None:
        return reason
    missing = native.missing()
    if missing is not None and q.shape[2] * k.shape[2] * q.shape[3] < plain.WORTH_IT:
        return f"{missing}; PyTorch serves instead, and for so few elements the reference does"
    return None


def prepare(k: Tensor) -> Tensor:
    """Prepare what the energies need of each key alone.    B G S D -> B G S N float32

    A row depends on its key alone, so that rows may be chosen, repeated and joined like keys.
    """
    if native.missing() is not None:
        return k.new_empty(*k.shape[:3], 0)
    given = _dense(k)
    keys = _room(given)
    fine = k.dtype == torch.float32
    _prepare(address(given), address(keys), *k.shape, *given.stride()[:3], fine)
    return keys


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    seen: Plan,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    prepared: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The context and log Σ exp(energy) of each query, -inf where it sees nothing.

    B H T D, B G S D, B G S R, H D -> B H T R, B H T float32
    """
    if native.missing() is not None:
        return plain.forward(q, k, v, w, seen, dropout, seed)
    dtype, fine = v.dtype, k.dtype == torch.float32
    q, k, v, w = _dense(q), _dense(k), _dense(v), _dense(w)
    B, H, T, _ = q.shape
    context, log_sum = q.new_empty(B, H, T, v.shape[3]), q.new_empty(B, H, T)
    keys = _room(k) if prepared is None else prepared.contiguous()
    seen = _ready(seen)
    asked = _asked(q, k, v, w, seen, dropout, seed, keys, prepared is not None, fine)
    _forward(*asked, address(context), address(log_sum))
    return context if dtype == torch.float32 else context.to(dtype), log_sum


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    context: Tensor,
    log_sum: Tensor,
    seen: Plan,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    prepared: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of q, k, v, w and of the centres of the gain, in their dtypes."""
    if native.missing() is not None:
        return plain.backward(grad, q, k, v, w, log_sum, seen, dropout, seed)
    dtypes, fine = [x.dtype for x in (q, k, v, w)], k.dtype == torch.float32
    q, k, v, w = _dense(q), _dense(k), _dense(v), _dense(w)
    grad, log_sum = _dense(grad), log_sum.contiguous()
    keys = _room(k) if prepared is None else prepared.contiguous()
    seen = _ready(seen)
    gain = seen.gain_centre
    dq, dk, dv, dw = (x.new_empty(x.shape) for x in (q, k, v, w))
    dgain = None if gain is None else q.new_empty(q.shape[:3])
    chunks = _chunks(q, k)
    part_dk, part_dv = _parts(dk, chunks), _parts(dv, chunks)
    part_dw = w.new_empty(chunks, q.shape[0], *w.shape)
    asked = _asked(q, k, v, w, seen, dropout, seed, keys, prepared is not None, fine)
    _backward(
        *asked,
        address(grad), address(log_sum), *grad.stride()[:3],
        address(dq), address(dk), address(dv), address(dw),
        address(dgain),
        address(part_dk), address(part_dv), address(part_dw), chunks, 0,
    )  # fmt: skip
    grads = [x.to(dtype) for x, dtype in zip((dq, dk, dv, dw), dtypes, strict=True)]
    if dgain is not None and gain is not None:
        dgain = dgain.sum_to_size(gain.shape)
    return grads[0], grads[1], grads[2], grads[3], dgain


def energies(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """w·tanh(q + k) of every pair.    B H T D, B G S D, H D -> B H T S, all float32"""
    check_shapes(q, k, w)
    q, k, w = _dense(q), _dense(k), _dense(w)
    keys, energy = _room(k), q.new_empty(*q.shape[:3], k.shape[2])
    _forward(*_asked(q, k, None, w, Plan(), 0.0, None, keys, False, True), address(energy), 0)
    return energy


def check_shapes(q: Tensor, k: Tensor, w: Tensor) -> None:
    """Refuse what does not fit together, before C reads it: B H T D, B G S D, H D."""
    (B, H, _, D), (rows, G, _, wide) = q.shape, k.shape
    if w.shape != (H, D) or wide != D or rows != B or H % G:
        told = f"q {tuple(q.shape)}, k {tuple(k.shape)}, w {tuple(w.shape)}"
        raise ShapeError(f"additive energies take B H T D, B G S D and H D; got {told}")


def energies_backward(
    grad: Tensor, q: Tensor, k: Tensor, w: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and w from those of the energies, B H T S."""
    check_shapes(q, k, w)
    q, k, w, grad = _dense(q), _dense(k), _dense(w), _dense(grad)
    dq, dk, dw = (x.new_empty(x.shape) for x in (q, k, w))
    keys, chunks = _room(k), _chunks(q, k)
    part_dk, part_dw = _parts(dk, chunks), w.new_empty(chunks, q.shape[0], *w.shape)
    asked = _asked(q, k, None, w, Plan(), 0.0, None, keys, False, True)
    none = address(dk)  # there are no values: nothing is written there
    _backward(
        *asked,
        address(grad), 0, *grad.stride()[:3],
        address(dq), address(dk), none, address(dw), 0,
        address(part_dk), none, address(part_dw), chunks, 0,
    )  # fmt: skip
    return dq, dk, dw


def backward_step(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    log_sum: Tensor,
    seen: Plan,
    prepared: Tensor,
    sums: tuple[Tensor, Tensor],
    more: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of single queries, B H 1 D, and of w, all in float32.

    Those of keys and values are written to `sums` (`step_sums`), or added to them with `more`.
    """
    q, k, v, w, grad = _dense(q), _dense(k), _dense(v), _dense(w), _dense(grad)
    dq, dw = q.new_empty(q.shape), w.new_empty(w.shape)
    part_dw = w.new_empty(q.shape[0], *w.shape)
    dk, dv = address(sums[0]), address(sums[1])
    asked = _asked(q, k, v, w, _ready(seen), 0.0, None, prepared, True, True)
    _backward(
        *asked,
        address(grad), address(log_sum), *grad.stride()[:3],
        address(dq), dk, dv, address(dw), 0,
        dk, dv, address(part_dw), 1, more,
    )  # fmt: skip
    return dq, dw


def step_sums(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for the gradients of keys and values, in padded rows.    B G S N"""
    wide = (-(-x.shape[-1] // PAD) * PAD for x in (k, v))
    dk, dv = (x.new_empty(*x.shape[:-1], N) for x, N in zip((k, v), wide, strict=True))
    return dk, dv


def _chunks(q: Tensor, k: Tensor) -> int:
    """The number of chunks into which the backward pass cuts the queries of a head."""
    return max(1, min(TASKS // max(1, k.shape[0] * k.shape[1]), -(-q.shape[2] // ROWS)))


def _parts(whole: Tensor, chunks: int) -> Tensor:
    """Memory for the gradients of each chunk, in padded rows; `whole` itself if one suffices."""
    *rows, width = whole.shape
    wide = -(-width // PAD) * PAD
    return whole if chunks == 1 and wide == width else whole.new_empty(chunks, *rows, wide)


def kept(shape: tuple[int, int, int, int], dropout: float, seed: Tensor) -> Tensor:
    """The factor of dropout for each weight: zero or 1 / (1 - dropout).    B H T S"""
    if native.missing() is not None:
        return plain.kept(shape, dropout, seed)
    B, H, T, S = shape
    factor = seed.new_empty(shape, dtype=torch.float32)
    _kept(address(factor), B * H * T, S, address(seed), dropout)
    return factor


def _room(k: Tensor) -> Tensor:
    """Memory for prepared keys, given these in float32."""
    B, G, S, D = k.shape
    return k.new_empty(B, G, S, -(-D // PAD) * PAD + PAD)


def _dense(x: Tensor) -> Tensor:
    """A tensor in float32, with no gaps along the last axis and no lazy negation."""
    return dense(x if x.dtype == torch.float32 else x.float())


def _asked(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    w: Tensor,
    seen: Plan,
    dropout: float,
    seed: Tensor | None,
    keys: Tensor,
    prepared: bool,
    fine: bool,
) -> tuple[float, ...]:
    """The fields of struct call in native.c."""
    B, H, T, D = q.shape
    _, G, S, _ = k.shape
    room = address(keys)
    R, strides = (0, (0, 0, 0)) if v is None else (v.shape[3], v.stride())
    return (
        address(q), address(k), address(v), address(w),
        B, H, G, T, S, D, R, v is None,
        *q.stride()[:3], *k.stride()[:3], *strides[:3], w.stride(0),
        room if prepared else 0, room, fine,
        address(seed), dropout,
        *_numbers(seen),
    )  # fmt: skip


_NOTHING_HIDDEN = (0,) * 17


def _numbers(seen: Plan) -> tuple[float, ...]:
    """The fields of struct call that hold a plan."""
    stop, exists, table, centre, gain, sigma, first, causal, half, radius = seen
    if stop is exists is table is centre is gain is None:
        return *_NOTHING_HIDDEN, first, causal, half, radius, sigma
    return (
        address(stop), *broadcast(stop, 1),
        address(exists), *broadcast(exists, 1),
        address(table), *broadcast(table, 4),
        address(centre), *broadcast(centre, 3),
        address(gain), *broadcast(gain, 3),
        first, causal, half, radius, sigma,
    )  # fmt: skip


def _ready(seen: Plan) -> Plan:
    """The same plan with tensors as the C functions read them."""
    stop, exists, gain = seen.stop, seen.exists, seen.gain_centre
    if stop is not None and (stop.dtype != torch.int32 or not stop.is_contiguous()):
        seen = seen._replace(stop=stop.to(torch.int32).contiguous())
    if exists is not None and exists.stride(-1) != 1:
        seen = seen._replace(exists=exists.contiguous())
    if gain is not None and gain.dtype != torch.float32:
        seen = seen._replace(gain_centre=gain.float())
    return seen
