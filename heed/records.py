"""The plain records that all rooms share: Claims, State, Call, Summary, Statistics, Attended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from typing import Any, Literal, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._pytree import register_constant, register_pytree_node

from heed.errors import NotFormed, Refused, ShapeError, UnknownName
from heed.shapes import check_rows, selected, whole
from heed.visible import Gaussian, Places, Visible

Need = Literal["context", "weight", "energy", "trace", "weights", "energies"]
"""What a call must form; each includes the ones before it. A plural means the same."""

NEEDS: tuple[Need, ...] = ("context", "weight", "energy", "trace")

_SAID: dict[object, Need] = {
    "context": "context",
    **dict.fromkeys(("weight", "weights"), "weight"),
    **dict.fromkeys(("energy", "energies"), "energy"),
    "trace": "trace",
}


def as_need(need: str) -> Need:
    """The need that is meant, one of `NEEDS`; any other word is refused with the nearest."""
    found = _SAID.get(need) if isinstance(need, str) else None
    if found is None:
        raise UnknownName("need", need, NEEDS)
    return found


Gradient = Literal["exact", "straight-through", "score-function"]
"""How a mechanism learns: by its true derivative, by that of its soft twin, or by REINFORCE."""

Mass = Literal["one", "at most one", "any"]
"""The sum of the weights of a query that sees a key: always one, one or less, or any number."""

MASSES: tuple[Mass, ...] = ("one", "at most one", "any")


@dataclass(frozen=True, slots=True)
class Claims:
    """The abilities and needs of a part, by which alone other code tells parts apart.

    Those that are True here hold of a mechanism if all its parts claim them, the others if one
    does. A class of your own that states none claims no more than every class that it derives from.
    """

    has_steps: bool = True  # can be called step by step, the state handed on
    takes_several: bool = True  # several queries in one call
    fits_heads: bool = True  # works inside multi-head attention
    gives_context: bool = True  # gathers values
    is_row_wise: bool = True  # but for draws, an answer does not depend on the queries before it
    ignores_place: bool = True  # nor on where its query stands
    ignores_shifts: bool = True  # places matter by distance, if at all: padding in front is nothing
    ignores_turns: bool = True  # energies stay if queries and keys are turned by the same angle
    sees_all: bool = True  # every visible key may be looked at, and none counts more
    uses_energies: bool = True  # so that there must be a score
    needs_line: bool = False  # keys in a line, one column each, because it knows their places
    needs_length: bool = False  # the length of a text, of which a decoder knows a part
    needs_one_text: bool = False  # it compares places of queries and keys
    merges_keys: bool = False  # puts keys together, so that they are no line
    looks_regardless: bool = False  # a query may look where the call hides everything from it
    draws: bool = False  # at random in training, but not in evaluation
    charges: bool = False  # a penalty, to be added to the loss
    gradient: Gradient = "exact"
    mass: Mass = "one"

    @property
    def is_differentiable(self) -> bool:
        """Whether the gradient is the true derivative."""
        return self.gradient == "exact"

    @property
    def is_stateless(self) -> bool:
        """Whether the answer to a query depends neither on earlier queries nor on its place."""
        return self.is_row_wise and self.ignores_place

    def __and__(self, other: Claims) -> Claims:
        claims: dict[str, Any] = {
            name: getattr(self, name) and getattr(other, name)
            if default
            else getattr(self, name) or getattr(other, name)
            for name, default in _CLAIMED.items()
        }
        return Claims(
            **claims,
            gradient=other.gradient if self.gradient == "exact" else self.gradient,
            mass=max(self.mass, other.mass, key=MASSES.index),
        )


_CLAIMED = {each.name: each.default for each in fields(Claims) if isinstance(each.default, bool)}
"""The claims that are true or false, and what they are by default."""


def gradientless() -> bool:
    """Whether a gradient that is wanted later is lost to what is made now, inside a record.

    So it is in the forward of an autograd function, such as reentrant checkpointing: only tensors
    that it returns get a gradient.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return not (torch._C._is_fwd_grad_enabled() or torch.is_inference_mode_enabled())


