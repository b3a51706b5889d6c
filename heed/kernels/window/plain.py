"""Windows in plain PyTorch, with a table T S: what dropout keeps, and second derivatives."""

from dataclasses import replace

import torch
from torch import Tensor

from heed.kernels.window.geometry import Geometry


def kept(see: Geometry, B: int, H: int, T: int, columns: int) -> Tensor:
    """The weights that dropout keeps, by the same arithmetic as the kernels.    -> B H T S+N"""
    assert see.seed is not None
    device = see.seed.device
    row = torch.arange(B * H * T, device=device)
    of_row = _mixed((row ^ see.seed) & _BITS)
    of_row = _mixed((of_row + ((see.seed >> 32) & _BITS)) & _BITS)
    column = torch.arange(columns, device=device) * 0x9E3779B9
    drawn = _mixed((of_row[:, None] + column) & _BITS) >> 1
    return (drawn >= see.threshold).view(B, H, T, columns)


_BITS = 0xFFFFFFFF


def _mixed(x: Tensor) -> Tensor:
    """A 32-bit hash: the finaliser of MurmurHash3 (Appleby 2011)."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _BITS
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _BITS
    return x ^ (x >> 16)


def seen(see: Geometry, T: int, S: int, device: torch.device) -> Tensor:
    """The visible keys: single keys, then blocks.    -> B|1 H|1 T S+N"""
    place = torch.arange(T, device=device)[:, None] + see.first
    s = torch.arange(S, device=device)
    ok = torch.ones(1, 1, T, S, dtype=torch.bool, device=device)
    if see.block:
        ok = ok & _touched(see, place, s // see.block)
    elif see.half >= 0:
        ok = ok & ((s - place).abs() <= see.half)
    if see.centre is not None:
        ok = ok & ((s - see.centre[..., None]).abs() <= see.radius)
    if see.causal:
        ok = ok & (s <= place)
    if see.stop is not None:
        ok = ok & (s < see.stop[:, None, None, None])
    if see.exists is not None:
        ok = ok & see.exists[:, None, None]
    if see.opens is None:
        return ok
    far = ~_touched(see, place, torch.arange(see.N, device=device))
    far = far & (see.opens[:, None, None] <= place)
    B = max(len(ok), len(far))
    return torch.cat([ok.expand(B, -1, -1, -1), far.expand(B, ok.shape[1], -1, -1)], -1)


def _touched(see: Geometry, place: Tensor, block: Tensor) -> Tensor:
    """Whether a query's window touches a block."""
    near = block * see.block <= place + see.half
    return near & ((block + 1) * see.block > place - see.half)


def attended(q: Tensor, k: Tensor, v: Tensor, see: Geometry) -> Tensor:
    """The context, every step differentiable.    B H T D, B G S+N D, B G S+N R -> B H T R"""
    (B, H, T, _), S = q.shape, see.S(k)
    k, v = (x.repeat_interleave(H // x.shape[1], 1) for x in (k, v))
    ok = seen(see, T, S, q.device)
    energy = q @ k.mT * see.scale
    if see.logs is not None:
        energy = energy + torch.nn.functional.pad(see.logs, (S, 0))[:, None, None].to(energy.dtype)
    sighted = ok.any(-1, keepdim=True)
    weight = energy.masked_fill(~ok & sighted, -torch.inf).softmax(-1) * sighted
    if see.peak is not None:
        away = (torch.arange(S, device=q.device) - see.peak[..., None]) / see.sigma
        weight = weight * torch.exp(-0.5 * away * away)
    if see.dropout:
        weight = weight * kept(see, B, H, T, k.shape[2]) * see.boost
    return weight.to(v.dtype) @ v


def gradients(
    q: Tensor, k: Tensor, v: Tensor, see: Geometry, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of the ten tensors that the operator takes, differentiable in turn.

    Each tensor is a variable of its own here, though one may be, or come from, another: a key that
    is also a query has its gradient as a key alone.
    """
    q, k, v = (x.view_as(x) for x in (q, k, v))
    peak = None if see.peak is None else see.peak.view_as(see.peak)
    see = replace(see, peak=peak)
    leaves = {0: q, 1: k, 2: v, 4: peak}
    wanted = {i: x for i, x in leaves.items() if x is not None and x.requires_grad}
    found = torch.autograd.grad(
        attended(q, k, v, see), list(wanted.values()), grad, create_graph=True
    )
    by_place = dict(zip(wanted, found, strict=True))
    return tuple(by_place.get(i) for i in range(10))
