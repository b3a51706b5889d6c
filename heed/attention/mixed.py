"""Mixed: two mechanisms side by side, blended by a gate.    c = g c₁ + (1 - g) c₂"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from heed.attention.apply import unstated
from heed.attention.blind_queries import placed, spared
from heed.attention.initial_weights import Drawn
from heed.attention.mechanism import Lanes, Mechanism
from heed.attention.memory import Memory, concat
from heed.attention.part import Slot
from heed.attention.position import Position
from heed.attention.reference import wide
from heed.attention.score import constant, linear, parameter, per_head
from heed.attention.statistics import statistics as summarised
from heed.attention.trace import Blended
from heed.errors import Refused, UnknownName
from heed.records import Attended, Need, State, Summary
from heed.visible import Visible, both


class FixedGate(Drawn):
    """The same share for every query."""

    def __init__(self, share: float = 0.5) -> None:
        super().__init__()
        if not 0 <= share <= 1:
            raise Refused(f"a gate is a number between 0 and 1; got {share}")
        self.share = share

    def forward(self, query: Tensor) -> Tensor:
        """B H T M -> a number"""
        return query.new_full((), self.share)


class HeadGate(Drawn):
    """A learned share per head."""

    def __init__(self, *, heads: int = 1) -> None:
        super().__init__()
        self.logit = constant(0, heads, 1, 1)

    def forward(self, query: Tensor) -> Tensor:
        """B H T M -> H 1 1"""
        return torch.sigmoid(self.logit)


class QueryGate(Drawn):
    """A share that each query chooses: σ(w·q_t)."""

    def __init__(self, *, query: int, heads: int = 1) -> None:
        super().__init__()
        self.weight = parameter(heads, 1, query)

    def forward(self, query: Tensor) -> Tensor:
        """B H T M -> B H T 1"""
        return torch.sigmoid(linear(query, self.weight))


def gate_of(gate: float | str, *, query: int, heads: int) -> nn.Module:
    """A share, "head" (learned per head) or "query" (chosen by each query)."""
    if isinstance(gate, int | float):
        return FixedGate(float(gate))
    if gate == "head":
        return HeadGate(heads=heads)
    if gate == "query":
        return QueryGate(query=query, heads=heads)
    raise UnknownName("gate", gate, ("head", "query"))


class Mixed(Lanes):
    """Two mechanisms over one memory. Their projected keys lie side by side in `Memory.k`."""

    name = "mixed"
    slot: ClassVar[Slot] = "reach"
    formula = "c = g c_global + (1−g) c_local-p"
    names = ("first", "second")

    def __init__(self, first: Mechanism, second: Mechanism, gate: nn.Module) -> None:
        super().__init__([first, second])
        if not self.claims.gives_context:
            raise Refused("mixed blends two contexts; a pointer has none")
        self.first, self.second, self.gate = first, second, gate

    @property
    def lanes(self) -> tuple[Mechanism, Mechanism]:  # type: ignore[override]
        """The two mechanisms."""
        return self.first, self.second

    def keep(self, keys: Tensor, values: Tensor) -> Tensor:
        return concat([lane.keep(keys, values) for lane in self.lanes], -1)

    @property
    def kept_width(self) -> int:
        return sum(self.widths)

    def memories(self, memory: Memory) -> list[Memory]:
        """The memory of each lane: its own columns of the keys, and all values."""
        kept = zip(memory.k.split(self.widths, -1), self.lanes, strict=True)
        return [replace(memory, k=k, owner=lane.token, prepared={}) for k, lane in kept]

    def attend(
        self,
        query: Tensor,
        memory: Memory,
        state: State | None,
        visible: Visible | None,
        need: Need,
        segments: Tensor | None,
        position: Position | None,
        asked: Summary | None,
    ) -> Attended:
        """Attend with both and blend: queries B H T M -> context B H T R, weight B H T S."""
        one, two = (
            lane(
                query,
                memory,
                state,
                visible=visible,
                # The entropy of a blend does not follow from the entropies of what is blended.
                need="weight" if asked is not None and need == "context" else need,
                segments=segments,
                position=position,
                statistics=None if asked is None else Summary(received=False),
            )
            for lane, memory, state in zip(
                self.lanes, self.memories(memory), self.states(state), strict=True
            )
        )
        places = placed(query.shape[2], memory.S, state, query.device)
        shown = both(memory.visible, visible)
        if not self.claims.looks_regardless:
            query = spared(query, memory, shown, places)
        share = self.gate(query)
        share = share.to(torch.promote_types(share.dtype, torch.float32))  # or 1 - share is rounded
        context = share * one.context + (1 - share) * two.context
        weight = None
        if asked is not None or need != "context":
            weight = share * one.weight + (1 - share) * two.weight
        said = None
        if asked is not None and weight is not None:
            told = summarised if weight.numel() else unstated
            lanes = [lane.statistics.largest for lane in (one, two)]
            said = told(weight.detach(), asked)._replace(largest=_larger(*lanes))
        after = dict(zip(self.names, (one.state, two.state), strict=True))
        return Attended(
            context.to(one.context.dtype),
            one.state._replace(slots=after),
            weight=None if need == "context" else weight,
            log_prob=_together(one.log_prob, two.log_prob),
            entropy=_together(one.entropy, two.entropy),
            penalty=_together(one.penalty, two.penalty),
            kernel=f"{one.kernel} + {two.kernel}",
            refusals=one.refusals + two.refusals,
            statistics=said,
            trace=self._trace(one, two, share, memory) if need == "trace" else None,
        )

    def _trace(self, one: Attended, two: Attended, share: Tensor, memory: Memory) -> Blended:
        B, H, T = one.weight.shape[:3]
        v = per_head(wide(memory.v), H)
        return Blended(self.name, (one.trace, two.trace), share.expand(B, H, T, 1), v)


def _larger(one: Tensor | None, two: Tensor | None) -> Tensor | None:
    """The larger of what two lanes compared."""
    return None if one is None or two is None else torch.maximum(one, two)


def _together(one: Tensor | None, two: Tensor | None) -> Tensor | None:
    """Log-probabilities, entropies and penalties of independent lanes add up."""
    if one is None or two is None:
        return one if two is None else two
    return one + two
