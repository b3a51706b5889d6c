"""Two passes over queries and keys: first each row's log-sum-exp, then everything in one visit.

A program has a tile of queries and loops over the keys. Atomics are not used: what each key
receives, and the cells of the map, are written per tile of queries and summed afterwards.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.kernels.statistics.device import (
    HIDDEN,
    SHIFT,
    UNIT,
    energies,
    exponents,
    reach,
    seen,
)
from heed.kernels.statistics.plan import Plan, Question
from heed.kernels.statistics.top import column, groups, keyed, meet, settle, sift
from heed.kernels.statistics.tuned import SCRATCH


@triton.jit(do_not_specialize=["T", "S", "N", "first", "half", "radius"])
def _normalise(
    q, k, log_sum, stop, exists, centre, table, bias,
    q_b, q_h, q_t, k_b, k_g, k_s, stop_b, exists_b, centre_b, centre_h,
    table_b, table_h, table_t, bias_b, bias_h, bias_t, bias_s,
    H, share, T, S, N, first, half, radius, scale,
    CAUSAL: tl.constexpr, FIXED: tl.constexpr, NEAR: tl.constexpr, STOP: tl.constexpr,
    EXISTS: tl.constexpr, TABLE: tl.constexpr, SINKS: tl.constexpr, BIAS: tl.constexpr,
    WIDTH: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """log Σ exp(e) of each row, online."""
    b = (tl.program_id(1) // H).to(tl.int64)
    h = (tl.program_id(1) % H).to(tl.int64)
    begin = tl.program_id(0) * BM
    t = begin + tl.arange(0, BM)
    d = tl.arange(0, BD)
    inside = (t < T)[:, None] & (d < WIDTH)[None, :]
    rows = q + b * q_b + h * q_h + t.to(tl.int64)[:, None] * q_t + d[None, :]
    asked = tl.load(rows, mask=inside, other=0.0)
    k += b * k_b + (h // share) * k_g
    exists += b * exists_b
    table += b * table_b + h * table_h
    bias += b * bias_b + h * bias_h
    c = tl.zeros([BM], tl.float32)
    if NEAR:
        c = tl.load(centre + b * centre_b + h * centre_h + t, mask=t < T, other=0.0)
    limit = N
    if STOP:
        limit = tl.load(stop + b * stop_b)
    origin = b * 0  # 64 bits
    low, high, whole_low, whole_high = reach(
        begin, c, T, S, N, first, half, radius, limit,
        CAUSAL, FIXED, NEAR, STOP, EXISTS or TABLE or NEAR, SINKS, BM, BN,
    )  # fmt: skip
    j = tl.arange(0, BN)
    best = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    for part in tl.static_range(3):
        if part == 0:
            start, end = low, whole_low
        elif part == 1:
            start, end = whole_low, whole_high
        else:
            start, end = whole_high, high
        if part != 0 or FIXED:
            for s0 in range(start, end, BN):
                s = s0 + j
                e = energies(
                    asked, k + (origin + s0) * k_s, bias, t, s, j, d, k_s, bias_t, bias_s, T, N,
                    scale, BIAS, part != 1, WIDTH, BD,
                )  # fmt: skip
                if part != 1:
                    ok = seen(
                        t, s, c, exists, table, table_t, T, S, N, first, half, radius, limit,
                        CAUSAL, FIXED, NEAR, STOP, EXISTS, TABLE, SINKS,
                    )  # fmt: skip
                    e = tl.where(ok, e, float("-inf"))
                top = tl.maximum(best, tl.max(e, 1))
                anchor = tl.where(top == float("-inf"), 0.0, top)
                total = total * tl.exp2(best - anchor) + tl.sum(tl.exp2(e - anchor[:, None]), 1)
                best = top
    found = (best + tl.log2(tl.maximum(total, 0.5))) * 0.6931471805599453
    found = tl.where(total > 0, found, float("-inf"))
    tl.store(log_sum + tl.program_id(1).to(tl.int64) * T + t, found, mask=t < T)


@triton.jit
def _looked_through(
    weight, j, t, BM: tl.constexpr, BN: tl.constexpr, EXACT: tl.constexpr, FLAT: tl.constexpr
):
    """The values to search for the largest: weights, or their bits combined with the column.

    Bits of non-negative floats have the order of the floats. The lowest bits, which 16-bit
    inputs cannot determine, are replaced by the column, so that one maximum finds both. Hidden:
    zero. Eight columns belong to four threads, two each: the column within a thread is a constant,
    and the offset of the thread is added at the end.    BM BN -> BM BN/8 4 2
    FLAT keeps the shape BM BN, to search it several times.
    """
    if EXACT:
        looked = weight
    elif FLAT:
        looked = (weight.to(tl.int32, bitcast=True) & -BN) | (BN - 1 - j)[None, :]
    else:
        bits = tl.reshape(weight.to(tl.int32, bitcast=True), [BM, BN // 8, 4, 2])
        column = tl.arange(0, BN // 8)[:, None, None] * 8 + tl.arange(0, 2)[None, None, :]
        # The compiler does not see that this mask is constant, and keeps it in a register; so
        # the instruction has room for the column: one operation instead of two.
        high = tl.where(t >= 0, -BN, 0)[:, None, None, None]
        looked = (bits & high) | (BN - 1 - 6 - column)[None, :, :, :]
    return looked


@triton.jit
def _largest(looked, j, BN: tl.constexpr, EXACT: tl.constexpr, FLAT: tl.constexpr):
    """The largest weight of each row of a tile, and its column, the first of equals.    BM

    Unless FLAT, one for each of the four threads of a row.    BM 4
    """
    if EXACT:
        most = tl.max(looked, 1)
        column = tl.min(tl.where(looked == most[:, None], j[None, :], BN), 1)
    else:
        if FLAT:
            both = tl.max(looked, 1)
        else:
            both = tl.max(tl.max(looked, 3), 1) + (6 - 2 * tl.arange(0, 4))[None, :]
        most = (both & -BN).to(tl.float32, bitcast=True)
        column = BN - 1 - (both & (BN - 1))
    return most, column


@triton.jit
def _moments(BN: tl.constexpr):
    """1, j and j² of each column of a tile, j counted from its middle.    -> BN 16

    j² comes in two parts, each exact in float16. All four numbers are repeated four times, so that
    each of a row's four threads has them: 1 j 1 j ..., high low high low ...
    """
    j = (tl.arange(0, BN) - BN // 2)[:, None]
    column = tl.arange(0, 16)[None, :]
    low = (j * j) % 64
    left = tl.where(column % 2 == 0, 1, j)
    right = tl.where(column % 2 == 0, j * j - low, low)
    return tl.where(column < 8, left, right).to(tl.float32)


@triton.jit
def _by_thread(sums, BM: tl.constexpr):
    """Sums by the columns of `_moments`, split within each thread.    BM 16 -> three of BM 4"""
    table = tl.permute(tl.reshape(sums, [BM, 2, 4, 2]), [0, 2, 1, 3])
    even, odd = tl.split(table)  # BM 4 2
    one, high = tl.split(even)
    first, low = tl.split(odd)
    return one, first, high + low


@triton.jit
def _row_sums(x, BM: tl.constexpr, BN: tl.constexpr):
    """The sums of each of a row's four threads.    BM BN -> BM 4"""
    return tl.sum(tl.sum(tl.reshape(x, [BM, BN // 8, 4, 2]), 1), 2)


@triton.jit
def _picked(x, chosen):
    """The value of the chosen thread of each row.    BM 4 -> BM"""
    return tl.sum(tl.where(chosen, x, x * 0), 1)


@triton.jit
def _across(t, begin, T, rows, RC: tl.constexpr, MAP: tl.constexpr):
    """The row of cells of each query of a tile, one-hot; the last column is 1 for all.

    -> BM RC
    """
    r = tl.arange(0, RC)[None, :]
    here = r == RC - 1
    if MAP:
        cell = t.to(tl.int64) * rows // T - begin.to(tl.int64) * rows // T
        here = here | (cell[:, None] == r)
    return (here & (t < T)[:, None]).to(tl.float32)


@triton.jit(
    do_not_specialize=["T", "S", "N", "first", "half", "radius", "rows", "columns", "tile", "taken"]
)
def _summarise(
    q, k, log_sum, stop, exists, centre, table, bias, gain,
    facts, place, top_place, top_weight, doubt, received, cells,
    q_b, q_h, q_t, k_b, k_g, k_s, stop_b, exists_b, centre_b, centre_h,
    table_b, table_h, table_t, bias_b, bias_h, bias_t, bias_s, gain_b, gain_h,
    H, share, T, S, N, first, half, radius, rows, columns, tile, taken, scale, sharpness,
    CAUSAL: tl.constexpr, FIXED: tl.constexpr, NEAR: tl.constexpr, STOP: tl.constexpr,
    EXISTS: tl.constexpr, TABLE: tl.constexpr, SINKS: tl.constexpr, BIAS: tl.constexpr,
    GAIN: tl.constexpr, EXACT: tl.constexpr, FULL: tl.constexpr,
    LISTS: tl.constexpr, LOOP: tl.constexpr, K: tl.constexpr, C: tl.constexpr,
    MAP: tl.constexpr, RC: tl.constexpr, GROUP: tl.constexpr,
    WIDTH: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """All statistics of a tile of queries whose log Σ exp(e) is known."""
    head = tl.program_id(1).to(tl.int64)
    b, h = head // H, head % H
    begin = (tile + tl.program_id(0)) * BM
    t = begin + tl.arange(0, BM)
    d = tl.arange(0, BD)
    j = tl.arange(0, BN)
    inside = (t < T)[:, None] & (d < WIDTH)[None, :]
    asked = tl.load(
        q + b * q_b + h * q_h + t.to(tl.int64)[:, None] * q_t + d[None, :], mask=inside, other=0.0
    )
    k += b * k_b + (h // share) * k_g
    exists += b * exists_b
    table += b * table_b + h * table_h
    bias += b * bias_b + h * bias_h
    known = tl.load(log_sum + head * T + t, mask=t < T, other=10000.0) * 1.4426950408889634
    base = tl.where(known == float("-inf"), 0.0, known) - SHIFT
    c = tl.zeros([BM], tl.float32)
    if NEAR:
        c = tl.load(centre + b * centre_b + h * centre_h + t, mask=t < T, other=0.0)
    peak_at = tl.zeros([BM], tl.float32)
    if GAIN:
        peak_at = tl.load(gain + b * gain_b + h * gain_h + t, mask=t < T, other=0.0)
    limit = N
    if STOP:
        limit = tl.load(stop + b * stop_b)
    origin = b * 0  # 64 bits
    low, high, whole_low, whole_high = reach(
        begin, c, T, S, N, first, half, radius, limit,
        CAUSAL, FIXED, NEAR, STOP, EXISTS or TABLE or NEAR, SINKS, BM, BN,
    )  # fmt: skip

    padded = tl.cdiv(N, BN) * BN  # a row of the scratch
    own = head * tl.num_programs(0) + tl.program_id(0)
    received += own * padded
    cells += own * (padded // GROUP) * RC
    number = tl.float32 if FULL else tl.float16
    across = _across(t, begin, T, rows, RC, MAP).to(number)
    moments = _moments(BN).to(number)

    # Four threads share a row. Each keeps its own sums until the end, so that they exchange nothing
    # inside the loop.
    mass = tl.zeros([BM, 4], tl.float32)  # of full-precision weights, like the next two
    logs = tl.zeros([BM, 4], tl.float32)
    zeroth = tl.zeros([BM, 4], tl.float32)
    moment = tl.zeros([BM, 4], tl.float32)
    second = tl.zeros([BM, 4], tl.float32)
    middle = tl.zeros([BM, 4], tl.float32)  # the origin of the moments: the peak so far
    peak = tl.zeros([BM, 4], tl.float32)
    at = tl.zeros([BM, 4], tl.int32)
    top_w = tl.zeros([BM, K], tl.float32)
    top_s = tl.zeros([BM, K], tl.int32)
    slot = tl.arange(0, K)
    tiles = tl.cdiv(N, BN)
    behind = tl.zeros([BM, 4], tl.int32)
    l0 = behind - 1  # the best of each thread's groups, sorted
    l1, l2, l3, l4, l5, l6, l7 = l0, l0, l0, l0, l0, l0, l0
    for part in tl.static_range(3):
        if part == 0:
            start, end = low, whole_low
        elif part == 1:
            start, end = whole_low, whole_high
        else:
            start, end = whole_high, high
        if part != 0 or FIXED:
            for s0 in range(start, end, BN):
                s = s0 + j
                y = energies(
                    asked, k + (origin + s0) * k_s, bias, t, s, j, d, k_s, bias_t, bias_s, T, N,
                    scale, BIAS, part != 1, WIDTH, BD,
                )  # fmt: skip
                y = exponents(y, s, base, peak_at, S, sharpness, GAIN, SINKS)
                if part != 1:
                    ok = seen(
                        t, s, c, exists, table, table_t, T, S, N, first, half, radius, limit,
                        CAUSAL, FIXED, NEAR, STOP, EXISTS, TABLE, SINKS,
                    )  # fmt: skip
                    y = tl.where(ok, y, HIDDEN)
                w = tl.exp2(y)
                logs += _row_sums(w * y, BM, BN)
                if GAIN:
                    mass += _row_sums(w, BM, BN)

                if LISTS:
                    bits = keyed(w, taken, N - s0, BM, BN, part != 1)
                    one, other, rest = groups(bits, tiles - 1 - s0 // BN, BN)
                    behind = tl.maximum(behind, rest)
                    l0, l1, l2, l3, l4, l5, l6, l7 = sift(one, l0, l1, l2, l3, l4, l5, l6, l7, K)
                    l0, l1, l2, l3, l4, l5, l6, l7 = sift(other, l0, l1, l2, l3, l4, l5, l6, l7, K)
                    bits = tl.maximum(one, other)
                    here = (bits & taken).to(tl.float32, bitcast=True)
                    found = s0 + column(bits, tl.arange(0, 4)[None, :], BN)
                else:
                    looked = _looked_through(w, j, t, BM, BN, EXACT, LOOP)
                    most, nearest = _largest(looked, j, BN, EXACT, LOOP)
                    if EXACT or LOOP:
                        here = tl.broadcast_to(most[:, None], [BM, 4])
                        found = tl.broadcast_to((s0 + nearest)[:, None], [BM, 4])
                    else:
                        here = most
                        found = s0 + nearest
                better = here > peak
                peak = tl.where(better, here, peak)
                at = tl.where(better, found, at)

                step = tl.where(better, found.to(tl.float32) - middle, 0.0)
                second += step * (step * zeroth - 2 * moment)
                moment -= step * zeroth
                middle += step
                halves = w.to(number)
                fallen = tl.dot(tl.trans(halves), across, input_precision="ieee") * UNIT  # BN RC
                r = tl.arange(0, RC)
                # The last column is all queries of the tile: what each key receives from them.
                tl.store(received + s, tl.sum(tl.where((r == RC - 1)[None, :], fallen, 0.0), 1))
                if MAP:
                    grid = tl.sum(tl.reshape(fallen, [BN // GROUP, GROUP, RC]), 1)
                    g = s0 // GROUP + tl.arange(0, BN // GROUP)
                    tl.store(cells + g[:, None] * RC + r[None, :], grid)
                if FULL:
                    off = s.to(tl.float32)[None, :] - tl.max(middle, 1)[:, None]
                    zeroth += tl.sum(w, 1)[:, None]
                    moment += tl.sum(w * off, 1)[:, None]
                    second += tl.sum(w * off * off, 1)[:, None]
                else:
                    sums = tl.dot(halves, moments, input_precision="ieee")
                    w0, w1, w2 = _by_thread(sums, BM)
                    off = s0 * 1.0 + BN // 2 - middle
                    second += w2 + off * (2 * w1 + off * w0)
                    moment += w1 + off * w0
                    zeroth += w0
                if LOOP:
                    least = tl.min(top_w, 1)
                    while tl.max((most > least).to(tl.int32), 0) > 0:
                        chosen = top_w == least[:, None]
                        chosen = (
                            slot[None, :] == tl.min(tl.where(chosen, slot[None, :], K), 1)[:, None]
                        )
                        chosen = chosen & (most > least)[:, None]
                        top_w = tl.where(chosen, most[:, None], top_w)
                        top_s = tl.where(chosen, (s0 + nearest)[:, None], top_s)
                        looked = tl.where(j[None, :] == nearest[:, None], looked * 0, looked)
                        most, nearest = _largest(looked, j, BN, EXACT, LOOP)
                        least = tl.min(top_w, 1)

    # The thread with the peak; if several tie, the one whose peak comes first.
    best = tl.max(peak, 1)
    foremost = tl.min(tl.where(peak == best[:, None], at, 2147483647), 1)
    chosen = (peak == best[:, None]) & (at == foremost[:, None])
    lane = tl.arange(0, 4)[None, :]
    chosen = lane == tl.min(tl.where(chosen, lane, 4), 1)[:, None]
    total = tl.sum(mass, 1)
    if not GAIN:
        total = tl.where((known > float("-inf")) & (t < T), 16384.0, 0.0)
    scaled = tl.maximum(total, 1e-30)
    some = tl.maximum(_picked(zeroth, chosen), 1e-30)
    mean = _picked(moment, chosen) / some
    variance = tl.maximum(_picked(second, chosen) / some - mean * mean, 0.0)
    # -Σ (w/m) log2 (w/m); the summed logarithms are those of 2^14 w
    entropy = (tl.log2(scaled) - tl.sum(logs, 1) / scaled) * 0.6931471805599453
    nothing = total <= 0
    valid = t < T
    facts += head * T + t
    plane = tl.num_programs(1).to(tl.int64) * T
    best /= scaled
    if LISTS:
        best, foremost = meet(
            top_place, top_weight, doubt, head * T + t, valid, behind, scaled, taken, tiles,
            l0, l1, l2, l3, l4, l5, l6, l7, K, C, BN,
        )  # fmt: skip
    tl.store(facts, total * UNIT, mask=valid)
    tl.store(facts + plane, tl.where(nothing, 0.0, tl.maximum(entropy, 0.0)), mask=valid)
    tl.store(facts + 2 * plane, best, mask=valid)
    expected = _picked(middle, chosen) + mean
    tl.store(facts + 3 * plane, tl.where(nothing, 0.0, expected), mask=valid)
    tl.store(facts + 4 * plane, tl.where(nothing, 0.0, tl.sqrt(variance)), mask=valid)
    tl.store(place + head * T + t, foremost, mask=valid)
    if LOOP:
        to = (head * T + t)[:, None] * K + slot[None, :]
        tl.store(top_place + to, top_s, mask=valid[:, None])
        tl.store(top_weight + to, top_w / scaled[:, None], mask=valid[:, None])


@triton.jit(do_not_specialize=["T", "N", "rows", "columns", "tile", "tiles"])
def _gather(
    cells, out, T, N, rows, columns, tile, tiles,
    RC: tl.constexpr, GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Sum the cells over tiles of queries and groups of keys, and take the mean.

    Cell r holds the queries from ceil(r T / rows) to before ceil((r + 1) T / rows).
    """
    head = tl.program_id(2).to(tl.int64)
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    groups = tl.cdiv(N, BN) * BN // GROUP
    cells += head * tiles * groups * RC
    begin = ((r.to(tl.int64) * T + rows - 1) // rows).to(tl.int32)
    end = ((r.to(tl.int64) * T + T + rows - 1) // rows).to(tl.int32)
    left = ((c.to(tl.int64) * N + columns - 1) // columns).to(tl.int32) // GROUP
    right = ((c.to(tl.int64) * N + N + columns - 1) // columns).to(tl.int32) // GROUP
    upper = tl.maximum(begin // BM, tile)
    lower = tl.minimum((end - 1) // BM + 1, tile + tiles)
    down = r < rows
    across = c < columns
    total = tl.zeros([BR, BC], tl.float32)
    for more in range(0, tl.max(tl.where(down, lower - upper, 0), 0)):
        i = upper + more
        row = r - (i.to(tl.int64) * BM * rows // T).to(tl.int32)
        line = cells + (i - tile).to(tl.int64) * groups * RC + row
        for step in range(0, tl.max(tl.where(across, right - left, 0), 0)):
            n = left + step
            inside = (down & (i < lower))[:, None] & (across & (n < right))[None, :]
            total += tl.load(line[:, None] + n[None, :] * RC, mask=inside, other=0.0)
    to = out + (head * rows + r)[:, None] * columns + c[None, :]
    inside = down[:, None] & across[None, :]
    before = tl.load(to, mask=inside, other=0.0)
    count = tl.maximum(end - begin, 1).to(tl.float32)
    tl.store(to, before + total / count[:, None], mask=inside)


def summarise(question: Question) -> list[Tensor]:
    """Everything, as `operator` says; tensors may lie on the CPU under Triton's interpreter."""
    q, k = question.q, question.k
    B, H, T, _ = q.shape
    plan = Plan.of(question)
    log_sum = _log_sum(question, plan)
    device, heads, N = q.device, B * H, k.shape[2]
    facts = torch.empty(5, B, H, T, device=device)
    place = torch.empty(B, H, T, dtype=torch.int64, device=device)
    found_place = torch.empty(B, H, T, plan.C, dtype=torch.int64, device=device)
    found_weight = torch.empty(found_place.shape, device=device)
    doubt = torch.empty(B, H, T if plan.lists else 0, dtype=torch.int8, device=device)
    received = torch.zeros(B, H, N, device=device)
    rows, columns = question.map
    pooled = torch.zeros(B, H, rows, columns, device=device)
    tiles, keys = triton.cdiv(T, plan.BM), triton.cdiv(N, plan.BN) * plan.BN
    of_map = plan.RC * keys // plan.GROUP if rows else 0
    each = heads * (keys + of_map) * 4  # bytes of scratch for each tile of queries
    slab = max(1, min(tiles, SCRATCH // each))
    # Tiles leave the keys that they do not visit unwritten.
    empty = torch.empty if question.everything else torch.zeros
    for tile in range(0, tiles, slab):
        n = min(slab, tiles - tile)
        got = empty(heads, n, keys, device=device)
        cells = empty(heads * n * of_map, device=device)
        _summarise[(n, heads)](
            q, k, log_sum, *question.tensors(), question.given(question.gain),
            facts, place, found_place, found_weight, doubt, got, cells,
            *q.stride()[:3], *k.stride()[:3], *question.strides(), *question.strides_of_gain(),
            H, H // k.shape[1], T, question.S, N, question.first, question.half, question.radius,
            rows, columns, tile, plan.taken(N), question.scale * math.log2(math.e),
            question.sharpness, **question.flags(), GAIN=question.gain is not None,
            EXACT=plan.exact, FULL=plan.full, LISTS=plan.lists, LOOP=plan.C > 0 and not plan.lists,
            K=plan.K, C=plan.C, MAP=rows > 0, RC=plan.RC, GROUP=plan.GROUP,
            WIDTH=plan.width, BD=plan.BD, BM=plan.BM, BN=plan.BN,
            **plan.launched(),
        )  # fmt: skip
        received += got.sum(1)[:, :N].view(B, H, N)
        if rows:
            _gather[(triton.cdiv(rows, 16), triton.cdiv(columns, 64), heads)](
                cells, pooled, T, N, rows, columns, tile, n,
                RC=plan.RC, GROUP=plan.GROUP, BM=plan.BM, BN=plan.BN, BR=16, BC=64,
            )  # fmt: skip
    top = _settled(question, plan, log_sum, facts, place, found_place, found_weight, doubt)
    return [log_sum, facts, place, received, *top, pooled]


def _settled(
    question: Question,
    plan: Plan,
    log_sum: Tensor,
    facts: Tensor,
    place: Tensor,
    found_place: Tensor,
    found_weight: Tensor,
    doubt: Tensor,
) -> tuple[Tensor, Tensor]:
    """Places and shares of the largest, sorted downwards.    B H T k, twice"""
    if not plan.lists:  # the slots are in no order
        order = found_weight.argsort(-1, descending=True)[..., : question.top]
        return found_place.gather(-1, order), found_weight.gather(-1, order)
    q, k = question.q, question.k
    B, H, T, _ = q.shape
    top_place, top_weight = found_place, found_weight
    if plan.C > plan.K:
        top_place, top_weight = (x.new_empty(B, H, T, plan.K) for x in (found_place, found_weight))
    settle[(triton.cdiv(T, 16), B * H)](
        q, k, log_sum, *question.tensors(), question.given(question.gain), facts,
        found_place, found_weight, doubt, top_place, top_weight, place,
        *q.stride()[:3], *k.stride()[:3], *question.strides(), *question.strides_of_gain(),
        H, H // k.shape[1], T, question.S, k.shape[2], question.first, question.half,
        question.radius, question.scale * math.log2(math.e), question.sharpness,
        **question.flags(), GAIN=question.gain is not None, ALL=plan.C > plan.K, K=plan.K,
        C=plan.C, WIDTH=plan.width, BD=plan.BD, BN=plan.BN, ROWS=16, num_warps=1,
    )  # fmt: skip
    places, weights = (x[..., : question.top].contiguous() for x in (top_place, top_weight))
    return places, weights


def _log_sum(question: Question, plan: Plan) -> Tensor:
    """log Σ exp(e) of each row, as given or computed.    B H T"""
    if question.log_sum is not None:
        given = question.log_sum.reshape(question.q.shape[:3])
        return given.to(torch.float32, copy=True).contiguous()  # a copy, since it is returned
    q, k = question.q, question.k
    B, H, T, _ = q.shape
    log_sum = torch.empty(B, H, T, device=q.device)
    _normalise[(triton.cdiv(T, plan.BM), B * H)](
        q, k, log_sum, *question.tensors(),
        *q.stride()[:3], *k.stride()[:3], *question.strides(),
        H, H // k.shape[1], T, question.S, k.shape[2], question.first, question.half,
        question.radius, question.scale * math.log2(math.e),
        **question.flags(), WIDTH=plan.width, BD=plan.BD, BM=plan.BM, BN=plan.BN,
        **plan.launched(),
    )  # fmt: skip
    return log_sum
