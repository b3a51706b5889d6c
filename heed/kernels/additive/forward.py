"""The forward pass in Triton: exponentials once per row, energies by tile, softmax and read."""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.kernels.additive import tuned
from heed.kernels.additive.device import (
    LN2,
    LOG2E,
    PLAIN_INTEGERS,
    ROWS,
    SLICES,
    energy_tile,
    gain_tile,
    kept_tile,
    largest,
    packed,
    power,
    seen_tile,
    span,
    tanh,
)
from heed.kernels.additive.plan import Plan
from heed.kernels.additive.row import forward as by_row
from heed.kernels.additive.scene import Back, Scene, Stretch, layout
from heed.kernels.launching import At, at, launch

_ROWS: int = ROWS.value


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def prepare_kernel(
    q, k, w, pairs_q, pairs_k, tanhs_q, tanhs_k, rows_q, rows_k, top_q, top_k, vector, grad,
    context, delta,
    T, S, H, G, blocks_t, blocks_s, programs_q, q_b, q_h, q_t, k_b, k_g, k_s,
    D: tl.constexpr, R: tl.constexpr, CLEAN: tl.constexpr,
):  # fmt: skip
    """Exponentials and the largest magnitude of 64 rows of q or k, 64 widths of them.

    If asked, also the score vector in float32; and grad · context of every query, which the
    backward pass of the softmax subtracts.
    """
    program = tl.program_id(0)
    if vector is not None:  # noqa: SIM102  (only an `if` of its own is compiled out for None)
        if program == 0:
            wide = tl.program_id(1) * 64 + tl.arange(0, 64)
            for h in range(0, H):
                scores = tl.load(w + h * D + wide, mask=wide < D, other=0.0)
                tl.store(vector + h * D + wide, scores.to(tl.float32), mask=wide < D)
    if delta is not None:  # noqa: SIM102
        if (tl.program_id(1) == 0) & (program < programs_q):
            t = program % blocks_t * ROWS + tl.arange(0, ROWS)
            row = (program // blocks_t).to(tl.int64) * T + t
            off = tl.zeros([ROWS], tl.float32)
            for r0 in range(0, R, 64):
                r = r0 + tl.arange(0, 64)
                place, here = row[:, None] * R + r[None, :], (t < T)[:, None] & (r < R)[None, :]
                wanted = tl.load(grad + place, mask=here, other=0.0).to(tl.float32)
                given = tl.load(context + place, mask=here, other=0.0).to(tl.float32)
                off += tl.sum(wanted * given, 1)
            tl.store(delta + row, off, mask=t < T)
    x, pairs, tanhs, rows, top = q, pairs_q, tanhs_q, rows_q, top_q
    N, heads, blocks, x_b, x_h, x_n = T, H, blocks_t, q_b, q_h, q_t
    if program >= programs_q:
        x, pairs, top = k, pairs_k, top_k
        if tanhs_q is not None:
            tanhs = tanhs_k
        if rows_q is not None:
            rows = rows_k
        N, heads, blocks, x_b, x_h, x_n = S, G, blocks_s, k_b, k_g, k_s
        program -= programs_q
    head = (program // blocks).to(tl.int64)
    n = program % blocks * ROWS + tl.arange(0, ROWS)
    d = tl.program_id(1) * 64 + tl.arange(0, 64)
    padded, height = (D + 3) // 4 * 4, blocks * ROWS
    at = x + head // heads * x_b + head % heads * x_h
    at = at + n.to(tl.int64)[:, None] * x_n + d[None, :]
    value = tl.load(at, mask=(n < N)[:, None] & (d < D)[None, :], other=0.0).to(tl.float32)
    size = tl.abs(value)
    finite = size < float("inf")
    slice_ = tl.arange(0, SLICES)
    block = top + program.to(tl.int64) * SLICES
    tl.store(block + tl.program_id(1), tl.max(tl.max(tl.where(finite, size, 0.0), 1), 0))
    if tl.program_id(1) == 0:
        tl.store(block + slice_, tl.zeros([SLICES], tl.float32), mask=slice_ * 64 >= D)

    known = value == value
    grown = tl.where(known, power(value), 1.0 if CLEAN else value)
    half = tl.program_id(1) * 32 + tl.arange(0, 32)
    pair = (head * (padded // 2) + half)[None, :] * height + n[:, None]
    low, high = tl.split(tl.reshape(grown, [ROWS, 32, 2]))
    tl.store(pairs + pair, packed(low, high), mask=(half < padded // 2)[None, :])
    if tanhs is not None:
        bent = tl.where(known, tanh(value), 0.0 if CLEAN else value)
        low, high = tl.split(tl.reshape(bent, [ROWS, 32, 2]))
        tl.store(tanhs + pair, packed(low, high), mask=(half < padded // 2)[None, :])
    if rows is not None:
        low, high = tl.split(tl.permute(tl.reshape(grown, [ROWS // 2, 2, 64]), [0, 2, 1]))
        half = program % blocks * (ROWS // 2) + tl.arange(0, ROWS // 2)
        pair = (head * (height // 2) + half)[:, None] * padded + d[None, :]
        tl.store(rows + pair, packed(low, high), mask=(d < padded)[None, :])


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def energy_kernel(
    q, k, w, energies, pairs_q, pairs_k, tanhs_q, tanhs_k, top_q, top_k, stop, centre,
    T, S, H, G, blocks_t, blocks_s, q_b, q_h, q_t, k_b, k_g, k_s,
    first, behind, ahead, radius, b0, block0, blocks, size,
    D: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Energies of BT queries by 64 keys over a slice of the width; unseen tiles are skipped."""
    program = tl.program_id(0)
    slices: tl.constexpr = (D + DEPTH - 1) // DEPTH
    slice_, program = program % slices, program // slices
    s0, program = program % blocks_s * ROWS, program // blocks_s
    tiles = blocks * (ROWS // BT)
    tile, local = program % tiles, program // tiles
    t0 = block0 * ROWS + tile * BT
    b, h = b0 + local // H, local % H
    row, g = b * H + h, h // (H // G)
    group = b.to(tl.int64) * G + g
    start, end = span(t0, T, S, b, h, H, stop, centre, first, behind, ahead, radius, BT, ROWS)
    if (s0 >= start) & (s0 < end):
        t, s = t0 + tl.arange(0, BT), s0 + tl.arange(0, ROWS)
        d2, step_q, step_k = (D + 3) // 4 * 2, blocks_t * ROWS, blocks_s * ROWS
        pairs_q += row.to(tl.int64) * d2 * step_q
        pairs_k += group * d2 * step_k
        if tanhs_q is not None:
            tanhs_q += row.to(tl.int64) * d2 * step_q
            tanhs_k += group * d2 * step_k
        offered = k + b.to(tl.int64) * k_b + g.to(tl.int64) * k_g
        energy = energy_tile(
            pairs_q, pairs_k, tanhs_q, tanhs_k,
            q + b.to(tl.int64) * q_b + h.to(tl.int64) * q_h + t.to(tl.int64) * q_t,
            offered + s.to(tl.int64) * k_s, w + h.to(tl.int64) * D,
            largest(top_q, row * blocks_t + t0 // ROWS),
            largest(top_k, group * blocks_s + s0 // ROWS),
            t, s, T, S, step_q, step_k, slice_ * DEPTH, energies, D, DEPTH, WIDTH, BT, ROWS,
        )  # fmt: skip
        place = (local.to(tl.int64) * tiles + tile) * BT + tl.arange(0, BT)
        place = tl.cast(slice_, tl.int64) * size + place[:, None] * step_k + s[None, :]
        tl.store(energies + place, energy)


@triton.jit
def energies_at(energies, place, size, SLICES_OF_D: tl.constexpr):
    """Loads energies, adding up those of the slices of the width."""
    energy = tl.load(energies + place)
    for i in tl.static_range(1, SLICES_OF_D):
        energy += tl.load(energies + place + i * tl.cast(size, tl.int64))
    return energy


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def read_kernel(
    v, context, log_sum, energies, stop, exists, table, centre, gain_centre, seed,
    T, S, H, G, blocks_s, v_b, v_g, v_s, table_b, table_h, table_t, table_s,
    first, behind, ahead, radius, b0, block0, blocks, size, sigma, dropout, boost,
    R: tl.constexpr, READ: tl.constexpr, BT: tl.constexpr, SLICED: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Visibility, softmax and read of BT queries of one head."""
    tiles = blocks * (ROWS // BT)
    tile, local = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    t0 = block0 * ROWS + tile * BT
    t, r = t0 + tl.arange(0, BT), tl.arange(0, READ)
    b, h = b0 + local // H, local % H
    row, g = b * H + h, h // (H // G)
    values = v + (b.to(tl.int64) * v_b + g.to(tl.int64) * v_g) * VECTOR + r[None, :]
    place = (local.to(tl.int64) * tiles + tile) * BT + tl.arange(0, BT)
    place = place[:, None] * (blocks_s * ROWS)

    top = tl.full([BT], float("-inf"), tl.float32)
    mass = tl.zeros([BT], tl.float32)
    gathered = tl.zeros([BT, READ], tl.float32)
    start, end = span(t0, T, S, b, h, H, stop, centre, first, behind, ahead, radius, BT, ROWS)
    for s0 in range(start, end, ROWS):
        s = s0 + tl.arange(0, ROWS)
        seen = seen_tile(
            t, s, T, S, b, h, H,
            stop, exists, table, centre, table_b, table_h, table_t, table_s,
            first, behind, ahead, radius,
        )  # fmt: skip
        energy = energies_at(energies, place + s[None, :], size, SLICED)
        energy = tl.where(seen, energy * LOG2E, float("-inf"))
        higher = tl.maximum(top, tl.max(energy, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(energy - base[:, None])
        fade = tl.exp2(top - base)
        mass = mass * fade + tl.sum(weight, 1)
        if gain_centre is not None:
            gain, _ = gain_tile(t, s, T, b, h, H, gain_centre, sigma)
            weight = weight * gain
        if seed is not None:
            weight = weight * kept_tile(t, s, row, seed, dropout, boost)
        felt = tl.max(seen.to(tl.int32), 0) > 0
        value = tl.load(
            values + s.to(tl.int64)[:, None] * v_s * VECTOR,
            mask=felt[:, None] & (r < R)[None, :],
            other=0.0,
        )
        gathered = gathered * fade[:, None]
        gathered = tl.dot(weight.to(v.dtype.element_ty), value, gathered, input_precision="tf32x3")
        top = higher

    sighted = mass > 0
    safe = tl.where(sighted, mass, 1.0)
    at = row.to(tl.int64) * T + t
    tl.store(log_sum + at, tl.where(sighted, (top + tl.log2(safe)) * LN2, top), mask=t < T)
    tl.store(
        context + at[:, None] * R + r[None, :],
        gathered / safe[:, None],
        mask=(t < T)[:, None] & (r < R)[None, :],
    )


class Energies:
    """The energies of one stretch of queries after another, in one scratch.

    Exponentials (and tanhs) of q and k are made at once: pairs D/2 N 2 and, where `back` asks for
    gradients, rows N/2 D 2, per head; beside them the largest magnitudes. Each step of the
    iteration launches the kernel that fills the energies, and gives a `Stretch`.
    """

    def __init__(self, scene: Scene, like: Tensor, back: Back | None = None) -> None:
        self.scene, single = scene, torch.float32
        ready = layout(
            scene.shape,
            (scene.groups, scene.S),
            scene.precise,
            None if back is None else back.dtype,
            back is not None and scene.gain_centre is not None,
            scene.w.kind[0] != single,
        )
        self.parts, self.size, self.tile, self.depth, self.sliced, rooms = ready
        self.pairs_q, self.pairs_k, self.tanhs_q, self.tanhs_k, *parts = rooms.made(like)
        self.rows_q, self.rows_k, self.top_q, self.top_k, *parts = parts
        self.energies, self.turned, self.weights, self.delta, self.moments, vector = parts
        self.w = scene.w if vector is None else vector
        self._prepare(back, vector)

    def _prepare(self, back: Back | None, vector: At | None) -> None:
        scene = self.scene
        D = scene.shape[3]
        programs = scene.rows * scene.blocks_t
        launch(
            prepare_kernel,
            (programs + scene.groups * scene.blocks_s, -(-D // 64)),
            (
                *(scene.q, scene.k, scene.w, self.pairs_q, self.pairs_k, self.tanhs_q),
                *(self.tanhs_k, self.rows_q, self.rows_k, self.top_q, self.top_k, vector),
                *((None, None) if back is None else (back.grad, back.context)),
                self.delta,
            ),
            (
                *(*scene.lengths, scene.blocks_t, scene.blocks_s, programs),
                *(*scene.q_steps, *scene.k_steps),
            ),
            (D, scene.R, back is not None),
            8,
        )

    def __iter__(self) -> Iterator[Stretch]:
        scene = self.scene
        D, blocks_s = scene.shape[3], scene.blocks_s
        addresses = (
            *(scene.q, scene.k, self.w, self.energies, self.pairs_q, self.pairs_k),
            *(self.tanhs_q, self.tanhs_k, self.top_q, self.top_k, scene.stop, scene.centre),
        )
        sizes = (
            *(*scene.lengths, scene.blocks_t, blocks_s),
            *(*scene.q_steps, *scene.k_steps, *scene.edges),
        )
        queries, warps = self.tile
        constants = (D, self.depth, scene.width, queries)
        for part in self.parts:
            rows = part.rows * scene.shape[1]
            tiles = rows * part.blocks * (_ROWS // queries) * blocks_s
            launch(
                energy_kernel,
                (tiles * self.sliced, 1),
                addresses,
                (*sizes, *part.place, self.size),
                constants,
                warps,
                tuned.ENERGY_REGISTERS,
            )
            yield part


def forward(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, seen: Plan, dropout: float, seed: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The context and the log-sum-exp of each query.    -> B H T R, B H T"""
    scene = Scene(q, k, v, w, seen, dropout, seed)
    B, H, T, _ = scene.shape
    if T <= 4:
        return by_row(scene, v)
    context = v.new_empty(B, H, T, scene.R)
    log_sum = q.new_empty(B, H, T, dtype=torch.float32)
    energies = Energies(scene, q)
    unit, tile = scene.unit("v"), tuned.read(T, scene.R)
    queries = min(tile.queries, _ROWS)
    addresses = (scene.v, at(context), at(log_sum), energies.energies, *scene.sights)
    sizes = (*scene.lengths, scene.blocks_s, *scene.steps(unit, "v"), *scene.table_steps)
    constants = (scene.R, scene.read, queries, energies.sliced, unit)
    for part in energies:
        launch(
            read_kernel,
            (part.rows * H * part.blocks * (_ROWS // queries), 1),
            addresses,
            (*sizes, *scene.edges, *part.place, energies.size, *scene.factors),
            constants,
            tile.warps,
        )
    return context, log_sum


@triton.jit(do_not_specialize=["T", "S"])
def kept_kernel(factors, seed, T, S, dropout, boost):
    row, t = tl.program_id(0) // T, tl.program_id(0) % T + tl.zeros([1], tl.int32)
    for s0 in range(0, S, ROWS):
        s = s0 + tl.arange(0, ROWS)
        at = factors + tl.program_id(0).to(tl.int64) * S + s
        tl.store(at, tl.sum(kept_tile(t, s, row, seed, dropout, boost), 0), mask=s < S)


def kept(shape: tuple[int, int, int, int], dropout: float, seed: Tensor) -> Tensor:
    """The factor of dropout for each weight: zero or 1 / (1 - dropout).    B H T S"""
    B, H, T, S = shape
    factors = seed.new_empty(shape, dtype=torch.float32)
    boost = 1 / (1 - dropout) if dropout < 1 else 0.0
    kept_kernel[(B * H * T,)](factors, seed, T, S, float(dropout), boost)
    return factors
