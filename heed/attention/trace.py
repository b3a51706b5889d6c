"""Traces: the quantities of a call on their way from query to context, for whoever asks for them.

    seen = attend(query, memory, need="trace")
    seen.trace.energy, seen.trace.normal, seen.trace.weight

Several mechanisms side by side have a trace each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from heed.attention.score import per_head


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One mechanism's quantities, in the order in which they arise.

    N are the columns: S keys, then sinks, then blocks of keys where a reach merges them. All
    tensors broadcast to the axes that are given.
    """

    parts: Mapping[str, str]  # the name of the part in each slot; no score if none is used
    formulas: Mapping[str, str]  # of the parts that have one
    S: int
    sinks: int
    block: int  # how many keys a block stands for; 1 without blocks
    q: Tensor  # as the score compares them  B H T D
    k: Tensor  # B G N D
    v: Tensor  # as they are read  B G N R
    ok: Tensor | None  # who may be looked at; None: all  B H T N
    past: Tensor | None  # what earlier steps add to the energies  B H T N
    bias: Tensor | None  # what distance or a block's size adds  B H T N
    energy: Tensor  # with both, of hidden columns too  B H T N
    before: Mapping[str, Tensor]  # what the state said of each place before the first query  B H N
    facts: Mapping[str, Any]  # what else a part decided, such as the centre of a window  B H T
    normal: Tensor  # what align made of the energies  B H T N
    gain: Tensor | None  # multiplied onto that  B H T N
    weight: Tensor  # their product  B H T N
    reported: Tensor  # the same, a block's shared among its keys  B H T S
    context: Tensor | None  # the sum of the weighted values; None from a pointer  B H T R

    def of_one(self, row: int, t: int, head: int) -> dict[str, Any]:
        """The fields, of one query and head: without the axes B H T."""
        B, H, T, _ = self.q.shape
        found = {each.name: getattr(self, each.name) for each in fields(Trace)}
        for name in ("k", "v"):
            found[name] = per_head(found[name], H)[row, head]
        for name, x in found.items():
            if isinstance(x, Tensor) and x.ndim == 4:
                found[name] = x.expand(B, H, T, -1)[row, head, t]
        found["before"] = {name: x.expand(B, H, -1)[row, head] for name, x in self.before.items()}
        facts = {name: torch.as_tensor(x).expand(B, H, T) for name, x in self.facts.items()}
        found["facts"] = {name: float(x[row, head, t]) for name, x in facts.items()}
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Blended:
    """Two traces over the same heads, blended by a gate."""

    name: str
    lanes: tuple[Traces, Traces]
    share: Tensor  # of the first  B H T 1
    v: Tensor  # B H S R


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """A trace for each group of heads."""

    lanes: tuple[Traces, ...]
    heads: tuple[int, ...]  # how many each of them has


Traces = Trace | Blended | Grouped
