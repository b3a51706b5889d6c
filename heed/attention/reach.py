"""Reach: where a query may look, and how much what it finds there counts.

A reach narrows what is visible and may give a gain, multiplied onto the weights after align. One of
them (`expanded-window`) also regroups the memory and folds the weights back onto its members.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from heed.attention.memory import Memory
from heed.attention.score import linear, weights
from heed.errors import Refused
from heed.records import Claims
from heed.visible import Both, Gaussian, Mask, Near, Places, Visible, Window, both


@dataclass(slots=True, eq=False)
class Reached:
    """What a reach decides for one call."""

    memory: Memory
    visible: Visible | None
    gain: Gaussian | None = None
    bias: Tensor | None = None  # added to the energies, broadcasts to B H T S
    fold: Callable[[Tensor], Tensor] | None = None  # weights on a regrouped memory, back on S
    widen: Callable[[Tensor], Tensor] | None = None  # a bias over S, for a regrouped memory


class Reach(nn.Module):
    """By default: every visible place (`global`)."""

    claims: ClassVar[Claims] = Claims()
    regroups: ClassVar[bool] = False
    """Whether keys are put together, so that parts which need them in a line cannot follow."""

    def question(self, B: int) -> Tensor:
        """The reach's own query, where a call brings none.    -> B H 1 M"""
        raise Refused("this mechanism needs a query; only a learned 'static' brings its own")

    def forward(
        self, query: Tensor, memory: Memory, places: Places, visible: Visible | None
    ) -> Reached:
        """Queries B H T M, the memory, who stands where, and what is visible already."""
        return Reached(memory, visible)


class Global(Reach):
    """Every visible place."""


class LocalM(Reach):
    """A window around the query's own step: p_t = min(t, S - 1). Luong 2015 §3.2."""

    def __init__(self, *, window: int = 10) -> None:
        super().__init__()
        self.window = _half_width(window, 0)

    def forward(
        self, query: Tensor, memory: Memory, places: Places, visible: Visible | None
    ) -> Reached:
        last = (memory.lengths - 1).clamp(min=0)
        centre = torch.minimum(places.steps, last[:, None])[:, None]  # B 1 T
        return Reached(memory, both(visible, Near(centre, self.window)))


class LocalP(Reach):
    """A window around a predicted place, under a Gaussian. Luong 2015 eq. 9-10.

    p_t = (S - 1) σ(v·tanh(W q_t)), S each row's own length; the weights of the window are
    multiplied by exp(-(s - p_t)² / 2σ²), σ = window / 2, and not normalised again.
    """

    def __init__(
        self, *, query: int, heads: int = 1, window: int = 10, hidden: int | None = None
    ) -> None:
        super().__init__()
        self.window = _half_width(window, 1)
        self.weight = weights(heads, hidden or query, query)
        self.vector = weights(heads, 1, hidden or query)

    def forward(
        self, query: Tensor, memory: Memory, places: Places, visible: Visible | None
    ) -> Reached:
        chosen = linear(torch.tanh(linear(query, self.weight)), self.vector)[..., 0]  # B H T
        chosen = chosen.to(torch.promote_types(chosen.dtype, torch.float32))
        last = (memory.lengths - 1).clamp(min=0)
        centre = last[:, None, None] * torch.sigmoid(chosen)
        near = Near(centre.detach(), self.window)
        return Reached(memory, both(visible, near), Gaussian(centre, self.window / 2))


class FixedWindow(Reach):
    """Self-attention within ±window of one's own place."""

    def __init__(self, *, window: int = 128) -> None:
        super().__init__()
        self.window = _half_width(window, 0)

    def forward(
        self, query: Tensor, memory: Memory, places: Places, visible: Visible | None
    ) -> Reached:
        return Reached(memory, both(visible, Window(self.window)))


