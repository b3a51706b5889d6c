"""The context of a tile of queries, from the keys that their windows touch and no others."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.kernels.window.device import (
    bell,
    far_seen,
    kept,
    last_of_run,
    next_run,
    offset,
    product,
    queries,
    run_end,
    several_runs,
    whom,
)
from heed.kernels.window.geometry import Geometry, coarseness, precision, strides, unit, widths
from heed.kernels.window.tuned import SLICE, Tile, tile

RUN_TIME = (
    "sqb", "sqh", "sqt", "skb", "skh", "sks", "svb", "svh", "svs", "scb", "sch", "spb", "sph",
    "seb", "stb", "sfb", "H", "G", "T", "S", "N", "first", "half", "radius", "block",
    "threshold", "shift",
)  # fmt: skip


@triton.jit
def _softmax(e, m, l):
    """Add a tile of energies (base 2) to a running softmax: weights, decay, maximum, sum."""
    top = tl.maximum(m, tl.max(e, 1))
    safe = tl.where(top == float("-inf"), 0.0, top)
    w = tl.exp2(e - safe[:, None])
    decay = tl.exp2(m - safe)
    return w, decay, top, l * decay + tl.sum(w, 1)


@triton.jit
def _compared(
    q, valid, k, s, inside, sks,
    D: tl.constexpr, DP: tl.constexpr, SD: tl.constexpr, UNIT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """q·k of a tile; q: the queries, or, if wider than a slice, pointers to their rows."""
    if DP > SD:
        e = product(q, k + s * (sks * UNIT), valid, inside, D, SD, PRECISION)
    else:
        d = tl.arange(0, DP)
        loaded = inside[None, :] if D == DP else inside[None, :] & (d < D)[:, None]
        kt = tl.load(k + d[:, None] + s[None, :] * (sks * UNIT), mask=loaded, other=0)
        e = tl.dot(q, kt, input_precision=PRECISION)
    return e


@triton.jit
def _walk(
    m, l, acc, q, valid, k, v, exists, lo, hi, begin, end, row, peak, seed, r, sks, svs, scale,
    rate, threshold, boost,
    BN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr,
    SD: tl.constexpr, UNIT: tl.constexpr, SOME: tl.constexpr, GAIN: tl.constexpr,
    DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Loop over single keys, from `begin` to `end`."""
    lane = tl.arange(0, BN)
    for start in range(begin, end, BN):
        s = start + lane
        inside = s < end
        if SOME:
            inside = inside & (tl.load(exists + s, mask=inside, other=0) != 0)
        ok = (s[None, :] >= lo[:, None]) & (s[None, :] < hi[:, None])
        if SOME:
            ok = ok & inside[None, :]
        e = _compared(q, valid, k, s.to(tl.int64), inside, sks, D, DP, SD, UNIT, PRECISION) * scale
        w, decay, m, l = _softmax(tl.where(ok, e, float("-inf")), m, l)
        if GAIN:
            gain, _ = bell(s[None, :], peak[:, None], rate)
            w = w * gain
        if DROP:
            w = tl.where(kept(seed, row[:, None], s[None, :], threshold), w * boost, 0.0)
        loaded = inside[:, None] if R == RP else inside[:, None] & (r < R)[None, :]
        vs = tl.load(v + r[None, :] + s.to(tl.int64)[:, None] * (svs * UNIT), mask=loaded, other=0)
        acc = tl.dot(w.to(vs.dtype), vs, acc * decay[:, None], input_precision=PRECISION)
    return m, l, acc


