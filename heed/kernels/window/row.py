"""One query per head, with a window of its own: each key and value is read once.

There is no tile of queries, so matrix products do not help, and rows of any width fit: wider ones
leave room for fewer keys at a time. Gradients of keys and values are outer products of one query
with one row of numbers, de and the weights; only those rows are returned:

    dk = Σ_h de_h ⊗ q_h      dv = Σ_h a_h g_h ⊗ dO_h
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.kernels.window.device import bell, kept, offset, queries
from heed.kernels.window.geometry import Geometry, padded, strides, unit
from heed.kernels.window.tuned import row as tile

RUN_TIME = (
    "sqb", "sqh", "sqt", "skb", "skh", "sks", "svb", "svh", "svs", "sdb", "sdh", "sdt",
    "scb", "sch", "spb", "sph", "seb", "stb", "sfb", "H", "G", "S",
    "first", "half", "radius", "block", "threshold",
)  # fmt: skip


@triton.jit
def _sees(
    which, centre, stop, scb, sch, stb, H, S, first, half, radius,
    CAUSAL: tl.constexpr, FIXED: tl.constexpr, NEAR: tl.constexpr, STOPS: tl.constexpr,
):  # fmt: skip
    """The row and head of a program, and the range of keys that its query sees."""
    b, h = which // H, which % H
    limit = S
    if STOPS:
        limit = tl.minimum(S, tl.load(stop + b * stb))
    one = tl.zeros([1], tl.int32)
    centre += b.to(tl.int64) * scb + h.to(tl.int64) * sch
    _, lo, hi = queries(
        one, one == 0, centre, S, limit, first, half, radius, 1, CAUSAL, FIXED, NEAR, False
    )
    return b, h, tl.sum(lo, 0), tl.sum(hi, 0)


@triton.jit
def _some(s, end, exists, SOME: tl.constexpr):
    """The visible ones of these keys."""
    ok = s < end
    if SOME:
        ok = ok & (tl.load(exists + s, mask=ok, other=0) != 0)
    return ok


@triton.jit
def _rows(x, s, ok, step, n, N: tl.constexpr, UNIT: tl.constexpr):
    """Rows of the visible keys or values; nothing is read of hidden ones."""
    at = x + s.to(tl.int64)[:, None] * (step * UNIT) + n[None, :]
    return tl.load(at, mask=ok[:, None] & (n < N)[None, :], other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=RUN_TIME)
def _forward(
    q, k, v, out, lse, centre, peak, stop, exists, seed,
    sqb, sqh, sqt, skb, skh, sks, svb, svh, svs, scb, sch, spb, sph, seb, stb, sfb,
    H, G, S, first, half, radius, block, threshold, scale, rate, boost,
    BN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr,
    UNIT: tl.constexpr, CAUSAL: tl.constexpr, FIXED: tl.constexpr, NEAR: tl.constexpr,
    STOPS: tl.constexpr, SOME: tl.constexpr, GAIN: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """The context of one query."""
    which = tl.program_id(0)
    b, h, begin, end = _sees(
        which, centre, stop, scb, sch, stb, H, S, first, half, radius, CAUSAL, FIXED, NEAR, STOPS
    )
    d, r = tl.arange(0, DP), tl.arange(0, RP)
    q += offset(b, h, sqb, sqh, UNIT)
    k += offset(b, h // (H // G), skb, skh, UNIT)
    v += offset(b, h // (H // G), svb, svh, UNIT)
    asked = tl.load(q + d, mask=d < D, other=0.0).to(tl.float32)
    exists += b.to(tl.int64) * seb
    drawn = tl.load(seed) if DROP else 0
    top = tl.load(peak + b.to(tl.int64) * spb + h.to(tl.int64) * sph) if GAIN else 0.0

    m = tl.full([1], float("-inf"), tl.float32)
    l = tl.zeros([1], tl.float32)
    acc = tl.zeros([RP], tl.float32)
    for start in range(begin, end, BN):
        s = start + tl.arange(0, BN)
        ok = _some(s, end, exists, SOME)
        keys = _rows(k, s, ok, sks, d, D, UNIT)
        values = _rows(v, s, ok, svs, r, R, UNIT)
        e = tl.where(ok, tl.sum(keys * asked[None, :], 1) * scale, float("-inf"))
        higher = tl.maximum(m, tl.max(e, 0))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        w = tl.exp2(e - safe)
        decay = tl.exp2(m - safe)
        m, l = higher, l * decay + tl.sum(w, 0)
        if GAIN:
            gain, _ = bell(s, top, rate)
            w = w * gain
        if DROP:
            w = tl.where(kept(drawn, which, s, threshold), w * boost, 0.0)
        acc = acc * tl.sum(decay, 0) + tl.sum(w[:, None] * values, 0)
    l = tl.where(l == 0.0, 1.0, l)  # a query that sees nothing gets exactly zero
    at = which.to(tl.int64)
    acc = acc / tl.sum(l, 0)
    tl.store(out + at * R + r, acc.to(out.dtype.element_ty), mask=r < R)
    tl.store(lse + at + tl.arange(0, 1), m + tl.log2(l))


@triton.jit
def _weights(keys, asked, ok, scale, norm):
    """The weights of some keys, from the stored log-sum."""
    e = tl.sum(keys * asked[None, :], 1) * scale
    return tl.exp2(tl.where(ok, e - norm, float("-inf")))


@triton.jit
def _wanted(
    values, wish, ok, a, s, top, rate, drawn, which, threshold, boost,
    GAIN: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """The final weights, the gradients of those before dropout and gain, distances to the peak."""
    da = tl.where(ok, tl.sum(values * wish[None, :], 1), 0.0)
    w, away = a, a
    if DROP:
        keep = kept(drawn, which, s, threshold)
        w, da = tl.where(keep, a * boost, 0.0), tl.where(keep, da * boost, 0.0)
    if GAIN:
        gain, away = bell(s, top, rate)
        w, da = w * gain, da * gain
    return w, da, away


@triton.jit(do_not_specialize=RUN_TIME)
def _backward(
    q, k, v, out, lse, do, dq, dpeak, slopes, weights, centre, peak, stop, exists, seed,
    sqb, sqh, sqt, skb, skh, sks, svb, svh, svs, sdb, sdh, sdt, scb, sch, spb, sph, seb, stb, sfb,
    H, G, S, first, half, radius, block, threshold, scale, rate, boost, plain,
    BN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr,
    UNIT: tl.constexpr, CAUSAL: tl.constexpr, FIXED: tl.constexpr, NEAR: tl.constexpr,
    STOPS: tl.constexpr, SOME: tl.constexpr, GAIN: tl.constexpr, DROP: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """dq and the gradient of the peak for one query; de and the final weights, zero elsewhere.

    The weights of a wide query are nearly one-hot: da - Σ a da is then tiny, and the rounding of
    dO·out, or of a large log-sum, could exceed it. EXACT first sums the weights and a da, reading
    each key twice.
    """
    which = tl.program_id(0)
    b, h, begin, end = _sees(
        which, centre, stop, scb, sch, stb, H, S, first, half, radius, CAUSAL, FIXED, NEAR, STOPS
    )
    d, r = tl.arange(0, DP), tl.arange(0, RP)
    q += offset(b, h, sqb, sqh, UNIT)
    do += offset(b, h, sdb, sdh, UNIT)
    k += offset(b, h // (H // G), skb, skh, UNIT)
    v += offset(b, h // (H // G), svb, svh, UNIT)
    at = which.to(tl.int64)
    asked = tl.load(q + d, mask=d < D, other=0.0).to(tl.float32)
    wish = tl.load(do + r, mask=r < R, other=0.0).to(tl.float32)
    norm = tl.load(lse + at)
    exists += b.to(tl.int64) * seb
    drawn = tl.load(seed) if DROP else 0
    top = tl.load(peak + b.to(tl.int64) * spb + h.to(tl.int64) * sph) if GAIN else 0.0
    slopes += at * S
    weights += at * S
    for start in range(0, S, 128):
        s = start + tl.arange(0, 128)
        unseen = (s < S) & ((s < begin) | (s >= end))
        nothing = tl.zeros([128], tl.float32)
        tl.store(slopes + s, nothing.to(slopes.dtype.element_ty), mask=unseen)
        tl.store(weights + s, nothing.to(weights.dtype.element_ty), mask=unseen)

    fix = 1.0
    if EXACT:
        pull = tl.sum(tl.zeros([BN], tl.float32), 0)
        total = pull
        for start in range(begin, end, BN):
            s = start + tl.arange(0, BN)
            ok = _some(s, end, exists, SOME)
            keys = _rows(k, s, ok, sks, d, D, UNIT)
            a = _weights(keys, asked, ok, scale, norm)
            _, da, _ = _wanted(
                _rows(v, s, ok, svs, r, R, UNIT), wish, ok, a, s, top, rate, drawn, which,
                threshold, boost, GAIN, DROP,
            )  # fmt: skip
            total += tl.sum(a, 0)
            pull += tl.sum(a * da, 0)
        fix = 1.0 / tl.where(total == 0.0, 1.0, total)
        pull *= fix
    else:
        found = tl.load(out + at * R + r, mask=r < R, other=0.0).to(tl.float32)
        pull = tl.sum(wish * found, 0)
    grad = tl.zeros([DP], tl.float32)
    moved = tl.zeros([1], tl.float32)
    for start in range(begin, end, BN):
        s = start + tl.arange(0, BN)
        ok = _some(s, end, exists, SOME)
        keys = _rows(k, s, ok, sks, d, D, UNIT)
        a = _weights(keys, asked, ok, scale, norm) * fix
        w, da, away = _wanted(
            _rows(v, s, ok, svs, r, R, UNIT), wish, ok, a, s, top, rate, drawn, which, threshold,
            boost, GAIN, DROP,
        )  # fmt: skip
        if GAIN:
            moved += tl.sum(a * da * away, 0)
        de = a * (da - pull)
        grad += tl.sum(de[:, None] * keys, 0)
        tl.store(slopes + s, (de * plain).to(slopes.dtype.element_ty), mask=s < end)
        tl.store(weights + s, w.to(weights.dtype.element_ty), mask=s < end)
    tl.store(dq + at * D + d, (grad * plain).to(dq.dtype.element_ty), mask=d < D)
    if GAIN:
        tl.store(dpeak + at + tl.arange(0, 1), moved * (rate * 1.3862943611198906))


def serves(q: Tensor, see: Geometry) -> bool:
    """Whether each head has one query, and windows have single keys only."""
    return q.shape[2] == 1 and not see.block


def forward(
    q: Tensor, k: Tensor, v: Tensor, see: Geometry, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Context B H 1 R (in `dtype`, if given) and log-sum-exp to base 2, B H 1.

    Queries, keys and values may differ in dtype: each number is read as it is, and made float32.
    """
    B, H, T, _ = q.shape
    R = v.shape[3]
    out = q.new_empty(B, H, T, R, dtype=dtype or q.dtype)
    lse = q.new_empty(B, H, T, dtype=torch.float32)
    constants, options = _constants((q, k, v), see)
    _forward[(B * H,)](
        q, k, v, out, lse, *_tensors(see, q), *_steps(constants["UNIT"], q, k, v), *strides(see),
        *_numbers(q, k, see), *see.rates(), **constants, **options,
    )  # fmt: skip
    return out, lse


def backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, see: Geometry
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """dq, the gradient of each peak (B H 1, where there is one), de and the weights  B H 1 S."""
    B, H, T, _ = q.shape
    S = see.S(k)
    dq = q.new_empty(q.shape)
    dpeak = torch.empty_like(lse) if see.peak is not None else None
    slopes, weights = q.new_empty(B, H, T, S), do.new_empty(B, H, T, S)
    constants, options = _constants((q, k, v, do), see)
    constants["EXACT"] = v.dtype == torch.float32
    _backward[(B * H,)](
        q, k, v, out, lse, do, dq, lse if dpeak is None else dpeak, slopes, weights,
        *_tensors(see, q), *_steps(constants["UNIT"], q, k, v, do), *strides(see),
        *_numbers(q, k, see), *see.rates(), see.scale, **constants, **options,
    )  # fmt: skip
    return dq, dpeak, slopes, weights


def outer(rows: Tensor, x: Tensor, G: int) -> Tensor:
    """Σ over the heads of each group: rows B H 1 S, x B H 1 D -> B G S D"""
    B, H, _, S = rows.shape
    n, D = H // G, x.shape[3]
    if n == 1:
        return rows.mT * x
    return torch.bmm(rows.view(B * G, n, S).mT, x.reshape(B * G, n, D)).view(B, G, S, D)


