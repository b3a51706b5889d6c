"""The largest weights of each row, collected while looping over keys, then completed.

Four threads share a row in the layout of the matrix unit. Each keeps a short sorted list of the
best of its *groups*: in a tile of keys, the columns 8i + c for one c. Each of the k largest of a
row lies in one of the k groups with the largest best, so that one comparison network per group
replaces k searches through the tile. The largest weight that is not the best of its group is
remembered too; if it reaches the k-th of the row, `settle` searches the groups again.
"""

import triton
import triton.language as tl

from heed.kernels.statistics.device import HIDDEN, SHIFT, UNIT, biases, exponents, seen

FAR = tl.constexpr(2147483647)


@triton.jit
def keyed(weight, taken, left, BM: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr):
    """Bits of weights, combined with their row in the group.

    Bits of non-negative floats have the order of the floats. Bits outside the mask
    `taken` are replaced by the place: i from the second bit, inverted, so that the first of equals
    wins; c's own bit and the tile are added when a group is done. MASKED: only `left` keys remain.
    BM BN -> BM BN/8 4 2
    """
    bits = tl.reshape(weight.to(tl.int32, bitcast=True), [BM, BN // 8, 4, 2])
    i = tl.arange(0, BN // 8)[None, :, None, None]
    bits = (bits & taken) | ((BN // 8 - 1 - i) * 2)
    if MASKED:
        j = 8 * i + (2 * tl.arange(0, 4)[:, None] + tl.arange(0, 2)[None, :])[None, None, :, :]
        bits = tl.where(j < left, bits, -1)
    return bits


@triton.jit
def _two_best(a, b, c, d):
    return tl.maximum(a, c), tl.maximum(tl.minimum(a, c), tl.maximum(b, d))


@triton.jit
def groups(bits, tile, BN: tl.constexpr):
    """The best of each of a thread's two groups, and the largest that is not the best of a group.

    `tile` counts from the last.    BM BN/8 4 2 -> three of BM 4
    """
    best, behind = tl.reduce((bits, bits * 0), 1, _two_best)
    left, right = tl.split(best)
    where = tile * (BN // 4)  # above i and c's bit
    return left | where | 1, right | where, tl.max(behind, 2)


@triton.jit
def sift(x, a, b, c, d, e, f, g, h, K: tl.constexpr):
    """Insert x into a descending list, dropping the least; with K < 8 the unused entries stay."""
    a, x = tl.maximum(a, x), tl.minimum(a, x)
    if K > 1:
        b, x = tl.maximum(b, x), tl.minimum(b, x)
    if K > 2:
        c, x = tl.maximum(c, x), tl.minimum(c, x)
        d, x = tl.maximum(d, x), tl.minimum(d, x)
    if K > 4:
        e, x = tl.maximum(e, x), tl.minimum(e, x)
        f, x = tl.maximum(f, x), tl.minimum(f, x)
        g, x = tl.maximum(g, x), tl.minimum(g, x)
        h = tl.maximum(h, x)
    return a, b, c, d, e, f, g, h


@triton.jit
def column(bits, lane, BN: tl.constexpr):
    """The column, within its tile, of the best of a group."""
    return BN - 7 - (bits & (BN // 4 - 1)) // 2 * 8 - (bits & 1) + 2 * lane


@triton.jit
def meet(
    top_place, top_weight, doubt, row, valid, behind, total, taken, tiles,
    a, b, c, d, e, f, g, h, K: tl.constexpr, C: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Merge the lists of a row's four threads into its C best groups, and store them.

    doubt: one bit for each thread whose groups may hide another of the K largest. Returns the
    largest weight and its place.    BM
    """
    lane = tl.arange(0, 4)[None, :]
    bar = tl.max(a, 1)
    first, first_at = tl.zeros(bar.shape, tl.float32), bar * 0
    for n in tl.static_range(C):
        most = tl.max(a, 1)
        mine = lane == tl.min(tl.where(a == most[:, None], lane, 4), 1)[:, None]
        at = column(most, tl.sum(tl.where(mine, lane, 0), 1), BN)
        at += (tiles - 1 - (most & ~taken) // (BN // 4)) * BN
        at = tl.where(most < 0, 0, at)  # fewer than C keys
        # The bits that were replaced are unknown: take the middle of their range.
        bits = most & taken
        weight = tl.where(bits > 0, bits - (taken >> 1), 0).to(tl.float32, bitcast=True) / total
        tl.store(top_place + row * C + n, at, mask=valid)
        tl.store(top_weight + row * C + n, weight, mask=valid)
        if n == 0:
            first, first_at = weight, at
        if n == K - 1:
            bar = bits
        a = tl.where(mine, b, a)
        b = tl.where(mine, c, b)
        c = tl.where(mine, d, c)
        d = tl.where(mine, e, d)
        e = tl.where(mine, f, e)
        f = tl.where(mine, g, f)
        g = tl.where(mine, h, g)
        h = tl.where(mine, 0, h)
    left = behind & taken
    hidden = (left > 0) & (left >= bar[:, None])
    tl.store(doubt + row, tl.sum(tl.where(hidden, 1 << lane, 0), 1), mask=valid)
    return first, first_at


@triton.jit(do_not_specialize=["T", "S", "N", "first", "half", "radius"])
def settle(
    q, k, log_sum, stop, exists, centre, table, bias, gain, facts,
    found_place, found_weight, doubt, top_place, top_weight, place,
    q_b, q_h, q_t, k_b, k_g, k_s, stop_b, exists_b, centre_b, centre_h,
    table_b, table_h, table_t, bias_b, bias_h, bias_t, bias_s, gain_b, gain_h,
    H, share, T, S, N, first, half, radius, scale, sharpness,
    CAUSAL: tl.constexpr, FIXED: tl.constexpr, NEAR: tl.constexpr, STOP: tl.constexpr,
    EXISTS: tl.constexpr, TABLE: tl.constexpr, SINKS: tl.constexpr, BIAS: tl.constexpr,
    GAIN: tl.constexpr, ALL: tl.constexpr, K: tl.constexpr, C: tl.constexpr,
    WIDTH: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The K largest of a row from its C best groups, if they are not known yet.

    Keys of groups in doubt are compared with the query again. With ALL, the best of every group
    is: in long rows the place takes too many bits of the weight.
    """
    head = tl.program_id(1).to(tl.int64)
    b, h = head // H, head % H
    d = tl.arange(0, BD)
    i = tl.arange(0, BN // 8)
    slot = tl.arange(0, C)
    k += b * k_b + (h // share) * k_g
    plane = tl.num_programs(1).to(tl.int64) * T
    limit = N
    if STOP:
        limit = tl.load(stop + b * stop_b)
    for t0 in range(tl.program_id(0) * ROWS, tl.minimum(tl.program_id(0) * ROWS + ROWS, T)):
        row = head * T + t0
        unsure = tl.load(doubt + row)
        if ALL or unsure != 0:
            t = t0 + tl.arange(0, 1)
            base = tl.load(log_sum + head * T + t) * 1.4426950408889634
            base = tl.where(base == float("-inf"), 0.0, base) - SHIFT
            mass = tl.maximum(tl.load(facts + row), 1e-30)
            c = tl.zeros([1], tl.float32)
            if NEAR:
                c = tl.load(centre + b * centre_b + h * centre_h + t)
            peak_at = tl.zeros([1], tl.float32)
            if GAIN:
                peak_at = tl.load(gain + b * gain_b + h * gain_h + t)
            asked = q + b * q_b + h * q_h + (row - head * T) * q_t + d
            asked = tl.load(asked, mask=d < WIDTH, other=0.0).to(tl.float32)
            at = tl.load(found_place + row * C + slot).to(tl.int32)
            weight = tl.load(found_weight + row * C + slot)
            places = (at // BN * BN + at % 8)[:, None] + 8 * i[None, :]  # C BN/8
            weights = tl.where(places == at[:, None], weight[:, None], -1.0)  # -1: not searched
            for n in tl.static_range(C):
                best = tl.load(found_place + row * C + n).to(tl.int32)
                again = (unsure >> (best % 8 // 2)) & 1
                if ALL or again != 0:
                    s = best // BN * BN + best % 8 + 8 * i
                    wanted = (s == best) | (again != 0)
                    inside = (wanted & (s < N))[:, None] & (d < WIDTH)[None, :]
                    keys = k + s.to(tl.int64)[:, None] * k_s + d[None, :]
                    keys = tl.load(keys, mask=inside, other=0.0).to(tl.float32)
                    e = tl.sum(keys * asked[None, :], 1)[None, :] * scale
                    if BIAS:
                        e += biases(bias + b * bias_b + h * bias_h, t, s, bias_t, bias_s, T, N)
                    y = exponents(e, s, base, peak_at, S, sharpness, GAIN, SINKS)
                    ok = seen(
                        t, s, c, exists + b * exists_b, table + b * table_b + h * table_h, table_t,
                        T, S, N, first, half, radius, limit,
                        CAUSAL, FIXED, NEAR, STOP, EXISTS, TABLE, SINKS,
                    )  # fmt: skip
                    fresh = tl.exp2(tl.where(ok, y, HIDDEN)) * UNIT / mass
                    fresh = tl.where(wanted[None, :], fresh, -1.0)
                    weights = tl.where((slot == n)[:, None], fresh, weights)
            for n in tl.static_range(K):
                most = tl.max(tl.max(weights, 1), 0)
                p = tl.min(tl.min(tl.where(weights == most, places, FAR), 1), 0)
                weights = tl.where(places == p, -2.0, weights)
                p = tl.where(most < 0, 0, p)  # fewer than K keys
                most = tl.maximum(most, 0.0)
                tl.store(top_place + row * K + n, p)
                tl.store(top_weight + row * K + n, most)
                if n == 0:
                    tl.store(facts + 2 * plane + row, most)
                    tl.store(place + row, p)
