"""Functions of both passes: the keys that a query sees, its gain on them, what is dropped."""

import triton
import triton.language as tl


@triton.jit
def offset(batch, head, stride_batch, stride_head, UNIT: tl.constexpr):
    """The offset of a head in elements: 64 bits, since a tensor may have more than 2³¹ of them.

    Strides are divided by UNIT, which tells the compiler how far loads are aligned.
    """
    return (batch.to(tl.int64) * stride_batch + head.to(tl.int64) * stride_head) * UNIT


@triton.jit
def part(rows, inside, n, N: tl.constexpr):
    """A slice of the rows that `rows` points to.    -> rows by n"""
    return tl.load(rows[:, None] + n[None, :], mask=inside[:, None] & (n < N)[None, :], other=0)


@triton.jit
def product(
    x, y, inside_x, inside_y, N: tl.constexpr, SLICE: tl.constexpr, PRECISION: tl.constexpr
):
    """x·y of rows too wide to be held, slice by slice; `x` and `y` point to them."""
    total = tl.zeros([x.shape[0], y.shape[0]], tl.float32)
    for start in range(0, N, SLICE):
        n = start + tl.arange(0, SLICE)
        xs, ys = part(x, inside_x, n, N), part(y, inside_y, n, N)
        total = tl.dot(xs, tl.trans(ys), total, input_precision=PRECISION)
    return total


@triton.jit
def touched(place, half, block):
    """The range of keys of all blocks that the window around each position touches."""
    begin = tl.maximum(place - half, 0) // block * block
    end = (tl.maximum(place + half, 0) // block + 1) * block
    return begin, tl.where(place + half < 0, 0, end)


@triton.jit
def near(centre, radius, S):
    """The range of keys with |s - centre| <= radius, exactly as float32 compares them.

    Rounding can move an edge by one, so both edges are tested.
    """
    wide = radius.to(tl.float32)
    inside = tl.where(centre == centre, centre, 0.0)
    inside = tl.minimum(tl.maximum(inside, -wide - 2), wide + 2 + S)
    begin = tl.floor(inside - wide).to(tl.int32) - 1
    end = tl.floor(inside + wide).to(tl.int32) + 2
    for _ in tl.static_range(3):
        begin += tl.where(inside - begin.to(tl.float32) > wide, 1, 0)
        end -= tl.where((end - 1).to(tl.float32) - inside > wide, 1, 0)
    return begin, tl.where(centre == centre, end, begin)


@triton.jit
def interval(
    place, exists, centre, stop, half, radius, block, S,
    CAUSAL: tl.constexpr, FIXED: tl.constexpr, NEAR: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The range of keys each query sees one by one: from `begin` to before `end`.

    A row that sees none gets the range S to 0, which does not widen its tile.
    """
    begin = tl.zeros_like(place)
    end = begin + stop
    if BLOCKS:
        low, high = touched(place, half, block)
        begin, end = tl.maximum(begin, low), tl.minimum(end, high)
    if FIXED:
        begin, end = tl.maximum(begin, place - half), tl.minimum(end, place + half + 1)
    if NEAR:
        low, high = near(centre, radius, S)
        begin, end = tl.maximum(begin, low), tl.minimum(end, high)
    if CAUSAL:
        end = tl.minimum(end, place + 1)
    some = exists & (begin < end)
    return tl.where(some, begin, S), tl.where(some, end, 0)


@triton.jit
def whom(rank, order, T, ORDERED: tl.constexpr):
    """The queries of these ranks."""
    if ORDERED:
        return tl.load(order + rank, mask=rank < T, other=0).to(tl.int32)
    return rank


@triton.jit
def queries(
    t, valid, centre, S, limit, first, half, radius, block,
    CAUSAL: tl.constexpr, FIXED: tl.constexpr, NEAR: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The positions of these queries, and the range of keys each sees."""
    c = 0.0
    if NEAR:
        c = tl.load(centre + t, mask=valid, other=0.0)
    place = first + t
    lo, hi = interval(place, valid, c, limit, half, radius, block, S, CAUSAL, FIXED, NEAR, BLOCKS)
    return place, lo, hi


@triton.jit
def several_runs(lo, hi, S):
    """1 if there may be unseen keys between the ranges of a tile, 0 if all ranges meet."""
    some = lo < hi
    return (tl.max(tl.where(some, lo, 0)) > tl.min(tl.where(some, hi, S))).to(tl.int32)


@triton.jit
def last_of_run(lo, hi):
    """The ranges that end a run of keys: those whose `end` no other range covers.

    Keys between runs are skipped: they may hold NaN, and zero times NaN is NaN.
    """
    covered = (lo[None, :] <= hi[:, None]) & (hi[None, :] > hi[:, None])
    return (hi > 0) & (tl.max(covered.to(tl.int32), 1) == 0)


@triton.jit
def run_end(begin, end, hi, last):
    """The end of the run of keys that starts at `begin`."""
    return tl.min(tl.where(last & (hi > begin), hi, end))


@triton.jit
def next_run(at, S, lo):
    """The start of the next run after one that ended at `at`; S: none."""
    return tl.min(tl.where(lo >= at, lo, S))


@triton.jit
def far_seen(j, place, opens, half, block):
    """Whether a query sees a block as one key: open, and not touched by the query's window.

    Blocks and queries have axes of their own, here and below.
    """
    low, high = touched(place, half, block)
    return ((j * block >= high) | ((j + 1) * block <= low)) & (opens <= place)


@triton.jit
def mixed(x):
    """A 32-bit hash: the finaliser of MurmurHash3 (Appleby 2011)."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def kept(seed, row, column, threshold):
    """Whether dropout keeps a weight, by a hash of seed, query and key.

    row: among all B·H·T queries.  column: the key; blocks are numbered after the last key.
    """
    of_row = mixed(row.to(tl.uint32) ^ seed.to(tl.uint32))
    of_row = mixed(of_row + (seed >> 32).to(tl.uint32))
    drawn = mixed(of_row + column.to(tl.uint32) * 0x9E3779B9)
    return (drawn >> 1).to(tl.int32) >= threshold


@triton.jit
def bell(s, peak, rate):
    """The gain exp(-(s - p)² / 2σ²), and s - p.    rate = log₂e / 2σ²"""
    away = s.to(tl.float32) - peak
    return tl.exp2(-rate * away * away), away


@triton.jit
def below(ranked, T, x, WIDTH: tl.constexpr = 128):
    """The number of T ascending numbers below x, by a search every T/128th first."""
    lane = tl.arange(0, WIDTH)
    stride = (T + WIDTH - 1) // WIDTH
    at = lane * stride
    some = at < T
    passed = tl.sum((some & (tl.load(ranked + at, mask=some, other=0) < x)).to(tl.int32))
    begin = tl.maximum(passed - 1, 0) * stride
    end = tl.minimum(begin + stride, T)
    count = begin
    for i in range(begin, end, WIDTH):
        some = i + lane < end
        part = tl.load(ranked + i + lane, mask=some, other=0)
        count += tl.sum((some & (part < x)).to(tl.int32))
    return count
