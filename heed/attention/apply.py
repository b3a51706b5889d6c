"""Run a mechanism: choose a kernel for the call, or compute the reference; and the statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from heed.attention import reference
from heed.attention.align import hidden
from heed.attention.blind_queries import placed, spared
from heed.attention.memory import Memory
from heed.attention.position import Position
from heed.attention.reach import Reached
from heed.attention.reference import Scene, Ways, wide
from heed.attention.some_queries import of_queries
from heed.attention.statistics import check_rows, summarise
from heed.kernels import additive
from heed.kernels import statistics as fused_statistics
from heed.kernels.ability import full_precision, known, lowered, recorded
from heed.kernels.choose import ALIGNING, SERVING, choose, is_on, switched_off
from heed.kernels.refusing import ALIGN
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
        return _by_parts(mechanism, call, query, reached, state, name, refusals, asked)
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
    """The reason why one pass cannot give the statistics of rows with the context, or None."""
    if (reason := switched_off("statistics")) is not None:
        return reason
    return _MERGED if reached.blocks is not None else fused_statistics.apart(call, name, asked)


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
    S = call.k.shape[2] if reached.blocks is None else call.places.S
    ways = _ways(mechanism, call, None)

    @torch.no_grad()
    def weights(start: int, stop: int) -> tuple[Tensor, Tensor | None, Tensor]:
        some = of_queries(call, start, stop)
        with full_precision(query):
            scene = Scene.of(some, query[:, :, start:stop], reached)
            seen = reference.look(mechanism, scene, state.slots, ways)
            return reached.fold(seen.weight), *_of_energies(call, seen.energy, scene.ok)

    reason: str | None = _MERGED
    if reached.blocks is None:
        reason = switched_off("statistics") or fused_statistics.refusal(call, asked)
    if reason is None:
        seen = fused_statistics.run(call, asked, log_sum)
        if asked.rows:
            chosen = [weights(t, t + 1)[0] for t in asked.rows]
            seen = seen._replace(rows=torch.cat(chosen, 2))
        return None, seen
    apart = call.claims.is_row_wise
    width = 1 if _compares(call) else mechanism.score.hint_width  # inside a tanh, of every pair
    return reason, summarise(weights, (*call.q.shape[:3], S), asked, apart, width)


_MERGED = "the keys were put together, and the weights must be shared among them again"


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


def _by_parts(
    mechanism: Mechanism,
    call: Call,
    query: Tensor,
    reached: Reached,
    state: State,
    kernel: str | None,
    refusals: tuple[tuple[str, str], ...],
    asked: Summary | None,
) -> Attended:
    """Score, align and read; `kernel` serves the align. A trace is of the parts themselves."""
    slots, traced, dtype = state.slots, call.need == "trace", _result_dtype(call.v)
    kernel = None if traced else kernel
    ways = Ways.of(mechanism) if traced else _ways(mechanism, call, kernel)
    with full_precision(query):
        scene = Scene.of(call, query, reached)
        seen = reference.look_step_by_step(mechanism, scene, slots, ways)
        context = reference.read(mechanism, seen, scene.memory.v, call.dropout)
        context = None if context is None else context.to(dtype)
        weight = reached.fold(seen.weight)
        trace = None
        if traced:
            trace = reference.trace(mechanism, scene, reached, slots, seen, context)
    return Attended(
        context,
        _after(state, query.shape[2], seen.slots),
        weight=weight if call.need != "context" or context is None else None,
        energy=seen.energy[..., : weight.shape[-1]] if call.need in ("energy", "trace") else None,
        log_prob=seen.aligned.log_prob,
        entropy=seen.aligned.entropy,
        penalty=seen.penalty,
        kernel=kernel or "reference",
        refusals=refusals,
        statistics=None if asked is None else _stated(weight, asked, call, seen.energy, scene.ok),
        trace=trace,
    )


def _ways(mechanism: Mechanism, call: Call, kernel: str | None) -> Ways:
    """The ways of the parts, or of kernels: `kernel` serves the align, and one may the energies."""
    energy, align = Ways.of(mechanism)
    if kernel is not None:
        align = mechanism.align.by_kernel
    if not _compares(call) or call.vector is None:
        return Ways(energy, align)

    vector = call.vector

    def compared(q: Tensor, memory: Memory, _: Places) -> Tensor:
        return additive.energies(q, memory.k, vector.to(q.dtype))

    return Ways(compared, align)


def _compares(call: Call) -> bool:
    """Whether a kernel computes the energies, though none serves the whole call."""
    is_its = call.family == additive.NAME and is_on(additive.NAME)
    return is_its and additive.compares(wide(call.q), wide(call.k))


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
    return seen.logsumexp(-1) if call.align == ALIGN else None, seen.amax(-1)


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


def _result_dtype(v: Tensor) -> torch.dtype:
    """The dtype that fused attention would return."""
    return v.dtype if v.dtype == torch.float64 else lowered(v.device) or v.dtype
