"""Visibility as kernels take it: most of it computed from places, without a table T S."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heed.errors import ShapeError
from heed.records import Call
from heed.visible import Causal, Lengths, Near, Places, Visible, Window, conjuncts


@dataclass(slots=True, eq=False)
class Sight:
    """A conjunction of predicates, sorted by kind: a key must pass every one that is set.

    Query t stands at place first + t, where places matter. Keys from `stop` on exist for no query,
    and a kernel need not visit them; `table` holds the predicates of all other kinds.
    """

    first: int = 0
    stop: Tensor | None = None  # one past the last key that exists  B|1 int32
    exists: Tensor | None = None  # which keys exist, where a length does not say it  B|1 S
    causal: bool = False  # s <= first + t
    half: int | None = None  # |s - (first + t)| <= half
    centre: Tensor | None = None  # |s - centre_t| <= radius  B|1 H|1 T float32
    radius: int = 0
    table: Tensor | None = None  # any other mask  B|1 H|1 T|1 S

    @property
    def everything(self) -> bool:
        """Whether every query sees every key."""
        return not (self.causal or self.about_places) and self.stop is self.table is None

    @property
    def about_places(self) -> bool:
        """Whether a window narrows the view."""
        return self.half is not None or self.centre is not None


def sight(call: Call) -> Sight:
    """The visibility of a call, sorted by kind; refused where it does not fit the attention.

    The definition would refuse it, but kernels check no bounds.
    """
    places = call.places
    seen = Sight()
    others: list[Visible] = []
    for part in conjuncts(call.visible):
        if isinstance(part, Causal):
            seen.first, seen.causal = places.first, True
        elif isinstance(part, Window):
            seen.first = places.first
            seen.half = part.half if seen.half is None else min(seen.half, part.half)
        elif isinstance(part, Near) and seen.centre is None:
            seen.centre, seen.radius = part.centre, part.half
        elif isinstance(part, Lengths) and seen.stop is None:
            count = part.count.clamp(0, places.S)  # it may say more than 32 bits hold
            seen.stop = count.to(places.device, torch.int32)
        elif part.about_keys_alone:
            keys = _wide(part.dense(places), places)[:, 0, 0]  # B|1 S
            seen.exists = keys if seen.exists is None else seen.exists & keys
        else:
            others.append(part)
    if others:
        seen.table = _table(others, places)
    if not _fits(seen, (*call.q.shape[:3], places.S)):
        call.dense_visible()  # raises, and says what does not fit
    if seen.centre is not None:
        seen.centre = _each(seen.centre, places)
    if seen.exists is not None:
        stop = _stop(call, seen.exists)
        seen.stop = stop if seen.stop is None else torch.minimum(seen.stop, stop)
    return seen


def peaks(call: Call) -> Tensor | None:
    """The centre of each query's gain.    B|1 H|1 T"""
    if call.gain is None:
        return None
    if not _broadcasts(call.gain.centre, tuple(call.q.shape[:3])):
        told = tuple(call.gain.centre.shape)
        raise ShapeError(f"the centres of a gain are B H T, any axis may be 1; got {told}")
    return _each(call.gain.centre, call.places)


def _fits(seen: Sight, shape: tuple[int, ...]) -> bool:
    """Whether every table broadcasts to the attention, B H T S; along S it must be whole."""
    B, S = shape[0], shape[3]
    if seen.table is not None and not (seen.table.shape[3] == S and _broadcasts(seen.table, shape)):
        return False
    if seen.exists is not None and seen.exists.shape[1] != S:
        return False
    if seen.centre is not None and not _broadcasts(seen.centre, shape[:3]):
        return False
    # No len(x): an export would take it for a constant.
    rows = [x.shape[0] for x in (seen.exists, seen.stop) if x is not None]
    return all(n in (1, B) for n in rows)


def _broadcasts(x: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether each axis is 1 or whole."""
    return x.ndim == len(shape) and all(n in (1, m) for n, m in zip(x.shape, shape, strict=True))


def _each(centre: Tensor, places: Places) -> Tensor:
    """Centres, one for each query, where one may have served all.    ... 1|T -> ... T"""
    whole = centre.shape[2] == places.T  # then it stays the caller's own tensor, a leaf perhaps
    return centre if whole else centre.expand(*centre.shape[:2], places.T)


def _stop(call: Call, exists: Tensor) -> Tensor:
    """One past the last key that exists; from the memory's cache, if it is there.    B|1"""
    known: Tensor | None = (call.prepared or {}).get("lengths")
    if known is not None:
        return known
    count = torch.arange(1, call.places.S + 1, device=exists.device, dtype=torch.int32)
    return (count * exists).amax(-1)


def _table(others: list[Visible], places: Places) -> Tensor:
    """The conjunction of predicates that no kernel computes by itself."""
    table = others[0].dense(places)
    for part in others[1:]:
        table = table & part.dense(places)
    return _wide(table, places)


def _wide(table: Tensor, places: Places) -> Tensor:
    """A table with a column for each key, where one may have served all.    ... 1|S -> ... S"""
    return table if table.shape[-1] != 1 else table.expand(*table.shape[:-1], places.S)
