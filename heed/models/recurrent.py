"""Recurrent writers: from what any reader read to a text, with any attention or none.

Search     attention before the update: it asks with s_{t-1}. Bahdanau 2015 (RNNsearch)
Luong      attention after it: h̃_t = tanh(W [c_t; h_t]), fed back to the next step
           (InputFeeding) or not. Luong 2015
Generator  no attention: all it knows is one vector, fed once or at every step

They write a whole text (`forward`) or symbol by symbol (`begin`, `step`), with the same numbers.
Where nothing is fed back there is no loop over T; where something is, only what depends on the step
before stays inside the loop. `heed.models.recurrent_settings` builds them from settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

import heed
from heed.attention.loop import AttentionLoop
from heed.attention.read import Join
from heed.errors import Refused
from heed.models.cells import Dropout, First, Hidden, Loop, Readout, Stack, select
from heed.models.reader import Encoded, SummaryKind
from heed.models.recurrent_encoder import RecurrentCarry
from heed.models.written import Unformed, Written, WrittenStep
from heed.records import Attended, Need, State


@dataclass(frozen=True, slots=True)
class AskingCarry:
    """State that the next step needs."""

    hidden: tuple[Hidden, ...]  # of every layer
    ask: AttentionLoop  # the attention, and the source, projected once
    state: State  # of the attention
    fed: Tensor | None = None  # luong: h̃ of the step before
    join: Callable[..., Tensor] | None = None  # luong: how it is made, where a loop learns

    @property
    def top(self) -> Tensor:
        """The topmost state.    B H"""
        return self.hidden[-1][0]

    def select(self, rows: Tensor, same: bool = False) -> AskingCarry:
        """The carry of the chosen rows; with `same`, their sources stay where they are."""
        return AskingCarry(
            select(self.hidden, rows),
            self.ask if same else self.ask.select(rows),
            self.state.select(rows),
            None if self.fed is None else self.fed.index_select(0, rows),
            self.join,
        )


class RecurrentDecoder(nn.Module):
    """A writer with attention: a loop over T around one step, `advance`.

    embed    the symbols written so far to vectors
    stack    the recurrent layers
    first    their first state from a summary of the source
    attention  asked by the topmost state
    out      to the symbols; its weight may be the embedding's
    """

    def __init__(
        self,
        *,
        embed: nn.Embedding,
        stack: Stack,
        first: First,
        attention: heed.Attention,
        out: nn.Linear,
        summary: SummaryKind = "last",
        dropout: Dropout | None = None,
    ) -> None:
        super().__init__()
        self.embed, self.stack, self.first = embed, stack, first
        self.attention, self.out, self.summary = attention, out, summary
        self.dropout = dropout or Dropout()

    def begin(self, source: Encoded, need: Need = "context") -> AskingCarry:
        """The carry before the first symbol.

        It holds what the weights made of the source, and some of them in an order of its own: begin
        anew after they were changed. A change through `.data` cannot be noticed.
        """
        there = heed.Visible.keys(source.there)  # a table: each step needs it
        memory = self.attention.remember(source.states, visible=there)
        ask = AttentionLoop(self.attention, memory, need)
        return AskingCarry(self.first(source.summary(self.summary)), ask, State())

    @property
    def fed(self) -> int:
        """The width of what is fed back."""
        return 0

    def advance(
        self, x: Tensor, carry: AskingCarry, loop: tuple[Loop, ...], noise: tuple[Tensor, ...] = ()
    ) -> tuple[AskingCarry, Attended]:
        """One step; x is what the embedding brings to the first layer's gates.    B G"""
        raise NotImplementedError

    def known(self, steps: list[AskingCarry], seen: Attended, e: Tensor) -> Tensor:
        """The input of the output layer, for all steps at once.    -> B T width"""
        raise NotImplementedError

    def forward(
        self, source: Encoded, inputs: Tensor, need: Need = "context", aligned: bool = False
    ) -> Written:
        """Symbols B T -> logits B T V; `aligned`: weights are needed, whatever `need` says."""
        need = _looking(need, aligned)
        e = self.dropout(self.embed(inputs))
        carry, loop = self.begin(source, need), self.stack.loop(self.fed)
        gates = self.stack.each[0].project(e.transpose(0, 1)).unbind(0)  # T × B G
        steps, records = [], []
        for x, noise in zip(gates, self.stack.noise(source.last, len(gates)), strict=True):
            carry, record = self.advance(x, carry, loop, noise)
            steps.append(carry)
            records.append(record)
        seen = Attended.join(records)
        return self.write(self.known(steps, seen, e), seen)

    if TYPE_CHECKING:
        __call__ = forward

    def write(self, known: Tensor, seen: Attended) -> Written:
        """B T width -> logits B T V"""
        return Written(Unformed.of(self.dropout(known), self.out), {"attention": seen})

    def step(self, carry: AskingCarry, symbols: Tensor) -> WrittenStep:
        """The next symbol of each row.    N -> N V"""
        e = self.embed(symbols)
        carry, seen = self.advance(self.stack.each[0].project(e), carry, self.stack.loop(self.fed))
        known = self.known([carry], seen, e[:, None])[:, 0]
        weight = None if carry.ask.need == "context" else seen.weight[:, 0, 0]
        return WrittenStep(self.out(known), carry, weight)

    def select(self, carry: AskingCarry, rows: Tensor, same: bool = False) -> AskingCarry:
        """The carry of the chosen rows; `same`: each row keeps the source it had."""
        return carry.select(rows, same)

    @property
    def aligning(self) -> heed.Attention | None:
        """The attention whose weights stand for the word alignment."""
        return self.attention

    def alignment(self, seen: dict[str, Attended]) -> Tensor:
        """The weights that stand for the word alignment.    B T S"""
        return seen["attention"].weight[:, 0]