def check_gradient(what: str, lost: bool) -> None:
    """Refuse what was made where `gradientless`, once a gradient may be wanted of it."""
    if lost and torch.is_grad_enabled():
        raise Refused(
            f"this {what} comes from inside reentrant checkpointing (or an autograd function), "
            "through which a record passes no gradient: checkpoint(..., use_reentrant=False), or "
            "return the tensor seen.context; to look at it only, read it under torch.no_grad()"
        )


EMPTY: Mapping[str, Any] = {}
"""The slots of a mechanism that remembers nothing."""


class Cut(dict[str, Any]):
    """Slots to which no gradient comes back."""


class State(NamedTuple):
    """What the next step needs: the count of steps and one slot per part that remembers.

    Immutable, like a Memory. `select` and `repeat` follow the rows of a beam.
    """

    step: int = 0
    origin: int = 0  # the place of the first query among the keys
    slots: Mapping[str, Any] = EMPTY
    at_end: bool = False  # begun without a state, which put the last query at the last key

    @property
    def rows(self) -> int | None:
        """How many batch rows it holds; None where it holds nothing.    B"""
        return next((n for n in map(_rows, self.slots.values()) if n is not None), None)

    def select(self, rows: Tensor) -> State:
        """The state of the chosen batch rows, in that order."""
        rows = check_rows(rows)
        return self._each(lambda x: selected(x, rows))

    def repeat(self, n: int) -> State:
        """Repeat every row n times, its copies side by side."""
        n = whole("the number of copies", n, 0)
        return self._each(lambda x: x.repeat_interleave(n, 0))

    def _each(self, rows: Callable[[Tensor], Tensor]) -> State:
        slots = {name: _map(slot, rows) for name, slot in self.slots.items()}
        return self._replace(slots=Cut(slots) if isinstance(self.slots, Cut) else slots)


def _rows(slot: Any) -> int | None:
    if isinstance(slot, State):
        return slot.rows
    if isinstance(slot, tuple):
        return next((n for n in map(_rows, slot) if n is not None), None)
    return len(slot) if isinstance(slot, Tensor) and slot.ndim else None


