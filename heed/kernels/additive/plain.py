"""Additive attention on the CPU where there is no native library: the same identities in PyTorch.

tanh(q + k) is a fraction of numbers that belong to a row alone (native.c says which, and when), so
that the T S D elements cost a product and a reciprocal in place of a sum and a tanh. A few queries
at a time, so that these stay in the cache: memory does not grow with T S D, and that alone is worth
as much as the identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from heed.kernels.additive.plan import Plan

CHUNK = 1 << 18
"""How many elements are formed at once: a mebibyte of float32."""

WORTH_IT = 1 << 19
"""From how many elements T S D on this is faster than the reference: two to five times forward, one
and a half to two and a half with gradients; below, calling PyTorch for each part costs more."""

_HALF = torch.tensor(-0.5, dtype=torch.float32, device="cpu")

Form = Literal["addition", "exponential", "exact"]


@torch.no_grad()
def forward(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, seen: Plan, dropout: float, seed: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The context and log Σ exp(energy) of each query, -inf where it sees nothing.

    B H T D, B G S D, B G S R, H D -> B H T R, B H T float32
    """
    scene = _scene(q, k, v, w, seen, dropout, seed)
    context = scene.q.new_empty(*q.shape[:3], v.shape[3])
    log_sum = scene.q.new_empty(q.shape[:3])
    for part in _parts(scene):
        energy = (part.tanh() @ scene.w[part.h]).masked_fill_(~part.ok, -torch.inf)  # b t S
        log_sum[part.rows] = total = energy.logsumexp(-1)
        weight = part.used(_weights(energy, total))
        context[part.rows] = weight @ part.values
    return context.to(v.dtype), log_sum