def gradients(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, see: Geometry
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of queries, keys, values, and of each query's peak (B H 1, where there is one)."""
    dq, dpeak, slopes, weights = backward(q, k, v, out, lse, do, see)
    return dq, outer(slopes, q, k.shape[1]), outer(weights, do, v.shape[1]), dpeak


def _constants(given: tuple[Tensor, ...], see: Geometry) -> tuple[dict[str, int], dict[str, int]]:
    """The constants that a kernel is compiled for, and the options of its launch."""
    D, R = given[0].shape[3], given[2].shape[3]
    wide = {"D": D, "DP": padded(D), "R": R, "RP": padded(R), "UNIT": unit(*given)}
    flags = see.flags()
    for name in ("BLOCKS", "ORDERED", "GAPS"):  # of several queries
        del flags[name]
    keys, warps = tile(max(wide["DP"], wide["RP"]))
    return {"BN": keys, **wide, **flags}, {"num_warps": warps, "num_stages": 1}


def _tensors(see: Geometry, nothing: Tensor) -> tuple[Tensor, ...]:
    """Pointers; what is missing is never read."""
    parts = (see.centre, see.peak, see.stop, see.exists, see.seed)
    return tuple(nothing if x is None else x for x in parts)


def _steps(step: int, *given: Tensor) -> list[int]:
    return [n // step for x in given for n in x.stride()[:3]]


def _numbers(q: Tensor, k: Tensor, see: Geometry) -> tuple[int, ...]:
    return q.shape[1], k.shape[1], see.S(k), *see.numbers()
