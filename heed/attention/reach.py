"""Reach: where a query may look, and how much each place counts.

A reach narrows what is visible and may give a gain, multiplied onto the weights after align. One of
them (`expanded-window`) also merges keys into blocks, whose weights are shared among their keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from heed.attention.blind_queries import spared
from heed.attention.memory import Memory, concat
from heed.attention.part import Part
from heed.attention.position import Position, four_axes
from heed.attention.score import linear, parameter
from heed.errors import Refused
from heed.kernels.ability import recorded, transformed
from heed.records import Claims
from heed.shapes import whole
from heed.visible import Coarse, Gaussian, Mask, Near, Places, Visible, Window, both, conjuncts, cut


@dataclass(slots=True, eq=False)
class Reached:
    """The decisions of a reach for one call."""

    memory: Memory
    visible: Visible | None
    gain: Gaussian | None = None
    bias: Tensor | None = None  # added to the energies, broadcasts to B H T S
    even: bool = False  # whether the bias makes all energies of some queries one number
    blocks: Blocks | None = None  # those that keys of the memory were merged into

    def felt(self, position: Position | None, places: Places) -> Tensor | None:
        """The bias plus that of a position; four axes, which broadcast to B H T S."""
        added = None if position is None else position.bias(places)
        if added is None:
            return self.bias
        added = four_axes(added)
        added = self.blocks.widen(added) if self.blocks else pad(added, (0, self.memory.sinks))
        return added if self.bias is None else self.bias + added

    def fold(self, weight: Tensor) -> Tensor:
        """Weights on merged keys, shared among the keys.    B H T N -> B H T S"""
        return weight if self.blocks is None else self.blocks.fold(weight)


class Reach(Part):
    """The base of all reaches; by default every visible place may be looked at (`global`)."""

    slot = "reach"
    claims = Claims(ignores_place=False, ignores_shifts=False, sees_all=False)
    window: int  # the half-width, where there is one

    def question(self, B: int) -> Tensor:
        """The reach's own query, where a call brings none.    -> B H 1 M"""
        raise Refused("this mechanism needs a query; only a learned 'static' brings its own")

    def shown(self, memory: Memory, places: Places) -> Visible | None:
        """The keys that it shows whatever a query says; None: every key."""
        return None

    def facts(self, reached: Reached) -> dict[str, Tensor | float]:
        """Facts that it decided about each query, by name.    -> broadcasts to B H T"""
        found: dict[str, Tensor | float] = {}
        for part in conjuncts(reached.visible):
            if isinstance(part, Near):
                found["centre"] = part.centre
        if hasattr(self, "window"):
            found["window"] = float(self.window)
        return found if reached.gain is None else {**found, "σ": reached.gain.sigma}

    def forward(
        self, query: Tensor, memory: Memory, places: Places, visible: Visible | None
    ) -> Reached:
        """Decide for queries B H T M, their memory and places, and what is visible already."""
        return Reached(memory, both(visible, self.shown(memory, places)))


class Global(Reach):
    """Every visible place."""

    formula = "all visible s"
    claims = Claims()


class LocalM(Reach):
    """A window around the query's own step: p_t = min(t, S - 1). Luong 2015 §3.2."""

    formula = "|s − min(t, S−1)| ≤ d"
    claims = Claims(ignores_place=False, ignores_shifts=False, sees_all=False)

    def __init__(self, *, window: int = 10) -> None:
        super().__init__()
        self.window = whole("window", window, 0)

    def shown(self, memory: Memory, places: Places) -> Visible:
        last = (memory.lengths - 1).clamp(min=0)
        centre = torch.minimum(places.steps, last[:, None])[:, None]  # B 1 T
        return Near(centre, self.window, rising=True)