def _looking(need: Need, aligned: bool) -> Need:
    """The need of the one attention."""
    return "weight" if aligned and need == "context" else need


class Search(RecurrentDecoder):
    """Look, then move on: s_t = f(s_{t-1}, [y_{t-1}; c_t]). Bahdanau 2015 A.2."""

    def __init__(self, *, readout: Readout, context: int, **parts: Any) -> None:
        super().__init__(**parts)
        self.readout, self.context = readout, context

    @property
    def fed(self) -> int:
        return self.context

    def advance(
        self, x: Tensor, carry: AskingCarry, loop: tuple[Loop, ...], noise: tuple[Tensor, ...] = ()
    ) -> tuple[AskingCarry, Attended]:
        seen = carry.ask(carry.top[:, None], carry.state)
        hidden = self.stack.step(x, carry.hidden, noise, loop, seen.context.squeeze(1))
        return AskingCarry(hidden, carry.ask, seen.state), seen

    def known(self, steps: list[AskingCarry], seen: Attended, e: Tensor) -> Tensor:
        states = torch.stack([step.top for step in steps], 1)
        return cast(Tensor, self.readout(states, seen.context, e))


class Luong(RecurrentDecoder):
    """Move on, then look: h̃_t = tanh(W [c_t; h_t]). Luong 2015 §3. Nothing is fed back."""

    def __init__(self, *, join: Join, **parts: Any) -> None:
        super().__init__(**parts)
        self.join = join

    def advance(
        self, x: Tensor, carry: AskingCarry, loop: tuple[Loop, ...], noise: tuple[Tensor, ...] = ()
    ) -> tuple[AskingCarry, Attended]:
        hidden = self.stack.step(x, carry.hidden, noise, loop, carry.fed)
        top = hidden[-1][0]
        seen = carry.ask(top[:, None], carry.state)
        fed = (carry.join or self.join)(seen.context.squeeze(1), top)
        return AskingCarry(hidden, carry.ask, seen.state, fed, carry.join), seen

    def known(self, steps: list[AskingCarry], seen: Attended, e: Tensor) -> Tensor:
        return torch.stack([step.fed for step in steps if step.fed is not None], 1)

    def forward(
        self, source: Encoded, inputs: Tensor, need: Need = "context", aligned: bool = False
    ) -> Written:
        """Symbols B T -> logits B T V: all states, then all looks, in one call each."""
        need = _looking(need, aligned)
        carry = self.begin(source, need)
        states = self.stack(self.dropout(self.embed(inputs)), carry.hidden)
        seen = self.attention(states, carry.ask.memory, carry.state, need=need)
        return self.write(self.join(seen.context, states), seen)


