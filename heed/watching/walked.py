"""The record of a walk: the calls that were heard, and one query's way through its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

import torch
from torch import Tensor

from heed.attention.catalogue import CATALOGUE, DEFAULTS
from heed.attention.mechanism import Mechanism
from heed.attention.memory import Memory
from heed.attention.position import Position
from heed.attention.score import per_head
from heed.attention.trace import Blended, Grouped, Trace, Traces
from heed.records import State
from heed.visible import Visible

NEAR = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far a kernel's rounding may lead, relative to the largest number of a context."""


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

    parts     the name of the part in each slot; `formulas` has the formulas that are known, and
              `own` those that parts bring themselves
    q, k      as the score compares them     D, N D
    v         as they are read               N R
    energy    how alike                      N, those of hidden columns included
    past      what earlier steps added to it N
    bias      what distance or a block's size added to it    N
    hidden    why a column may not be looked at; "" where it may
    before    what the state held by place, before this step: where it stood, what was used    N
    normal    what align made of the energies    N
    gain      multiplied onto that           N
    weight    their product                  N; `reported` shares a block's among its keys, S
    weighted  the values, each times its weight    N R
    context   their sum                      R; None from a pointer
    computed  what the attention itself gave R
    facts     what else a part decided, such as the centre of a window
    lanes     the walks of both lanes of a mixed attention; `share` is the first one's
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
    spans: tuple[tuple[int, int], ...]  # each column's places, from and up to; a sink has none
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

    @staticmethod
    def of(trace: Traces, head: int, step: int, place: int, reasons: Sequence[str]) -> Walk:
        """The way of the one query of a trace in one head.

        reasons  why the call or the memory hides a key; "" where they do not    S
        """
        if isinstance(trace, Blended):
            one, two = (Walk.of(lane, head, step, place, reasons) for lane in trace.lanes)
            return _blended(trace, head, one, two)
        if isinstance(trace, Grouped):
            lane, own = 0, head
            while own >= trace.heads[lane]:
                own -= trace.heads[lane]
                lane += 1
            return replace(Walk.of(trace.lanes[lane], own, step, place, reasons), head=head)
        H = trace.q.shape[1]

        def of(x: Tensor) -> Tensor:  # 1|B H|1 1 N
            return x.expand(1, H, 1, -1)[0, head, 0]

        def one_of(x: Tensor | float) -> float:  # 1|B H|1 1
            return float(x.expand(1, H, 1)[0, head, 0] if isinstance(x, Tensor) else x)

        k, v = (per_head(x, H)[0, head] for x in (trace.k, trace.v))
        weight = of(trace.weight)
        return Walk(
            trace.parts,
            head,
            step,
            place,
            of(trace.q),
            k,
            v,
            of(trace.energy),
            _hidden(trace, [True] * len(k) if trace.ok is None else of(trace.ok).tolist(), reasons),
            of(trace.normal),
            weight,
            of(trace.reported),
            weight[:, None] * v,
            _spans(trace, len(k)),
            past=None if trace.past is None else of(trace.past),
            bias=None if trace.bias is None else of(trace.bias),
            gain=None if trace.gain is None else of(trace.gain),
            before={name: of(x[:, :, None]) for name, x in trace.stood.items()},
            facts={name: one_of(x) for name, x in trace.facts.items()},
            context=None if trace.context is None else of(trace.context),
            own=trace.formulas,
        )

    @property
    def name(self) -> str:
        """The mechanism's name by the grammar of names, with its defaults."""
        return "/".join(self.parts.values())

    @property
    def narrows(self) -> bool:
        """Whether the reach is another than the usual one."""
        return self.parts["reach"] != DEFAULTS["reach"]

    @property
    def formulas(self) -> dict[str, str]:
        """The formulas by slot, from the catalogue or from the parts themselves."""
        known = {s: CATALOGUE[p].formula for s, p in self.parts.items() if p in CATALOGUE}
        return {**known, **self.own}

    @property
    def difference(self) -> float | None:
        """The largest difference between the walk's context and the one computed."""
        if self.context is None or self.computed is None:
            return None
        return float((self.context - self.computed).abs().max()) if len(self.context) else 0.0

    @property
    def agrees(self) -> bool | None:
        """Whether this difference is mere rounding; None where there is nothing to compare."""
        away = self.difference
        if away is None or self.computed is None:
            return None
        size = float(self.computed.abs().max()) if len(self.computed) else 0.0
        return away <= NEAR.get(self.computed.dtype, 1e-4) * max(1.0, size)

    def _repr_html_(self) -> str:
        """A table of the columns, for notebooks."""
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


def _blended(trace: Blended, head: int, one: Walk, two: Walk) -> Walk:
    """Both lanes, and the gate between them."""
    assert one.context is not None
    assert two.context is not None
    share = float(trace.share[0, head, 0, 0])
    weight = share * one.reported + (1 - share) * two.reported
    n = len(weight)  # blocks of keys, which a lane may have, are shared out among their keys
    v = trace.v[0, head].where(weight[:, None] != 0, 0)
    return replace(
        one,
        parts={**one.parts, "reach": trace.name},
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
        weight=weight,
        reported=weight,
        weighted=weight[:, None] * v,
        context=share * one.context + (1 - share) * two.context,
        facts={"gate": share},
        lanes=(one, two),
        share=share,
    )


def _hidden(trace: Trace, ok: Sequence[bool], reasons: Sequence[str]) -> tuple[str, ...]:
    """The reasons why columns may not be looked at."""
    blocks = len(ok) > trace.S + trace.sinks
    far = "pooled in its block" if blocks else "outside the window"
    whys = (*(why or far for why in reasons), *[""] * trace.sinks)
    whys += ("not all visible, or near",) * (len(ok) - len(whys))
    return tuple("" if seen else why for seen, why in zip(ok, whys, strict=True))


def _spans(trace: Trace, columns: int) -> tuple[tuple[int, int], ...]:
    """The places that each column stands for."""
    S, size = trace.S, trace.block
    return (
        *((s, s + 1) for s in range(S)),
        *((-1, -1) for _ in range(trace.sinks)),
        *((n * size, min(S, (n + 1) * size)) for n in range(columns - S - trace.sinks)),
    )


def at_rest(walked: Walk) -> Walk:
    """The walk with its tensors detached and on the CPU."""
    changes: dict[str, Any] = {}
    for name in Walk.__dataclass_fields__:
        x = getattr(walked, name)
        if isinstance(x, Tensor):
            changes[name] = x.detach().cpu()
    changes["before"] = {name: x.detach().cpu() for name, x in walked.before.items()}
    changes["lanes"] = tuple(map(at_rest, walked.lanes))
    return replace(walked, **changes)


def _span(span: tuple[int, int]) -> str:
    first, stop = span
    if stop <= first:
        return "–"
    return str(first) if stop == first + 1 else f"{first}–{stop - 1}"
