"""The walk: one query's way through attention, stage by stage, with the numbers it meets.

walked = walk(attend, query, memory, position=3, head=0)
walked.energy, walked.normal, walked.weight, walked.context
walked.agrees  # with what the attention itself computed, by whatever kernel

with listen(model) as heard:  # the attentions of a whole model, by their paths
    model(batch)
follow(heard["decoder.attention"], position=3).weight

The numbers come from the mechanism's own parts, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from heed.attention.apply import wide
from heed.attention.attending import Attending
from heed.attention.catalogue import CATALOGUE
from heed.attention.grouping import HeadGroups
from heed.attention.mechanism import Mechanism, lane_state
from heed.attention.memory import Memory
from heed.attention.mixed import Mixed
from heed.attention.moving import ForcedForward, Forward, MixtureWindow, Monotonic
from heed.attention.moving import Walk as Moving
from heed.attention.past import fitted
from heed.attention.piecewise import of_some
from heed.attention.position import Position
from heed.attention.reach import Reached
from heed.attention.score import per_head
from heed.attention.watching import Standing, attentions
from heed.errors import Refused
from heed.records import Attended, State
from heed.visible import Causal, Mask, Packed, Places, Visible, Window, as_visible, both, conjuncts

NEAR = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far, beside the largest number of a context, a kernel's rounding may lead."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A call of a mechanism, on heads: what it was given, and the context that it gave."""

    mechanism: Mechanism
    query: Tensor  # B H T M
    memory: Memory
    state: State
    visible: Visible | None = None
    segments: Tensor | None = None  # B T
    position: Position | None = None
    context: Tensor | None = None  # B H T R; None from a pointer


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """One query of one head on its way; N are the columns it could look at.

    Columns are the S keys, then sinks, then blocks of keys where a reach puts them together.

    parts     the name of the part in each slot, and `formulas`, those that are known; `own` has
              those that parts say themselves
    q, k      as the score compares them     D, N D
    v         as they are read               N R
    energy    how alike                      N, those of hidden columns included
    past      what earlier steps added to it N
    bias      what distance or a block's size added to it    N
    hidden    why a column may not be looked at; "" where it may
    before    what the state held by place, before this step: where it stood, what was used    N
    normal    what align made of the energies    N
    gain      multiplied onto that           N
    weight    what came of it                N; `reported` has a block's shared among its keys, S
    weighted  the values, each times its weight    N R
    context   their sum                      R; None from a pointer
    computed  what the attention itself gave R
    facts     what else a part decided, such as the centre of a window
    lanes     of a mixed attention, the walks of both; `share` is the first one's
    """

    parts: Mapping[str, str]
    head: int
    step: int  # how many queries came before
    place: int  # of the query among the keys
    q: Tensor
    k: Tensor
    v: Tensor
    energy: Tensor
    hidden: tuple[str, ...]
    normal: Tensor
    weight: Tensor
    reported: Tensor
    weighted: Tensor
    spans: tuple[tuple[int, int], ...]  # the places from, up to, that a column is; a sink has none
    past: Tensor | None = None
    bias: Tensor | None = None
    gain: Tensor | None = None
    before: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)
    context: Tensor | None = None
    computed: Tensor | None = None
    lanes: tuple[Walk, ...] = ()
    share: float | None = None
    own: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As the grammar of names has it, defaults left in."""
        return "/".join(self.parts.values())

    @property
    def formulas(self) -> dict[str, str]:
        """By slot, of the parts that the catalogue knows or that say it themselves."""
        known = {s: CATALOGUE[p].formula for s, p in self.parts.items() if p in CATALOGUE}
        return {**known, **self.own}

    @property
    def difference(self) -> float | None:
        """The largest between the context that was walked to and the one computed."""
        if self.context is None or self.computed is None:
            return None
        return float((self.context - self.computed).abs().max()) if len(self.context) else 0.0

    @property
    def agrees(self) -> bool | None:
        """Whether that is rounding alone; None where there is nothing to compare."""
        away = self.difference
        if away is None or self.computed is None:
            return None
        size = float(self.computed.abs().max()) if len(self.computed) else 0.0
        return away <= NEAR.get(self.computed.dtype, 1e-4) * max(1.0, size)

    def _repr_html_(self) -> str:
        """A notebook shows a table of the columns."""
        tables = {"energy": self.energy, **self.before, "align": self.normal, "weight": self.weight}
        heads = "".join(f"<th>{escape(name)}</th>" for name in ("place", *tables, "hidden"))
        lines = "".join(
            f"<tr><td>{_span(span)}</td>"
            + "".join(f"<td>{float(x[n]):.4g}</td>" for x in tables.values())
            + f"<td>{escape(self.hidden[n])}</td></tr>"
            for n, span in enumerate(self.spans[:100])
        )
        away = "" if self.difference is None else f"; largest difference {self.difference:.1e}"
        title = escape(f"{self.name} · head {self.head} · step {self.step}{away}")
        return f"<table><caption>{title}</caption><tr>{heads}</tr>{lines}</table>"


def _span(span: tuple[int, int]) -> str:
    first, stop = span
    if stop <= first:
        return "–"
    return str(first) if stop == first + 1 else f"{first}–{stop - 1}"


def walk(
    attention: Attending | Mechanism,
    query: Tensor | None,
    memory: Memory | Tensor | None = None,
    state: State | None = None,
    *,
    visible: Visible | Tensor | None = None,
    segments: Tensor | None = None,
    row: int = 0,
    position: int = -1,
    head: int = 0,
) -> Walk:
    """Attend as `attention(query, memory, state, ...)` does, and walk the way of one query.

    row, position, head  which; negative positions count from the last
    """
    with listen(attention) as heard, torch.no_grad():
        more: dict[str, Any] = {"visible": visible, "segments": segments}
        attention(query, memory, state, **{k: x for k, x in more.items() if x is not None})
    return follow(heard[""], row=row, position=position, head=head)


@contextmanager
def listen(model: nn.Module) -> Iterator[dict[str, list[Asked]]]:
    """Every call of every attention of heed's inside a model, by path, while this lasts.

    Those of other libraries too, where heed stands in for them (heed.integrations).
    """
    found = dict(attentions(model))
    if not found:
        raise Refused(
            "there is no heed attention inside this model to walk through; those of other "
            "libraries are exchanged by heed.integrations.huggingface.enable(model) or "
            "heed.integrations.torch.replace(model)"
        )
    heard: dict[str, list[Asked]] = {path: [] for path in found}
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for path, module in found.items():
            around = model.get_submodule(path)
            if isinstance(around, Attending | Mechanism):
                module = around if isinstance(around, Mechanism) else around.mechanism
            hook = _note(heard[path])
            stack.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        yield heard


def _note(calls: list[Asked]) -> Any:
    def note(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], seen: Attended
    ) -> None:
        mechanism, given = _given(module, args, kwargs)
        query, memory, state = given["query"], given["memory"], given.get("state")
        if query is None:
            query = mechanism.reach.question(memory.k.shape[0])
        visible = given.get("visible")
        calls.append(
            Asked(
                mechanism,
                query.detach(),
                memory,
                State(0, memory.S - query.shape[2]) if state is None else state,
                None if visible is None else as_visible(visible),
                given.get("segments"),
                given.get("position"),
                None if seen._context is None else seen._context.detach(),
            )
        )

    return note


def _given(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Mechanism, dict[str, Any]]:
    """The mechanism of a call, and what it was given by name."""
    if isinstance(module, Mechanism):
        return module, {**dict(zip(("query", "memory", "state"), args, strict=False)), **kwargs}
    call = args[1]
    if not isinstance(call, Standing):
        raise Refused(f"a {type(module).__name__} does not tell of its calls: no walk through it")
    told = {"query": call.query, "memory": call.memory}
    return call.mechanism, {**told, "visible": call.visible, "position": call.position}


@torch.no_grad()
def follow(calls: Sequence[Asked], *, row: int = 0, position: int = -1, head: int = 0) -> Walk:
    """The walk of one query of consecutive calls, such as the steps of a text."""
    counts = [call.query.shape[2] for call in calls]
    T = sum(counts)
    if not -T <= position < T:
        raise Refused(f"there are {T} queries, and no position {position}")
    t = position % T
    for call, count in zip(calls, counts, strict=True):
        if t < count:
            return _alone(call, row, t, head)
        t -= count
    raise Refused("nothing was asked")  # never: T counts them


def _alone(call: Asked, row: int, t: int, head: int) -> Walk:
    """The walk of query t of a row: first the call is cut down to it."""
    mechanism, (B, H, T, _) = call.mechanism, call.query.shape
    for name, number, count in (("row", row, B), ("head", head, H)):
        if not 0 <= number < count:
            raise Refused(f"there are {count} {name}s, counted from 0, and no {name} {number}")
    _check_rest(mechanism)
    memory, visible, position = call.memory, call.visible, call.position
    if visible is not None:
        of_keys, visible = visible.split()
        memory = memory if of_keys is None else memory.hide(of_keys)
    if memory.k.shape[2] == 0:
        raise Refused("there is nothing to look at: the memory has no keys")
    places = Places(T, memory.S, call.state.step, call.state.origin, call.query.device)
    one = torch.tensor([row], device=call.query.device)

    def shown(start: int, stop: int) -> list[tuple[str, Tensor]]:
        """What these queries may see, and why not; of no others is a table made.

        -> broadcasts to 1 H n S
        """
        some = replace(places, T=stop - start, step=places.step + start)
        parts = ((_why(each), of_some(each, places, start, stop)) for each in conjuncts(visible))
        tables = ((why, each.dense(some)) for why, each in parts)
        return [(why, x if x.shape[0] == 1 else x[row : row + 1]) for why, x in tables]

    query, segments = call.query[row : row + 1], call.segments
    segments = None if segments is None else segments[row : row + 1]
    memory, state = memory.select(one), call.state.select(one)
    if t and mechanism.in_line and mechanism.claims.step:
        masks = [Mask(table.expand(-1, -1, t, -1)) for _, table in shown(0, t)]
        state = mechanism.forward(
            query[:, :, :t],
            memory,
            state,
            visible=_all(masks),
            segments=None if segments is None else segments[:, :t],
            position=None if position is None else position.cut(row, 0, t),
        ).state
    else:
        state = State(state.step + t, state.origin, state.slots)
    step = _Step(
        mechanism,
        query[:, :, t : t + 1],
        memory,
        state,
        tuple(shown(t, t + 1)),
        None if segments is None else segments[:, t : t + 1],
        None if position is None else position.cut(row, t, t + 1),
    )
    computed = None if call.context is None else call.context[row, head, t]
    return _at_rest(replace(step.walk(head), computed=computed))


def _check_rest(mechanism: Mechanism) -> None:
    """A walk cannot draw again what was drawn."""
    for part in mechanism.modules():
        noisy = getattr(part, "draws", False) or getattr(part, "noise", 0)
        if part.training and (noisy or getattr(part, "dropout", 0)):
            raise Refused("this attention is left to chance while it trains; walk after .eval()")


def _at_rest(walked: Walk) -> Walk:
    """Its numbers on the CPU, and of no graph."""
    changes: dict[str, Any] = {}
    for name in Walk.__dataclass_fields__:
        x = getattr(walked, name)
        if isinstance(x, Tensor):
            changes[name] = x.detach().cpu()
    changes["before"] = {name: x.detach().cpu() for name, x in walked.before.items()}
    changes["lanes"] = tuple(map(_at_rest, walked.lanes))
    return replace(walked, **changes)


def _why(visible: Visible) -> str:
    """Why a predicate hides what it hides."""
    whys = {Causal: "lies ahead", Window: "outside the window", Packed: "another text"}
    return whys.get(type(visible), "masked")


def _all(parts: Sequence[Visible]) -> Visible | None:
    joined: Visible | None = None
    for part in parts:
        joined = both(joined, part)
    return joined


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One query of one row, with all heads: B = T = 1."""

    mechanism: Mechanism
    query: Tensor  # 1 H 1 M
    memory: Memory
    state: State
    tables: tuple[tuple[str, Tensor], ...]  # what a call hides, and why  broadcast to 1 H 1 S
    segments: Tensor | None
    position: Position | None

    def walk(self, head: int) -> Walk:
        """Of a head."""
        if isinstance(self.mechanism, Mixed):
            return self._blended(self.mechanism, head)
        if isinstance(self.mechanism, HeadGroups):
            return self._grouped(self.mechanism, head)
        return self._plain(head)

    def _blended(self, mixed: Mixed, head: int) -> Walk:
        """Both lanes, and the gate between them."""
        lanes = zip(mixed.names, mixed.lanes, mixed.memories(self.memory), strict=True)
        one, two = (
            replace(self, mechanism=lane, memory=own, state=lane_state(self.state, name)).walk(head)
            for name, lane, own in lanes
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
        """The group that a head belongs to."""
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
            state=lane_state(self.state, groups.names[lane]),
        )
        return replace(inside.walk(head - first), head=head)

    def _plain(self, head: int) -> Walk:
        """Score, past, reach, align, read."""
        mechanism, memory, state = self.mechanism, self.memory, self.state
        score, S, sinks = mechanism.score, memory.S, memory.sinks
        places = Places(
            1, S, state.step, state.origin, self.query.device, self.segments, memory.segments
        )
        shown = _all([Mask(table) for _, table in self.tables])
        reached = mechanism.reach(self.query, memory, places, both(memory.visible, shown))
        bias, asked = reached.bias, self.query
        if self.position is not None:
            asked = self.position.turn(self.query, places.query)
            felt = self.position.bias(places)
            if felt is not None:
                felt = reached.widen(felt) if reached.widen else pad(felt, (0, sinks))
                bias = felt if bias is None else bias + felt
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
            self._hidden(reached, ok, places, head),
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
        """What the past remembers, by place, and what it whispers to the score."""
        past = self.mechanism.past
        if past is None:
            return {}, None
        slot = self.state.slots.get(past.name)
        slot = past.begin(q[..., :1, 0], N) if slot is None else fitted(slot, N)
        return {"looked at" if past.charges else "last weight": slot}, past.hint(slot)

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

    def _hidden(self, reached: Reached, ok: Tensor, places: Places, head: int) -> tuple[str, ...]:
        """Why each column may not be looked at."""
        S, sinks, N = self.memory.S, self.memory.sinks, ok.shape[-1]
        whys = [""] * N
        exists = self.memory.exists[0].tolist()
        shown = [
            (why, x.expand(1, self.query.shape[1], 1, S)[0, head, 0].tolist())
            for why, x in self.tables
        ]
        for n, open in enumerate(ok[0, head, 0].tolist()):
            if open:
                continue
            if n >= S + sinks:
                whys[n] = "not all visible, or near"
            elif n < S and not exists[n]:
                whys[n] = "padding"
            else:
                there = (why for why, table in shown if n < S and not table[n])
                far = "seen by the block" if reached.fold else "outside the window"
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
    size = 1
    if blocks:
        size = reached.visible.member.shape[-1]  # type: ignore[union-attr]
    return (
        *((s, s + 1) for s in range(S)),
        *((-1, -1) for _ in range(sinks)),
        *((n * size, min(S, (n + 1) * size)) for n in range(blocks)),
    )
