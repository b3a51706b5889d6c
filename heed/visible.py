"""Visibility: small predicates that compose with `&`, `|` and `~`. True means may look.

    heed.causal() & heed.lengths(n) & heed.window(128)

A predicate is a description, not a tensor: kernels read the description, and only the reference
(and kernels that know nothing better) ask for `dense`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from heed.errors import Refused, ShapeError
from heed.shapes import whole


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The positions of the T queries of a call and the S keys of its memory.

    `step` queries were asked before these. `origin` is the place, among the keys, of the very
    first query: without a state the last query stands at the last key (origin = S - T, "bottom
    right"), and a state carries the origin on from there.
    """

    T: int
    S: int
    step: int
    origin: int
    device: torch.device
    segment: Tensor | None = None  # of the queries  B T
    key_segment: Tensor | None = None  # of the keys  B S
    at_end: bool = False  # a later call of a loop that began without a state

    @property
    def first(self) -> int:
        """The place of the first query among the keys."""
        place = self.origin + self.step
        if self.at_end and place + self.T > self.S:
            raise Refused(
                f"this query stands beyond the last of the {self.S} keys: the first call had no "
                "state, which puts its last query at the last key; begin the loop with "
                "heed.State(), or extend the memory before each step"
            )
        return place

    @property
    def steps(self) -> Tensor:
        """The number of queries before each one.    T"""
        return torch.arange(self.step, self.step + self.T, device=self.device)

    @property
    def query(self) -> Tensor:
        """The place of each query among the keys.    T"""
        return torch.arange(self.first, self.first + self.T, device=self.device)

    @property
    def key(self) -> Tensor:
        """The place of each key.    S"""
        return torch.arange(self.S, device=self.device)

    @property
    def last_at_end(self) -> bool:
        """Whether the last query stands at the last key."""
        return self.origin + self.step + self.T == self.S

    def row(self, t: int) -> Places:
        """The places of query t alone."""
        segment = None if self.segment is None else self.segment[:, t : t + 1]
        return replace(self, T=1, step=self.step + t, segment=segment)


class Visible:
    """The base of all predicates; compose them with `&`, `|`, `~`.

    Made with `heed.causal()`, `heed.lengths(n)`, `heed.window(d)`, and for the rarer cases
    `Visible.keys(mask)` (B S), `Visible.mask(mask)` (T S, B T S or B H T S) and
    `Visible.packed(ids)` (several texts in one row see only themselves).
    """

    __slots__ = ()

    about_keys_alone = False
    """Whether the answer is the same for every query (padding), so that a memory can hold it."""

    def dense(self, places: Places) -> Tensor:
        """The answer as booleans that broadcast to B H T S."""
        raise NotImplementedError

    def split(self) -> tuple[Visible | None, Visible | None]:
        """Split into the part about keys alone, which a memory can hold, and the rest."""
        return (self, None) if self.about_keys_alone else (None, self)

    def check(self, S: int) -> None:
        """Refuse counts that S keys do not have; those on a GPU, which is not waited for, pass."""

    def check_axes(self, B: int, T: int) -> None:
        """Refuse a bare table of two axes that, for B rows of T queries, may be B S or T S."""

    def rearranged(self, rows: Callable[[Tensor], Tensor]) -> Visible:
        """The same predicate over rearranged batch rows."""
        return self

    def of_heads(self, start: int, stop: int) -> Visible:
        """The same predicate for some of the heads."""
        return self

    def __and__(self, other: Visible) -> Visible:
        return Both(self, as_visible(other))

    def __or__(self, other: Visible) -> Visible:
        return Either(self, as_visible(other))

    def __invert__(self) -> Visible:
        return Not(self)

    def __bool__(self) -> bool:
        raise Refused("combine masks with &, | and ~; `and`, `or` and `not` would drop one of them")

    __rand__ = __and__
    __ror__ = __or__

    @staticmethod
    def keys(mask: Tensor) -> Visible:
        """The keys that exist, one answer per row and key.    B S"""
        return Keys(_boolean(mask, (2,)))

    @staticmethod
    def mask(mask: Tensor) -> Visible:
        """Any mask: T S, B T S or B H T S; any axis but the last may be 1."""
        return Mask(_boolean(mask, (2, 3, 4)))

    @staticmethod
    def packed(ids: Tensor, queries: Tensor | None = None) -> Visible:
        """Several texts packed into one row: a query sees the keys that carry its own number.

        ids: the number of each key's text, B S.  queries: that of each query's text, B T
        (default: ids).
        """
        queries = ids if queries is None else queries
        if not (isinstance(ids, Tensor) and isinstance(queries, Tensor)):
            raise Refused("packed takes tensors: the number of each key's text, and each query's")
        if ids.ndim != 2 or queries.ndim != 2 or len(ids) != len(queries):
            raise ShapeError(
                "packed takes the number of each key's text, B S, and of each query's, B T; got "
                f"{tuple(ids.shape)} and {tuple(queries.shape)}"
            )
        return Packed(ids, queries)


