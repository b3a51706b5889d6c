"""Functions of both passes: the energies of a tile, and the keys that are visible in it."""

import triton
import triton.language as tl

HIDDEN = tl.constexpr(-1000.0)
"""The exponent of hidden keys: two to it is zero, and zero times it is zero, not NaN."""

SHIFT = tl.constexpr(14.0)
UNIT = tl.constexpr(2.0**-14)
"""Weights are held times 2^14, so that the small ones of long rows are no subnormal halves."""


@triton.jit
def reach(
    t, centre, T, S, N, first, half, radius, stop,
    CAUSAL: tl.constexpr, FIXED: tl.constexpr, NEAR: tl.constexpr, STOP: tl.constexpr,
    ODD: tl.constexpr, SINKS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The range of keys that any query of a tile may see, and within it the range that all see.

    Both are rounded to whole tiles. With ODD, masks that are not ranges hide keys: then the
    inner range is empty.
    """
    low, high = t * 0, N
    whole_low, whole_high = low, N
    if not SINKS:  # sinks have no position, and every query sees them
        last = tl.minimum(t + BM, T) - 1
        if STOP:
            high = tl.minimum(high, stop)
            whole_high = tl.minimum(whole_high, stop)
        if CAUSAL:
            high = tl.minimum(high, first + last + 1)
            whole_high = tl.minimum(whole_high, first + t + 1)
        if FIXED:
            low = tl.maximum(low, first + t - half)
            high = tl.minimum(high, first + last + half + 1)
            whole_low = tl.maximum(whole_low, first + last - half)
            whole_high = tl.minimum(whole_high, first + t + half + 1)
        if NEAR:
            valid = t + tl.arange(0, BM) < T
            least = tl.min(tl.where(valid, centre, float("inf")), 0)
            most = tl.max(tl.where(valid, centre, float("-inf")), 0)
            low = tl.maximum(low, tl.maximum(least, 0.0).to(tl.int32) - radius - 1)
            high = tl.minimum(high, tl.minimum(most, S * 1.0).to(tl.int32) + radius + 2)
    low = tl.maximum(low, 0) // BN * BN
    high = tl.maximum(tl.minimum(high, N), low)
    if ODD or SINKS:
        return low, high, low, low
    whole_low = (tl.maximum(whole_low, low) + BN - 1) // BN * BN
    whole_high = tl.maximum(tl.minimum(whole_high, high), 0) // BN * BN
    whole_low = tl.minimum(whole_low, high)
    return low, high, whole_low, tl.maximum(whole_high, whole_low)


@triton.jit
def seen(
    t, s, centre, exists, table, table_t, T, S, N, first, half, radius, stop,
    CAUSAL: tl.constexpr, FIXED: tl.constexpr, NEAR: tl.constexpr, STOP: tl.constexpr,
    EXISTS: tl.constexpr, TABLE: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """The keys of s that each query t may see.    BM, BN -> BM BN"""
    place = first + t
    known = s < S
    column = known
    if STOP:
        column = column & (s < stop)
    if EXISTS:
        column = column & (tl.load(exists + s, mask=known, other=0) != 0)
    ok = (t < T)[:, None] & column[None, :]
    if CAUSAL:
        ok = ok & (s[None, :] <= place[:, None])
    if FIXED:
        ok = ok & (tl.abs(s[None, :] - place[:, None]) <= half)
    if NEAR:
        ok = ok & (tl.abs(s.to(tl.float32)[None, :] - centre[:, None]) <= radius)
    if TABLE:
        at = table + t.to(tl.int64)[:, None] * table_t + s[None, :]
        ok = ok & (tl.load(at, mask=ok, other=0) != 0)
    if SINKS:
        ok = ok | ((t < T)[:, None] & ((s >= S) & (s < N))[None, :])
    return ok


@triton.jit
def energies(
    q, k, bias, t, s, j, d, k_s, bias_t, bias_s, T, N, scale,
    BIAS: tl.constexpr, MASKED: tl.constexpr, WIDTH: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Energies of a tile, in units of log 2: scale and bias are multiplied by log2 e.    BM BN

    k points at the first key of the tile, which is at s; j counts from there.
    """
    at = k + (j[None, :] * k_s + d[:, None])
    if MASKED or WIDTH != BD:
        keys = tl.load(at, mask=(s < N)[None, :] & (d < WIDTH)[:, None], other=0.0)
    else:
        keys = tl.load(at)
    e = tl.dot(q, keys, input_precision="ieee") * scale
    if BIAS:
        e += biases(bias, t, s, bias_t, bias_s, T, N)
    return e


@triton.jit
def biases(bias, t, s, bias_t, bias_s, T, N):
    """The addition of a bias to the energies of a tile, in units of log 2.    BM BN"""
    place = bias + t.to(tl.int64)[:, None] * bias_t + s.to(tl.int64)[None, :] * bias_s
    valid = (t < T)[:, None] & (s < N)[None, :]
    return tl.load(place, mask=valid, other=0.0).to(tl.float32) * 1.4426950408889634


@triton.jit
def exponents(
    e, s, base, centre, S, sharpness, GAIN: tl.constexpr, SINKS: tl.constexpr
):  # fmt: skip
    """log2 of the weights that energies give, gain included; base: what a row sums to.    BM BN"""
    y = e - base[:, None]
    if GAIN:
        away = s.to(tl.float32)[None, :] - centre[:, None]
        less = away * away * sharpness
        y -= tl.where((s < S)[None, :], less, 0.0) if SINKS else less
    return y