class LocalP(Reach):
    """A window around a predicted place, under a Gaussian. Luong 2015 eq. 9-10.

    p_t = (S - 1) σ(v·tanh(W q_t)), S each row's own length; the weights of the window are
    multiplied by exp(-(s - p_t)² / 2σ²), σ = window / 2, and not normalised again.
    """

    formula = "|s − p_t| ≤ d, a·exp(−(s−p_t)²/2σ²), p_t = (S−1)σ(v·tanh(W q))"
    claims = Claims(ignores_shifts=False, sees_all=False, needs_length=True, mass="at most one")

    def __init__(
        self, *, query: int, heads: int = 1, window: int = 10, hidden: int | None = None
    ) -> None:
        super().__init__()
        self.window = whole("window", window, 1)
        hidden = whole("hidden", query if hidden is None else hidden, 1)
        self.weight = parameter(heads, hidden, query)
        self.vector = parameter(heads, 1, hidden)

    def forward(
        self, query: Tensor, memory: Memory, places: Places, visible: Visible | None
    ) -> Reached:
        query = spared(query, memory, visible, places)
        chosen = linear(torch.tanh(linear(query, self.weight)), self.vector)[..., 0]  # B H T
        chosen = chosen.to(torch.promote_types(chosen.dtype, torch.float32))
        last = (memory.lengths - 1).clamp(min=0)
        centre = last[:, None, None] * torch.sigmoid(chosen)
        near = Near(centre.detach(), self.window)
        return Reached(memory, both(visible, near), Gaussian(centre, self.window / 2))


class FixedWindow(Reach):
    """Self-attention within ±window of one's own place."""

    formula = "|s − t| ≤ d"
    claims = Claims(ignores_place=False, sees_all=False, needs_one_text=True)
    for_sentences: ClassVar[Mapping[str, Any]] = {"window": 10}

    def __init__(self, *, window: int = 128) -> None:
        super().__init__()
        self.window = whole("window", window, 0)

    def shown(self, memory: Memory, places: Places) -> Visible:
        return Window(self.window)


WIDEST = 2**16
"""The largest block: keys are padded to whole blocks."""

LOW = -1e30
"""Added to any energy it leaves nothing of it in float32, and no sum overflows."""


class OrEverything(Reach):
    """The keys of another reach; a query that it shows nothing looks at everything, evenly.

    A bias lowers its energies until they are one number: their softmax is even, and its gradient
    still reaches each of them. So it is in XLNet's published code, which lowers the energies of
    hidden keys instead of leaving them out. What the memory itself hides stays hidden.
    """

    formula = "all alike, where nothing else is seen"

    def __init__(self, inner: Reach) -> None:
        super().__init__()
        self.inner = inner
        self.claims = replace(inner.claims, sees_all=False, looks_regardless=True)

    def forward(
        self, query: Tensor, memory: Memory, places: Places, visible: Visible | None
    ) -> Reached:
        reached: Reached = self.inner(query, memory, places, visible)
        if reached.visible is None:
            return reached
        ok = reached.visible.dense(places)
        lost = ~ok.any(-1, keepdim=True)  # B|1 H|1 T|1 1
        known = lost.is_cpu and not recorded() and transformed() is None
        if known and not lost.any():
            return reached
        wide = torch.promote_types(query.dtype, torch.float32)
        shown = Mask(ok | (lost & memory.exists[:, None, None]))
        return replace(reached, visible=shown, bias=lost.to(wide) * LOW, even=True)