class InputFeeding(Luong):
    """Luong's decoder whose h̃ goes into the next step, so that it knows where it looked. §3.3"""

    def begin(self, source: Encoded, need: Need = "context") -> AskingCarry:
        carry = super().begin(source, need)
        fed = source.last.new_zeros(len(source.last), self.fed)
        return AskingCarry(carry.hidden, carry.ask, carry.state, fed, self.join.in_steps())

    @property
    def fed(self) -> int:
        return self.join.width

    forward = RecurrentDecoder.forward


class Generator(nn.Module):
    """1→N: no attention. One vector of what was read is the first state, and with `every` an input
    to every step, too. Sutskever 2014, Cho 2014.

    embed  what was written so far, to vectors: nn.Embedding for symbols, nn.Linear for numbers
    inputs the width of such a vector
    out    from the readout to the symbols; its weight may be the embedding's
    """

    def __init__(
        self,
        embed: nn.Module,
        *,
        inputs: int,
        vector: int,
        hidden: int,
        out: nn.Linear,
        layers: int = 1,
        cell: str = "gru",
        every: bool = False,
        readout: str = "tanh",
        summary: SummaryKind = "last",
        dropout: Dropout | None = None,
    ) -> None:
        super().__init__()
        self.summary = summary
        told = vector if every else 0
        self.embed, self.every, self.out = embed, every, out
        self.first = First(vector, cell=cell, hidden=hidden, layers=layers)
        self.dropout = dropout or Dropout()
        self.stack = Stack(cell, inputs + told, hidden, layers, self.dropout)
        self.readout = Readout(readout, parts=hidden + told + inputs, width=out.in_features)

    def forward(
        self, source: Encoded, inputs: Tensor, need: Need = "context", aligned: bool = False
    ) -> Written:
        """Symbols B T -> logits B T V, no loop over T"""
        vector = source.summary(self.summary)
        e = self.dropout(self.embed(inputs))
        told = [vector[:, None].expand(-1, inputs.shape[1], -1)] if self.every else []
        states = self.stack(torch.cat([e, *told], -1), self.first(vector))
        known = self.dropout(self.readout(states, *told, e))
        return Written(Unformed.of(known, self.out))

    if TYPE_CHECKING:
        __call__ = forward

    def begin(self, source: Encoded, need: Need = "context") -> RecurrentCarry:
        """The carry before the first symbol."""
        vector = source.summary(self.summary)
        return RecurrentCarry(self.first(vector), vector if self.every else None)

    def step(self, carry: RecurrentCarry, symbols: Tensor) -> WrittenStep:
        """The next symbol of each row.    N -> N V"""
        e = self.embed(symbols)
        told = [] if carry.fed is None else [carry.fed]
        x = self.stack.each[0].project(torch.cat([e, *told], -1))
        hidden = self.stack.step(x, carry.hidden)
        logits = self.out(self.readout(hidden[-1][0], *told, e))
        return WrittenStep(logits, RecurrentCarry(hidden, carry.fed), None)

    def select(self, carry: RecurrentCarry, rows: Tensor, same: bool = False) -> RecurrentCarry:
        """The carry of the chosen rows; `same`: each row keeps the source it had."""
        return carry.select(rows, same)

    @property
    def aligning(self) -> None:
        """No attention stands for an alignment."""
        return None

    def alignment(self, seen: dict[str, Attended]) -> Tensor:
        """Refuse: there is no alignment.    B T S"""
        raise Refused("this network has no attention, so it has no alignment to show")
