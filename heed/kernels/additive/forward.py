"""The forward pass in Triton: exponentials once per row, energies by tile, softmax and read."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.kernels.additive import tuned
from heed.kernels.additive.device import (
    INTERPRETED,
    LN2,
    LOG2E,
    ROWS,
    SLICES,
    bend,
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

FAR = 1 << 30
"""Further than any key stands from any query."""

PLAIN_INTEGERS = [
    "T",
    "S",
    "H",
    "G",
    "blocks_t",
    "blocks_s",
    "programs_q",
    "q_b",
    "q_h",
    "q_t",
    "k_b",
    "k_g",
    "k_s",
    "v_b",
    "v_g",
    "v_s",
    "table_b",
    "table_h",
    "table_t",
    "table_s",
    "first",
    "behind",
    "ahead",
    "radius",
    "b0",
    "block0",
    "blocks",
    "again",
    "size",
]
"""What may change from call to call without a new compilation."""


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def prepare_kernel(
    q,
    k,
    pairs_q,
    pairs_k,
    tanhs_q,
    tanhs_k,
    rows_q,
    rows_k,
    top_q,
    top_k,
    T,
    S,
    H,
    G,
    blocks_t,
    blocks_s,
    programs_q,
    q_b,
    q_h,
    q_t,
    k_b,
    k_g,
    k_s,
    D: tl.constexpr,
    CLEAN: tl.constexpr,
):
    """Exponentials and the largest magnitude of 64 rows of q or k, 64 widths of them."""
    program = tl.program_id(0)
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
    q,
    k,
    w,
    energies,
    pairs_q,
    pairs_k,
    tanhs_q,
    tanhs_k,
    top_q,
    top_k,
    stop,
    centre,
    T,
    S,
    H,
    G,
    blocks_t,
    blocks_s,
    q_b,
    q_h,
    q_t,
    k_b,
    k_g,
    k_s,
    first,
    behind,
    ahead,
    radius,
    b0,
    block0,
    blocks,
    size,
    D: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
    BT: tl.constexpr,
):
    """Energies of BT queries by 64 keys over a slice of the width, where one may see the other."""
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
            pairs_q,
            pairs_k,
            tanhs_q,
            tanhs_k,
            q + b.to(tl.int64) * q_b + h.to(tl.int64) * q_h + t.to(tl.int64) * q_t,
            offered + s.to(tl.int64) * k_s,
            w + h.to(tl.int64) * D,
            largest(top_q, row * blocks_t + t0 // ROWS),
            largest(top_k, group * blocks_s + s0 // ROWS),
            t,
            s,
            T,
            S,
            step_q,
            step_k,
            slice_ * DEPTH,
            energies,
            D,
            DEPTH,
            WIDTH,
            BT,
            ROWS,
        )
        place = (local.to(tl.int64) * tiles + tile) * BT + tl.arange(0, BT)
        place = tl.cast(slice_, tl.int64) * size + place[:, None] * step_k + s[None, :]
        tl.store(energies + place, energy)


@triton.jit
def energies_at(energies, place, size, SLICES_OF_D: tl.constexpr):
    """Energies that were summed slice by slice."""
    energy = tl.load(energies + place)
    for i in tl.static_range(1, SLICES_OF_D):
        energy += tl.load(energies + place + i * tl.cast(size, tl.int64))
    return energy


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def read_kernel(
    v,
    context,
    log_sum,
    energies,
    stop,
    exists,
    table,
    centre,
    gain_centre,
    seed,
    T,
    S,
    H,
    G,
    blocks_s,
    v_b,
    v_g,
    v_s,
    table_b,
    table_h,
    table_t,
    table_s,
    first,
    behind,
    ahead,
    radius,
    b0,
    block0,
    blocks,
    size,
    sigma,
    dropout,
    boost,
    R: tl.constexpr,
    READ: tl.constexpr,
    BT: tl.constexpr,
    SLICED: tl.constexpr,
    VECTOR: tl.constexpr,
):
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
            t,
            s,
            T,
            S,
            b,
            h,
            H,
            stop,
            exists,
            table,
            centre,
            table_b,
            table_h,
            table_t,
            table_s,
            first,
            behind,
            ahead,
            radius,
        )
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


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def row_kernel(
    q,
    k,
    v,
    w,
    context,
    log_sum,
    stop,
    exists,
    table,
    centre,
    gain_centre,
    seed,
    T,
    S,
    H,
    G,
    q_b,
    q_h,
    q_t,
    k_b,
    k_g,
    k_s,
    v_b,
    v_g,
    v_s,
    table_b,
    table_h,
    table_t,
    table_s,
    first,
    behind,
    ahead,
    radius,
    sigma,
    dropout,
    boost,
    D: tl.constexpr,
    R: tl.constexpr,
    WIDTH: tl.constexpr,
    READ: tl.constexpr,
    BS: tl.constexpr,
    VECTOR: tl.constexpr,
    PRECISE: tl.constexpr,
):
    """One query over a stretch of its keys, each read once: bound by memory."""
    at = tl.program_id(0)
    row = at // T
    b, h = row // H, row % H
    g = h // (H // G)
    t = at % T + tl.zeros([1], tl.int32)
    d, r = tl.arange(0, WIDTH), tl.arange(0, READ)
    vector = tl.load(w + h.to(tl.int64) * D + d, mask=d < D, other=0.0)
    asked = q + (b.to(tl.int64) * q_b + h.to(tl.int64) * q_h + (at % T).to(tl.int64) * q_t) * VECTOR
    asked = tl.load(asked + d, mask=d < D, other=0.0).to(tl.float32)
    keys = k + (b.to(tl.int64) * k_b + g.to(tl.int64) * k_g) * VECTOR + d[None, :]
    values = v + (b.to(tl.int64) * v_b + g.to(tl.int64) * v_g) * VECTOR + r[None, :]

    top = tl.full([1], float("-inf"), tl.float32)
    mass = tl.zeros([1], tl.float32)
    gathered = tl.zeros([READ], tl.float32)
    start, end = span(at % T, T, S, b, h, H, stop, centre, first, behind, ahead, radius, 1, BS)
    share = tl.cdiv(tl.cdiv(tl.maximum(end - start, 0), BS), tl.num_programs(1)) * BS
    start += tl.program_id(1) * share
    for s0 in range(start, tl.minimum(end, start + share), BS):
        s = s0 + tl.arange(0, BS)
        seen = seen_tile(
            t,
            s,
            T,
            S,
            b,
            h,
            H,
            stop,
            exists,
            table,
            centre,
            table_b,
            table_h,
            table_t,
            table_s,
            first,
            behind,
            ahead,
            radius,
        )  # 1 BS
        here = tl.sum(seen.to(tl.int32), 0) > 0
        place = s.to(tl.int64)[:, None] * VECTOR
        key = tl.load(keys + place * k_s, mask=here[:, None] & (d < D)[None, :], other=0.0)
        value = tl.load(values + place * v_s, mask=here[:, None] & (r < R)[None, :], other=0.0)
        bent = bend(asked[None, :] + key.to(tl.float32), PRECISE)
        energy = tl.sum(bent * vector[None, :], 1) * LOG2E
        energy = tl.where(here, energy, float("-inf"))
        higher = tl.maximum(top, tl.max(energy, 0))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(energy - base)
        fade = tl.exp2(top - base)
        mass = mass * fade + tl.sum(weight, 0)
        if gain_centre is not None:
            gain, _ = gain_tile(t, s, T, b, h, H, gain_centre, sigma)
            weight = weight * tl.sum(gain, 0)
        if seed is not None:
            weight = weight * tl.sum(kept_tile(t, s, row, seed, dropout, boost), 0)
        gathered = gathered * tl.sum(fade, 0) + tl.sum(weight[:, None] * value.to(tl.float32), 0)
        top = higher

    one = tl.arange(0, 1)
    sighted = mass > 0
    safe = tl.where(sighted, mass, 1.0)
    at = at.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(log_sum + at + one, tl.where(sighted, (top + tl.log2(safe)) * LN2, top))
    tl.store(context + at * R + r, gathered / tl.sum(safe, 0), mask=r < R)


def prepared(q, k, precise, rows=False, clean=False):
    """Exponentials (and tanhs) of q and k, and the largest magnitudes: a dict of scratch tensors.

    B H T D, B G S D -> pairs D/2 N 2 and, where asked, rows N/2 D 2, per head
    """
    (B, H, T, D), (_, G, S, _) = q.shape, k.shape
    blocks_t, blocks_s = triton.cdiv(T, ROWS.value), triton.cdiv(S, ROWS.value)
    padded = (D + 3) // 4 * 4
    scratch = {}
    for name, heads, blocks in (("q", B * H, blocks_t), ("k", B * G, blocks_s)):
        size, many = heads * padded * blocks * ROWS.value, 1 + precise + rows
        made = q.new_empty(many * size + 128, dtype=torch.float32)  # the last row is read beyond
        made = [made[i * size : (i + 1) * size].view(torch.int64) for i in range(many)]
        scratch["pairs_" + name] = made[0]
        scratch["tanhs_" + name] = made[1] if precise else None
        scratch["rows_" + name] = made[-1] if rows else None
        top = (heads, blocks, SLICES.value)
        scratch["top_" + name] = q.new_empty(top, dtype=torch.float32)
    programs = B * H * blocks_t
    grid = (programs + B * G * blocks_s, triton.cdiv(D, 64))
    arguments = {"q": q, "k": k, **scratch, "T": T, "S": S, "D": D, "H": H, "G": G}
    arguments.update(blocks_t=blocks_t, blocks_s=blocks_s, programs_q=programs, CLEAN=clean)
    launch(prepare_kernel, grid, {**arguments, **strides(q=q, k=k)}, 8)
    return {**scratch, "blocks_t": blocks_t, "blocks_s": blocks_s}


AXES = {"q": "bht", "k": "bgs", "v": "bgs"}


def strides(vector=1, **tensors):
    """Strides by name, in units of a vector load."""
    return {
        f"{name}_{axis}": x.stride(i) // vector
        for name, x in tensors.items()
        for i, axis in enumerate(AXES[name])
    }


def vector(*tensors):
    """How many elements one load may bring: 16 bytes' worth where all strides allow it."""
    for x in tensors:
        many = 16 // x.element_size()
        if any(n % many for n in x.stride()[:-1]) or x.data_ptr() % 16:
            return 1
    return 16 // tensors[0].element_size()


