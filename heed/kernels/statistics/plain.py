"""Statistics on the CPU in PyTorch, a block of queries at a time, so that few weights are held."""

import torch
from torch import Tensor

from heed.kernels.statistics.plan import Question

BLOCK = 2**20
"""How many weights are formed at once: what a core's cache still holds."""


def summarise(question: Question) -> list[Tensor]:
    """Everything, as `operator` says."""
    B, H, T, _ = question.q.shape
    N = question.k.shape[2]
    rows = max(1, min(T, BLOCK // max(1, B * H * N)))
    wide = torch.promote_types(question.q.dtype, torch.float32)
    k = question.k.to(wide).repeat_interleave(H // question.k.shape[1], 1)
    received = k.new_zeros(B, H, N)
    pooled = k.new_zeros(B, H, *question.map)
    blocks = []
    for start in range(0, T, rows):
        t = torch.arange(start, min(start + rows, T), device=k.device)
        said, weight = _block(question, k, t)
        received += weight.sum(2)
        if question.map[0]:
            pooled += _pool(question, weight, t)
        blocks.append(said)
    log_sum, facts, place, top, share = (
        torch.cat(parts, -2 if i > 2 else -1) for i, parts in enumerate(zip(*blocks, strict=True))
    )
    return [log_sum, facts, place, received, top, share, pooled]


def _block(question: Question, k: Tensor, t: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """The statistics of each of the queries t, and their weights.    n -> B H n each, B H n N"""
    ok = _seen(question, t)
    cut = slice(int(t[0]), int(t[-1]) + 1)
    q = question.q[:, :, cut].to(k.dtype)
    energy = q @ k.mT * question.scale
    if question.bias is not None:
        energy += _some(question.bias, t)
    if ok is not None:
        energy = energy.masked_fill(~ok, -torch.inf)
    log_sum = energy.logsumexp(-1)
    blind = log_sum == -torch.inf
    weight = (energy - log_sum.masked_fill(blind, 0)[..., None]).exp()
    if question.gain is not None:
        weight *= _gain(question, t, k.dtype)
    mass = weight.sum(-1)
    share = weight / mass[..., None].clamp(min=torch.finfo(mass.dtype).tiny)
    places = torch.arange(k.shape[2], dtype=k.dtype, device=k.device)
    peak, place = share.max(-1)
    expected = share @ places
    away = places - expected[..., None]
    entropy = torch.special.entr(share).sum(-1)
    spread = (share * away * away).sum(-1).sqrt()
    top = share.topk(min(question.top, k.shape[2]), -1)
    facts = torch.stack([mass, entropy, peak, expected, spread])
    return (log_sum, facts, place, top.indices, top.values), weight


def _seen(question: Question, t: Tensor) -> Tensor | None:
    """The keys that each of the queries t sees.    broadcasts to B H n N"""
    S, place = question.S, (question.first + t)[:, None]
    s = torch.arange(S, device=t.device)
    ok: Tensor | None = None

    def narrow(part: Tensor) -> Tensor:
        return part if ok is None else ok & part

    if question.causal:
        ok = narrow((s <= place)[None, None])
    if question.half >= 0:
        ok = narrow(((s - place).abs() <= question.half)[None, None])
    if question.centre is not None:
        centre = _some(question.centre, t)[..., None]
        ok = narrow((s - centre).abs() <= question.radius)
    if question.stop is not None:
        ok = narrow((s < question.stop[:, None])[:, None, None])
    if question.exists is not None:
        ok = narrow(question.exists.bool()[:, None, None])
    if question.table is not None:
        ok = narrow(_some(question.table, t).bool())
    if ok is not None and question.sinks:
        ok = torch.nn.functional.pad(ok, (0, question.sinks), value=True)
    return ok


def _gain(question: Question, t: Tensor, dtype: torch.dtype) -> Tensor:
    """The Gaussian, one on the sinks.    broadcasts to B H n N"""
    assert question.gain is not None
    centre = _some(question.gain, t)[..., None]
    away = (torch.arange(question.S, device=t.device) - centre) / question.sigma
    gain = torch.exp(-0.5 * away * away).to(dtype)
    return torch.nn.functional.pad(gain, (0, question.sinks), value=1.0)


def _pool(question: Question, weight: Tensor, t: Tensor) -> Tensor:
    """The part of the queries t in the map: their share of the mean over each cell's queries."""
    (rows, columns), T, N = question.map, question.q.shape[2], weight.shape[-1]
    row = torch.arange(rows, device=t.device)[:, None]
    count = -(-(row + 1) * T // rows) - -(-row * T // rows)
    down = (t * rows // T == row).to(weight.dtype) / count
    cell = torch.arange(columns, device=t.device)[:, None]
    across = torch.arange(N, device=t.device) * columns // N == cell
    return down @ (weight @ across.to(weight.dtype).mT)


def _some(table: Tensor, t: Tensor) -> Tensor:
    """The rows of the queries t; a single row serves all queries.    ... T ... -> ... n ..."""
    return table if table.shape[2] == 1 else table[:, :, int(t[0]) : int(t[-1]) + 1]
