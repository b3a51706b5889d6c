"""The context and the statistics of each row of weights, in one pass over keys and values.

A program has a tile of queries, and beside its running softmax keeps what the statistics of rows
need. What keys receive depends on each row's final sum, and is therefore left out.
"""

import math
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.kernels.launching import at, launch
from heed.kernels.statistics.device import energies, reach, seen
from heed.kernels.statistics.operator import room
from heed.kernels.statistics.plan import Question
from heed.kernels.statistics.tuned import ONE_PASS_FLOAT, ONE_PASS_HALF, Tiles
from heed.kernels.strides import dense

UNSEEN = tl.constexpr(-1e30)
"""The energy of hidden keys: finite, so that their zero weight times it is zero and not NaN."""

RUN_TIME = (
    "q_b", "q_h", "q_t", "k_b", "k_g", "k_s", "v_b", "v_g", "v_s", "to_b", "to_h", "to_t",
    "stop_b", "exists_b", "centre_b", "centre_h", "table_b", "table_h", "table_t",
    "bias_b", "bias_h", "bias_t", "bias_s", "H", "share", "T", "S", "N", "first", "half", "radius",
    "tiles",
)  # fmt: skip


@triton.jit
def _apart(x, BM: tl.constexpr, BN: tl.constexpr, A: tl.constexpr):
    """A tile split by the A threads that share a row.

    In the matrix unit's layout eight columns belong to four threads, two each.
    BM BN -> BM BN/2A A 2
    """
    return tl.reshape(x, [BM, BN // (2 * A), A, 2])


@triton.jit
def _sums(x):
    """The sum for each thread of a row.    BM n A 2 -> BM A"""
    return tl.sum(tl.sum(x, 1), 2)


@triton.jit
def _largest(p, t, BN: tl.constexpr, A: tl.constexpr, EXACT: tl.constexpr):
    """The largest weight of each thread in a tile, and its column, the first of equals.    BM A

    Bits of non-negative floats have the order of the floats. Unless EXACT, the lowest are replaced
    by the column, so that one maximum finds both.
    """
    own = tl.arange(0, BN // (2 * A))[:, None, None] * (2 * A) + tl.arange(0, 2)[None, None, :]
    lane = 2 * tl.arange(0, A)[None, :]
    if EXACT:
        most = tl.max(tl.max(p, 1), 2)
        same = p == most[:, None, :, None]
        column = tl.min(tl.min(tl.where(same, own[None, :, :, :], BN), 1), 2)
        column = tl.minimum(column + lane, BN - 1)
    else:
        bits = p.to(tl.int32, bitcast=True)
        # The compiler does not see that this mask is constant, and keeps it in a register; so
        # the instruction has room for the column: one operation instead of two.
        high = tl.where(t >= 0, -BN, 0)[:, None, None, None]
        both = tl.max(tl.max((bits & high) | (BN - 1 - own)[None, :, :, :], 1), 2)
        most = (both & -BN).to(tl.float32, bitcast=True)
        column = BN - 1 - (both & (BN - 1)) + lane
    return most, column


@triton.jit(do_not_specialize=RUN_TIME)
def _attend(
    q, k, v, stop, exists, centre, table, bias, context, facts, place,
    q_b, q_h, q_t, k_b, k_g, k_s, v_b, v_g, v_s, to_b, to_h, to_t,
    stop_b, exists_b, centre_b, centre_h, table_b, table_h, table_t,
    bias_b, bias_h, bias_t, bias_s, H, share, T, S, N, first, half, radius, tiles, scale,
    CAUSAL: tl.constexpr, FIXED: tl.constexpr, NEAR: tl.constexpr, STOP: tl.constexpr,
    EXISTS: tl.constexpr, TABLE: tl.constexpr, SINKS: tl.constexpr, BIAS: tl.constexpr,
    CLEAN: tl.constexpr, SAID: tl.constexpr, LATE: tl.constexpr, EXACT: tl.constexpr,
    UNIT: tl.constexpr, WIDTH: tl.constexpr, BD: tl.constexpr, R: tl.constexpr, BR: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, A: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A tile of queries of one head; SAID: with statistics."""
    head = (tl.program_id(0) // tiles).to(tl.int64)
    b, h = head // H, head % H
    tile = tl.program_id(0) % tiles
    if CAUSAL:  # the longest rows first
        tile = tiles - 1 - tile
    begin = tile * BM
    t = begin + tl.arange(0, BM)
    d, r, j = tl.arange(0, BD), tl.arange(0, BR), tl.arange(0, BN)
    valid = t < T
    q += (b * q_b + h * q_h) * UNIT
    inside = valid[:, None] & (d < WIDTH)[None, :]
    asked = tl.load(q + t.to(tl.int64)[:, None] * (q_t * UNIT) + d[None, :], mask=inside, other=0.0)
    k += (b * k_b + (h // share) * k_g) * UNIT
    v += (b * v_b + (h // share) * v_g) * UNIT
    exists += b * exists_b
    table += b * table_b + h * table_h
    bias += b * bias_b + h * bias_h
    c = tl.zeros([BM], tl.float32)
    if NEAR:
        c = tl.load(centre + b * centre_b + h * centre_h + t, mask=valid, other=0.0)
    limit = N
    if STOP:
        limit = tl.load(stop + b * stop_b).to(tl.int32)
    origin = b * 0  # 64 bits
    low, high, whole_low, whole_high = reach(
        begin, c, T, S, N, first, half, radius, limit,
        CAUSAL, FIXED, NEAR, STOP, EXISTS or TABLE or NEAR, SINKS, BM, BN,
    )  # fmt: skip
    low, high = low.to(tl.int32), high.to(tl.int32)  # a window may exceed 32 bits
    whole_low, whole_high = whole_low.to(tl.int32), whole_high.to(tl.int32)

    column = tl.arange(0, BN // (2 * A))[:, None, None] * (2 * A) + tl.arange(0, 2)[None, None, :]
    column = (column - BN // 2).to(tl.float32)[None, :, :, :]  # from the middle; without the thread
    best = tl.full([BM], UNSEEN, tl.float32)
    anchor = tl.zeros([BM], tl.float32)  # subtracted from exponents: the largest energy so far
    read = tl.zeros([BM, BR], tl.float32)
    # The threads that share a row keep their own sums, which are merged after the last tile.
    total = tl.zeros([BM, A], tl.float32)
    logs = tl.zeros([BM, A], tl.float32)  # Σ p log2 p
    moment = tl.zeros([BM, A], tl.float32)
    second = tl.zeros([BM, A], tl.float32)
    middle = tl.zeros([BM, A], tl.float32)  # the origin of the moments: the peak, or its tile
    peak = tl.zeros([BM, A], tl.float32)
    where = tl.zeros([BM, A], tl.int32)
    for part in tl.static_range(3):
        if part == 0:
            start, end = low, whole_low
        elif part == 1:
            start, end = whole_low, whole_high
        else:
            start, end = whole_high, high
        if part != 0 or FIXED:
            for s0 in tl.range(start, end, BN, num_stages=STAGES):
                s = s0 + j
                e = energies(
                    asked, k + (origin + s0) * (k_s * UNIT), bias, t, s, j, d, k_s * UNIT,
                    bias_t, bias_s, T, N, 1.0 if LATE else scale, BIAS, part != 1, WIDTH, BD,
                )  # fmt: skip
                if BIAS:  # a bias of -inf hides, too
                    e = tl.maximum(e, UNSEEN)
                if part != 1:
                    ok = seen(
                        t, s, c, exists, table, table_t, T, S, N, first, half, radius, limit,
                        CAUSAL, FIXED, NEAR, STOP, EXISTS, TABLE, SINKS,
                    )  # fmt: skip
                    e = tl.where(ok, e, UNSEEN)
                y = _apart(e, BM, BN, A)
                best = tl.maximum(best, tl.max(tl.max(tl.max(y, 1), 2), 1))
                now = tl.where(best <= UNSEEN, 0.0, best)
                if LATE:
                    now *= scale
                    y = y * scale - now[:, None, None, None]
                else:
                    y -= now[:, None, None, None]
                p = tl.exp2(y)
                # Before the first visible key `fall` may be positive, but all sums are zero.
                fall = anchor - now
                decay = tl.exp2(tl.minimum(fall, 0.0))
                anchor = now
                less = tl.broadcast_to(decay[:, None], [BM, A])
                here = _sums(p)
                if SAID:
                    logs = (logs + fall[:, None] * total) * less + _sums(p * y)
                    total *= less
                    moment *= less
                    second *= less
                    peak *= less
                    most, found = _largest(p, t, BN, A, EXACT)
                    better = most > peak
                    peak = tl.where(better, most, peak)
                    where = tl.where(better, s0 + found, where)
                    near = s0 + found - BN // 2 if EXACT else s0
                    step = tl.where(better, near * 1.0 - middle, 0.0)
                    second += step * (step * total - 2 * moment)
                    moment -= step * total
                    middle += step
                    off = s0 * 1.0 - middle
                    if EXACT:
                        away = column + off[:, None, :, None]
                        moment += _sums(p * away)
                        second += _sums(p * away * away)
                    else:
                        one = _sums(p * column)
                        both = one + off * here
                        second += _sums(p * (column * column)) + off * (one + both)
                        moment += both
                    total += here
                else:
                    total = total * less + here
                at_v = v + (origin + s0) * (v_s * UNIT) + (j[:, None] * (v_s * UNIT) + r[None, :])
                if part != 1 or R != BR:
                    held = (s < N)[:, None] & (r < R)[None, :]
                    values = tl.load(at_v, mask=held, other=0.0)
                else:
                    values = tl.load(at_v)
                if part != 1 and not CLEAN:  # zero times NaN is not zero
                    values = tl.where((tl.max(ok.to(tl.int32), 0) > 0)[:, None], values, 0.0)
                weight = tl.reshape(p, [BM, BN]).to(values.dtype)
                read = tl.dot(weight, values, read * decay[:, None], input_precision="ieee")

    sum = tl.sum(total, 1)
    nothing = sum == 0.0
    scaled = tl.where(nothing, 1.0, sum)
    to = context + b * to_b + h * to_h + t.to(tl.int64)[:, None] * to_t + r[None, :]
    tl.store(to, (read / scaled[:, None]), mask=valid[:, None] & (r < R)[None, :])
    if SAID:
        # The thread with the peak; if several tie, the one whose peak comes first.
        most = tl.max(peak, 1)
        first_of = tl.min(tl.where(peak == most[:, None], where, 2147483647), 1)
        chosen = (peak == most[:, None]) & (where == first_of[:, None])
        around = tl.max(tl.where(chosen, middle, 0.0), 1)
        away = middle + 2.0 * tl.arange(0, A)[None, :] - around[:, None]
        mean = tl.sum(moment + away * total, 1) / scaled
        square = tl.sum(second + away * (2 * moment + away * total), 1) / scaled
        spread = tl.sqrt(tl.maximum(square - mean * mean, 0.0))
        entropy = tl.maximum(tl.log2(scaled) - tl.sum(logs, 1) / scaled, 0.0) * 0.6931471805599453
        log_sum = (anchor + tl.log2(scaled)) * 0.6931471805599453
        expected = around + BN // 2 + mean
        facts += head * T + t
        plane = (tl.num_programs(0) // tiles).to(tl.int64) * T
        tl.store(facts, tl.where(nothing, 0.0, 1.0), mask=valid)
        tl.store(facts + plane, tl.where(nothing, 0.0, entropy), mask=valid)
        tl.store(facts + 2 * plane, most / scaled, mask=valid)
        tl.store(facts + 3 * plane, tl.where(nothing, 0.0, expected), mask=valid)
        tl.store(facts + 4 * plane, tl.where(nothing, 0.0, spread), mask=valid)
        tl.store(facts + 5 * plane, tl.where(nothing, float("-inf"), log_sum), mask=valid)
        tl.store(place + head * T + t, first_of.to(tl.int64), mask=valid)


def tile_for(question: Question, R: int) -> Tiles:
    """The fastest tile that this GPU's shared memory holds, no taller than the queries need."""
    T, D, size = question.q.shape[2], question.q.shape[3], question.q.element_size()
    masks = (question.table is not None) + (question.bias is not None)
    some = ONE_PASS_FLOAT if question.q.dtype == torch.float32 else ONE_PASS_HALF
    tall = max(16, triton.next_power_of_2(T))
    some = tuple(tile for tile in some if tile[0] <= tall)
    most = shared_memory(question.q.device)
    D, R = (max(16, triton.next_power_of_2(n)) for n in (D, R))
    for BM, BN, warps, stages in some:
        if (BM * D + stages * BN * (D + R)) * size + masks * BM * BN * 4 <= most:
            return BM, BN, warps, stages
    return some[-1]


@cache
def shared_memory(device: torch.device) -> int:
    """The bytes of shared memory that a program may take."""
    if device.type != "cuda":  # Triton's interpreter
        return 232_448
    told: Any = torch.cuda.get_device_properties(device)
    return int(told.shared_memory_per_block_optin)


def attend(
    question: Question, v: Tensor, clean: bool, said: bool = True, tile: Tiles | None = None
) -> list[Tensor]:
    """Context B H T R; and mass, entropy, peak, expected place, spread and log Σ exp(e), 6 B H T,
    and the place of the peak, B H T.

    clean  no value that nobody sees is NaN or infinite
    said   False: the context alone, by the very same kernel, for comparison
    tile   instead of the one from `tile_for`

    Tensors may lie on the CPU under Triton's interpreter.
    """
    q, k = question.q, question.k
    v = dense(v)
    (B, H, T, D), (G, N), R = q.shape, k.shape[1:3], v.shape[-1]
    context = room(q, R)
    facts = q.new_empty((6, B, H, T) if said else (1,), dtype=torch.float32)
    place = q.new_empty((B, H, T) if said else (1,), dtype=torch.int64)
    if not context.numel():
        return [context, facts, place]
    BM, BN, warps, stages = tile or tile_for(question, R)
    steps = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3])
    unit = next(n for n in (8, 4, 1) if not any(step % n for step in steps))
    half = q.dtype != torch.float32
    tiles = triton.cdiv(T, BM)
    launch(
        _attend,
        (tiles * B * H, 1),
        tuple(map(at, (q, k, v, *question.tensors(), context, facts, place))),
        (
            *[step // unit for step in steps], *context.stride()[:3], *question.strides(),
            H, H // G, T, question.S, N, question.first, question.half, question.radius, tiles,
            question.scale * math.log2(math.e),
        ),
        (
            *question.flags().values(), clean, said, _late(question), not half, unit,
            D, max(16, triton.next_power_of_2(D)), R, max(16, triton.next_power_of_2(R)),
            BM, BN, 4 if half else 1, stages,
        ),
        warps,
    )  # fmt: skip
    return [context, facts, place]


def _late(question: Question) -> bool:
    """Whether to apply the scale in the exponent, where it costs nothing.

    The largest weight is then one but for rounding: of energies as large as 10⁹ it can be 2^64,
    which bfloat16 can hold.
    """
    return question.q.dtype == torch.bfloat16 and question.bias is None and question.scale > 0