def sights(seen, B, H, T, S):
    """The arguments that say who sees what."""
    table = seen.table
    if table is not None:
        table = table.view(torch.uint8).expand(B, H, T, S)
    steps = (0, 0, 0, 0) if table is None else table.stride()
    ahead = 0 if seen.causal else FAR
    behind = FAR
    if seen.half >= 0:
        behind, ahead = seen.half, min(ahead, seen.half)
    return {
        "stop": None if seen.stop is None else seen.stop.expand(B).contiguous(),
        "exists": None
        if seen.exists is None
        else seen.exists.view(torch.uint8).expand(B, S).contiguous(),
        "table": table,
        "centre": None if seen.centre is None else seen.centre.expand(B, H, T).contiguous(),
        **{f"table_{axis}": step for axis, step in zip("bhts", steps, strict=True)},
        "first": seen.first,
        "behind": min(behind, FAR),
        "ahead": min(ahead, FAR),
        "radius": seen.radius,
    }


def extras(seen, dropout, seed, B, H, T):
    """The arguments that say what multiplies the weights."""
    centre = seen.gain_centre
    return {
        "gain_centre": None if centre is None else centre.expand(B, H, T).contiguous(),
        "sigma": float(seen.sigma),
        "seed": seed if dropout else None,
        "dropout": float(dropout),
        "boost": 1 / (1 - dropout) if dropout < 1 else 0.0,
    }