class ExpandedWindow(Reach):
    """Near places one by one, far ones by the block: far context is seen coarsely.

    Blocks that the window touches are seen at full resolution, whole, so that no key is lost; each
    other block becomes one key and value, the mean over its members, with log(number of members)
    added to its energy. A block can be looked at when all its members can: under a causal mask,
    when it is complete and past. Its weight is reported as a/n on each of n members.

    block  keys per block. A constant: a size taken from S would make a text's answer depend on its
           neighbours in the batch. The cost is least near sqrt(S), 32 for a thousand keys.
    """

    formula = "|s − t| ≤ d one by one; a far block of n: e(q, mean k) + log n, mean v"
    claims = Claims(
        ignores_place=False,
        ignores_shifts=False,
        sees_all=False,
        needs_one_text=True,
        merges_keys=True,
    )
    for_sentences: ClassVar[Mapping[str, Any]] = {"window": 10}

    def __init__(self, *, window: int = 128, block: int = 32) -> None:
        super().__init__()
        self.window = whole("window", window, 0)
        self.block = whole("block", block, 1, WIDEST)

    def forward(
        self, query: Tensor, memory: Memory, places: Places, visible: Visible | None
    ) -> Reached:
        blocks = Blocks(memory.exists, self.block, memory.sinks)
        bias = blocks.log_counts(memory.k.dtype)
        wider = replace(
            memory,
            k=blocks.joined(memory.k),
            v=blocks.joined(memory.v),
            visible=None,
            prepared={},
            sinks=0,
        )
        return Reached(
            wider,
            Coarse(
                visible, blocks.exists, blocks.member, self.window, memory.S, memory.sinks, bias
            ),
            bias=bias,
            blocks=blocks,
        )


class Blocks:
    """S keys, one column each (sinks after them), and N blocks of them, one column more each."""

    def __init__(self, exists: Tensor, size: int, sinks: int) -> None:
        self.S, self.size, self.sinks, self.exists = exists.shape[-1], size, sinks, exists
        self.member = cut(exists, size)  # B N n
        self.count = self.member.sum(-1).clamp(min=1)  # B N

    def means(self, x: Tensor) -> Tensor:
        """The mean of each block's members.    B G D S -> B G D N"""
        total = (cut(x, self.size) * self.member[:, None, None]).sum(-1)
        return (total / self.count[:, None, None]).to(x.dtype)

    def joined(self, x: Tensor) -> Tensor:
        """Keys or values, one by one and then by the block.    B G S D -> B G S+N D"""
        return concat([x, self.means(x[:, :, : self.S].mT).mT], 2)

    def log_counts(self, dtype: torch.dtype) -> Tensor:
        """log(number of members), added to a block's energy; 0 for single keys.    -> B 1 1 S+N"""
        logs = self.count.to(torch.promote_types(dtype, torch.float32)).log()
        return pad(logs, (self.S + self.sinks, 0))[:, None, None]

    def fold(self, weight: Tensor) -> Tensor:
        """A block's weight, shared among its members.    B H T S+N -> B H T S"""
        columns = self.S + self.sinks
        single, far = weight[..., :columns], weight[..., columns:]
        block = torch.arange(self.S, device=weight.device) // self.size
        block = block.where(self.exists, far.shape[-1])[:, None, None]  # no block: a share of zero
        share = pad(far / self.count[:, None, None], (0, 1))
        share = share.gather(-1, block.expand(*far.shape[:-1], -1))
        return single + pad(share, (0, self.sinks))

    def widen(self, felt: Tensor) -> Tensor:
        """A bias over keys and blocks, a block's being its mean.    B|1 H|1 T|1 S -> B H T S+N"""
        felt = felt.expand(len(self.member), -1, -1, -1)
        return concat([pad(felt, (0, self.sinks)), self.means(felt)], -1)


class Static(Reach):
    """One query for the whole text, one context: a text becomes a vector. Yang 2016, Lin 2017.

    learned  the query is a learned vector, for calls without one; False where every call brings
             its own, such as the two ends of a BiRNN joined
    """

    formula = "one query for the whole text"
    claims = Claims(has_steps=False, takes_several=False, fits_heads=False)

    def __init__(self, *, query: int, heads: int = 1, learned: bool = True) -> None:
        super().__init__()
        self.vector = parameter(heads, 1, query) if learned else None

    def question(self, B: int) -> Tensor:
        return super().question(B) if self.vector is None else self.vector.expand(B, -1, -1, -1)
