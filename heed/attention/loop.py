"""Attend to one memory from a loop: what does not depend on the query is computed once.

The first query takes the ordinary way, where everything is checked and a kernel is chosen. If only
the query can differ in the next call (no past, no window, no state), the kernel may offer
`again(call)`, which asks it directly. Where modules have hooks, and where checkpointing may repeat
the first query after the others, all queries take the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from heed.attention.apply import call_of
from heed.attention.attention import Attending
from heed.attention.blind_queries import placed, sighted, zeroed
from heed.attention.hooks import hooks, plain
from heed.attention.mechanism import Mechanism
from heed.attention.memory import Memory
from heed.attention.reach import Reached
from heed.attention.score import Score
from heed.kernels.ability import recorded, saving, transformed
from heed.kernels.choose import KERNELS
from heed.kernels.deferred_gradients import may_defer, share
from heed.kernels.linear.steps import mapping
from heed.records import Attended, Need, State, as_need

Look = Callable[[Tensor], Tensor]
"""Queries as the score compares them, B H 1 D -> the context, B H 1 R"""
Prepare = Callable[[Tensor], Tensor]
"""Queries, B H 1 M -> as the score compares them, B H 1 D"""


class AttentionLoop:
    """An attention and a memory: `ask(query, state)` is `attend(query, memory, state, need=need)`
    of single queries, B 1 M."""

    def __init__(self, attend: Attending, memory: Memory, need: Need = "context") -> None:
        if may_defer(memory.k, memory.v):
            k, v = share(memory.k, memory.v)
            lengths = memory.lengths.to(torch.int32)
            memory = replace(memory, k=k, v=v, prepared={"lengths": lengths})
        self.attend, self.memory, self.need = attend, memory, as_need(need)
        self.hooks, self.saving = hooks(attend.modules()), saving()
        self.first: tuple[Tensor, Attended] | None = None
        self.look: Look | None = None
        self.prepare: Prepare | None = None
        self.seen: Tensor | None = None

    def select(self, rows: Tensor) -> AttentionLoop:
        """The same over the chosen rows of the memory."""
        return AttentionLoop(self.attend, self.memory.select(rows), self.need)

    def __call__(self, query: Tensor, state: State) -> Attended:
        if self.look is None or self.prepare is None or self.first is None:
            return self._ask(query, state)
        if any(self.hooks) or saving() != self.saving:
            return self._ask(query, state)
        like, seen = self.first
        if query.shape != like.shape or query.dtype != like.dtype or state.slots:
            return self._ask(query, state)
        attend = self.attend
        asked = self.prepare(attend.shape_query(zeroed(query, self.seen)))
        context = attend.shape_context(self.look(asked))
        after = state._replace(step=state.step + 1)
        return Attended(context, after, kernel=seen.kernel, refusals=seen.refusals)

    def _ask(self, query: Tensor, state: State) -> Attended:
        seen: Attended = self.attend(query, self.memory, state, need=self.need)
        if self.first is None and saving() == self.saving and not _seen_through():
            self.first = query, seen
            self.look = _again(self.attend, self.memory, query, seen)
            if self.look is not None:
                self.prepare = _asks(self.attend.mechanism.score)
                places = placed(1, self.memory.S, State(), query.device)
                self.seen = sighted(self.memory, self.memory.visible, places)
        return seen


def _again(attend: Attending, memory: Memory, query: Tensor, seen: Attended) -> Look | None:
    """A direct way into the kernel that served the first query; None where it has none."""
    mechanism, kernel = attend.mechanism, KERNELS.get(seen.kernel)
    again = getattr(kernel, "again", None)
    kinds = (type(attend).forward, type(mechanism))
    if again is None or kinds != (Attending.forward, Mechanism) or not plain(attend.modules()):
        return None
    if not (mechanism.claims.sees_all and mechanism.claims.is_row_wise):
        return None
    if attend.position is not None or memory.segments is not None:
        return None
    places = placed(1, memory.S, State(), query.device)
    asked, reached = attend.shape_query(query), Reached(memory, memory.visible)
    call = call_of(mechanism, asked, reached, places, "context")
    call.clean = True
    look: Look | None = again(call)
    return look


def _asks(score: Score) -> Prepare:
    """`score.ask`, or its equal for loops over steps in training."""
    weight = score.query_map if type(score).ask is Score.ask else None
    go = None if weight is None or len(weight) != 1 else mapping(weight[0])
    if go is None:
        return score.ask

    def prepare(query: Tensor) -> Tensor:
        return go(query[:, 0, 0])[:, None, None]

    return prepare


def _seen_through() -> bool:
    """Whether a compiler, a trace or a transform must see every operation."""
    return recorded() or transformed() is not None
