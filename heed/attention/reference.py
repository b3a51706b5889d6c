"""The reference: score, align and read in full precision. This is the definition of every result.

Kernels give the same, faster. Two functions in it may be a kernel's: see `Ways`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout, pad

from heed.attention.align import Aligned
from heed.attention.memory import Memory
from heed.attention.reach import Reached
from heed.attention.some_queries import of_table
from heed.attention.trace import Trace
from heed.errors import ShapeError
from heed.records import Call
from heed.visible import Places

if TYPE_CHECKING:
    from heed.attention.mechanism import Mechanism


class Ways(NamedTuple):
    """Functions that compute and align energies: the parts themselves, or a kernel for the same."""

    energy: Callable[[Tensor, Memory, Places], Tensor]
    align: Callable[[Tensor, Tensor | None, Any, Tensor], Aligned]

    @staticmethod
    def of(mechanism: Mechanism) -> Ways:
        """The ways of the parts themselves."""
        return Ways(mechanism.score.energy, mechanism.align)


@dataclass(slots=True, eq=False)
class Scene:
    """Some queries, and all that they look at."""

    q: Tensor  # as the score compares them  B H T D
    query: Tensor  # as they came  B H T M
    memory: Memory
    places: Places
    ok: Tensor | None  # these three broadcast to B H T N
    gain: Tensor | None
    bias: Tensor | None

    @staticmethod
    def of(call: Call, query: Tensor, reached: Reached) -> Scene:
        """The scene of a call, in float32 or better; keys and values that nobody may see are 0."""
        ok = call.dense_visible()
        k, v = call.cleaned(ok)
        memory = replace(reached.memory, k=wide(k), v=wide(v), prepared={})
        q, gain = call.q, None
        if ok is not None:
            seen = ok.any(-1, keepdim=True)
            q, query = q.where(seen, 0), query.where(seen, 0)
        if call.gain is not None:  # one on the sinks
            gain = pad(call.gain.dense(call.places), (0, call.sinks), value=1.0)
        return Scene(wide(q), query, memory, call.places, ok, gain, call.bias)

    def row(self, t: int) -> Scene:
        """The scene of query t alone."""
        tables = (
            x if x is None else of_table(x, t, t + 1) for x in (self.ok, self.gain, self.bias)
        )
        cut = slice(t, t + 1)
        q, query = self.q[:, :, cut], self.query[:, :, cut]
        return Scene(q, query, self.memory, self.places.row(t), *tables)


@dataclass(slots=True, eq=False)
class Looked:
    """The weights of the queries of a scene; nothing is read yet."""

    energy: Tensor  # with what a past and a bias add  B H T N
    aligned: Aligned
    weight: Tensor  # the aligned weights times the gain  B H T N
    slots: Mapping[str, Any]  # of the next state
    penalty: Tensor | None = None  # B H T


def look(
    mechanism: Mechanism,
    scene: Scene,
    slots: Mapping[str, Any],
    ways: Ways,
    hint: Tensor | None = None,
) -> Looked:
    """Score and align.    e = f(q, k) + bias,  a = g(e) · gain"""
    align, want = mechanism.align, (*scene.q.shape[:3], scene.memory.k.shape[2])
    given = scene.q, scene.memory, scene.places
    energy = ways.energy(*given) if hint is None else mechanism.score.hinted(*given, hint)
    if energy.shape != want:
        raise ShapeError(
            f"{mechanism.score.name} must give energies B H T S, {want}; it gave "
            f"{tuple(energy.shape)}"
        )
    energy = energy if scene.bias is None else energy + scene.bias
    aligned = ways.align(energy, scene.ok, slots.get(align.name), scene.query)
    weight = aligned.weight if scene.gain is None else aligned.weight * scene.gain
    after = {} if aligned.after is None else {align.name: aligned.after}
    return Looked(energy, aligned, weight, after)


def look_step_by_step(
    mechanism: Mechanism, scene: Scene, slots: Mapping[str, Any], ways: Ways
) -> Looked:
    """Score and align row by row: a past needs the weights of the row before."""
    past = mechanism.past
    if past is None:
        return look(mechanism, scene, slots, ways)
    before = _remembered(mechanism, scene, slots)
    rows: list[Looked] = []
    penalties = []
    for t in range(scene.q.shape[2]):
        row = look(mechanism, scene.row(t), slots, ways, past.hint(before))
        rows.append(row)
        slots, weight = row.slots, row.weight[:, :, 0]
        if past.claims.charges:
            penalties.append(past.penalty(before, weight)[..., None])
        before = past.after(before, weight)
    aligned = Aligned(
        torch.cat([row.aligned.weight for row in rows], 2),
        log_prob=_joined([row.aligned.log_prob for row in rows]),
        entropy=_joined([row.aligned.entropy for row in rows]),
    )
    return Looked(
        torch.cat([row.energy for row in rows], 2),
        aligned,
        torch.cat([row.weight for row in rows], 2),
        {**slots, past.name: before},
        torch.cat(penalties, 2) if penalties else None,
    )


def read(mechanism: Mechanism, seen: Looked, v: Tensor, share: float) -> Tensor | None:
    """The context; `share` is dropout.    c = a v"""
    weight = dropout(seen.weight, share) if share else seen.weight
    context: Tensor | None = mechanism.read(weight, v)
    return context


def trace(
    mechanism: Mechanism,
    scene: Scene,
    reached: Reached,
    slots: Mapping[str, Any],
    seen: Looked,
    context: Tensor | None,
) -> Trace:
    """All that was computed on the way, with what each part has to say of it."""
    align, past = mechanism.align, mechanism.past
    compares = mechanism.claims.uses_energies
    told = [x for x in mechanism.by_slot.items() if compares or x[0] != "score"]
    slot, before, added = slots.get(align.name), {}, None
    if past is not None:
        before[past.remembers] = _remembered(mechanism, scene, slots)
        plain = mechanism.score.energy(scene.q, scene.memory, scene.places)
        added = seen.energy - (plain if scene.bias is None else plain + scene.bias)
    return Trace(
        {slot: part.name for slot, part in told},
        {slot: part.formula for slot, part in told if part.formula is not None},
        scene.places.S,
        reached.memory.sinks if reached.blocks is None else reached.blocks.sinks,
        1 if reached.blocks is None else reached.blocks.size,
        scene.q,
        scene.memory.k,
        scene.memory.v,
        scene.ok,
        added,
        scene.bias,
        seen.energy,
        {**before, **align.stood(seen.energy, scene.ok, slot)},
        {**mechanism.reach.facts(reached), **align.facts(seen.energy, slot, scene.query)},
        seen.aligned.weight,
        scene.gain,
        seen.weight,
        reached.fold(seen.weight),
        context,
    )


def wide(x: Tensor) -> Tensor:
    """A tensor in float32 or better."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _remembered(mechanism: Mechanism, scene: Scene, slots: Mapping[str, Any]) -> Tensor:
    """The slot of the past before the first query.    B H N"""
    past = mechanism.past
    assert past is not None
    return past.start(scene.q[..., :1, 0], scene.memory.k.shape[2], slots.get(past.name))


def _joined(rows: list[Tensor | None]) -> Tensor | None:
    """Facts of single rows, along T.    B H 1 -> B H T"""
    present = [row for row in rows if row is not None]
    return torch.cat(present, 2) if present else None
