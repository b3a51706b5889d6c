"""Gradients: of queries and centres by tiles of queries, of keys and values by tiles of keys.

Each number is summed by one program in one order, so that the same call gives the same bits. The
weights are formed again from the log-sum-exp (Dao 2022 §3.1); with a gain g after the softmax,

    context = Σ a g v      da = g (dO·v)      de = a (da - dO·context)      dp = Σ a da (s - p)/σ²
"""

import torch
import triton
import triton.language as tl

from heed.kernels.window.device import (
    bell,
    below,
    far_seen,
    kept,
    last_of_run,
    next_run,
    offset,
    part,
    product,
    queries,
    run_end,
    several_runs,
    whom,
)
from heed.kernels.window.forward import RUN_TIME
from heed.kernels.window.geometry import Geometry, coarseness, precision, strides, unit, widths
from heed.kernels.window.tuned import SLICE, Tile, tile


@triton.jit
def _rows(x, at, inside, step, n, N: tl.constexpr, NP: tl.constexpr, UNIT: tl.constexpr):
    """Keys or values at these positions, in full or a slice of their width."""
    loaded = inside[:, None] if N == NP else inside[:, None] & (n < N)[None, :]
    return tl.load(x + n[None, :] + at[:, None] * (step * UNIT), mask=loaded, other=0)


