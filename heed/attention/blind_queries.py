"""Queries that see nothing: they are zeroed before anything is computed of them.

Their context is zero in any case. But NaN in them (rows that were never filled) would come back: by
what else is computed of a query, as a gate or a centre, and in gradients, since 0 · NaN is NaN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from heed.attention.memory import Memory
from heed.kernels.ability import known, recorded, transformed
from heed.records import State
from heed.visible import (
    FAR,
    Causal,
    Coarse,
    Near,
    Places,
    Visible,
    Window,
    all_of,
    conjuncts,
)


def placed(
    T: int,
    S: int,
    state: State | None,
    device: torch.device,
    segment: Tensor | None = None,
    key_segment: Tensor | None = None,
) -> Places:
    """The places of T queries; without a state the last of them stands at the last of S keys."""
    if state is None:
        return Places(T, S, 0, S - T, device, segment, key_segment)
    return Places(T, S, state.step, state.origin, device, segment, key_segment, state.at_end)


def spared(query: Tensor, memory: Memory, visible: Visible | None, places: Places) -> Tensor:
    """The queries, with zero for those that see nothing.    B H T M or B T M

    visible  what the memory and the call show. The window that a query chooses by its own content
             hides nothing here
    """
    if memory.sinks or (places.S and _in_line(visible, places)) or _finite(query):
        return query
    return zeroed(query, sighted(memory, visible, places))


def _in_line(visible: Visible | None, places: Places) -> bool:
    """Whether every query sees the first key, by no more than the kind of mask."""
    return visible is None or (type(visible) is Causal and known(places.first >= 0))


def _finite(x: Tensor) -> bool:
    """Whether all numbers are known to be finite; on a GPU, which is not waited for, none are."""
    if not x.is_cpu or recorded() or transformed() is not None:
        return False
    return math.isfinite(x.detach().sum().item())


def zeroed(query: Tensor, seen: Tensor | None) -> Tensor:
    """Zero for queries that see nothing: those of B T M see nothing in any head.    B|1 H|1 T|1"""
    if seen is None:
        return query
    seen = (seen if query.ndim == 4 else seen.any(1))[..., None]
    fits = all(n == 1 or n == m for n, m in zip(seen.shape, query.shape, strict=False))
    return query.where(seen, 0) if fits else query  # a mask that does not fit is refused later


def sighted(memory: Memory, visible: Visible | None, places: Places) -> Tensor | None:
    """The queries that see a key; None where all are known to.    B|1 H|1 T|1"""
    if memory.sinks:
        return None
    if places.S == 0:
        return torch.zeros(1, 1, 1, dtype=torch.bool, device=places.device)
    visible = visible.inner if isinstance(visible, Coarse) else visible
    chosen = (part for part in conjuncts(visible) if isinstance(part, Near) and not part.rising)
    hiding = set(map(id, chosen))
    parts = [part for part in conjuncts(visible) if id(part) not in hiding]
    keys = [part for part in parts if part.about_keys_alone]
    spans = [part for part in parts if isinstance(part, Causal | Window | Near)]
    exist, shown = all_of(keys), all_of(parts)
    exists = None if exist is None else exist.dense(places)  # B|1 1 1 S
    if len(keys) + len(spans) < len(parts):
        assert shown is not None
        return shown.dense(places).any(-1)
    if spans:
        return _in_reach(exists, spans, places)
    return None if exists is None else exists.any(-1)


def _in_reach(
    exists: Tensor | None, spans: list[Causal | Window | Near], places: Places
) -> Tensor | None:
    """The queries with a key in their interval, computed without a table T S.    B|1 1 T"""
    half = min([FAR, *(part.half for part in spans if isinstance(part, Window))])
    ahead = 0 if any(isinstance(part, Causal) for part in spans) else half
    around = [part for part in spans if isinstance(part, Near)]
    bounds = [(part.centre - part.half, part.centre + part.half) for part in around]
    if len(bounds) < len(spans):
        last = places.first + places.T - 1
        near = known(places.first + ahead >= 0) and known(last - half < places.S)
        if near and exists is None and not bounds:
            return None
        place = places.query[None, None]
        bounds.append((place - half, place + ahead))
    low, high = bounds[0]
    for begin, end in bounds[1:]:
        low, high = torch.maximum(low, begin), torch.minimum(high, end)
    if exists is None:
        return (high >= 0) & (low < places.S) & (low <= high)
    count = pad(exists[:, :, 0].cumsum(-1), (1, 0))  # B|1 1 S+1
    most = count.shape[-1] - 1
    low, high = low.clamp(0, most), (high + 1).clamp(0, most)
    B = max(count.shape[0], low.shape[0])
    count, low, high = count.expand(B, -1, -1), low.expand(B, -1, -1), high.expand(B, -1, -1)
    return count.gather(-1, high) > count.gather(-1, low)
