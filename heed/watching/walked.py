"""Walks: the calls that were heard, and one query's way through its stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import torch
from torch import Tensor

from heed.attention.catalogue import DEFAULTS
from heed.attention.mechanism import Mechanism
from heed.attention.memory import Memory
from heed.attention.position import Position
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
class Walk(Trace):
    """One query of one head on its way: a trace without the axes B H T, and what is known of it.

    hidden    why a column may not be looked at; "" where it may
    computed  the context that the attention itself gave, by whatever kernel    R
    lanes     the walks of both lanes of a mixed attention; `share` is the first one's
    """

    head: int
    step: int  # how many queries came before
    place: int  # of the query among the keys
    hidden: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]  # each column's places, from and up to; a sink has none
    computed: Tensor | None = None
    lanes: tuple[Walk, ...] = ()
    share: float | None = None

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
        told = trace.of_one(0, 0, head)
        return Walk(
            **told,
            head=head,
            step=step,
            place=place,
            hidden=_hidden(trace, told["ok"], reasons),
            spans=_spans(trace),
        )

    @property
    def weighted(self) -> Tensor:
        """The values, each times its weight.    N R"""
        return self.weight[:, None] * self.v

    @property
    def name(self) -> str:
        """The mechanism's name by the grammar of names, with its defaults."""
        return "/".join(self.parts.values())

    @property
    def narrows(self) -> bool:
        """Whether the reach is another than the usual one."""
        return self.parts["reach"] != DEFAULTS["reach"]

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
        context=share * one.context + (1 - share) * two.context,
        facts={"gate": share},
        lanes=(one, two),
        share=share,
    )


def _hidden(trace: Trace, ok: Tensor | None, reasons: Sequence[str]) -> tuple[str, ...]:
    """Why each column may not be looked at."""
    columns = trace.k.shape[2]
    blocks = columns - trace.S - trace.sinks
    far = "pooled in its block" if blocks else "outside the window"
    whys = [*(why or far for why in reasons), *[""] * trace.sinks]
    whys += ["not all visible, or near"] * blocks
    seen = [True] * columns if ok is None else ok.tolist()
    return tuple("" if there else why for there, why in zip(seen, whys, strict=True))


def _spans(trace: Trace) -> tuple[tuple[int, int], ...]:
    """The places that each column stands for."""
    S, size = trace.S, trace.block
    return (
        *((s, s + 1) for s in range(S)),
        *((-1, -1) for _ in range(trace.sinks)),
        *((n * size, min(S, (n + 1) * size)) for n in range(trace.k.shape[2] - S - trace.sinks)),
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