@triton.jit
def _compared(
    q, ks, k, at, valid, inside, sks,
    D: tl.constexpr, DP: tl.constexpr, SD: tl.constexpr, UNIT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """q·k of a tile; q: the queries, or, if wider than a slice, pointers to their rows."""
    if DP > SD:
        e = product(q, k + at * (sks * UNIT), valid, inside, D, SD, PRECISION)
    else:
        e = tl.dot(q, tl.trans(ks), input_precision=PRECISION)
    return e


@triton.jit
def _wanted(
    do, v, at, valid, inside, svs,
    R: tl.constexpr, RP: tl.constexpr, SR: tl.constexpr, UNIT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dO·v of a tile; do likewise."""
    if RP > SR:
        wish = product(do, v + at * (svs * UNIT), valid, inside, R, SR, PRECISION)
    else:
        vs = _rows(v, at, inside, svs, tl.arange(0, RP), R, RP, UNIT)
        wish = tl.dot(do, tl.trans(vs), input_precision=PRECISION)
    return wish


@triton.jit
def _pulled(do, out, valid, R: tl.constexpr, SR: tl.constexpr):
    """dO·context of rows too wide to be held, slice by slice."""
    total = tl.zeros([do.shape[0]], tl.float32)
    for start in range(0, R, SR):
        r = start + tl.arange(0, SR)
        wish, found = part(do, valid, r, R), part(out, valid, r, R)
        total += tl.sum(wish.to(tl.float32) * found.to(tl.float32), 1)
    return total


@triton.jit
def _walk(
    dq, dp, q, do, valid, lse, delta, k, v, exists, lo, hi, begin, end, row, peak, seed, d, sks,
    svs, scale, rate, threshold, boost,
    BN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr,
    SD: tl.constexpr, SR: tl.constexpr, UNIT: tl.constexpr, SOME: tl.constexpr, GAIN: tl.constexpr,
    DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Loop over single keys: the gradients of a tile of queries and of their peaks."""
    lane = tl.arange(0, BN)
    for start in range(begin, end, BN):
        s = start + lane
        inside = s < end
        if SOME:
            inside = inside & (tl.load(exists + s, mask=inside, other=0) != 0)
        ok = (s[None, :] >= lo[:, None]) & (s[None, :] < hi[:, None])
        if SOME:
            ok = ok & inside[None, :]
        at = s.to(tl.int64)
        ks = _rows(k, at, inside, sks, d, D, DP, UNIT)
        e = _compared(q, ks, k, at, valid, inside, sks, D, DP, SD, UNIT, PRECISION) * scale
        a = tl.exp2(tl.where(ok, e - lse[:, None], float("-inf")))
        da = _wanted(do, v, at, valid, inside, svs, R, RP, SR, UNIT, PRECISION)
        da = tl.where(ok, da, 0.0)
        if DROP:
            da = tl.where(kept(seed, row[:, None], s[None, :], threshold), da * boost, 0.0)
        if GAIN:
            gain, away = bell(s[None, :], peak[:, None], rate)
            da = da * gain
            dp += tl.sum(a * da * away, 1)
        de = a * (da - delta[:, None])
        dq = tl.dot(de.to(ks.dtype), ks, dq, input_precision=PRECISION)
    return dq, dp


@triton.jit
def _far(
    dq, q, do, valid, lse, delta, k, v, opens, logs, place, N, S, row, seed, d, sks, svs, scale,
    threshold, boost, half, block,
    BN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr,
    SD: tl.constexpr, SR: tl.constexpr, UNIT: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Loop over blocks that stand for one key each: the gradient of a tile of queries."""
    for start in range(0, N, BN):
        j = start + tl.arange(0, BN)
        inside = j < N
        opening = tl.load(opens + j, mask=inside, other=2147483647)
        more = tl.load(logs + j, mask=inside, other=0.0) * 1.4426950408889634
        ok = far_seen(j[None, :], place[:, None], opening[None, :], half, block)
        ok = ok & inside[None, :]
        s = (S + j).to(tl.int64)
        ks = _rows(k, s, inside, sks, d, D, DP, UNIT)
        e = _compared(q, ks, k, s, valid, inside, sks, D, DP, SD, UNIT, PRECISION) * scale
        e += more[None, :]
        da = _wanted(do, v, s, valid, inside, svs, R, RP, SR, UNIT, PRECISION)
        if DROP:
            da = tl.where(kept(seed, row[:, None], (S + j)[None, :], threshold), da * boost, 0.0)
        a = tl.exp2(tl.where(ok, e - lse[:, None], float("-inf")))
        de = a * (da - delta[:, None])
        dq = tl.dot(de.to(ks.dtype), ks, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=(*RUN_TIME, "sdb", "sdh", "sdt"))
def _of_queries(
    q, k, v, out, lse, do, delta, dq, dpeak,
    order, centre, peak, stop, exists, opens, logs, seed,
    sqb, sqh, sqt, skb, skh, sks, svb, svh, svs, sdb, sdh, sdt,
    scb, sch, spb, sph, seb, stb, sfb,
    H, G, T, S, N, first, half, radius, block, threshold, shift, scale, rate, boost, plain,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr,
    RP: tl.constexpr, SD: tl.constexpr, SR: tl.constexpr, UNIT: tl.constexpr, CAUSAL: tl.constexpr,
    FIXED: tl.constexpr, NEAR: tl.constexpr, BLOCKS: tl.constexpr, ORDERED: tl.constexpr,
    STOPS: tl.constexpr, SOME: tl.constexpr, GAIN: tl.constexpr, DROP: tl.constexpr,
    GAPS: tl.constexpr, RUNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of BM queries of one head: dq (or SD of its width), the gradient of the peak, and
    dO·context."""
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

    d = tl.arange(0, SD)
    if DP > SD:
        d += tl.program_id(1) * SD
    of_d = valid[:, None] if D == DP else valid[:, None] & (d < D)[None, :]
    row = which.to(tl.int64) * T + t
    q += offset(b, h, sqb, sqh, UNIT)
    if DP > SD:
        qs = q + t.to(tl.int64) * (sqt * UNIT)
    else:
        qs = tl.load(q + t.to(tl.int64)[:, None] * (sqt * UNIT) + d[None, :], mask=of_d, other=0)
    do += offset(b, h, sdb, sdh, UNIT)
    if RP > SR:
        dos = do + t.to(tl.int64) * (sdt * UNIT)
        pull = _pulled(dos, out + row * R, valid, R, SR)
    else:
        r = tl.arange(0, RP)
        of_r = valid[:, None] if R == RP else valid[:, None] & (r < R)[None, :]
        dos = tl.load(do + t.to(tl.int64)[:, None] * (sdt * UNIT) + r[None, :], mask=of_r, other=0)
        seen = tl.load(out + row[:, None] * R + r[None, :], mask=of_r, other=0)
        pull = tl.sum(dos.to(tl.float32) * seen.to(tl.float32), 1)
    tl.store(delta + row, pull, mask=valid)
    norm = tl.load(lse + row, mask=valid, other=0.0)
    k += offset(b, h // (H // G), skb, skh, UNIT)
    v += offset(b, h // (H // G), svb, svh, UNIT)
    drawn = tl.load(seed) if DROP else 0
    exists += b.to(tl.int64) * seb

    grad = tl.zeros([BM, SD], tl.float32)
    moved = tl.zeros([BM], tl.float32)
    if RUNS:
        last = last_of_run(lo, hi)
        for _ in range(tl.sum(last.to(tl.int32))):
            cut = run_end(begin, end, hi, last)
            grad, moved = _walk(
                grad, moved, qs, dos, valid, norm, pull, k, v, exists, lo, tl.minimum(hi, cut),
                begin, cut, row, top, drawn, d, sks, svs, scale, rate, threshold, boost, BN, D, DP,
                R, RP, SD, SR, UNIT, SOME, GAIN, DROP, PRECISION,
            )  # fmt: skip
            begin = next_run(cut, S, lo)
    else:
        grad, moved = _walk(
            grad, moved, qs, dos, valid, norm, pull, k, v, exists, lo, hi, begin, end, row, top,
            drawn, d, sks, svs, scale, rate, threshold, boost, BN, D, DP, R, RP, SD, SR, UNIT,
            SOME, GAIN, DROP, PRECISION,
        )  # fmt: skip
    if BLOCKS:
        of_far = b.to(tl.int64) * sfb
        grad = _far(
            grad, qs, dos, valid, norm, pull, k, v, opens + of_far, logs + of_far, place, N, S,
            row, drawn, d, sks, svs, scale, threshold, boost, half, block, BN, D, DP, R, RP, SD,
            SR, UNIT, DROP, PRECISION,
        )  # fmt: skip
    grad = (grad * plain).to(dq.dtype.element_ty)
    tl.store(dq + row[:, None] * D + d[None, :], grad, mask=of_d)
    if GAIN:
        tl.store(dpeak + row, moved * (rate * 1.3862943611198906), mask=valid)


@triton.jit
def _touching(
    begin, end, ranked, T, S, first, half, radius, block, shift,
    CAUSAL: tl.constexpr, FIXED: tl.constexpr, NEAR: tl.constexpr, BLOCKS: tl.constexpr,
    ORDERED: tl.constexpr, RISING: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """The range of ranks whose queries may see a key from `begin` to before `end`."""
    low, high = 0, T
    if ORDERED:  # centres were rounded down: one more on either side
        low = below(ranked, T, tl.maximum(begin - radius - 1, 0) >> shift)
        high = below(ranked, T, (tl.minimum(end + radius + 1, S) >> shift) + 1)
    elif RISING:
        low = below(ranked, T, begin - radius - 1)
        high = below(ranked, T, end + radius + 1)
    elif not NEAR:
        if FIXED:
            low, high = begin - half - first, end + half - first
        if BLOCKS and not FAR:
            low = begin // block * block - half - first
            high = ((end - 1) // block + 1) * block + half - first
        if CAUSAL:
            low = tl.maximum(low, begin - first)
        low, high = tl.maximum(low, 0), tl.minimum(high, T)
    return low, high


@triton.jit(do_not_specialize=(*RUN_TIME, "sdb", "sdh", "sdt"))
def _of_keys(
    q, k, v, lse, do, delta, dk, dv, ranked,
    order, centre, peak, stop, exists, opens, logs, seed,
    sqb, sqh, sqt, skb, skh, sks, svb, svh, svs, sdb, sdh, sdt,
    scb, sch, spb, sph, seb, stb, sfb,
    H, G, T, S, N, first, half, radius, block, threshold, shift, scale, rate, boost, plain,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr,
    RP: tl.constexpr, SD: tl.constexpr, SR: tl.constexpr, UNIT: tl.constexpr, CAUSAL: tl.constexpr,
    FIXED: tl.constexpr, NEAR: tl.constexpr, BLOCKS: tl.constexpr, ORDERED: tl.constexpr,
    STOPS: tl.constexpr, SOME: tl.constexpr, GAIN: tl.constexpr, DROP: tl.constexpr,
    GAPS: tl.constexpr, RISING: tl.constexpr, FAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of BN keys (FAR: of blocks) of one group, over all heads that share it. Wide keys
    and values are cut: SD of the keys' width, SR of the values'."""
    count = N if FAR else S
    tiles = (count + BN - 1) // BN
    which = tl.program_id(0) // tiles
    b, g = which // G, which % G
    limit = S
    if STOPS:
        limit = tl.minimum(S, tl.load(stop + b * stb))
    start = (tl.program_id(0) % tiles) * BN
    j = start + tl.arange(0, BN)
    inside = j < count
    s = j + S if FAR else j
    seen = inside
    if SOME and not FAR:
        seen = seen & (tl.load(exists + b.to(tl.int64) * seb + j, mask=inside, other=0) != 0)
    opening, more = j, j.to(tl.float32)
    if FAR:
        at = b.to(tl.int64) * sfb + j
        opening = tl.load(opens + at, mask=inside, other=2147483647)
        more = tl.load(logs + at, mask=inside, other=0.0) * 1.4426950408889634
    WIDE: tl.constexpr = DP > SD or RP > SR
    d, r = tl.arange(0, SD), tl.arange(0, SR)
    if WIDE:
        d += tl.program_id(1) * SD
        r += tl.program_id(1) * SR
        of_d, of_r = inside[:, None] & (d < D)[None, :], inside[:, None] & (r < R)[None, :]
    else:
        of_d = inside[:, None] if D == DP else inside[:, None] & (d < D)[None, :]
        of_r = inside[:, None] if R == RP else inside[:, None] & (r < R)[None, :]
    k += offset(b, g, skb, skh, UNIT)
    v += offset(b, g, svb, svh, UNIT)
    if WIDE:
        ks, vs = k + s.to(tl.int64) * (sks * UNIT), v + s.to(tl.int64) * (svs * UNIT)
    else:
        ks = tl.load(k + s.to(tl.int64)[:, None] * (sks * UNIT) + d[None, :], mask=of_d, other=0)
        vs = tl.load(v + s.to(tl.int64)[:, None] * (svs * UNIT) + r[None, :], mask=of_r, other=0)
    drawn = tl.load(seed) if DROP else 0

    grad_k = tl.zeros([BN, SD], tl.float32)
    grad_v = tl.zeros([BN, SR], tl.float32)
    begin = start * block if FAR else start
    for n in range(H // G):
        h = g * (H // G) + n
        of_centre = b.to(tl.int64) * scb + h.to(tl.int64) * sch
        low, high = _touching(
            begin, tl.minimum(start + BN, count), ranked + of_centre, T, S, first, half,
            radius, block, shift, CAUSAL, FIXED, NEAR, BLOCKS, ORDERED, RISING, FAR,
        )  # fmt: skip
        if not FAR:
            high = tl.where(start < limit, high, low)
        head = (b * H + h).to(tl.int64)
        of_q, of_do = offset(b, h, sqb, sqh, UNIT), offset(b, h, sdb, sdh, UNIT)
        # The next tile's queries are looked up one tile ahead, so that their rows are prefetched.
        ahead = whom(low + tl.arange(0, BM), order + of_centre, high, ORDERED)
        for i in range(low, high, BM):
            rank = i + tl.arange(0, BM)
            valid = rank < high
            t = ahead
            ahead = whom(rank + BM, order + of_centre, high, ORDERED)
            place, lo, hi = queries(
                t, valid, centre + of_centre, S, limit, first, half, radius, block,
                CAUSAL, FIXED, NEAR, BLOCKS,
            )  # fmt: skip
            row = head * T + t
            far = t.to(tl.int64)[:, None]
            rows = valid[:, None] if D == DP and not WIDE else valid[:, None] & (d < D)[None, :]
            qs = tl.load(q + of_q + far * (sqt * UNIT) + d[None, :], mask=rows, other=0)
            rows = valid[:, None] if R == RP and not WIDE else valid[:, None] & (r < R)[None, :]
            dos = tl.load(do + of_do + far * (sdt * UNIT) + r[None, :], mask=rows, other=0)
            norm = tl.load(lse + row, mask=valid, other=0.0)
            pull = tl.load(delta + row, mask=valid, other=0.0)
            if WIDE:
                whole = t.to(tl.int64) * UNIT
                e = product(ks, q + of_q + whole * sqt, inside, valid, D, SD, PRECISION) * scale
                wish = product(vs, do + of_do + whole * sdt, inside, valid, R, SR, PRECISION)
            else:
                e = tl.dot(ks, tl.trans(qs), input_precision=PRECISION) * scale  # keys by queries
            if FAR:
                e += more[:, None]
                ok = far_seen(j[:, None], place[None, :], opening[:, None], half, block)
                ok = ok & inside[:, None] & valid[None, :]
            else:
                ok = (s[:, None] >= lo[None, :]) & (s[:, None] < hi[None, :]) & seen[:, None]
            a = tl.exp2(tl.where(ok, e - norm[None, :], float("-inf")))
            if not WIDE:
                wish = tl.dot(vs, tl.trans(dos), input_precision=PRECISION)
            da = tl.where(ok, wish, 0.0)
            w = a
            if DROP:
                keep = kept(drawn, row[None, :], s[:, None], threshold)
                w, da = tl.where(keep, a * boost, 0.0), tl.where(keep, da * boost, 0.0)
            if GAIN:
                of_peak = b.to(tl.int64) * spb + h.to(tl.int64) * sph
                top = tl.load(peak + of_peak + t, mask=valid, other=0.0)
                gain, _ = bell(s[:, None], top[None, :], rate)
                w, da = w * gain, da * gain
            grad_v = tl.dot(w.to(dos.dtype), dos, grad_v, input_precision=PRECISION)
            de = (a * (da - pull[None, :])).to(qs.dtype)
            grad_k = tl.dot(de, qs, grad_k, input_precision=PRECISION)
    at = (which.to(tl.int64) * (S + N) + s)[:, None]
    tl.store(dk + at * D + d[None, :], (grad_k * plain).to(dk.dtype.element_ty), mask=of_d)
    tl.store(dv + at * R + r[None, :], grad_v.to(dv.dtype.element_ty), mask=of_r)


def backward(q, k, v, out, lse, do, see: Geometry, sizes: dict[str, Tile] | None = None):
    """Gradients of queries, keys, values, and of each query's peak (B H T, where there is one)."""
    B, H, T, D = q.shape
    G, R, S = k.shape[1], v.shape[3], see.S(k)
    step = unit(q, k, v, do)
    steps = [n // step for x in (q, k, v, do) for n in x.stride()[:3]]
    delta = torch.empty_like(lse)
    dq = q.new_empty(q.shape)
    dk, dv = k.new_empty(k.shape), v.new_empty(v.shape)
    dpeak = torch.empty_like(lse) if see.peak is not None else None
    numbers = (H, G, T, S, see.N, *see.numbers(), coarseness(S), *see.rates(), see.scale)
    flags = see.flags()
    constants = {**widths(D, R), "UNIT": step, **flags, "PRECISION": precision(q)}

    def sized(task: str) -> Tile:
        return sizes[task] if sizes else tile(task, q.dtype, max(D, R))

    size = sized("queries")
    for runs in range(1 + flags["GAPS"]):
        _of_queries[(triton.cdiv(T, size.rows) * B * H, triton.cdiv(D, SLICE))](
            q, k, v, out, lse, do, delta, dq, lse if dpeak is None else dpeak,
            *see.tensors(q), *steps, *strides(see), *numbers,
            BM=size.rows, BN=size.columns, **constants, RUNS=runs,
            num_warps=size.warps, num_stages=size.stages, maxnreg=size.registers,
        )  # fmt: skip
    ranked = see.centre if see.rising else see.ranked
    size = sized("keys" if see.order is None else "keys in order")
    for far in (False, True) if see.N else (False,):
        tiles = triton.cdiv(see.N if far else S, size.columns)
        _of_keys[(tiles * B * G, triton.cdiv(max(D, R), SLICE))](
            q, k, v, lse, do, delta, dk, dv, lse if ranked is None else ranked,
            *see.tensors(q), *steps, *strides(see), *numbers,
            BM=size.rows, BN=size.columns, **constants, RISING=see.rising, FAR=far,
            num_warps=size.warps, num_stages=size.stages, maxnreg=size.registers,
        )  # fmt: skip
    return dq, dk, dv, dpeak