@dataclass(frozen=True, slots=True)
class Causal(Visible):
    """Keys at the query's place or before it; the last query stands at the last key."""

    def dense(self, places: Places) -> Tensor:
        return (places.key <= places.query[:, None])[None, None]


@dataclass(frozen=True, slots=True)
class Window(Visible):
    """Keys within `half` of the query's own place: |s - t| <= half."""

    half: int

    def dense(self, places: Places) -> Tensor:
        return ((places.key - places.query[:, None]).abs() <= self.half)[None, None]


@dataclass(frozen=True, slots=True, eq=False)
class Near(Visible):
    """Keys within `half` of a centre that each query chose: |s - p_t| <= half."""

    centre: Tensor  # B|1 H|1 T
    half: int
    rising: bool = False  # whether centres are known never to go back, nor to leave a gap

    def dense(self, places: Places) -> Tensor:
        return (places.key - self.centre[..., None]).abs() <= self.half


@dataclass(frozen=True, slots=True, eq=False)
class Coarse(Visible):
    """Keys one by one in blocks that the query's window touches, and each other block as one key.

    Columns are the S keys, the sinks, and then the N blocks. A block is seen as one when all its
    members are visible; `bias` adds the log of its number of members to a block's energy.
    """

    inner: Visible | None  # over the S keys
    exists: Tensor  # B S
    member: Tensor  # the same by the block  B N n
    half: int
    S: int
    sinks: int
    bias: Tensor  # B 1 1 S+sinks+N

    def dense(self, places: Places) -> Tensor:
        block = places.key // self.member.shape[-1]  # the block of each key
        exists = self.exists[:, None, None]  # B 1 1 S
        ok = exists
        if self.inner is not None:
            ok = Both(self.inner, Mask(exists.expand(-1, -1, places.T, -1))).dense(places)
        touched = self.touched(places)
        near = ok & touched.gather(-1, block.expand(touched.shape[0], -1))
        near = pad(near, (0, self.sinks), value=True)  # the sinks stand nowhere: always near
        far = self.open(ok) & ~touched
        axes = torch.broadcast_shapes(near.shape[:-1], far.shape[:-1])
        return torch.cat([near.expand(*axes, -1), far.expand(*axes, -1)], -1)

    def touched(self, places: Places) -> Tensor:
        """The blocks that each query's window touches.    -> T N"""
        N, size = self.member.shape[1:]
        first = torch.arange(N, device=places.device) * size
        query = places.query[:, None]
        return (first <= query + self.half) & (first + size > query - self.half)

    def open(self, ok: Tensor) -> Tensor:
        """The blocks that have members, all of them visible.    B H|1 T|1 S -> B H|1 T|1 N"""
        member = self.member[:, None, None]
        return (cut(ok, self.member.shape[-1]) | ~member).all(-1) & member.any(-1)


def cut(x: Tensor, size: int) -> Tensor:
    """Cut the last axis into blocks, the last one padded with False or 0.    ... S -> ... N n

    An export has an empty block more: its graph cannot serve both a single block and several.
    """
    N = (x.shape[-1] + size - 1) // size
    N = N + 1 if torch.compiler.is_exporting() else max(N, 1)
    return pad(x, (0, N * size - x.shape[-1])).unfold(-1, size, size)


@dataclass(frozen=True, slots=True, eq=False)
class Lengths(Visible):
    """The first n keys of each row."""

    count: Tensor  # B

    about_keys_alone = True

    def dense(self, places: Places) -> Tensor:
        return (places.key < self.count.to(places.device)[:, None])[:, None, None]

    def check(self, S: int) -> None:
        if type(self.count) is not Tensor or not self.count.is_cpu:
            return
        counts = self.count.tolist()
        if counts and not 0 <= min(counts) <= max(counts) <= S:
            row, n = next((row, n) for row, n in enumerate(counts) if not 0 <= n <= S)
            raise ShapeError(f"a row has 0 to {S} of the {S} keys; lengths has {n} in row {row}")

    def rearranged(self, rows: Callable[[Tensor], Tensor]) -> Visible:
        return Lengths(_each_row(self.count, rows))


