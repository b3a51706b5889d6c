"""Run a mechanism: ask a kernel, or compute the reference, which is the definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import dropout, pad

from heed.attention.align import Aligned, hidden
from heed.attention.blind import placed, spared
from heed.attention.memory import Memory
from heed.attention.past import fitted
from heed.attention.piecewise import of_queries, of_table
from heed.attention.position import Position
from heed.attention.reach import Reached
from heed.attention.score import Score
from heed.attention.statistics import check_rows, summarise
from heed.errors import ShapeError
from heed.kernels import additive
from heed.kernels import statistics as fused_statistics
from heed.kernels.ability import full_precision, known, lowered, recorded
from heed.kernels.choose import ALIGNING, SERVING, choose, is_on, switched_off
from heed.records import Attended, Call, Cut, Need, State, Statistics, Summary, gradientless
from heed.visible import Causal, Places, Visible, both

if TYPE_CHECKING:
    from heed.attention.mechanism import Mechanism


def run(
    mechanism: Mechanism,
    query: Tensor,
    memory: Memory,
    state: State | None,
    visible: Visible | None,
    need: Need,
    segments: Tensor | None = None,
    position: Position | None = None,
    asked: Summary | None = None,
) -> Attended:
    """Queries B H T M over a memory; the context is B H T R."""
    T, S = query.shape[2], memory.S
    places = placed(T, S, state, query.device, segments, memory.segments)
    state = State(0, S - T, at_end=True) if state is None else state
    if visible is not None:
        if not torch.compiler.is_exporting():  # which would take B != T for a demand
            visible.check_axes(query.shape[0], T)
        of_keys, visible = visible.split()
        memory = memory if of_keys is None else memory.hide(of_keys)
    if T == 0 or S + memory.sinks == 0:
        return _nothing(mechanism, query, memory, state, need, asked)
    shown = both(memory.visible, visible)
    reached = mechanism.reach(query, memory, places, shown)
    query = spared(query, memory, reached.visible, places)
    call = call_of(mechanism, query, reached, places, need, position)
    call.clean = reached.visible is shown and every_key_seen(visible, places)
    name, refusals = choose(call)
    if asked is not None and mechanism.claims.draws and mechanism.training:
        name = None  # statistics come from a second pass, which would draw other weights
    if name is None or name in ALIGNING:
        kernel = name or "reference"
        return _reference(mechanism, call, query, reached, state, kernel, refusals, asked)
    after = _after(state, T, {})
    if asked is None:
        return Attended(SERVING[name].run(call), after, kernel=name, refusals=refusals)
    if not asked.received:
        reason = _apart(call, name, reached, asked)
        if reason is None:
            context, seen = fused_statistics.together(call)
            return Attended(context, after, kernel="statistics", refusals=refusals, statistics=seen)
        refusals = (*refusals, ("one pass", reason))
    context, log_sum = fused_statistics.context(call, name, SERVING[name].run)
    reason, seen = _look_back(mechanism, call, query, reached, state, asked, log_sum)
    refusals = refusals if reason is None else (*refusals, ("statistics", reason))
    return Attended(context, after, kernel=name, refusals=refusals, statistics=seen)


def _apart(call: Call, name: str, reached: Reached, asked: Summary) -> str | None:
    """Why one pass cannot give the statistics of rows with the context; None where it can."""
    if (reason := switched_off("statistics")) is not None:
        return reason
    return _FOLDED if reached.fold is not None else fused_statistics.apart(call, name, asked)


def _look_back(
    mechanism: Mechanism,
    call: Call,
    query: Tensor,
    reached: Reached,
    state: State,
    asked: Summary,
    log_sum: Tensor | None,
) -> tuple[str | None, Statistics]:
    """Statistics of weights that were not kept; before them, why no kernel takes them, or None."""
    check_rows(asked, call.places.T)
    S = call.k.shape[2] if reached.fold is None else call.places.S

    @torch.no_grad()
    def weights(start: int, stop: int) -> tuple[Tensor, Tensor | None, Tensor]:
        some = of_queries(call, start, stop)
        with full_precision(query):
            scene = _scene(some, query[:, :, start:stop], reached)
            look = _look if mechanism.past is None else _look_step_by_step
            aligned, energy, _, _ = look(mechanism, scene, state.slots)
            weight = aligned.weight if reached.fold is None else reached.fold(aligned.weight)
            return weight, *_of_energies(call, energy, scene.ok)

    reason: str | None = _FOLDED
    if reached.fold is None:
        reason = switched_off("statistics") or fused_statistics.refusal(call, asked)
    if reason is None:
        seen = fused_statistics.run(call, asked, log_sum)
        if asked.rows:
            chosen = [weights(t, t + 1)[0] for t in asked.rows]
            seen = seen._replace(rows=torch.cat(chosen, 2))
        return None, seen
    apart = call.claims.is_row_wise
    width = 1
    if call.family == "additive" and not _fused(mechanism.score, call.q, call.k):
        width = call.q.shape[-1]  # tanh of every pair and channel
    return reason, summarise(weights, (*call.q.shape[:3], S), asked, apart, width)


_FOLDED = "the keys were put together, and the weights must be shared among them again"


def call_of(
    mechanism: Mechanism,
    query: Tensor,
    reached: Reached,
    places: Places,
    need: Need,
    position: Position | None = None,
) -> Call:
    """The call that kernels see, for queries B H T M."""
    score, memory = mechanism.score, reached.memory
    q = score.ask(query if position is None else position.turn(query, places.query))
    return Call(
        score.family,
        q,
        memory.k,
        memory.v,
        score.scale,
        score.vector_for(q.shape[1]),
        reached.visible,
        reached.gain,
        reached.felt(position, places),
        places,
        mechanism.claims,
        mechanism.align.name,
        mechanism.read.name,
        mechanism.dropout if mechanism.training else 0.0,
        need,
        sinks=memory.sinks,
        even=reached.even,
        prepared=None if recorded() else memory.prepared,
    )


def every_key_seen(visible: Visible | None, places: Places) -> bool:
    """Whether no key of the memory is hidden from all queries by what a call adds."""
    return visible is None or (type(visible) is Causal and known(places.last_at_end))


def _reference(
    mechanism: Mechanism,
    call: Call,
    query: Tensor,
    reached: Reached,
    state: State,
    kernel: str,
    refusals: tuple[tuple[str, str], ...],
    asked: Summary | None,
) -> Attended:
    """The three stages in full precision: score, align, read; `kernel` served the align."""
    with full_precision(query):
        scene = _scene(call, query, reached)
        look = _look if mechanism.past is None else _look_step_by_step
        aligned, energy, slots, penalty = look(mechanism, scene, state.slots)
        used = dropout(aligned.weight, call.dropout) if call.dropout else aligned.weight
        context = mechanism.read(used, scene.memory.v)
        weight = aligned.weight if reached.fold is None else reached.fold(aligned.weight)
    return Attended(
        None if context is None else context.to(_result_dtype(call.v)),
        _after(state, query.shape[2], slots),
        weight=weight if call.need != "context" or context is None else None,
        energy=energy[..., : weight.shape[-1]] if call.need == "energy" else None,
        log_prob=aligned.log_prob,
        entropy=aligned.entropy,
        penalty=penalty,
        kernel=kernel,
        refusals=refusals,
        statistics=None if asked is None else _stated(weight, asked, call, energy, scene.ok),
    )


def _stated(
    weight: Tensor, asked: Summary, call: Call, energy: Tensor, ok: Tensor | None
) -> Statistics:
    """The statistics of weights that have been formed."""
    weight, told = weight.detach(), _of_energies(call, energy, ok)
    return summarise(lambda *_: (weight, *told), weight.shape, asked)


def unstated(weight: Tensor, asked: Summary) -> Statistics:
    """The statistics where there are no queries or no keys; for these an unseen key is added."""
    weight, empty = weight.detach(), not weight.shape[-1]
    weight = pad(weight, (0, 1)) if empty else weight
    asked = asked if weight.shape[2] else replace(asked, rows=())
    none = weight.new_full(weight.shape[:3], -torch.inf)
    seen = summarise(lambda *_: (weight, None, none), weight.shape, asked)
    if not empty:
        return seen
    by_key = ("received", "top", "share", "map", "rows")
    kept = {name: x[..., :-1] for name in by_key if (x := getattr(seen, name)) is not None}
    return seen._replace(**kept)


def _of_energies(call: Call, energy: Tensor, ok: Tensor | None) -> tuple[Tensor | None, Tensor]:
    """The log-sum-exp of what a softmax saw, None for other aligns; and the largest energy.

    B H T S -> B H T, twice
    """
    seen = hidden(energy.detach(), ok)
    return seen.logsumexp(-1) if call.align == "softmax" else None, seen.amax(-1)


@dataclass(slots=True, eq=False)
class _Scene:
    """Some queries, and all that they look at."""

    q: Tensor  # as the score compares them  B H T D
    query: Tensor  # as they came  B H T M
    memory: Memory
    places: Places
    ok: Tensor | None  # these three broadcast to B H T S
    gain: Tensor | None
    bias: Tensor | None

    def row(self, t: int) -> _Scene:
        """The scene of query t alone."""
        tables = (
            x if x is None else of_table(x, t, t + 1) for x in (self.ok, self.gain, self.bias)
        )
        cut = slice(t, t + 1)
        q, query = self.q[:, :, cut], self.query[:, :, cut]
        return _Scene(q, query, self.memory, self.places.row(t), *tables)


def _scene(call: Call, query: Tensor, reached: Reached) -> _Scene:
    """The scene of a call, in float32 or better; keys and values that nobody may see are zero."""
    ok = call.dense_visible()
    k, v = call.cleaned(ok)
    memory = replace(reached.memory, k=wide(k), v=wide(v), prepared={})
    q = call.q
    if ok is not None:
        seen = ok.any(-1, keepdim=True)
        q, query = q.where(seen, 0), query.where(seen, 0)
    return _Scene(wide(q), query, memory, call.places, ok, _gain(call), call.bias)


_Looked = tuple[Aligned, Tensor, dict[str, Any], Tensor | None]
"""The aligned weights, the energies, the slots of the next state, the penalty."""


def _look(
    mechanism: Mechanism, scene: _Scene, slots: Mapping[str, Any], hint: Tensor | None = None
) -> _Looked:
    """Score and align all the rows of a scene."""
    energy = _energy(mechanism.score, scene, hint)
    if energy.shape != (*scene.q.shape[:3], scene.memory.k.shape[2]):
        raise ShapeError(
            f"{mechanism.score.name} must give energies B H T S, "
            f"{(*scene.q.shape[:3], scene.memory.k.shape[2])}; it gave {tuple(energy.shape)}"
        )
    energy = energy if scene.bias is None else energy + scene.bias
    aligned = mechanism.align(energy, scene.ok, slots.get(mechanism.align.name), scene.query)
    if scene.gain is not None:
        aligned.weight = aligned.weight * scene.gain
    return (
        aligned,
        energy,
        {} if aligned.after is None else {mechanism.align.name: aligned.after},
        None,
    )


def _energy(score: Score, scene: _Scene, hint: Tensor | None) -> Tensor:
    """The energies, by the score itself; additive ones by a kernel, where there is no hint."""
    q, k = scene.q, scene.memory.k
    if hint is None and _fused(score, q, k) and (w := score.vector_for(q.shape[1])) is not None:
        return additive.energies(q, k, w.to(q.dtype))
    return score.energy(q, scene.memory, scene.places, hint)


def _fused(score: Score, q: Tensor, k: Tensor) -> bool:
    """Whether a kernel computes the energies, though it does not serve the whole call."""
    return score.family == "additive" and is_on("additive") and additive.compares(wide(q), wide(k))


def _look_step_by_step(mechanism: Mechanism, scene: _Scene, slots: Mapping[str, Any]) -> _Looked:
    """Score and align row by row: a past needs the weights of the row before."""
    past = mechanism.past
    assert past is not None
    S = scene.memory.k.shape[2]
    before = slots.get(past.name)
    before = past.begin(scene.q[..., :1, 0], S) if before is None else fitted(before, S)
    rows: list[Aligned] = []
    energies, penalties = [], []
    for t in range(scene.q.shape[2]):
        row, energy, slots, _ = _look(mechanism, scene.row(t), slots, past.hint(before))
        rows.append(row)
        energies.append(energy)
        if past.claims.charges:
            penalties.append(past.penalty(before, row.weight[:, :, 0])[..., None])
        before = past.after(before, row.weight[:, :, 0])
    aligned = Aligned(
        torch.cat([row.weight for row in rows], 2),
        log_prob=_joined([row.log_prob for row in rows]),
        entropy=_joined([row.entropy for row in rows]),
    )
    penalty = torch.cat(penalties, 2) if penalties else None
    return aligned, torch.cat(energies, 2), {**slots, past.name: before}, penalty


def _joined(rows: list[Tensor | None]) -> Tensor | None:
    """Facts of single rows, along T.    B H 1 -> B H T"""
    present = [row for row in rows if row is not None]
    return torch.cat(present, 2) if present else None


def _gain(call: Call) -> Tensor | None:
    """The gain, one on the sinks.    broadcasts to B H T S"""
    if call.gain is None:
        return None
    return pad(call.gain.dense(call.places), (0, call.sinks), value=1.0)


def _nothing(
    mechanism: Mechanism,
    query: Tensor,
    memory: Memory,
    state: State,
    need: Need,
    asked: Summary | None,
) -> Attended:
    """No query, or nothing to look at: a context of zeros through which no gradient flows."""
    B, H, T, _ = query.shape
    never = torch.zeros((), dtype=torch.bool, device=query.device)
    zero = query.sum(-1, keepdim=True).where(never, 0)
    weight = wide(zero).expand(B, H, T, memory.k.shape[2])
    context = zero.expand(B, H, T, memory.v.shape[3]).to(_result_dtype(memory.v))
    claims = mechanism.claims
    gathers, draws = claims.gives_context, claims.gradient == "score-function"
    fact = weight.sum(-1)  # B H T
    return Attended(
        context if gathers else None,
        _after(state, T, state.slots),
        weight=weight if need != "context" or not gathers else None,
        energy=weight if need == "energy" else None,
        log_prob=fact if draws else None,
        entropy=fact if draws else None,
        penalty=fact if claims.charges else None,
        statistics=None if asked is None else unstated(weight, asked),
    )


def _after(state: State, T: int, slots: Mapping[str, Any]) -> State:
    slots = Cut(slots) if slots and gradientless() else slots
    return state._replace(step=state.step + T, slots=slots)


def wide(x: Tensor) -> Tensor:
    """A tensor in float32 or better."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _result_dtype(v: Tensor) -> torch.dtype:
    """The dtype that fused attention would return."""
    return v.dtype if v.dtype == torch.float64 else lowered(v.device) or v.dtype