def _map(slot: Any, rows: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(slot, State):
        return slot._each(rows)
    if isinstance(slot, tuple):
        return tuple(_map(part, rows) for part in slot)
    return rows(slot) if isinstance(slot, Tensor) and slot.ndim else slot


@dataclass(slots=True, eq=False)
class Call:
    """One call of attention as kernels see it: tensors, predicates, and the names of the parts."""

    family: str  # after projection: dot, additive, relative, location, blind, or a score's own
    q: Tensor  # B H T D
    k: Tensor  # B G S D
    v: Tensor  # B G S R
    scale: float
    vector: Tensor | None  # additive family: the score vector  H D
    visible: Visible | None
    gain: Gaussian | None
    bias: Tensor | None  # added to the energies, broadcasts to B H T S
    places: Places
    claims: Claims  # of the mechanism
    align: str
    read: str
    dropout: float
    need: Need
    sinks: int = 0  # the last columns are visible to all
    even: bool = False  # the bias makes all energies of some queries one number
    clean: bool = False  # no unseen key or value holds NaN or inf
    prepared: dict[str, Any] | None = None  # what kernels derived from k, cached between steps

    def dense_visible(self) -> Tensor | None:
        """Who may look where, sinks included.    broadcasts to B H T S"""
        if self.visible is None:
            return None
        ok = self.visible.dense(self.places)
        B, H, T, _ = self.q.shape
        want = (B, H, T, self.k.shape[2] - self.sinks)
        # Not `in (1, m)`: the symbolic sizes of a compiler support comparison alone.
        fits = all(n == 1 or n == m for n, m in zip(ok.shape, want, strict=True))
        if not fits or ok.shape[3] != want[3]:
            axes = [dict(zip("BHTS", shape, strict=True)) for shape in (ok.shape, want)]
            given, wanted = (" ".join(f"{a}={n}" for a, n in x.items()) for x in axes)
            raise ShapeError(
                f"visible does not fit\n  visible: {given}\n  attention: {wanted}\n"
                "  (a mask of keys alone, B S, is heed.Visible.keys(mask))"
            )
        if self.sinks:
            ok = pad(ok.expand(*ok.shape[:3], want[3]), (0, self.sinks), value=True)
        return ok

    def cleaned(self, ok: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and values with zero where no query of the row may look: NaN must not spread."""
        if ok is None or self.clean:
            return self.k, self.v
        seen = ok.any(2).any(1)[:, None, :, None]
        return self.k.where(seen, 0), self.v.where(seen, 0)


@dataclass(frozen=True)
class Summary:
    """Which statistics of the weights a call returns, beyond those that are always returned.

    top   how many of each query's largest weights to list, by place and share
    map   how many rows and columns of cells, at most, to pool the weights into
    rows  which queries, counted from the first of the call, to return the exact weights of
    received  False leaves out what keys received: statistics of each query alone come, on a GPU,
              from the same pass as the context
    """

    top: int = 0
    map: tuple[int, int] | None = None
    rows: tuple[int, ...] = ()
    received: bool = True

    def __post_init__(self) -> None:
        whole("top", self.top, 0)
        if not isinstance(self.received, bool):
            raise Refused(f"received takes True or False; got {self.received!r}")
        if not self.received and (self.top or self.map is not None):
            raise Refused(
                "top and map need a second pass, which computes what keys received as well"
            )
        if self.map is not None:
            if not isinstance(self.map, Sequence) or len(self.map) != 2:
                raise Refused(f"map takes how many rows and columns of cells; got {self.map!r}")
            size = tuple(whole("a map's side", n, 1) for n in self.map)
            object.__setattr__(self, "map", size)
        if isinstance(self.rows, str) or not isinstance(self.rows, Iterable):
            raise Refused(f"rows takes the numbers of queries, such as (0, 5); got {self.rows!r}")
        object.__setattr__(self, "rows", tuple(whole("a row", t, 0) for t in self.rows))


register_constant(Summary)  # an argument of torch.export that is no tensor


def as_summary(asked: Summary | bool | None) -> Summary | None:
    """The Summary that `statistics=` asks for: the default one for True, none for False or None."""
    if asked is None or isinstance(asked, bool):
        return Summary() if asked else None
    if isinstance(asked, Summary):
        return asked
    raise Refused(
        "statistics takes True or heed.Summary(top=..., map=..., rows=..., received=...); got "
        f"{asked!r}"
    )


class Statistics(NamedTuple):
    """Statistics of weights B H T S that need not be kept. No gradient flows through them."""

    mass: Tensor  # the sum of each query's weights  B H T
    entropy: Tensor  # in nats  B H T
    peak: Tensor  # the largest share  B H T
    place: Tensor  # where it is  B H T
    expected: Tensor  # the mean place  B H T
    spread: Tensor  # the standard deviation around it  B H T
    received: Tensor | None = None  # the sum of each key's weights; None: not asked for  B H S
    log_sum: Tensor | None = None  # log Σ exp(e) of what a softmax saw; else None  B H T
    largest: Tensor | None = None  # the largest energy; -inf where none is seen  B H T
    top: Tensor | None = None  # the places of the largest shares, largest first  B H T top
    share: Tensor | None = None  # those shares; 0: fewer keys are seen  B H T top
    map: Tensor | None = None  # each cell: its queries' mean mass on its keys  B H rows columns
    rows: Tensor | None = None  # the weights of the chosen queries  B H n S

    @staticmethod
    def join(parts: Sequence[Statistics], axis: int = 2) -> Statistics:
        """Join the statistics of consecutive queries (axis 2) or of heads (axis 1).

        Over queries, received mass adds up, and the rows of the maps follow each other.
        """
        fields = {
            name: _along([getattr(x, name) for x in parts], axis) for name in parts[0]._fields
        }
        received = [x.received for x in parts if x.received is not None]
        if axis == 2 and len(received) == len(parts):
            fields["received"] = torch.stack(received).sum(0)
        return Statistics(**fields)  # type: ignore[arg-type]


class Formed(NamedTuple):
    """What a record holds; None for what its call did not form."""

    context: Tensor | None
    weight: Tensor | None
    energy: Tensor | None
    statistics: Statistics | None


@dataclass(init=False, repr=False, eq=False, slots=True)
class Attended:
    """What every mechanism returns. It holds weights and energies if the call asked for them.

    context   what was read              B T R   (B H T R from `heed.attend`)
    weight    the attention weights      B H T S, before dropout; need="weight"
    energy    the scores before align    B H T S; need="energy"
    state     for the next step
    log_prob  of a hard choice           B H T, from `sample`; else None
    entropy   of what it was drawn from  B H T, from `sample`; else None
    penalty   a loss the mechanism adds  B H T, from `coverage`; else None
    statistics  of the weights, without forming them; statistics=True
    formed    context, weight, energy and statistics, each None where it was not formed
    kernel    which kernel served the call; `why` says why the others did not
    trace     all that was computed on the way, heed.attention.trace; need="trace"
    """

    _context: Tensor | None
    _weight: Tensor | None
    _energy: Tensor | None
    state: State
    log_prob: Tensor | None
    entropy: Tensor | None
    penalty: Tensor | None
    kernel: str
    refusals: tuple[tuple[str, str], ...]
    _statistics: Statistics | None
    trace: Any
    _lost: bool  # whether no gradient comes back to what it was formed from

    def __init__(
        self,
        context: Tensor | None = None,
        state: State = State(),  # noqa: B008
        weight: Tensor | None = None,
        energy: Tensor | None = None,
        log_prob: Tensor | None = None,
        entropy: Tensor | None = None,
        penalty: Tensor | None = None,
        kernel: str = "reference",
        refusals: tuple[tuple[str, str], ...] = (),
        statistics: Statistics | None = None,
        trace: Any = None,
        **fields: Any,
    ) -> None:
        self._context = context
        self._weight = weight
        self._energy = energy
        self.state = state
        self.log_prob = log_prob
        self.entropy = entropy
        self.penalty = penalty
        self.kernel = kernel
        self.refusals = refusals
        self._statistics = statistics
        self.trace = trace
        self._lost = fields.pop("_lost", False) or gradientless()
        if fields:  # dataclasses.replace passes the private names
            for name in ("_context", "_weight", "_energy", "_statistics"):
                setattr(self, name, fields.pop(name, None))
            if fields:
                raise TypeError(f"an Attended has no {', '.join(fields)}")

    def __getitem__(self, key: object) -> NoReturn:
        """Refuse to be unpacked like the tuple of torch's modules, and say what to use instead."""
        raise Refused(
            "attention returns a record, not a tuple: seen.context is the context, and "
            "seen.weight the weights, if asked for by need='weight'"
        )

    @property
    def context(self) -> Tensor:
        """The context that was read."""
        check_gradient("record", self._lost)
        if self._context is None:
            raise NotFormed(
                "there is no context in this record: a pointer has none (its distribution is "
                ".weight), and records of a whole model or a watch keep only the weights"
            )
        return self._context

    @property
    def weight(self) -> Tensor:
        """The attention weights, before dropout.    B H T S"""
        check_gradient("record", self._lost)
        if self._weight is None:
            raise NotFormed(
                'the weights were not formed; ask for them: attend(query, memory, need="weight")'
            )
        return self._weight

    @property
    def energy(self) -> Tensor:
        """The energies before align, hidden places included.    B H T S"""
        check_gradient("record", self._lost)
        if self._energy is None:
            raise NotFormed(
                'the energies were not formed; ask for them: attend(query, memory, need="energy") '
                "(mixed compares twice and reports none)"
            )
        return self._energy

    @property
    def statistics(self) -> Statistics:
        """The statistics of the weights, taken without forming them."""
        if self._statistics is None:
            raise NotFormed(
                "the statistics were not computed; ask for them: attend(query, memory, "
                "statistics=True) or statistics=heed.Summary(top=4, map=(256, 256))"
            )
        return self._statistics

    @property
    def formed(self) -> Formed:
        """What was formed already; to ask raises nothing."""
        return Formed(self._context, self._weight, self._energy, self._statistics)

    @property
    def mass(self) -> Tensor:
        """The sum of each query's weights, which need not be one.    B H T"""
        return self.weight.sum(-1)

    @property
    def why(self) -> str:
        """Which kernel served the call, and why faster ones did not."""
        reasons = [f"{name}: {reason}" for name, reason in self.refusals]
        return "; ".join([f"served by {self.kernel}", *reasons])

    def replace(self, **changes: Any) -> Attended:
        """The same record with some fields changed (context, weight, energy, state, ...)."""
        kept = {
            "context": self._context,
            "state": self.state,
            "weight": self._weight,
            "energy": self._energy,
            "log_prob": self.log_prob,
            "entropy": self.entropy,
            "penalty": self.penalty,
            "kernel": self.kernel,
            "refusals": self.refusals,
            "statistics": self._statistics,
            "trace": self.trace,
            "_lost": self._lost,
        }
        return Attended(**{**kept, **changes})

    @classmethod
    def join(cls, records: Sequence[Attended]) -> Attended:
        """The records of consecutive steps as one, along T; the state is the last one's."""
        first = records[0]
        if len(records) == 1:
            return first
        return cls(
            _along([each._context for each in records], -2),
            records[-1].state,
            _along([each._weight for each in records], -2),
            _along([each._energy for each in records], -2),
            _along([each.log_prob for each in records], -1),
            _along([each.entropy for each in records], -1),
            _along([each.penalty for each in records], -1),
            first.kernel,
            first.refusals,
            _joined([each._statistics for each in records]),
        )

    def _repr_html_(self) -> str:
        """A table for notebooks: a row per head of the first batch row, and the kernel used."""
        said = self._statistics
        table: dict[str, Tensor] = {}
        if self._weight is not None and self._weight.numel():
            weight = self._weight[0].detach().float()  # H T S
            share = weight / weight.sum(-1, keepdim=True).clamp(min=1e-30)
            logs = share.clamp(min=1e-30).log()
            table = {"entropy": -(share * logs).sum(-1), "peak": share.amax(-1)}
        elif said is not None:
            table = {"entropy": said.entropy[0], "peak": said.peak[0], "spread": said.spread[0]}
        heads = "".join(f"<th>{name}</th>" for name in ("head", *table))
        means = [x.float().mean(-1).tolist() for x in table.values()]
        rows = "".join(
            f"<tr><td>{h}</td>{''.join(f'<td>{x:.3f}</td>' for x in numbers)}</tr>"
            for h, numbers in enumerate(zip(*means, strict=True))
        )
        told = f"{escape(repr(self))}<br>{escape(self.why)}"
        return f"<table><caption>{told}</caption><tr>{heads}</tr>{rows}</table>"

    def __repr__(self) -> str:
        formed = {"context": self._context, "weight": self._weight, "energy": self._energy}
        shapes = ", ".join(f"{n}={tuple(x.shape)}" for n, x in formed.items() if x is not None)
        return f"Attended({shapes}, step={self.state.step}, kernel={self.kernel!r})"


def _along(parts: list[Tensor | None], axis: int) -> Tensor | None:
    """What every step formed, as one tensor; None where a step did not."""
    formed = [part for part in parts if part is not None]
    return torch.cat(formed, axis) if len(formed) == len(parts) else None


def _joined(parts: list[Statistics | None]) -> Statistics | None:
    formed = [part for part in parts if part is not None]
    return Statistics.join(formed) if len(formed) == len(parts) else None


def _flatten(seen: Attended) -> tuple[list[Any], tuple[str, tuple[tuple[str, str], ...]]]:
    tensors = [seen._context, seen._weight, seen._energy]
    facts = [seen.log_prob, seen.entropy, seen.penalty]
    return [*tensors, seen.state, *facts, seen._statistics], (seen.kernel, seen.refusals)


def _unflatten(leaves: Iterable[Any], told: tuple[str, tuple[tuple[str, str], ...]]) -> Attended:
    context, weight, energy, state, log_prob, entropy, penalty, statistics = leaves
    facts = (log_prob, entropy, penalty)
    return Attended(context, state, weight, energy, *facts, *told, statistics)


# So that torch.export, and any other walk through a module's output, finds the tensors inside.
register_pytree_node(Attended, _flatten, _unflatten, serialized_type_name="heed.Attended")