def forward(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, seen: Plan, dropout: float, seed: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The context and the log of each query's sum.    -> B H T R, B H T"""
    (B, H, T, D), (_, G, S, R) = q.shape, v.shape
    common = {
        "w": w.float().contiguous(),
        "T": T,
        "S": S,
        "D": D,
        "R": R,
        "H": H,
        "G": G,
        **sights(seen, B, H, T, S),
        **extras(seen, dropout, seed, B, H, T),
        "WIDTH": max(16, triton.next_power_of_2(D)),
        "READ": max(16, triton.next_power_of_2(R)),
    }
    if T <= 4:
        return _by_row(q, k, v, common)
    context = v.new_empty(B, H, T, R)
    log_sum = q.new_empty(B, H, T, dtype=torch.float32)
    scratch = prepared(q, k, q.dtype == torch.float32)
    stretched = Energies(q, k, scratch, common, 4)
    wide, tile = vector(v), tuned.read(T, R)
    queries = min(tile.queries, ROWS.value)
    arguments = {**common, **strides(wide, v=v), "blocks_s": stretched.blocks_s, "VECTOR": wide}
    arguments.update(v=v, context=context, log_sum=log_sum, BT=queries)
    for where, rows in stretched:
        programs = rows * where["blocks"] * (ROWS.value // queries)
        launch(read_kernel, (programs,), {**arguments, **where}, tile.warps)
    return context, log_sum


class Energies:
    """Energies of one stretch of queries after another, in a scratch of bounded size.

    Each step of the iteration launches the kernel that fills it, and gives the arguments that say
    where the stretch lies, and how many heads of how many batch rows it has.
    """

    def __init__(self, q, k, scratch, common, bytes_each):
        B, H, T, D = q.shape
        self.blocks_t, self.blocks_s = scratch["blocks_t"], scratch["blocks_s"]
        self.H = H
        block = ROWS.value * self.blocks_s * ROWS.value
        self.parts = stretches(B, H, self.blocks_t, block * bytes_each, tuned.SCRATCH)
        self.size = max(n * m for _, n, _, m in self.parts) * H * block
        self.tile = min(tuned.energy(T), ROWS.value)
        programs = self.size // (self.tile * ROWS.value)
        self.depth = tuned.depth(D, programs)
        self.sliced = -(-D // self.depth)
        self.energies = q.new_empty(self.sliced * self.size, dtype=torch.float32)
        self.arguments = {
            **common,
            **{name: x for name, x in scratch.items() if not name.startswith("rows")},
            **strides(q=q, k=k),
            "q": q,
            "k": k,
            "DEPTH": self.depth,
            "BT": self.tile,
        }

    def __iter__(self):
        for b0, rows, block0, blocks in self.parts:
            where = {"b0": b0, "block0": block0, "blocks": blocks, "size": self.size}
            where.update(energies=self.energies, SLICED=self.sliced)
            tiles = rows * self.H * blocks * (ROWS.value // self.tile) * self.blocks_s
            launch(
                energy_kernel,
                (tiles * self.sliced,),
                {**self.arguments, **where},
                4,
                tuned.ENERGY_REGISTERS,
            )
            yield where, rows * self.H


def stretches(B, H, blocks_t, bytes_per_block, budget):
    """Batch rows and blocks of queries to take at a time: b0, rows, block0, blocks."""
    fit = max(1, budget // (H * bytes_per_block))  # blocks of queries, of all the heads of a row
    if fit >= blocks_t:
        rows = fit // blocks_t
        return [(b, min(rows, B - b), 0, blocks_t) for b in range(0, B, rows)]
    starts = range(0, blocks_t, fit)
    return [(b, 1, i, min(fit, blocks_t - i)) for b in range(B) for i in starts]


_compiled: dict[tuple[Any, ...], Any] = {}
_signature: dict[int, tuple[list[int], list[int], list[int]]] = {}


def launch(kernel, grid, arguments, warps, registers=None):
    """Launch a kernel; one that was launched alike before, without Triton's own long look at it."""
    name = id(kernel)  # a kernel's own hash reads its source
    values = [arguments[each] for each in kernel.arg_names]
    if INTERPRETED.value:
        kernel[grid](*values)
        return
    if name not in _signature:
        _signature[name] = (
            [i for i, p in enumerate(kernel.params) if p.is_constexpr],
            [i for i, x in enumerate(values) if x is None or isinstance(x, torch.Tensor)],
            [i for i, x in enumerate(values) if type(x) is int],
        )
    fixed, tensors, integers = _signature[name]
    key = (
        name,
        warps,
        torch.cuda.current_device(),
        *[values[i] for i in fixed],
        *[
            x if x is None else (x.dtype, x.data_ptr() % 16)
            for x in map(values.__getitem__, tensors)
        ],
        max(map(values.__getitem__, integers)) < 1 << 31,
    )
    known = _compiled.get(key)
    if known is None:
        options = {"num_warps": warps, "num_stages": 1}
        if registers is not None:
            options["maxnreg"] = registers
        _compiled[key] = kernel[grid](*values, **options)
    else:
        known[(*grid, 1, 1)[:3]](*values)


def _by_row(q, k, v, common):
    """The same for a query or a few, cut along S where there are too few to fill a GPU."""
    (B, H, T, _), (_, _, S, R) = q.shape, v.shape
    keys, warps = tuned.row(max(common["WIDTH"], common["READ"]))
    cuts = max(1, min(64, S // 512, tuned.ENOUGH * 2 // (B * H * T)))
    context = q.new_empty(B, H, T, cuts, R, dtype=v.dtype if cuts == 1 else torch.float32)
    log_sum = q.new_empty(B, H, T, cuts, dtype=torch.float32)
    wide = vector(q, k, v)
    arguments = {**common, **strides(wide, q=q, k=k, v=v), "q": q, "k": k, "v": v}
    arguments.update(context=context, log_sum=log_sum, BS=keys, VECTOR=wide)
    arguments["PRECISE"] = q.dtype == torch.float32
    launch(row_kernel, (B * H * T, cuts), arguments, warps)
    if cuts == 1:
        return context[:, :, :, 0], log_sum[..., 0]
    whole = log_sum.logsumexp(-1)
    share = (log_sum - whole[..., None]).nan_to_num(-torch.inf, neginf=-torch.inf).exp()
    return (share[..., None] * context).sum(3).to(v.dtype), whole


@triton.jit(do_not_specialize=["T", "S"])
def kept_kernel(factors, seed, T, S, dropout, boost):
    row, t = tl.program_id(0) // T, tl.program_id(0) % T + tl.zeros([1], tl.int32)
    for s0 in range(0, S, ROWS):
        s = s0 + tl.arange(0, ROWS)
        at = factors + tl.program_id(0).to(tl.int64) * S + s
        tl.store(at, tl.sum(kept_tile(t, s, row, seed, dropout, boost), 0), mask=s < S)


def kept(shape: tuple[int, int, int, int], dropout: float, seed: Tensor) -> Tensor:
    """What dropout multiplies each weight with: zero or 1 / (1 - dropout).    B H T S"""
    B, H, T, S = shape
    factors = seed.new_empty(shape, dtype=torch.float32)
    boost = 1 / (1 - dropout) if dropout < 1 else 0.0
    kept_kernel[(B * H * T,)](factors, seed, T, S, float(dropout), boost)
    return factors
