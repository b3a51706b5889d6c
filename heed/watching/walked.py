"""What was walked: the calls that were heard, and one query's way through its stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

import torch
from torch import Tensor

from heed.attention.catalogue import CATALOGUE
from heed.attention.mechanism import Mechanism
from heed.attention.memory import Memory
from heed.attention.position import Position
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

    @property
    def name(self) -> str:
        """The mechanism's name by the grammar of names, with its defaults."""
        return "/".join(self.parts.values())

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
