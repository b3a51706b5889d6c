"""The backward pass in Triton: weights from the stored log-sum, then one sum for each gradient.

The gradients of the energies of a stretch of queries are stored (`slopes`) and read by two kernels
that sum over keys and over queries, each from a copy that is contiguous along its sum. With
c = 1 / (1 + e^{2q} e^{2k}) - 1/2, tanh = -2c and its derivative is 4 (1/4 - c²); two neighbours
along the sum share a reciprocal.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.kernels.additive import tuned
from heed.kernels.additive.device import (
    LOG2E,
    PLAIN_INTEGERS,
    ROWS,
    SHARED,
    curve,
    gain_tile,
    halves,
    kept_tile,
    largest,
    power,
    seen_tile,
    span,
    tanh,
)
from heed.kernels.additive.forward import Energies, energies_at
from heed.kernels.additive.plan import Plan
from heed.kernels.additive.row import backward as by_row
from heed.kernels.additive.scene import Back, Found, Scene, Stretch
from heed.kernels.launching import At, at, launch


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def slope_kernel(
    v, grad, log_sum, delta, energies, turned, weights, moments,
    stop, exists, table, centre, gain_centre, seed,
    T, S, H, G, blocks_s, v_b, v_g, v_s, table_b, table_h, table_t, table_s,
    first, behind, ahead, radius, b0, block0, blocks, size, sigma, dropout, boost,
    R: tl.constexpr, READ: tl.constexpr, SLICED: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Overwrites energies, 64 queries by 64 keys, with their gradients, slopes; stores weights.

    turned  a transposed copy of the slopes: those of one key are contiguous
    """
    program = tl.program_id(0)
    block, local = program // blocks_s % blocks, program // blocks_s // blocks
    s0 = program % blocks_s * ROWS
    b, h = b0 + local // H, local % H
    row, g = b * H + h, h // (H // G)
    t0 = (block0 + block) * ROWS
    start, end = span(t0, T, S, b, h, H, stop, centre, first, behind, ahead, radius, ROWS, ROWS)
    if (s0 >= start) & (s0 < end):
        t, s = t0 + tl.arange(0, ROWS), s0 + tl.arange(0, ROWS)
        seen = seen_tile(
            t, s, T, S, b, h, H,
            stop, exists, table, centre, table_b, table_h, table_t, table_s,
            first, behind, ahead, radius,
        )  # fmt: skip
        at = row.to(tl.int64) * T + t
        level = tl.load(log_sum + at, mask=t < T, other=0.0)
        level = tl.where(level == float("-inf"), 0.0, level)
        place = (local.to(tl.int64) * blocks + block) * ROWS + tl.arange(0, ROWS)
        place = place[:, None] * (blocks_s * ROWS) + s[None, :]
        energy = energies_at(energies, place, size, SLICED)
        energy = tl.where(seen, energy - level[:, None], float("-inf"))
        weight = tl.exp2(energy * LOG2E)

        wanted = tl.zeros([ROWS, ROWS], tl.float32)
        values = v + (b.to(tl.int64) * v_b + g.to(tl.int64) * v_g) * VECTOR
        values = values + s.to(tl.int64)[None, :] * v_s * VECTOR
        BR: tl.constexpr = READ if READ < 64 else 64
        for r0 in range(0, R, BR):
            r = r0 + tl.arange(0, BR)
            x = tl.load(
                grad + at[:, None] * R + r[None, :],
                mask=(t < T)[:, None] & (r < R)[None, :],
                other=0.0,
            )
            y = tl.load(values + r[:, None], mask=(s < S)[None, :] & (r < R)[:, None], other=0.0)
            wanted = tl.dot(x, y, wanted, input_precision="tf32x3")

        used = weight
        if gain_centre is not None:
            gain, away = gain_tile(t, s, T, b, h, H, gain_centre, sigma)
            used = used * gain
        if seed is not None:
            used = used * kept_tile(t, s, row, seed, dropout, boost)
        felt = tl.where(seen, used * wanted, 0.0)
        slope = felt - weight * tl.load(delta + at, mask=t < T, other=0.0)[:, None]
        if gain_centre is not None:
            moment = tl.sum(felt * away, 1) / (sigma * sigma)
            where = (local.to(tl.int64) * blocks_s + s0 // ROWS) * blocks + block
            tl.store(moments + where * ROWS + tl.arange(0, ROWS), moment)
        tl.store(energies + place, slope)
        tl.store(weights + place, used)
        place = (local.to(tl.int64) * (blocks_s * ROWS) + s)[:, None] * (blocks * ROWS)
        place += (block * ROWS + tl.arange(0, ROWS))[None, :]
        tl.store(turned + place, tl.trans(slope))


@triton.jit
def known(at, inside):
    """Loads as float32; zero for NaN and outside."""
    value = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    return tl.where(value == value, value, 0.0)


@triton.jit
def along(grown, pairs, slopes, step, rise, lean, LEAN: tl.constexpr):
    """Adds 64 rows of the other side to Σ slope (1/4 - c²) and, if asked, to Σ slope c.

    pairs   exponentials of the other side, two rows interleaved; `step` between pairs
    slopes  of each row of this side, two interleaved
    The next pair is loaded while the current one is used.
    """
    even, even_slopes = tl.load(pairs), tl.load(slopes)
    for i in range(0, ROWS, 4):
        odd, odd_slopes = tl.load(pairs + step), tl.load(slopes + 1)
        rise, lean = both(grown, even, even_slopes, rise, lean, LEAN)
        pairs += 2 * step
        slopes += 2
        more = i + 4 < ROWS
        even, even_slopes = tl.load(pairs, mask=more), tl.load(slopes, mask=more)
        rise, lean = both(grown, odd, odd_slopes, rise, lean, LEAN)
    return rise, lean


@triton.jit
def both(grown, pair, slopes, rise, lean, LEAN: tl.constexpr):
    """Adds two rows of the other side."""
    c1, c2 = curve(grown, pair)
    slope1, slope2 = halves(slopes)
    rise += slope1[:, None] * (0.25 - c1 * c1)
    rise += slope2[:, None] * (0.25 - c2 * c2)
    if LEAN:
        lean += slope1[:, None] * c1
        lean += slope2[:, None] * c2
    return rise, lean


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def query_kernel(
    q, k, w, grad_q, grad_w, slopes, rows_k, top_q, top_k, stop, centre,
    T, S, H, G, blocks_t, blocks_s, q_b, q_h, q_t, k_b, k_g, k_s,
    first, behind, ahead, radius, b0, block0, blocks,
    D: tl.constexpr, BD: tl.constexpr, SIDE: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Sums over keys: the gradient of 64 queries, BD wide, and a share of the score vector's."""
    program = tl.program_id(0)
    slices = tl.cdiv(D, BD)
    block, local = program // slices % blocks, program // slices // blocks
    b, h = b0 + local // H, local % H
    row, g = b * H + h, h // (H // G)
    group = b.to(tl.int64) * G + g
    t = (block0 + block) * ROWS + tl.arange(0, ROWS)
    d = tl.max_contiguous(program % slices * BD + tl.arange(0, BD), SIDE)
    padded, height = (D + 3) // 4 * 4, blocks_s * ROWS
    inside = (t < T)[:, None] & (d < D)[None, :]
    asked = q + (b.to(tl.int64) * q_b + h.to(tl.int64) * q_h) * VECTOR
    asked = asked + t.to(tl.int64)[:, None] * q_t * VECTOR + d[None, :]
    grown = power(known(asked, inside))
    high_q = largest(top_q, row * blocks_t + block0 + block)
    place = (local.to(tl.int64) * blocks + block) * ROWS + tl.arange(0, ROWS)
    slopes += place * height
    pairs = slopes.to(tl.pointer_type(tl.int64))
    offered = k + (b.to(tl.int64) * k_b + g.to(tl.int64) * k_g) * VECTOR + d
    rows_k += group * (height // 2) * padded + d

    rise = tl.zeros([ROWS, BD], tl.float32)
    lean = rise
    start, end = span(
        (block0 + block) * ROWS, T, S, b, h, H, stop, centre,
        first, behind, ahead, radius, ROWS, ROWS,
    )  # fmt: skip
    for s0 in range(start, end, ROWS):
        if high_q + largest(top_k, group * blocks_s + s0 // ROWS) <= SHARED:
            at = rows_k + tl.cast(s0 // 2, tl.int64) * padded
            here = pairs + s0 // 2
            rise, lean = along(grown, at, here, padded, rise, lean, True)
        else:
            asked_again = known(asked, inside)
            for s in range(s0, tl.minimum(s0 + ROWS, end)):
                slope1 = tl.load(slopes + s)
                key = known(offered + tl.cast(s, tl.int64) * k_s * VECTOR, d < D)
                c1 = -0.5 * tanh(asked_again + key[None, :])
                rise += slope1[:, None] * (0.25 - c1 * c1)
                lean += slope1[:, None] * c1

    scores = tl.load(w + h.to(tl.int64) * D + d, mask=d < D, other=0.0)
    at = (row.to(tl.int64) * T + t)[:, None] * D + d[None, :]
    tl.store(grad_q + at, rise * (4.0 * scores)[None, :], mask=inside)
    at = (row.to(tl.int64) * blocks_t + block0 + block) * D + d
    tl.store(grad_w + at, -2.0 * tl.sum(lean, 0), mask=d < D)


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def key_kernel(
    q, k, w, grad_k, turned, rows_q, top_q, top_k, stop, centre,
    T, S, H, G, blocks_t, blocks_s, q_b, q_h, q_t, k_b, k_g, k_s,
    first, behind, ahead, radius, b0, block0, blocks, again,
    D: tl.constexpr, BD: tl.constexpr, SIDE: tl.constexpr, SINGLE: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Sums over queries, and over the heads that share a key: the gradient of 64 keys, BD wide."""
    program = tl.program_id(0)
    slices = tl.cdiv(D, BD)
    s0, local = program // slices % blocks_s * ROWS, program // slices // blocks_s
    b, g = b0 + local // G, local % G
    group = b.to(tl.int64) * G + g
    s = s0 + tl.arange(0, ROWS)
    d = tl.max_contiguous(program % slices * BD + tl.arange(0, BD), SIDE)
    padded, height, width = (D + 3) // 4 * 4, blocks_t * ROWS, blocks * ROWS
    inside = (s < S)[:, None] & (d < D)[None, :]
    offered = k + (b.to(tl.int64) * k_b + g.to(tl.int64) * k_g) * VECTOR
    offered = offered + s.to(tl.int64)[:, None] * k_s * VECTOR + d[None, :]
    grown = power(known(offered, inside))
    high_k = largest(top_k, group * blocks_s + s0 // ROWS)

    zero = tl.zeros([ROWS, BD], tl.float32)
    whole = zero
    for i in range(0, 1 if SINGLE else H // G):
        h = g * (H // G) + i
        row = b * H + h
        asked = q + (b.to(tl.int64) * q_b + tl.cast(h, tl.int64) * q_h) * VECTOR + d
        asked_pairs = rows_q + row.to(tl.int64) * (height // 2) * padded + d
        slopes = turned + ((local // G * H + h).to(tl.int64) * (blocks_s * ROWS) + s) * width
        pairs = slopes.to(tl.pointer_type(tl.int64))
        rise = zero
        for block in range(0, blocks):
            t0 = (block0 + block) * ROWS
            start, end = span(
                t0, T, S, b, h, H, stop, centre, first, behind, ahead, radius, ROWS, ROWS
            )
            met = (s0 >= start) & (s0 < end)
            high = high_k + largest(top_q, row * blocks_t + block0 + block)
            at = asked_pairs + tl.cast(t0 // 2, tl.int64) * padded
            if met & (high <= SHARED):
                here = pairs + block * (ROWS // 2)
                rise, _ = along(grown, at, here, padded, rise, rise, False)
            if met & (high > SHARED):
                offered_again = known(offered, inside)
                for j in range(0, tl.minimum(ROWS, T - t0)):
                    slope1 = tl.load(slopes + block * ROWS + j)
                    query = known(asked + tl.cast(t0 + j, tl.int64) * q_t * VECTOR, d < D)
                    c1 = -0.5 * tanh(offered_again + query[None, :])
                    rise += slope1[:, None] * (0.25 - c1 * c1)
        scores = tl.load(w + tl.cast(h, tl.int64) * D + d, mask=d < D, other=0.0)
        if SINGLE:
            whole = rise * (4.0 * scores)[None, :]
        else:
            whole += rise * (4.0 * scores)[None, :]
    at = grad_k + (group * S + s)[:, None] * D + d[None, :]
    if again:
        whole += tl.load(at, mask=inside, other=0.0)
    tl.store(at, whole, mask=inside)


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def value_kernel(
    grad, grad_v, weights, stop, centre,
    T, S, H, G, blocks_s, first, behind, ahead, radius, b0, block0, blocks, again,
    R: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Weights times the context's gradient: the gradient of 64 values, BR wide."""
    program = tl.program_id(0)
    slices = tl.cdiv(R, BR)
    s0, local = program // slices % blocks_s * ROWS, program // slices // blocks_s
    b, g = b0 + local // G, local % G
    s = s0 + tl.arange(0, ROWS)
    r = program % slices * BR + tl.arange(0, BR)
    whole = tl.zeros([ROWS, BR], tl.float32)
    for h in range(g * (H // G), (g + 1) * (H // G)):
        for block in range(0, blocks):
            t = (block0 + block) * ROWS + tl.arange(0, ROWS)
            start, end = span(
                (block0 + block) * ROWS, T, S, b, h, H, stop, centre,
                first, behind, ahead, radius, ROWS, ROWS,
            )  # fmt: skip
            if (s0 >= start) & (s0 < end):
                place = ((local // G * H + h).to(tl.int64) * blocks + block) * ROWS
                place = (place + tl.arange(0, ROWS))[None, :] * (blocks_s * ROWS) + s[:, None]
                x = tl.load(
                    grad + ((b * H + h).to(tl.int64) * T + t)[:, None] * R + r[None, :],
                    mask=(t < T)[:, None] & (r < R)[None, :],
                    other=0.0,
                )
                whole = tl.dot(tl.load(weights + place), x, whole, input_precision="tf32x3")
    inside = (s < S)[:, None] & (r < R)[None, :]
    at = grad_v + ((b.to(tl.int64) * G + g) * S + s)[:, None] * R + r[None, :]
    if again:
        whole += tl.load(at, mask=inside, other=0.0)
    tl.store(at, whole, mask=inside)


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    context: Tensor,
    log_sum: Tensor,
    seen: Plan,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v, the score vector and, where there is a Gaussian, its centres."""
    scene = Scene(q, k, v, w, seen, dropout, seed)
    B, H, T, D = scene.shape
    given = (at(x.contiguous()) for x in (grad, context, log_sum))
    by = by_row if T == 1 and H == scene.G else _by_tile
    grad_q, grad_k, grad_v, grad_w, grad_centre = by(scene, (q, k, v), *given)
    grad_w = grad_w.view(B, H, -1, D).sum((0, 2))
    if grad_centre is not None and seen.gain_centre is not None:
        grad_centre = grad_centre.sum_to_size(seen.gain_centre.shape)
    return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype), grad_w.to(w.dtype), grad_centre


def _like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A contiguous tensor for the gradient of another."""
    return x.new_empty(x.shape, dtype=dtype)


def _by_tile(
    scene: Scene, qkv: tuple[Tensor, Tensor, Tensor], grad: At, context: At, log_sum: At
) -> Found:
    """Any number of queries: the slopes of a stretch, then the sums over them."""
    q, k, v = qkv
    (B, H, T, D), blocks_t = scene.shape, scene.blocks_t
    energies = Energies(scene, q, Back(grad, context, v.dtype))
    whole = energies.parts[0].blocks == blocks_t  # else gradients of keys add up over stretches
    grad_q = _like(q)
    grad_k, grad_v = (_like(x, None if whole else torch.float32) for x in (k, v))
    grad_w = q.new_empty(B * H * blocks_t, D, dtype=torch.float32)
    moments = None if energies.moments is None else energies.moments.shown()
    grad_centre = None if moments is None else q.new_empty(B, H, T, dtype=torch.float32)
    slope = _slopes(energies, grad, log_sum)
    add = _sums(energies, grad, at(grad_q), at(grad_k), at(grad_v), at(grad_w))
    if moments is not None:
        moments = moments[: energies.size // ROWS.value].zero_()
    for part in energies:
        slope(part)
        add(part)
        if moments is not None and grad_centre is not None:
            t0 = part.block0 * ROWS.value
            found = moments[: part.rows * H * scene.blocks_s * part.blocks * ROWS.value]
            found = found.view(part.rows, H, scene.blocks_s, -1).sum(2)[..., : T - t0]
            some = grad_centre[part.b0 : part.b0 + part.rows, :, t0:]
            some[..., : found.shape[-1]] = found
            moments.zero_()
    return grad_q, grad_k, grad_v, grad_w, grad_centre


def _slopes(energies: Energies, grad: At, log_sum: At) -> Callable[[Stretch], None]:
    """A function that overwrites the energies of a stretch with slopes, and writes its weights."""
    scene = energies.scene
    unit = scene.unit("v")
    addresses = (
        *(scene.v, grad, log_sum, energies.delta, energies.energies, energies.turned),
        *(energies.weights, energies.moments, *scene.sights),
    )
    sizes = (*scene.lengths, scene.blocks_s, *scene.steps(unit, "v"), *scene.table_steps)
    constants = (scene.R, scene.read, energies.sliced, unit)

    def slope(part: Stretch) -> None:
        launch(
            slope_kernel,
            (scene.blocks_s * part.blocks * part.rows * scene.shape[1], 1),
            addresses,
            (*sizes, *scene.edges, *part.place, energies.size, *scene.factors),
            constants,
            4,
        )

    return slope


def _sums(
    energies: Energies, grad: At, grad_q: At, grad_k: At, grad_v: At, grad_w: At
) -> Callable[[Stretch], None]:
    """A function that sums a stretch's slopes over keys and queries, and weights over queries."""
    scene, slopes = energies.scene, energies.energies
    (_, H, _, D), G, blocks_s = scene.shape, scene.G, scene.blocks_s
    unit, width, read = scene.unit("q", "k"), min(64, scene.width), min(64, scene.read)
    around = (energies.top_q, energies.top_k, scene.stop, scene.centre)
    by_query = (scene.q, scene.k, energies.w, grad_q, grad_w, slopes, energies.rows_k, *around)
    by_key = (scene.q, scene.k, energies.w, grad_k, energies.turned, energies.rows_q, *around)
    by_value = (grad, grad_v, energies.weights, scene.stop, scene.centre)
    sizes = (*scene.lengths, scene.blocks_t, blocks_s, *scene.steps(unit, "q", "k"), *scene.edges)
    fewer = (*scene.lengths, blocks_s, *scene.edges)
    slices, cuts = -(-D // width), -(-scene.R // read)

    def add(part: Stretch) -> None:
        rows, keys, again = part.rows * H, blocks_s * part.rows * G, int(part.block0 > 0)
        here = (*sizes, *part.place)
        side, warps, most = tuned.BY_QUERY
        programs = slices * part.blocks * rows
        shape = (D, width, side, unit)
        launch(query_kernel, (programs, 1), by_query, here, shape, warps, most)
        side, warps, most = tuned.BY_KEY
        single = (D, width, side, H == G, unit)
        launch(key_kernel, (slices * keys, 1), by_key, (*here, again), single, warps, most)
        here = (*fewer, *part.place, again)
        launch(value_kernel, (cuts * keys, 1), by_value, here, (scene.R, read), 4)

    return add