@torch.no_grad()
def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    log_sum: Tensor,
    seen: Plan,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of q, k, v, w and of the centres of the gain, in their dtypes."""
    scene = _scene(q, k, v, w, seen, dropout, seed)
    grad = grad.float()
    dq = scene.q.new_empty(q.shape)
    dk, dv, dw = (x.new_zeros(x.shape) for x in (scene.k, scene.v, scene.w))
    dgain = None if seen.gain_centre is None else scene.q.new_empty(q.shape[:3])
    for part in _parts(scene):
        upper, wh = grad[part.rows], scene.w[part.h]
        y = part.tanh()  # b t S D
        blind = log_sum[part.rows][..., None] == -torch.inf
        weight = (y @ wh).masked_fill_(~part.ok, -torch.inf).softmax(-1).masked_fill_(blind, 0)
        slope = upper @ part.values.mT  # of the weights as they were used
        used = part.used(weight)
        if dgain is not None and part.away is not None:
            dgain[part.rows] = (used * slope * part.away).sum(-1) / scene.seen.sigma
        slope = part.used(weight * slope)
        slope -= weight * slope.sum(-1, keepdim=True)  # of the energies
        dw[part.h] += slope.flatten() @ y.flatten(0, 2)
        bent = y.square_().neg_().add_(1)
        dq[part.rows] = (slope[..., None, :] @ bent)[..., 0, :] * wh
        dk[part.keys] += bent.mul_(slope[..., None]).sum(1) * wh
        dv[part.keys] += used.mT @ upper
    if dgain is not None and seen.gain_centre is not None:
        dgain = dgain.sum_to_size(seen.gain_centre.shape)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dw.to(w.dtype), dgain


def kept(shape: tuple[int, int, int, int], dropout: float, seed: Tensor) -> Tensor:
    """The factor of dropout for each weight: zero or 1 / (1 - dropout).    B H T S"""
    B, H, T, _ = shape
    rows = (_row_factors(shape, dropout, seed, h, t) for h in range(H) for t in range(T))
    return torch.stack(list(rows), 1).view(B, H, T, shape[3])


def _row_factors(shape: tuple[int, ...], dropout: float, seed: Tensor, h: int, t: int) -> Tensor:
    """The factors of query t of head h, which do not depend on how the work is cut.    B S"""
    row = (int(seed) + 0x9E3779B97F4A7C15 * (h * shape[2] + t + 1)) % (1 << 63)
    draw = torch.empty(shape[0], shape[3], dtype=torch.float32, device="cpu")
    draw.uniform_(generator=torch.Generator().manual_seed(row))
    return (draw >= dropout).float() * (1 / (1 - dropout) if dropout < 1 else 0.0)


class _Scene(NamedTuple):
    """A call in float32, keys and values cleaned of what nobody sees."""

    q: Tensor  # B H T D, as the form compares them
    k: Tensor  # B G S D, likewise
    v: Tensor  # B G S R
    w: Tensor  # H D
    seen: Plan
    form: Form
    dropout: float
    seed: Tensor | None


class _Part(NamedTuple):
    """Some rows of one head, of some of the batch."""

    scene: _Scene
    h: int
    rows: tuple[slice, int, slice]  # of B H T
    keys: tuple[slice, int]  # of B G
    ok: Tensor  # b|1 t S
    away: Tensor | None  # (s - centre) / sigma  b t S

    @property
    def values(self) -> Tensor:
        return self.scene.v[self.keys]

    def tanh(self) -> Tensor:
        """tanh(q + k)    b t S D"""
        a, c = self.scene.q[self.rows][:, :, None], self.scene.k[self.keys][:, None]
        if self.scene.form == "exact":
            return (a + c).tanh_()
        if self.scene.form == "addition":
            return (a + c).div_((a * c).add_(1))
        return torch.addcmul(_HALF, a, c).reciprocal_().add_(1)  # a is -e^{2q} / 2

    def used(self, weight: Tensor) -> Tensor:
        """Weights after gain and dropout.    b t S"""
        if self.away is not None:
            weight = weight * torch.exp(-0.5 * self.away * self.away)
        if self.scene.dropout and self.scene.seed is not None:
            b, h, t = self.rows
            shape = (*self.scene.q.shape[:3], self.scene.k.shape[2])
            rows = range(t.start, t.stop)
            factor = [_row_factors(shape, self.scene.dropout, self.scene.seed, h, x) for x in rows]
            weight = weight * torch.stack(factor, 1)[b]
        return weight


def _scene(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, seen: Plan, dropout: float, seed: Tensor | None
) -> _Scene:
    fine = k.dtype == torch.float32
    q, k, v, w = (x.float() for x in (q, k, v, w))
    tables = (seen.stop, seen.exists, seen.table, seen.centre)
    if seen.causal or seen.half >= 0 or any(x is not None for x in tables):
        group = q.shape[1] // k.shape[1]
        ok = torch.stack([_any_row(seen, q, k.shape[2], h) for h in range(q.shape[1])], 1)
        ok = ok.unflatten(1, (-1, group)).any(2)[..., None]  # B G S 1
        k, v = k.where(ok, 0), v.where(ok, 0)
    most_q, most_k = (x.abs().amax() if x.numel() else x.new_zeros(()) for x in (q, k))
    form: Form = "exact"
    if fine and most_k <= 1:  # as in native.c, for all keys at once
        form, q, k = "addition", q.tanh(), k.tanh()
    elif most_q + most_k <= 40:
        form, q, k = "exponential", (2 * q).exp().mul_(-0.5), (2 * k).exp()
    return _Scene(q, k, v, w, seen, form, dropout, seed)


def _parts(scene: _Scene) -> Iterator[_Part]:
    """The work, cut so that the elements of a part stay in the cache."""
    B, H, T, D = scene.q.shape
    G, S = scene.k.shape[1:3]
    rows = max(1, min(T, CHUNK // (S * D)))
    batch = max(1, min(B, CHUNK // (rows * S * D)))
    for h in range(H):
        for b in range(0, B, batch):
            for t in range(0, T, rows):
                some, times = slice(b, min(b + batch, B)), slice(t, min(t + rows, T))
                ok = _sees(scene.seen, some, h, times, S)
                away = None
                if scene.seen.gain_centre is not None:
                    centre = _of(scene.seen.gain_centre, some, h, times)[..., None]
                    away = (torch.arange(S, device="cpu") - centre) / scene.seen.sigma
                    away = away.where(ok, 0)  # or 0 · NaN, where an unseen centre is NaN
                yield _Part(scene, h, (some, h, times), (some, h // (H // G)), ok, away)


def _of(x: Tensor, b: slice, h: int, t: slice) -> Tensor:
    """Rows of a tensor whose axes B H T may be broadcast.    b|1 t|1 ..."""
    x = x[:, h if x.shape[1] > 1 else 0]
    x = x[b] if len(x) > 1 else x
    return x[:, t] if x.shape[1] > 1 else x


def _sees(seen: Plan, b: slice, h: int, t: slice, S: int) -> Tensor:
    """The keys that each of these rows sees.    b|1 t S"""
    key = torch.arange(S, device="cpu")
    place = torch.arange(t.start, t.stop, device="cpu")[:, None] + seen.first
    ok = torch.ones(1, t.stop - t.start, S, dtype=torch.bool, device="cpu")
    if seen.causal:
        ok = ok & (key <= place)
    if seen.half >= 0:
        ok = ok & ((key - place).abs() <= seen.half)
    if seen.stop is not None:
        stop = seen.stop[b] if len(seen.stop) > 1 else seen.stop
        ok = ok & (key < stop[:, None, None])
    if seen.exists is not None:
        ok = ok & (seen.exists[b] if len(seen.exists) > 1 else seen.exists)[:, None]
    if seen.centre is not None:
        ok = ok & ((key - _of(seen.centre, b, h, t)[..., None]).abs() <= seen.radius)
    if seen.table is not None:
        ok = ok & _of(seen.table, b, h, t)
    return ok


def _any_row(seen: Plan, q: Tensor, S: int, h: int) -> Tensor:
    """The keys that any query of a head sees.    B S"""
    B, _, T, _ = q.shape
    rows = max(1, CHUNK // (B * S))
    found = torch.zeros(B, S, dtype=torch.bool, device="cpu")
    for t in range(0, T, rows):
        found |= _sees(seen, slice(0, B), h, slice(t, min(t + rows, T)), S).any(1)
    return found


def _weights(energy: Tensor, log_sum: Tensor) -> Tensor:
    """exp(energy - log_sum), zero for a row that sees nothing.    b t S"""
    return (energy - log_sum.masked_fill(log_sum == -torch.inf, 0)[..., None]).exp_()
