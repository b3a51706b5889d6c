"""One query's stages, each number by the mechanism's own parts: score, past, reach, align, read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from heed.attention.apply import wide
from heed.attention.grouping import HeadGroups
from heed.attention.mechanism import Mechanism
from heed.attention.memory import Memory
from heed.attention.mixed import Mixed
from heed.attention.moving import ForcedForward, Forward, MixtureWindow, Monotonic, Moving
from heed.attention.past import fitted
from heed.attention.position import Position
from heed.attention.reach import Reached
from heed.attention.score import per_head
from heed.records import State
from heed.visible import Coarse, Mask, Places, all_of, both, conjuncts
from heed.watching.walked import Walk


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One query of one row, with all heads: B = T = 1."""

    mechanism: Mechanism
    query: Tensor  # 1 H 1 M
    memory: Memory
    state: State
    tables: tuple[tuple[str, Tensor], ...]  # what a call hides, and why  broadcast to 1 H 1 S
    segments: Tensor | None
    position: Position | None

    def walk(self, head: int) -> Walk:
        """The way of this query in one head."""
        if isinstance(self.mechanism, Mixed):
            return self._blended(self.mechanism, head)
        if isinstance(self.mechanism, HeadGroups):
            return self._grouped(self.mechanism, head)
        return self._plain(head)

    def _blended(self, mixed: Mixed, head: int) -> Walk:
        """Both lanes, and the gate between them."""
        states = mixed.states(self.state)
        lanes = zip(states, mixed.lanes, mixed.memories(self.memory), strict=True)
        one, two = (
            replace(self, mechanism=lane, memory=own, state=state or self.state).walk(head)
            for state, lane, own in lanes
        )
        gate = mixed.gate(self.query).expand(1, self.query.shape[1], 1, 1)
        share = float(gate[0, head, 0, 0])
        assert one.context is not None
        assert two.context is not None
        blended = share * one.reported + (1 - share) * two.reported
        n = len(blended)  # blocks of keys, which a lane may have, are shared out among their keys
        v = wide(per_head(self.memory.v, self.query.shape[1])[0, head])
        v = v.where(blended[:, None] != 0, 0)
        return replace(
            one,
            parts={**one.parts, "reach": "mixed"},
            k=one.k[:n],
            v=v,
            energy=one.energy[:n],
            normal=one.normal[:n],
            hidden=tuple(x and y for x, y in zip(one.hidden, two.hidden, strict=False))[:n],
            spans=one.spans[:n],
            past=None,
            bias=None,
            gain=None,
            before={},
            weight=blended,
            reported=blended,
            weighted=blended[:, None] * v,
            context=share * one.context + (1 - share) * two.context,
            facts={"gate": share},
            lanes=(one, two),
            share=share,
        )

    def _grouped(self, groups: HeadGroups, head: int) -> Walk:
        """The walk in the group that a head belongs to."""
        lane, first = 0, 0
        while head >= first + groups.heads[lane]:
            first += groups.heads[lane]
            lane += 1
        cut = slice(first, first + groups.heads[lane])
        inside = replace(
            self,
            mechanism=groups.lanes[lane],
            query=self.query[:, cut],
            memory=groups.memories(self.memory)[lane],
            state=groups.states(self.state)[lane] or self.state,
        )
        return replace(inside.walk(head - first), head=head)

    def _plain(self, head: int) -> Walk:
        """The walk of a single mechanism: score, past, reach, align, read."""
        mechanism, memory, state = self.mechanism, self.memory, self.state
        score, S, sinks = mechanism.score, memory.S, memory.sinks
        places = Places(
            1, S, state.step, state.origin, self.query.device, self.segments, memory.segments
        )
        shown = all_of([Mask(table) for _, table in self.tables])
        reached = mechanism.reach(self.query, memory, places, both(memory.visible, shown))
        bias, asked = reached.felt(self.position, places), self.query
        if self.position is not None:
            asked = self.position.turn(self.query, places.query)
        H, N = self.query.shape[1], reached.memory.k.shape[2]
        ok = self._open(reached, places, N)
        seen = ok.any(1)[:, None, 0, :, None]
        k, v = (wide(x.where(seen, 0)) for x in (reached.memory.k, reached.memory.v))
        kept = replace(reached.memory, k=k, v=v, prepared={})
        q = wide(score.ask(asked).where(ok.any(-1, keepdim=True), 0))
        plain = score.energy(q, kept, places, None)
        before, hint = self._before(N, q)
        energy = plain if hint is None else score.energy(q, kept, places, hint)
        past = None if hint is None else energy - plain
        energy = energy if bias is None else energy + bias
        slot = state.slots.get(mechanism.align.name)
        aligned = mechanism.align(energy, ok, slot, self.query)
        gain = None
        if reached.gain is not None:
            gain = pad(reached.gain.dense(places), (0, sinks), value=1.0).expand(1, H, 1, N)
        weight = aligned.weight if gain is None else aligned.weight * gain
        context = mechanism.read(weight, v)
        values = per_head(v, H)[0, head]
        a = weight[0, head, 0]

        def of(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.expand(1, H, 1, N)[0, head, 0]

        return Walk(
            {slot: part.name for slot, part in _slots(mechanism)},
            head,
            state.step,
            state.step + state.origin,
            q[0, head, 0],
            per_head(k, H)[0, head],
            values,
            energy[0, head, 0],
            self._hidden(reached, ok, head),
            aligned.weight[0, head, 0],
            a,
            a if reached.fold is None else reached.fold(weight)[0, head, 0],
            a[:, None] * values,
            _spans(reached, S, sinks, N),
            past=of(past),
            bias=of(bias),
            gain=of(gain),
            before={k: x[0, head] for k, x in (before | self._stood(energy, ok, slot)).items()},
            facts=self._facts(reached, energy, slot, head),
            context=None if context is None else context[0, head, 0].to(memory.v.dtype),
            own={s: part.formula for s, part in _slots(mechanism) if hasattr(part, "formula")},
        )

    def _open(self, reached: Reached, places: Places, N: int) -> Tensor:
        """Who may be looked at.    1 H 1 N"""
        H, sinks = self.query.shape[1], reached.memory.sinks
        if reached.visible is None:
            return torch.ones(1, H, 1, N, dtype=torch.bool, device=self.query.device)
        ok = reached.visible.dense(places)
        return pad(ok, (0, sinks), value=True).expand(1, H, 1, N)

    def _before(self, N: int, q: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
        """What the past remembers, by place, and its hint for the score."""
        past = self.mechanism.past
        if past is None:
            return {}, None
        slot = self.state.slots.get(past.name)
        slot = past.begin(q[..., :1, 0], N) if slot is None else fitted(slot, N)
        return {"looked at" if past.claims.charges else "last weight": slot}, past.hint(slot)

    def _stood(self, energy: Tensor, ok: Tensor, slot: Any) -> dict[str, Tensor]:
        """Where an align that moves along the keys stood before.    1 H N"""
        align = self.mechanism.align
        if not isinstance(align, Moving):
            return {}
        slot = align.begin(energy[:, :, 0], ok[:, :, 0]) if slot is None else slot
        slot = align.fit(slot, energy.shape[-1])
        if isinstance(align, ForcedForward):
            return {"stood": slot[0], "used": slot[1]}
        return {"stood": slot}

    def _facts(self, reached: Reached, energy: Tensor, slot: Any, head: int) -> dict[str, float]:
        align, facts = self.mechanism.align, {}

        def one(x: Tensor) -> float:
            return float(
                x.expand(x.shape[0], self.query.shape[1], *x.shape[2:])[0, head].flatten()[0]
            )

        for part in conjuncts(reached.visible):
            if hasattr(part, "centre"):
                facts["centre"] = one(part.centre)
        if hasattr(self.mechanism.reach, "window"):
            facts["window"] = float(self.mechanism.reach.window)
        if reached.gain is not None:
            facts["σ"] = reached.gain.sigma
        if isinstance(align, Monotonic):
            scale, offset = (
                x.expand(self.query.shape[1], 1, 1) for x in (align.scale, align.offset)
            )
            facts |= {"scale": float(scale[head]), "offset": float(offset[head])}
        if isinstance(align, Forward):
            move = align.move(energy, self.query)
            facts["advance"] = 0.5 if move is None else one(move)
        if isinstance(align, MixtureWindow) and slot is not None:
            facts |= {f"κ{n + 1} before": float(x) for n, x in enumerate(slot[0, head])}
        return facts

    def _hidden(self, reached: Reached, ok: Tensor, head: int) -> tuple[str, ...]:
        """Why each column may not be looked at."""
        S, sinks, N = self.memory.S, self.memory.sinks, ok.shape[-1]
        whys = [""] * N
        exists = self.memory.exists[0].tolist()
        shown = [
            (why, x.expand(1, self.query.shape[1], 1, S)[0, head, 0].tolist())
            for why, x in self.tables
        ]
        for n, seen in enumerate(ok[0, head, 0].tolist()):
            if seen:
                continue
            if n >= S + sinks:
                whys[n] = "not all visible, or near"
            elif n < S and not exists[n]:
                whys[n] = "padding"
            else:
                there = (why for why, table in shown if n < S and not table[n])
                far = "pooled in its block" if reached.fold else "outside the window"
                whys[n] = next(there, far)
        return tuple(whys)


def _slots(mechanism: Mechanism) -> Iterator[tuple[str, Any]]:
    for slot in ("score", "past", "reach", "align", "read"):
        part = getattr(mechanism, slot)
        if part is not None:
            yield slot, part


def _spans(reached: Reached, S: int, sinks: int, N: int) -> tuple[tuple[int, int], ...]:
    """The places that each column stands for."""
    blocks = N - S - sinks
    size = reached.visible.member.shape[-1] if isinstance(reached.visible, Coarse) else 1
    return (
        *((s, s + 1) for s in range(S)),
        *((-1, -1) for _ in range(sinks)),
        *((n * size, min(S, (n + 1) * size)) for n in range(blocks)),
    )
