"""Functions of the Triton kernels of additive attention: exponentials, visibility, energies.

Queries and keys reach the energy loop as exponentials e^{2x}, laid out width-major with two
neighbouring widths side by side (`pairs`: D/2 N 2 for N rows), so that one 64-bit load per row
brings both halves of a pair, and no layout changes between the load and the arithmetic.
"""

import triton
import triton.language as tl

from heed.kernels.launching import INTERPRETED

ROWS = tl.constexpr(16 if INTERPRETED.value else 64)
"""Rows of queries or keys that are taken together, and share one form of tanh.

Fewer in the interpreter, which counts instructions: short lengths then cross blocks, too.
"""

SLICES = tl.constexpr(32)
"""Maxima kept per block of rows: one for each 64 of the width, which is at most 2048."""

TWO_LOG2E = tl.constexpr(2.885390081777927)  # e^{2x} = 2^{x·2/ln 2}
TWO_LOG2E_HIGH = tl.constexpr(2.885390043258667)  # as a float32, and what that leaves out
TWO_LOG2E_LOW = tl.constexpr(3.85192597818218e-08)
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)

SMALL = tl.constexpr(1.0)
"""Up to here the addition theorem keeps digits that 1 - 2 / (1 + e^{2x}) loses."""

SHARED = tl.constexpr(20.0)
"""Up to this |q| + |k| the product of two denominators stays far below the largest float32."""

SHARED_BY_FOUR = tl.constexpr(10.0)
"""Up to this |q| + |k| the product of four denominators does."""

STEEPEST = tl.constexpr(60.0)
"""Exponents of two are clamped here; magnitudes small enough to share never reach it."""

PLAIN_INTEGERS = [
    "T", "S", "H", "G", "blocks_t", "blocks_s", "programs_q",
    "q_b", "q_h", "q_t", "k_b", "k_g", "k_s", "v_b", "v_g", "v_s",
    "table_b", "table_h", "table_t", "table_s", "first", "behind", "ahead", "radius",
    "b0", "block0", "blocks", "again", "size",
]  # fmt: skip
"""Parameters that may change from call to call without a new compilation."""