@dataclass(frozen=True, slots=True, eq=False)
class Keys(Visible):
    """The keys that exist, as booleans."""

    table: Tensor  # B S

    about_keys_alone = True

    def dense(self, places: Places) -> Tensor:
        return self.table.to(places.device)[:, None, None]

    def rearranged(self, rows: Callable[[Tensor], Tensor]) -> Visible:
        return Keys(_each_row(self.table, rows))


@dataclass(frozen=True, slots=True, eq=False)
class Mask(Visible):
    """Any table of booleans."""

    table: Tensor  # T S, B T S or B H T S
    bare: bool = False  # whether a tensor alone was given, so that two axes need not be T S

    def dense(self, places: Places) -> Tensor:
        table = self.table.to(places.device)
        if table.ndim == 2:
            return table[None, None]
        return table[:, None] if table.ndim == 3 else table

    def of_heads(self, start: int, stop: int) -> Visible:
        if self.table.ndim < 4 or self.table.shape[1] == 1:
            return self
        return Mask(self.table[:, start:stop])

    def check_axes(self, B: int, T: int) -> None:
        if self.bare and self.table.ndim == 2 and 1 != len(self.table) == B == T:
            raise ShapeError(
                f"a mask {tuple(self.table.shape)} of {B} rows with {T} queries may be B S or T S: "
                "for each row's keys it is heed.Visible.keys(mask), for each query's mask[None]"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Packed(Visible):
    """Keys of the query's own text, where several texts share a row."""

    key_ids: Tensor  # B S
    query_ids: Tensor  # B T

    def dense(self, places: Places) -> Tensor:
        queries, keys = self.query_ids.to(places.device), self.key_ids.to(places.device)
        return (queries[:, :, None] == keys[:, None, :])[:, None]


@dataclass(frozen=True, slots=True)
class Pair(Visible):
    """Two predicates joined; the base of `Both` and `Either`."""

    first: Visible
    second: Visible

    @property
    def about_keys_alone(self) -> bool:  # type: ignore[override]
        return self.first.about_keys_alone and self.second.about_keys_alone

    def check(self, S: int) -> None:
        self.first.check(S)
        self.second.check(S)

    def check_axes(self, B: int, T: int) -> None:
        self.first.check_axes(B, T)
        self.second.check_axes(B, T)

    def rearranged(self, rows: Callable[[Tensor], Tensor]) -> Visible:
        return type(self)(self.first.rearranged(rows), self.second.rearranged(rows))

    def of_heads(self, start: int, stop: int) -> Visible:
        return type(self)(self.first.of_heads(start, stop), self.second.of_heads(start, stop))

    def tables(self, places: Places) -> tuple[Tensor, Tensor]:
        """Both answers as booleans; refused where their shapes do not broadcast."""
        first, second = self.first.dense(places), self.second.dense(places)
        if any(m != n and 1 not in (m, n) for m, n in zip(first.shape, second.shape, strict=True)):
            axes = (
                " ".join(f"{a}={n}" for a, n in zip("BHTS", x.shape, strict=True))
                for x in (first, second)
            )
            raise ShapeError("two masks do not fit together\n  {}\n  {}".format(*axes))
        return first, second


class Both(Pair):
    """The keys that two predicates both allow."""

    __slots__ = ()

    def dense(self, places: Places) -> Tensor:
        first, second = self.tables(places)
        return first & second

    def split(self) -> tuple[Visible | None, Visible | None]:
        keys, rest = zip(self.first.split(), self.second.split(), strict=True)
        return both(*keys), both(*rest)


class Either(Pair):
    """The keys that at least one of two predicates allows."""

    __slots__ = ()

    def dense(self, places: Places) -> Tensor:
        first, second = self.tables(places)
        return first | second


@dataclass(frozen=True, slots=True)
class Not(Visible):
    """The keys that a predicate forbids."""

    part: Visible

    @property
    def about_keys_alone(self) -> bool:  # type: ignore[override]
        return self.part.about_keys_alone

    def dense(self, places: Places) -> Tensor:
        return ~self.part.dense(places)

    def check(self, S: int) -> None:
        self.part.check(S)

    def check_axes(self, B: int, T: int) -> None:
        self.part.check_axes(B, T)

    def rearranged(self, rows: Callable[[Tensor], Tensor]) -> Visible:
        return Not(self.part.rearranged(rows))

    def of_heads(self, start: int, stop: int) -> Visible:
        return Not(self.part.of_heads(start, stop))


@dataclass(frozen=True, slots=True, eq=False)
class Gaussian:
    """A gain that fades with the distance from a centre: exp(-(s - p_t)^2 / 2 sigma^2)."""

    centre: Tensor  # B|1 H|1 T
    sigma: float

    def dense(self, places: Places) -> Tensor:
        """The gain of every query on every key.    broadcasts to B H T S"""
        away = (places.key - self.centre[..., None]) / self.sigma
        return torch.exp(-0.5 * away * away)


def causal() -> Visible:
    """Look at your own place and back. With T != S the last query stands at the last key."""
    return Causal()


def lengths(count: Tensor | Sequence[int]) -> Visible:
    """Look at the first `count[b]` keys of row b; the rest is padding.    B

    Given together with keys, counts below 0 or above their number are refused; those on a GPU,
    which is not waited for, mean none and all.
    """
    try:
        count = torch.as_tensor(count)
    except (TypeError, ValueError, RuntimeError) as error:
        raise Refused(f"lengths takes whole numbers, one per row (B); got {count!r}") from error
    if count.ndim != 1 or count.is_floating_point() or count.dtype == torch.bool:
        cure = "; a tokeniser's attention_mask, B S, is heed.Visible.keys(attention_mask.bool())"
        raise ShapeError(
            f"lengths takes whole numbers, one per row (B); got {count.dtype} "
            f"of shape {tuple(count.shape)}{cure if count.ndim == 2 else ''}"
        )
    return Lengths(count)


FAR = 1 << 40
"""The largest half-width of a window: beyond any text, and no sum with a place overflows."""


def window(half: int) -> Visible:
    """Look within `half` places of your own, on both sides."""
    return Window(min(whole("a window's half-width", half, 0, math.inf), FAR))


def both(first: Visible | None, second: Visible | None) -> Visible | None:
    """The conjunction of two predicates, either of which may be missing."""
    if first is None or second is None:
        return second if first is None else first
    return Both(first, second)


def conjuncts(visible: Visible | None) -> list[Visible]:
    """The predicates that a conjunction joins."""
    if isinstance(visible, Both):
        return conjuncts(visible.first) + conjuncts(visible.second)
    return [] if visible is None else [visible]


def all_of(parts: Iterable[Visible]) -> Visible | None:
    """The conjunction of all predicates; None where there are none."""
    joined: Visible | None = None
    for part in parts:
        joined = both(joined, part)
    return joined


def as_visible(given: Visible | Tensor | None) -> Visible:
    """A predicate from a predicate or a boolean table."""
    if isinstance(given, Visible):
        return given
    if isinstance(given, Tensor):
        return Mask(_boolean(given, (2, 3, 4)), bare=True)
    cure = ": lengths, one per row, are heed.lengths(n)" if isinstance(given, list | tuple) else ""
    raise Refused(
        f"visible takes heed.causal(), heed.lengths(n), ... or a boolean tensor; "
        f"got {type(given).__name__}{cure}"
    )


def _each_row(table: Tensor, rows: Callable[[Tensor], Tensor]) -> Tensor:
    """A table with its rows rearranged; a single row, which serves all, stays as it is."""
    return table if len(table) == 1 else rows(table)


def _boolean(mask: Tensor, axes: tuple[int, ...]) -> Tensor:
    if not isinstance(mask, Tensor):
        raise Refused(f"a mask is a boolean tensor, True = visible; got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        cures = {
            1: "lengths, one per row, are heed.lengths(n)",
            2: "a tokeniser's attention_mask, B S, is heed.Visible.keys(attention_mask.bool())",
        }
        cure = cures.get(mask.ndim, "of 1 and 0, it is mask.bool()")
        if mask.is_floating_point():  # mask.bool() would hide where an added mask has 0
            cure = "added to energies, of 0 and -inf it is mask == 0; of 1 and 0 mask == 1"
        raise Refused(f"a mask is boolean, True = visible; got {mask.dtype}: {cure}")
    if mask.ndim not in axes:
        raise ShapeError(f"this mask needs {' or '.join(map(str, axes))} axes; got {mask.ndim}")
    return mask
