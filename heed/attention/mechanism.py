"""A mechanism: parts put together, on queries and keys that are already split into heads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from heed.attention import apply
from heed.attention.align import Align, Softmax
from heed.attention.memory import Memory
from heed.attention.part import Part
from heed.attention.past import Past
from heed.attention.position import Position
from heed.attention.reach import Global, OrEverything, Reach
from heed.attention.read import Blend, Read
from heed.attention.score import Blind, ScaledDot, Score
from heed.attention.watchable import Watchable
from heed.errors import Refused, ShapeError
from heed.records import (
    EMPTY,
    Attended,
    Claims,
    Cut,
    Need,
    State,
    Summary,
    as_need,
    as_summary,
    check_gradient,
)
from heed.shapes import check, check_devices, check_dtypes, check_groups, real
from heed.visible import Places, Visible, as_visible


class Mechanism(Watchable):
    """score, past, reach, align and read, put together: who compares, who may look, who gathers.

    Parts not given are the defaults: no past, `global`, `softmax`, `blend`; an align that uses no
    energies needs no score. Works on heads:
    queries B H T M, keys B G S K, values B G S R. `heed.Attention` and `heed.MultiHeadAttention`
    put it to work on B T M.
    """

    claims: Claims
    """All that its parts claim together."""

    token: object
    """Marks the memories that it made."""

    def __init__(
        self,
        *,
        score: Score | None = None,
        past: Past | None = None,
        reach: Reach | None = None,
        align: Align | None = None,
        read: Read | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.token = object()
        blind = isinstance(align, Align) and not align.claims.uses_energies
        self.score = cast(Score, Blind() if score is None and blind else score)
        self.past = past
        self.reach = reach or Global()
        self.align = align or Softmax()
        self.read = read or Blend()
        self.dropout = real("dropout", dropout, 0, 1)
        _check_kinds(self)
        _check_parts(self)
        self.claims = reduce(and_, (part.claims for part in self.parts))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, Part) and "claims" in vars(self):  # a part is exchanged
            self.claims = reduce(and_, (part.claims for part in self.parts))

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}" if getattr(self, "dropout", 0) else ""

    @property
    def by_slot(self) -> dict[str, Part]:
        """The parts that it has, by slot; `past` may be missing."""
        parts = ((slot, getattr(self, slot)) for slot in _KINDS)
        return {slot: part for slot, part in parts if part is not None}

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that it has."""
        return tuple(self.by_slot.values())

    @property
    def is_plain(self) -> bool:
        """Whether it is softmax(q·k / √D) v, of heed's own parts and no others."""
        kinds = [type(part) for part in self.parts]
        usual = kinds == [ScaledDot, Global, Softmax, Blend] and type(self) is Mechanism
        return usual and cast(ScaledDot, self.score).usual

    @property
    def is_random(self) -> bool:
        """Whether the same call would now give another answer."""
        parts = any(part.is_random for part in self.parts)
        return parts or (self.training and self.dropout > 0)

    def look_regardless(self) -> None:
        """Let a query that would see nothing look at everything, evenly."""
        self.reach = OrEverything(self.reach)

    @property
    def slots(self) -> set[str]:
        """The parts that may have a slot in the state."""
        return {part.name for part in (self.past, self.align) if part is not None}

    @property
    def kept_width(self) -> int | None:
        """The width of a kept key, D."""
        return self.score.kept_width

    def keep(self, keys: Tensor, values: Tensor) -> Tensor:
        """Keys as the score compares them.    B G S K, B G S R -> B G S D"""
        return self.score.keep(keys, values)

    def remember(
        self,
        keys: Tensor,
        values: Tensor | None = None,
        visible: Visible | Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Memory:
        """Prepare keys and values (default: the keys) once, to be asked many times.

        keys: B G S K.  values: B G S R.  visible: which keys exist, for all queries alike.
        """
        values = keys if values is None else values
        check(keys=(keys, "B G S K"))
        return Memory.of(
            keys, values, lambda k, v, _: (self.keep(k, v), v), visible, segments, owner=self.token
        )

    def forward(
        self,
        query: Tensor | None,
        memory: Memory,
        state: State | None = None,
        *,
        visible: Visible | Tensor | None = None,
        need: Need = "context",
        segments: Tensor | None = None,
        position: Position | None = None,
        statistics: Summary | bool | None = None,
    ) -> Attended:
        """Attend: queries B H T M -> context B H T R, weight B H T S."""
        if query is None:
            query = self.question(memory.k.shape[0])
        need = self.check_call(query, memory, state, need)
        if segments is not None:
            check(queries=(query, "B H T M"), segments=(segments, "B T"))
        seen_by = None if visible is None else as_visible(visible)
        asked = as_summary(statistics)
        return self.attend(query, memory, state, seen_by, need, segments, position, asked)

    if TYPE_CHECKING:
        __call__ = forward

    def attend(
        self,
        query: Tensor,
        memory: Memory,
        state: State | None,
        visible: Visible | None,
        need: Need,
        segments: Tensor | None,
        position: Position | None,
        asked: Summary | None,
    ) -> Attended:
        """The same, once all is checked."""
        return apply.run(self, query, memory, state, visible, need, segments, position, asked)

    def question(self, B: int) -> Tensor:
        """The query of a call that brings none.    -> B H 1 M"""
        return self.reach.question(B)

    def shown(self, memory: Memory, places: Places) -> Visible | None:
        """The keys that the reach shows whatever a query says; None: every key."""
        return self.reach.shown(memory, places)

    def check_call(self, query: Tensor, memory: Memory, state: State | None, need: Need) -> Need:
        """Refuse what this mechanism cannot do, before anything is computed; else the need."""
        need = as_need(need)
        if not isinstance(query, Tensor) or not query.is_floating_point():
            raise Refused(f"queries are a tensor of real numbers; got {_kind(query)}")
        if not isinstance(memory, Memory):
            raise Refused(
                f"the second argument is a memory, not {type(memory).__name__}; make it by "
                "remember(keys, values)"
            )
        if query.ndim != 4 or query.shape[0] != memory.k.shape[0]:
            check(query=(query, "B H T M"), keys=(memory.k, "B G S D"))
        check_gradient("memory", memory.lost)
        if memory.owner is not None and memory.owner is not self.token:
            raise Refused("this memory was made by another attention; use the one that made it")
        check_dtypes(queries=query, memory=memory.v)
        check_devices(queries=query, keys=memory.k, values=memory.v)
        width, kept = memory.k.shape[3], self.kept_width
        if kept is not None and width != kept:
            raise ShapeError(
                f"this memory's keys are {width} wide, {tuple(memory.k.shape)}; this mechanism "
                f"keeps {kept} (its score's kept_width)"
            )
        check_groups(query, memory.k)
        if not self.claims.takes_several and query.shape[2] > 1:
            raise Refused(
                f"this mechanism takes one query for the whole text (T=1); got T={query.shape[2]}"
            )
        if state is not None:
            self._check_state(query, state)
        return need

    def _check_state(self, query: Tensor, state: State) -> None:
        if not isinstance(state, State):
            raise Refused(f"a state is the .state of an earlier record; got {type(state).__name__}")
        if not self.claims.has_steps:
            raise Refused("this mechanism has no steps and takes no state")
        if not self.slots.issuperset(state.slots):
            strange = ", ".join(sorted(set(state.slots) - self.slots))
            raise Refused(f"this state holds {strange}: it was made by another mechanism")
        check_gradient("state", isinstance(state.slots, Cut))
        rows = state.rows
        if rows is not None and rows != query.shape[0]:
            raise ShapeError(
                f"the state has B={rows} rows, the query B={query.shape[0]}; a state follows its "
                "beams by state.select(rows) or state.repeat(n)"
            )


class Lanes(Mechanism):
    """Several mechanisms over one memory; each has a slot of the state, and looks for itself."""

    lanes: Sequence[Mechanism]
    names: Sequence[str]
    """The names of their slots in the state."""
    widths: list[int]
    """How wide a key is that each of them keeps."""

    def __init__(self, lanes: Sequence[Mechanism]) -> None:
        nn.Module.__init__(self)
        self.token = object()
        self.widths = [width for lane in lanes if (width := lane.kept_width) is not None]
        if len(self.widths) < len(lanes):
            raise Refused(
                "several mechanisms share a memory: each score must define its kept_width"
            )
        self.claims = reduce(and_, (lane.claims for lane in lanes))

    @property
    def is_plain(self) -> bool:
        """Whether it is softmax(q·k / √D) v, of heed's own parts and no others."""
        kinds = [type(part) for part in self.parts]
        usual = kinds == [ScaledDot, Global, Softmax, Blend] and type(self) is Mechanism
        return usual and cast(ScaledDot, self.score).usual

    @property
    def is_random(self) -> bool:
        return any(lane.is_random for lane in self.lanes)

    def look_regardless(self) -> None:
        for lane in self.lanes:
            lane.look_regardless()
        self.claims = reduce(and_, (lane.claims for lane in self.lanes))

    @property
    def slots(self) -> set[str]:
        return set(self.names)

    def question(self, B: int) -> Tensor:
        raise Refused("several mechanisms side by side: a call needs a query")

    def shown(self, memory: Memory, places: Places) -> Visible | None:
        """The keys that all lanes show alike."""
        return None

    def states(self, state: State | None) -> list[State | None]:
        """The state of each lane; at the first step, the step and origin of the whole."""
        if state is None:
            return [None] * len(self.names)
        return [state.slots.get(name, state._replace(slots=EMPTY)) for name in self.names]


def _kind(x: object) -> str:
    return str(x.dtype) if isinstance(x, Tensor) else type(x).__name__


_KINDS = {"score": Score, "past": Past, "reach": Reach, "align": Align, "read": Read}


def _check_kinds(mechanism: Mechanism) -> None:
    """Refuse what is not a part at all, such as a name."""
    for slot, kind in _KINDS.items():
        part = getattr(mechanism, slot)
        if not isinstance(part, kind) and not (slot == "past" and part is None):
            raise Refused(
                f"{slot} takes a {kind.__name__}, not {part!r}; by name, a mechanism is made with "
                "heed.Attention('additive', ...)"
            )


def _check_parts(mechanism: Mechanism) -> None:
    """Refuse parts that cannot work together."""
    score, past, reach, align = mechanism.score, mechanism.past, mechanism.reach, mechanism.align
    if past is not None and past.hint_width != score.hint_width:
        raise Refused(
            f"the hint of {past.name} is {past.hint_width} wide; {score.name} takes "
            f"{score.hint_width}: build it with hint_width={score.hint_width}"
        )
    others = [part.name for part in mechanism.parts if part.claims.needs_line]
    if reach.claims.merges_keys and others:
        raise Refused(
            f"{reach.name} merges keys; with {' and '.join(others)} they must stay single"
        )
    if not reach.claims.has_steps and (past is not None or align.claims.needs_line):
        later = past.name if past is not None else align.name
        raise Refused(f"{reach.name} has no steps; {later} continues from earlier steps")