@triton.jit
def reciprocal(x):
    """1 / x to one unit in the last place, in a single instruction."""
    if INTERPRETED:
        return 1.0 / x
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def halves(pair):
    """Two float32 that were loaded as one 64-bit integer."""
    low = pair.to(tl.int32).to(tl.float32, bitcast=True)
    high = (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return low, high


@triton.jit
def power(x):
    """e^{2x} to about one unit in the last place: the hardware's ex2 would show in float32."""
    whole = tl.floor(tl.minimum(tl.maximum(x * TWO_LOG2E_HIGH, -STEEPEST), STEEPEST) + 0.5)
    rest = tl.fma(x, tl.full(x.shape, TWO_LOG2E_HIGH, tl.float32), -whole) + x * TWO_LOG2E_LOW
    rest = tl.maximum(rest, -1.0, propagate_nan=tl.PropagateNan.ALL)  # a GPU would give -1 for NaN
    rest = tl.minimum(rest, 1.0, propagate_nan=tl.PropagateNan.ALL)
    y = rest * 1.5252733804059841e-05 + 1.5403530393381608e-04
    y = y * rest + 1.3333558146428443e-03
    y = y * rest + 9.6181291076284771e-03
    y = y * rest + 5.5504108664821580e-02
    y = y * rest + 2.4022650695910071e-01
    y = y * rest + 6.9314718055994531e-01
    y = y * rest + 1.0
    return y * ((whole.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def tanh(x):
    """tanh to a few units in the last place, of infinities too; NaN stays NaN."""
    grown = tl.exp2(tl.minimum(tl.maximum(x, -20.0), 20.0) * TWO_LOG2E)
    square = tl.minimum(x * x, 1.0, propagate_nan=tl.PropagateNan.ALL)
    series = square * (62.0 / 2835.0) - 17.0 / 315.0
    series = series * square + 2.0 / 15.0
    series = series * square - 1.0 / 3.0
    near = x + x * square * series
    return tl.where(square >= 0.0625, 1.0 - 2.0 * reciprocal(1.0 + grown), near)


@triton.jit
def bend(x, PRECISE: tl.constexpr):
    """tanh, or for half-precision inputs a faster form whose error they cannot show."""
    if PRECISE:
        return tanh(x)
    if INTERPRETED:  # warns about the infinity that the reciprocal turns into zero
        x = tl.minimum(x, 40.0)
    return 1.0 - 2.0 * reciprocal(1.0 + tl.exp2(x * TWO_LOG2E))


@triton.jit
def score(w, d, D, DEPTH: tl.constexpr):
    """The score vector at d; zero beyond the width, since steps of four may overrun it."""
    if DEPTH % 4 == 0:
        return tl.load(w + d)
    return tl.load(w + d, mask=d < D, other=0.0)


@triton.jit
def largest(top, block):
    """The largest finite magnitude of a block of rows."""
    return tl.max(tl.load(top + block.to(tl.int64) * SLICES + tl.arange(0, SLICES)), 0)


@triton.jit
def total(w, D, DEPTH: tl.constexpr, WIDTH: tl.constexpr):
    """Σ w_d over a slice of the width: the constant term of 1 - 2 / (1 + e^{2x})."""
    d = tl.arange(0, WIDTH)
    return tl.sum(tl.load(w + d, mask=(d < D) & (d < DEPTH), other=0.0), 0)


@triton.jit
def energy_tile(
    pairs_q,  # e^{2q} of this head  D/2 T 2, as int64
    pairs_k,  # e^{2k}  D/2 S 2
    tanhs_q,  # tanh in the same layout, or None
    tanhs_k,
    q,  # the queries, a pointer to each row  BT
    k,
    w,  # of this head  D
    high_q,  # the largest magnitude in the tile
    high_k,
    t,
    s,
    T,
    S,
    step_q,  # stride of pairs_q: rows, padded
    step_k,
    start,  # the first width of the slice
    layout,  # any float32 tensor
    D: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
    BT: tl.constexpr,
    BS: tl.constexpr,
):
    """Energies Σ_d w_d tanh(q_td + k_sd) of BT queries and BS keys, in the form that suits them.

    The sum goes over DEPTH widths from `start`, a multiple of four.
    """
    # The load reads nothing: it makes the compiler keep a row of keys together in registers.
    place = tl.arange(0, BT)[:, None] * BS + tl.arange(0, BS)[None, :]
    zero = tl.load(layout + place, mask=place < -T, other=0.0).to(tl.float32)
    row_q, row_k = start // 2 * step_q + t, start // 2 * step_k + s
    high, rest = high_q + high_k, D - start
    q, k, w = q + start, k + start, w + start
    pairs_q, pairs_k = pairs_q + row_q, pairs_k + row_k
    if tanhs_q is None:
        if high <= SHARED_BY_FOUR:
            part = by_fours(pairs_q, pairs_k, w, step_q, step_k, zero, rest, DEPTH)
            energy = total(w, rest, DEPTH, WIDTH) - 2.0 * part
        elif high <= SHARED:
            part = by_pairs(pairs_q, pairs_k, w, step_q, step_k, zero, rest, DEPTH)
            energy = total(w, rest, DEPTH, WIDTH) - 2.0 * part
        else:
            energy = by_sums(q, k, w, t < T, s < S, zero, rest, DEPTH)
    elif tl.maximum(high_q, high_k) <= SMALL:
        energy = by_addition(tanhs_q + row_q, tanhs_k + row_k, w, step_q, step_k, zero, rest, DEPTH)
    elif high <= SHARED:
        energy = by_curves(pairs_q, pairs_k, w, step_q, step_k, zero, rest, DEPTH)
    else:
        energy = by_sums(q, k, w, t < T, s < S, zero, rest, DEPTH)
    return energy


@triton.jit
def by_fours(q, k, w, step_q, step_k, energy, D, DEPTH: tl.constexpr):
    """Σ_d w_d / (1 + e^{2q} e^{2k}); four denominators share a reciprocal."""
    for d in range(0, DEPTH, 4):
        n1, p1 = fraction(tl.load(q), tl.load(k), w, d, D, DEPTH)
        n2, p2 = fraction(tl.load(q + step_q), tl.load(k + step_k), w, d + 2, D, DEPTH)
        energy += (n1 * p2 + n2 * p1) * reciprocal(p1 * p2)
        q += 2 * step_q
        k += 2 * step_k
    return energy


@triton.jit
def fraction(q, k, w, d, D, DEPTH: tl.constexpr):
    """w₁/b₁ + w₂/b₂ as one fraction: numerator and denominator."""
    q1, q2 = halves(q)
    k1, k2 = halves(k)
    w1, w2 = score(w, d, D, DEPTH), score(w, d + 1, D, DEPTH)
    b1 = q1[:, None] * k1[None, :] + 1.0
    b2 = q2[:, None] * k2[None, :] + 1.0
    return w1 * b2 + w2 * b1, b1 * b2


@triton.jit
def by_pairs(q, k, w, step_q, step_k, energy, D, DEPTH: tl.constexpr):
    """The same with two denominators to a reciprocal, for ranges where four could overflow."""
    for d in range(0, DEPTH, 2):
        n, p = fraction(tl.load(q), tl.load(k), w, d, D, DEPTH)
        energy += n * reciprocal(p)
        q += step_q
        k += step_k
    return energy


@triton.jit
def by_curves(q, k, w, step_q, step_k, energy, D, DEPTH: tl.constexpr):
    """Σ_d w_d tanh from tanh = -2 (1 / (1 + e^{2q} e^{2k}) - 1/2): one operation more, but no large
    constant is subtracted, which would cost float32 digits."""
    for d in range(0, DEPTH, 2):
        q1, q2 = halves(tl.load(q))
        k1, k2 = halves(tl.load(k))
        w1, w2 = score(w, d, D, DEPTH), score(w, d + 1, D, DEPTH)
        b1 = q1[:, None] * k1[None, :] + 1.0
        b2 = q2[:, None] * k2[None, :] + 1.0
        shared = reciprocal(b1 * b2)
        energy += (shared * b2 - 0.5) * (-2.0 * w1)
        energy += (shared * b1 - 0.5) * (-2.0 * w2)
        q += step_q
        k += step_k
    return energy


@triton.jit
def by_addition(q, k, w, step_q, step_k, energy, D, DEPTH: tl.constexpr):
    """Σ_d w_d (t_q + t_k) / (1 + t_q t_k), t = tanh; two denominators share a reciprocal."""
    for d in range(0, DEPTH, 2):
        q1, q2 = halves(tl.load(q))
        k1, k2 = halves(tl.load(k))
        w1, w2 = score(w, d, D, DEPTH), score(w, d + 1, D, DEPTH)
        b1 = q1[:, None] * k1[None, :] + 1.0
        b2 = q2[:, None] * k2[None, :] + 1.0
        a1 = (q1[:, None] + k1[None, :]) * w1
        a2 = (q2[:, None] + k2[None, :]) * w2
        energy += (a1 * b2 + a2 * b1) * reciprocal(b1 * b2)
        q += step_q
        k += step_k
    return energy


@triton.jit
def by_sums(q, k, w, there_q, there_k, energy, D, DEPTH: tl.constexpr):
    """Σ_d w_d tanh(q + k) itself, where the exponentials of q and k alone would overflow."""
    PRECISE: tl.constexpr = q.dtype.element_ty == tl.float32
    for d in range(0, tl.minimum(D, DEPTH)):
        q1 = tl.load(q + d, mask=there_q, other=0.0).to(tl.float32)
        k1 = tl.load(k + d, mask=there_k, other=0.0).to(tl.float32)
        energy += tl.load(w + d) * bend(q1[:, None] + k1[None, :], PRECISE)
    return energy


@triton.jit
def span(
    t0, T, S, b, h, H, stop, centre, first, behind, ahead, radius,
    BT: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """The range of keys that any of BT queries may see; it starts at a multiple of BS."""
    end = S
    if stop is not None:
        end = tl.minimum(end, tl.load(stop + b))
    start = tl.maximum(t0 + first - behind, 0)
    end = tl.minimum(end, tl.minimum(t0 + BT, T) + first + ahead)
    if centre is not None:
        t = t0 + tl.arange(0, BT)
        here = tl.load(centre + (tl.cast(b, tl.int64) * H + h) * T + t, mask=t < T, other=0.0)
        least = tl.min(tl.where(t < T, here, float("inf")), 0) - radius
        most = tl.max(tl.where(t < T, here, float("-inf")), 0) + radius
        start = tl.maximum(start, tl.minimum(tl.maximum(least, 0.0), S * 1.0).to(tl.int32))
        end = tl.minimum(end, tl.minimum(tl.maximum(most + 1.0, 0.0), S * 1.0).to(tl.int32))
    return start // BS * BS, end


@triton.jit
def seen_tile(
    t, s, T, S, b, h, H, stop, exists, table, centre, table_b, table_h, table_t, table_s,
    first, behind, ahead, radius,
):  # fmt: skip
    """The keys of s that each of the queries t may see."""
    end = S
    if stop is not None:
        end = tl.minimum(end, tl.load(stop + b))
    after = tl.minimum(t + first + ahead + 1, end)
    after = tl.where(t < T, after, 0)
    seen = (s[None, :] >= (t + first - behind)[:, None]) & (s[None, :] < after[:, None])
    if exists is not None:
        there = tl.load(exists + b.to(tl.int64) * S + s, mask=s < S, other=0) != 0
        seen = seen & there[None, :]
    if centre is not None:
        here = tl.load(centre + (b.to(tl.int64) * H + h) * T + t, mask=t < T, other=0.0)
        seen = seen & (tl.abs(s.to(tl.float32)[None, :] - here[:, None]) <= radius)
    if table is not None:
        at = table + b.to(tl.int64) * table_b + h.to(tl.int64) * table_h
        at = at + t.to(tl.int64)[:, None] * table_t + s.to(tl.int64)[None, :] * table_s
        seen = seen & (tl.load(at, mask=seen, other=0) != 0)
    return seen


@triton.jit
def gain_tile(t, s, T, b, h, H, gain_centre, sigma):
    """The Gaussian gain of each query on each key, and how far each key is from its centre."""
    here = tl.load(gain_centre + (b.to(tl.int64) * H + h) * T + t, mask=t < T, other=0.0)
    away = s.to(tl.float32)[None, :] - here[:, None]
    scaled = away / sigma
    return tl.exp2(scaled * scaled * (-0.5 * LOG2E)), away


@triton.jit
def kept_tile(t, s, row, seed, dropout, boost):
    """The dropout factor of weights: 0 or the boost, drawn from seed, query and key."""
    place = s[None, :] + tl.zeros_like(t)[:, None]
    query = t[:, None] + tl.zeros_like(s)[None, :]
    head = tl.zeros_like(place) + row
    drawn, _, _, _ = tl.philox(
        tl.load(seed),
        place.to(tl.uint32),
        query.to(tl.uint32),
        head.to(tl.uint32),
        tl.zeros_like(head).to(tl.uint32),
    )
    uniform = (drawn >> 8).to(tl.float32) * (1.0 / 16777216.0)
    return tl.where(uniform >= dropout, boost, 0.0)


@triton.jit
def packed(low, high):
    """Two float32 as one 64-bit integer."""
    low = low.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return low | (high.to(tl.int32, bitcast=True).to(tl.int64) << 32)


@triton.jit
def curve(grown, pair):
    """c = 1 / (1 + grown·x) - 1/2 for both halves of a pair, with one reciprocal."""
    x1, x2 = halves(pair)
    b1 = grown * x1[None, :] + 1.0
    b2 = grown * x2[None, :] + 1.0
    shared = reciprocal(b1 * b2)
    return shared * b2 - 0.5, shared * b1 - 0.5