@triton.jit
def _far(
    m, l, acc, q, valid, k, v, opens, logs, place, N, S, row, seed, r, sks, svs, scale, threshold,
    boost, half, block,
    BN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr,
    SD: tl.constexpr, UNIT: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Loop over blocks that stand for one key each, after the last single key."""
    for start in range(0, N, BN):
        j = start + tl.arange(0, BN)
        inside = j < N
        opening = tl.load(opens + j, mask=inside, other=2147483647)
        more = tl.load(logs + j, mask=inside, other=0.0) * 1.4426950408889634
        ok = far_seen(j[None, :], place[:, None], opening[None, :], half, block)
        ok = ok & inside[None, :]
        s = (S + j).to(tl.int64)
        e = _compared(q, valid, k, s, inside, sks, D, DP, SD, UNIT, PRECISION) * scale
        e += more[None, :]
        w, decay, m, l = _softmax(tl.where(ok, e, float("-inf")), m, l)
        if DROP:
            w = tl.where(kept(seed, row[:, None], (S + j)[None, :], threshold), w * boost, 0.0)
        loaded = inside[:, None] if R == RP else inside[:, None] & (r < R)[None, :]
        vs = tl.load(v + r[None, :] + s[:, None] * (svs * UNIT), mask=loaded, other=0)
        acc = tl.dot(w.to(vs.dtype), vs, acc * decay[:, None], input_precision=PRECISION)
    return m, l, acc


@triton.jit(do_not_specialize=RUN_TIME)
def _forward(
    q, k, v, out, lse, order, centre, peak, stop, exists, opens, logs, seed,
    sqb, sqh, sqt, skb, skh, sks, svb, svh, svs, scb, sch, spb, sph, seb, stb, sfb,
    H, G, T, S, N, first, half, radius, block, threshold, shift, scale, rate, boost,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr,
    RP: tl.constexpr, SD: tl.constexpr, SR: tl.constexpr, UNIT: tl.constexpr, CAUSAL: tl.constexpr,
    FIXED: tl.constexpr, NEAR: tl.constexpr, BLOCKS: tl.constexpr, ORDERED: tl.constexpr,
    STOPS: tl.constexpr, SOME: tl.constexpr, GAIN: tl.constexpr, DROP: tl.constexpr,
    GAPS: tl.constexpr, RUNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of BM queries of one head, or SR of its width."""
    tiles = (T + BM - 1) // BM
    which = tl.program_id(0) // tiles
    b, h = which // H, which % H
    limit = S
    if STOPS:
        limit = tl.minimum(S, tl.load(stop + b * stb))
    of_centre = b.to(tl.int64) * scb + h.to(tl.int64) * sch
    rank = (tl.program_id(0) % tiles) * BM + tl.arange(0, BM)
    valid = rank < T
    t = whom(rank, order + of_centre, T, ORDERED)
    place, lo, hi = queries(
        t, valid, centre + of_centre, S, limit, first, half, radius, block,
        CAUSAL, FIXED, NEAR, BLOCKS,
    )  # fmt: skip
    if GAPS and several_runs(lo, hi, S) != RUNS:
        return  # the other launch does this tile
    begin, end = tl.min(lo), tl.max(hi)
    top = tl.zeros([BM], tl.float32)
    if GAIN:
        of_peak = b.to(tl.int64) * spb + h.to(tl.int64) * sph
        top = tl.load(peak + of_peak + t, mask=valid, other=0.0)

    r = tl.arange(0, SR)
    if RP > SR:
        r += tl.program_id(1) * SR
    q += offset(b, h, sqb, sqh, UNIT)
    if DP > SD:
        qs = q + t.to(tl.int64) * (sqt * UNIT)
    else:
        d = tl.arange(0, DP)
        loaded = valid[:, None] if D == DP else valid[:, None] & (d < D)[None, :]
        qs = tl.load(q + t.to(tl.int64)[:, None] * (sqt * UNIT) + d[None, :], mask=loaded, other=0)
    k += offset(b, h // (H // G), skb, skh, UNIT)
    v += offset(b, h // (H // G), svb, svh, UNIT)
    row = which.to(tl.int64) * T + t
    drawn = tl.load(seed) if DROP else 0
    exists += b.to(tl.int64) * seb

    m = tl.full([BM], float("-inf"), tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, SR], tl.float32)
    if RUNS:
        last = last_of_run(lo, hi)
        for _ in range(tl.sum(last.to(tl.int32))):
            cut = run_end(begin, end, hi, last)
            m, l, acc = _walk(
                m, l, acc, qs, valid, k, v, exists, lo, tl.minimum(hi, cut), begin, cut, row, top,
                drawn, r, sks, svs, scale, rate, threshold, boost, BN, D, DP, R, RP, SD, UNIT, SOME,
                GAIN, DROP, PRECISION,
            )  # fmt: skip
            begin = next_run(cut, S, lo)
    else:
        m, l, acc = _walk(
            m, l, acc, qs, valid, k, v, exists, lo, hi, begin, end, row, top, drawn, r, sks, svs,
            scale, rate, threshold, boost, BN, D, DP, R, RP, SD, UNIT, SOME, GAIN, DROP, PRECISION,
        )  # fmt: skip
    if BLOCKS:
        of_far = b.to(tl.int64) * sfb
        m, l, acc = _far(
            m, l, acc, qs, valid, k, v, opens + of_far, logs + of_far, place, N, S, row, drawn, r,
            sks, svs, scale, threshold, boost, half, block, BN, D, DP, R, RP, SD, UNIT, DROP,
            PRECISION,
        )  # fmt: skip

    acc = acc / tl.where(l == 0.0, 1.0, l)[:, None]  # a query that sees nothing gets exactly zero
    at = row[:, None] * R + r[None, :]
    stored = valid[:, None] if R == RP else valid[:, None] & (r < R)[None, :]
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=stored)
    tl.store(lse + row, m + tl.log2(tl.where(l == 0.0, 1.0, l)), mask=valid)


@triton.jit(do_not_specialize=("T", "S", "shift"))
def _keys(centre, keys, T, S, shift, BLOCK: tl.constexpr):
    """The sort key of queries: their centres as integers, without the last bits."""
    rank = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * T + rank
    c = tl.load(centre + at, mask=rank < T, other=0.0)
    c = tl.minimum(tl.maximum(tl.where(c == c, c, 0.0), 0.0), S).to(tl.int32)
    tl.store(keys + at, (c >> shift).to(tl.int16), mask=rank < T)


def ordered(centre: Tensor, S: int) -> tuple[Tensor, Tensor]:
    """The queries of every head sorted by centre, and their sort keys.

    Neighbours in this order have overlapping windows, so a tile of them touches few keys
    wherever each query looks. Sorting two bytes takes half the time of four.
    """
    keys = torch.empty(centre.shape, dtype=torch.int16, device=centre.device)
    rows, T = centre.shape[0] * centre.shape[1], centre.shape[2]
    _keys[(rows, triton.cdiv(T, 1024))](centre, keys, T, S, coarseness(S), BLOCK=1024)
    ranked, order = torch.sort(keys, stable=True)
    return order, ranked


def forward(
    q: Tensor, k: Tensor, v: Tensor, see: Geometry, size: Tile | None = None
) -> tuple[Tensor, Tensor]:
    """Context B H T R and the log-sum-exp to base 2, B H T, of queries B H T D."""
    B, H, T, D = q.shape
    R = v.shape[3]
    out, lse = q.new_empty(B, H, T, R), q.new_empty(B, H, T, dtype=torch.float32)
    size = size or tile("forward", q.dtype, max(D, R))
    step = unit(q, k, v)
    flags = see.flags()
    for runs in range(1 + flags["GAPS"]):
        _forward[(triton.cdiv(T, size.rows) * B * H, triton.cdiv(R, SLICE))](
            q, k, v, out, lse, *see.tensors(q),
            *(n // step for x in (q, k, v) for n in x.stride()[:3]), *strides(see),
            H, k.shape[1], T, see.S(k), see.N, *see.numbers(), coarseness(see.S(k)), *see.rates(),
            BM=size.rows, BN=size.columns, **widths(D, R), UNIT=step,
            **flags, RUNS=runs, PRECISION=precision(q),
            num_warps=size.warps, num_stages=size.stages, maxnreg=size.registers,
        )  # fmt: skip
    return out, lse