class ExpandedWindow(Reach):
    """Near places one by one, far ones by the block: far context is seen coarsely.

    Blocks that the window touches are seen at full resolution, whole, so that no key is lost; each
    other block becomes one key and value, the mean over its members, with log(number of members)
    added to its energy. A block can be looked at when all its members can: under a causal mask,
    when it is complete and past. Its weight is reported as a/n on each of n members.

    block  keys per block; by default near sqrt(S). Give it where S changes and the answer must not:
           for a memory that grows between steps, or a text that comes in batches of other lengths.
    """

    regroups = True

    def __init__(self, *, window: int = 128, block: int | None = None) -> None:
        super().__init__()
        self.window = _half_width(window, 0)
        self.block = block

    def forward(
        self, query: Tensor, memory: Memory, places: Places, visible: Visible | None
    ) -> Reached:
        S, ones = memory.S, memory.k.shape[2]  # places, and columns seen one by one
        size = self.block or max(1, math.isqrt(S))
        exists = memory.exists  # B S
        member = _blocks(exists, size)  # B N n
        count = member.sum(-1).clamp(min=1)  # B N
        ok = exists[:, None, None]
        if visible is not None:
            everyone = Mask(ok.expand(-1, -1, places.T, -1))
            ok = Both(visible, everyone).dense(places)

        near = _touched(places, size, self.window)  # T N
        closed = _blocks(~ok & exists[:, None, None], size).any(-1)  # B H|1 T|1 N
        far = member.any(-1)[:, None, None] & ~closed & ~near
        near = ok & near.repeat_interleave(size, -1)[:, :S]
        near = pad(near, (0, memory.sinks), value=True)  # the sinks stand nowhere: always near
        axes = torch.broadcast_shapes(near.shape[:-1], far.shape[:-1])
        columns = torch.cat([near.expand(*axes, -1), far.expand(*axes, -1)], -1)

        def fold(weight: Tensor) -> Tensor:
            """B H T ones+N -> B H T ones"""
            share = (weight[..., ones:] / count[:, None, None])[..., None] * member[:, None, None]
            return weight[..., :ones] + pad(share.flatten(-2)[..., :S], (0, ones - S))

        def widen(felt: Tensor) -> Tensor:
            """What places add to the energies; a block feels the mean.    T S -> B H T ones+N"""
            felt = felt.expand(len(exists), query.shape[1], places.T, S)
            return torch.cat([pad(felt, (0, ones - S)), _means(felt.mT, member, count).mT], -1)

        wider = replace(
            memory,
            k=torch.cat([memory.k, _means(memory.k[:, :, :S], member, count)], 2),
            v=torch.cat([memory.v, _means(memory.v[:, :, :S], member, count)], 2),
            visible=None,
            sinks=0,
        )
        wide = torch.promote_types(memory.k.dtype, torch.float32)
        bias = pad(count.to(wide).log(), (ones, 0))[:, None, None]  # B 1 1 ones+N
        return Reached(wider, Mask(columns), bias=bias, fold=fold, widen=widen)


class Static(Reach):
    """One query for the whole text, one context: a text becomes a vector. Yang 2016, Lin 2017.

    learned  the query is a learned vector, for calls without one; False where every call brings
             its own, such as the two ends of a BiRNN joined
    """

    claims = Claims(step=False, at_once=False, heads=False)

    def __init__(self, *, query: int, heads: int = 1, learned: bool = True) -> None:
        super().__init__()
        self.vector = weights(heads, 1, query) if learned else None

    def question(self, B: int) -> Tensor:
        return super().question(B) if self.vector is None else self.vector.expand(B, -1, -1, -1)


def _half_width(window: int, least: int) -> int:
    if window < least:
        raise Refused(f"window is a half-width of {least} or more; got {window}")
    return window


def _blocks(x: Tensor, size: int) -> Tensor:
    """Cut the last axis into blocks, the last one filled up with False or 0.    ... S -> ... N n"""
    padded = pad(x, (0, -x.shape[-1] % size))
    return padded.reshape(*x.shape[:-1], padded.shape[-1] // size, size)


def _means(x: Tensor, member: Tensor, count: Tensor) -> Tensor:
    """The mean of each block over its members.    B G S D, B N n, B N -> B G N D"""
    blocks = _blocks(x.mT, member.shape[-1])  # B G D N n
    total = (blocks * member[:, None, None]).sum(-1)
    return (total / count[:, None, None]).mT.to(x.dtype)


def _touched(places: Places, size: int, half: int) -> Tensor:
    """Which blocks a query's window touches.    -> T N"""
    block = torch.arange(-(-places.S // size), device=places.device) * size
    query = places.query[:, None]
    return (block <= query + half) & (block + size > query - half)
