"""A query or a few, in Triton: each key and value is read once, and nothing is prepared.

There is no tile of queries to fill, and a call is bound by memory: exponentials of the keys would
be more to read than the keys. Where a query shares its keys with no other, one kernel gives all
gradients.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from heed.kernels.additive import tuned
from heed.kernels.additive.device import (
    LN2,
    LOG2E,
    PLAIN_INTEGERS,
    bend,
    gain_tile,
    kept_tile,
    seen_tile,
    span,
)
from heed.kernels.additive.scene import Found, Scene
from heed.kernels.launching import At, at, launch, maybe


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def forward_kernel(
    q, k, v, w, context, log_sum, stop, exists, table, centre, gain_centre, seed,
    T, S, H, G, q_b, q_h, q_t, k_b, k_g, k_s, v_b, v_g, v_s, table_b, table_h, table_t, table_s,
    first, behind, ahead, radius, sigma, dropout, boost,
    D: tl.constexpr, R: tl.constexpr, WIDTH: tl.constexpr, READ: tl.constexpr, BS: tl.constexpr,
    VECTOR: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """One query over a stretch of its keys, each read once: bound by memory."""
    at = tl.program_id(0)
    row = at // T
    b, h = row // H, row % H
    g = h // (H // G)
    t = at % T + tl.zeros([1], tl.int32)
    d, r = tl.arange(0, WIDTH), tl.arange(0, READ)
    vector = tl.load(w + h.to(tl.int64) * D + d, mask=d < D, other=0.0).to(tl.float32)
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
            t, s, T, S, b, h, H,
            stop, exists, table, centre, table_b, table_h, table_t, table_s,
            first, behind, ahead, radius,
        )  # 1 BS  # fmt: skip
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


def forward(scene: Scene, v: Tensor) -> tuple[Tensor, Tensor]:
    """The context and the log-sum-exp of each query, for a query or a few.    -> B H T R, B H T

    The work is cut along S where there are too few queries to fill a GPU.
    """
    B, H, T, D = scene.shape
    R, dtype = scene.R, v.dtype
    keys, warps = tuned.row(max(scene.width, scene.read))
    cuts = max(1, min(64, scene.S // 512, tuned.ENOUGH * 2 // (B * H * T)))
    context = v.new_empty(B, H, T, cuts, R, dtype=dtype if cuts == 1 else torch.float32)
    log_sum = v.new_empty(B, H, T, cuts, dtype=torch.float32)
    unit = scene.unit("q", "k", "v")
    launch(
        forward_kernel,
        (B * H * T, cuts),
        (scene.q, scene.k, scene.v, scene.w, at(context), at(log_sum), *scene.sights),
        (
            *(*scene.lengths, *scene.steps(unit, "q", "k", "v"), *scene.table_steps),
            *(*scene.edges, *scene.factors),
        ),
        (D, R, scene.width, scene.read, keys, unit, scene.precise),
        warps,
    )
    if cuts == 1:
        return context[:, :, :, 0], log_sum[..., 0]
    whole = log_sum.logsumexp(-1)
    share = (log_sum - whole[..., None]).nan_to_num(-torch.inf, neginf=-torch.inf).exp()
    return (share[..., None] * context).sum(3).to(dtype), whole


@triton.jit(do_not_specialize=PLAIN_INTEGERS)
def backward_kernel(
    q, k, v, w, grad, context, log_sum, grad_q, grad_k, grad_v, grad_w, grad_centre,
    stop, exists, table, centre, gain_centre, seed,
    T, S, H, G, q_b, q_h, q_t, k_b, k_g, k_s, v_b, v_g, v_s, table_b, table_h, table_t, table_s,
    first, behind, ahead, radius, sigma, dropout, boost,
    D: tl.constexpr, R: tl.constexpr, WIDTH: tl.constexpr, READ: tl.constexpr, BS: tl.constexpr,
    VECTOR: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """All gradients of one query that shares its keys with no other: each key is read once."""
    row = tl.program_id(0)
    b, h = row // H, row % H
    t = tl.zeros([1], tl.int32)
    d, r = tl.arange(0, WIDTH), tl.arange(0, READ)
    scores = tl.load(w + h.to(tl.int64) * D + d, mask=d < D, other=0.0).to(tl.float32)
    asked = q + (b.to(tl.int64) * q_b + h.to(tl.int64) * q_h) * VECTOR
    asked = tl.load(asked + d, mask=d < D, other=0.0).to(tl.float32)
    asked = tl.where(asked == asked, asked, 0.0)
    keys = k + (b.to(tl.int64) * k_b + h.to(tl.int64) * k_g) * VECTOR + d[None, :]
    values = v + (b.to(tl.int64) * v_b + h.to(tl.int64) * v_g) * VECTOR + r[None, :]
    at = row.to(tl.int64)
    wish = tl.load(grad + at * R + r, mask=r < R, other=0.0).to(tl.float32)
    gathered = tl.load(context + at * R + r, mask=r < R, other=0.0).to(tl.float32)
    delta = tl.sum(wish * gathered, 0)
    level = tl.load(log_sum + at)
    level = tl.where(level == float("-inf"), 0.0, level)

    rise = tl.zeros([WIDTH], tl.float32)
    lean = tl.zeros([WIDTH], tl.float32)
    moment = 0.0
    for s0 in range(0, S, BS):
        s = s0 + tl.arange(0, BS)
        seen = seen_tile(
            t, s, T, S, b, h, H,
            stop, exists, table, centre, table_b, table_h, table_t, table_s,
            first, behind, ahead, radius,
        )  # 1 BS  # fmt: skip
        here = tl.sum(seen.to(tl.int32), 0) > 0
        place = s.to(tl.int64)[:, None] * VECTOR
        key = tl.load(keys + place * k_s, mask=here[:, None] & (d < D)[None, :], other=0.0)
        value = tl.load(values + place * v_s, mask=here[:, None] & (r < R)[None, :], other=0.0)
        bent = bend(asked[None, :] + key.to(tl.float32), PRECISE)
        energy = tl.where(here, tl.sum(bent * scores[None, :], 1) - level, float("-inf"))
        weight = tl.exp2(energy * LOG2E)
        wanted = tl.sum(wish[None, :] * value.to(tl.float32), 1)
        used = weight
        if gain_centre is not None:
            gain, away = gain_tile(t, s, T, b, h, H, gain_centre, sigma)
            used = used * tl.sum(gain, 0)
        if seed is not None:
            used = used * tl.sum(kept_tile(t, s, row, seed, dropout, boost), 0)
        if gain_centre is not None:
            moment += tl.sum(used * wanted * tl.sum(away, 0), 0) / (sigma * sigma)
        slope = tl.where(here, used * wanted - weight * delta, 0.0)
        steep = slope[:, None] * (1.0 - bent * bent)
        rise += tl.sum(steep, 0)
        lean += tl.sum(slope[:, None] * bent, 0)
        place = (at * S + s)[:, None]
        inside = (s < S)[:, None]
        tl.store(
            grad_k + place * D + d[None, :], steep * scores[None, :], mask=inside & (d < D)[None, :]
        )
        tl.store(
            grad_v + place * R + r[None, :],
            used[:, None] * wish[None, :],
            mask=inside & (r < R)[None, :],
        )
    tl.store(grad_q + at * D + d, rise * scores, mask=d < D)
    tl.store(grad_w + at * D + d, lean, mask=d < D)
    if gain_centre is not None:
        tl.store(grad_centre + at, moment)


def backward(
    scene: Scene, qkv: tuple[Tensor, Tensor, Tensor], grad: At, context: At, log_sum: At
) -> Found:
    """The gradients of one query a head, whose keys are its own."""
    q = qkv[0]
    B, H, _, D = scene.shape
    keys, warps = tuned.row(max(scene.width, scene.read))
    unit = scene.unit("q", "k", "v")
    grad_q, grad_k, grad_v = (x.new_empty(x.shape) for x in qkv)
    grad_w = q.new_empty(B * H, D, dtype=torch.float32)
    gains = scene.gain_centre is not None
    grad_centre = q.new_empty(B, H, 1, dtype=torch.float32) if gains else None
    launch(
        backward_kernel,
        (B * H, 1),
        (
            *(scene.q, scene.k, scene.v, scene.w, grad, context, log_sum),
            *(at(grad_q), at(grad_k), at(grad_v), at(grad_w), maybe(grad_centre)),
            *scene.sights,
        ),
        (
            *(*scene.lengths, *scene.steps(unit, "q", "k", "v"), *scene.table_steps),
            *(*scene.edges, *scene.factors),
        ),
        (D, scene.R, scene.width, scene.read, keys, unit, scene.precise),
        warps,
    )
    return grad_q, grad_k, grad_v, grad_w, grad_centre
