"""Recurrent encoder-decoders (N→M): a sequence to a sequence, with any attention or none.

search         attention before the update: it asks with s_{t-1}. Bahdanau 2015 (RNNsearch)
luong          attention after it: h̃_t = tanh(W [c_t; h_t]), fed back to the next step or not.
               Luong 2015
fixed          no attention: all the decoder knows is one vector, fed once or at every step

A decoder writes a whole text (`forward`) or symbol by symbol (`begin`, `step`, `select`), with the
same numbers. Where nothing is fed back there is no loop over T; where something is, only what
depends on the step before stays inside the loop. `heed.models.recurrent_settings` builds the
networks from settings.

    written = network(source, lengths, inputs, need="weight")  # B S, B, B T -> B T V
    network.alignment(written.seen)                            # B T S
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
from heed.models.sequence import Encoded, Encoder, Generator, Summary
from heed.models.written import Step, Unformed, Written
from heed.records import Attended, Need, State


@dataclass(frozen=True, slots=True)
class Carry:
    """What the next step needs."""

    hidden: tuple[Hidden, ...]  # of every layer
    ask: AttentionLoop  # the attention, and the source, projected once
    state: State  # of the attention
    fed: Tensor | None = None  # luong: h̃ of the step before
    join: Callable[..., Tensor] | None = None  # luong: how it is made, where a loop learns

    @property
    def top(self) -> Tensor:
        """The topmost state.    B H"""
        return self.hidden[-1][0]

    def select(self, rows: Tensor, same: bool = False) -> Carry:
        """The carry of the chosen rows; with `same`, their sources stay where they are."""
        return Carry(
            select(self.hidden, rows),
            self.ask if same else self.ask.select(rows),
            self.state.select(rows),
            None if self.fed is None else self.fed.index_select(0, rows),
            self.join,
        )


class Decoder(nn.Module):
    """What decoders with attention share: a loop over T around one step, `advance`.

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
        summary: Summary = "last",
        dropout: Dropout | None = None,
    ) -> None:
        super().__init__()
        self.embed, self.stack, self.first = embed, stack, first
        self.attention, self.out, self.summary = attention, out, summary
        self.dropout = dropout or Dropout()

    def begin(self, source: Encoded, need: Need = "context") -> Carry:
        """The carry before the first symbol.

        It holds what the weights made of the source, and some of them in an order of its own: begin
        anew after they were changed. A change through `.data` cannot be noticed.
        """
        place = torch.arange(source.states.shape[1], device=source.lengths.device)
        there = heed.Visible.keys(place < source.lengths[:, None])  # a table: each step needs it
        memory = self.attention.remember(source.states, visible=there)
        ask = AttentionLoop(self.attention, memory, need)
        return Carry(self.first(source.summary(self.summary)), ask, State())

    @property
    def fed(self) -> int:
        """The width of what is fed back."""
        return 0

    def advance(
        self, x: Tensor, carry: Carry, loop: tuple[Loop, ...], noise: tuple[Tensor, ...] = ()
    ) -> tuple[Carry, Attended]:
        """One step; x is what the embedding brings to the first layer's gates.    B G"""
        raise NotImplementedError

    def known(self, steps: list[Carry], seen: Attended, e: Tensor) -> Tensor:
        """What the output is computed from, for all steps at once.    -> B T width"""
        raise NotImplementedError

    def forward(self, source: Encoded, inputs: Tensor, need: Need = "context") -> Written:
        """Symbols B T -> logits B T V"""
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
        return Written(Unformed.of(self.dropout(known), self.out), {"decoder.attention": seen})

    def step(self, carry: Carry, symbols: Tensor) -> Step:
        """The next symbol of each row.    N -> N V"""
        e = self.embed(symbols)
        carry, seen = self.advance(self.stack.each[0].project(e), carry, self.stack.loop(self.fed))
        known = self.known([carry], seen, e[:, None])[:, 0]
        weight = None if carry.ask.need == "context" else seen.weight[:, 0, 0]
        return Step(self.out(known), carry, weight)


class Search(Decoder):
    """Look, then move on: s_t = f(s_{t-1}, [y_{t-1}; c_t]). Bahdanau 2015 A.2."""

    def __init__(self, *, readout: Readout, context: int, **parts: Any) -> None:
        super().__init__(**parts)
        self.readout, self.context = readout, context

    @property
    def fed(self) -> int:
        return self.context

    def advance(
        self, x: Tensor, carry: Carry, loop: tuple[Loop, ...], noise: tuple[Tensor, ...] = ()
    ) -> tuple[Carry, Attended]:
        seen = carry.ask(carry.top[:, None], carry.state)
        hidden = self.stack.step(x, carry.hidden, noise, loop, seen.context.squeeze(1))
        return Carry(hidden, carry.ask, seen.state), seen

    def known(self, steps: list[Carry], seen: Attended, e: Tensor) -> Tensor:
        states = torch.stack([step.top for step in steps], 1)
        return cast(Tensor, self.readout(states, seen.context, e))


class Luong(Decoder):
    """Move on, then look: h̃_t = tanh(W [c_t; h_t]). Luong 2015 §3. Nothing is fed back."""

    def __init__(self, *, join: Join, **parts: Any) -> None:
        super().__init__(**parts)
        self.join = join

    def advance(
        self, x: Tensor, carry: Carry, loop: tuple[Loop, ...], noise: tuple[Tensor, ...] = ()
    ) -> tuple[Carry, Attended]:
        hidden = self.stack.step(x, carry.hidden, noise, loop, carry.fed)
        top = hidden[-1][0]
        seen = carry.ask(top[:, None], carry.state)
        fed = (carry.join or self.join)(seen.context.squeeze(1), top)
        return Carry(hidden, carry.ask, seen.state, fed, carry.join), seen

    def known(self, steps: list[Carry], seen: Attended, e: Tensor) -> Tensor:
        return torch.stack([step.fed for step in steps if step.fed is not None], 1)

    def forward(self, source: Encoded, inputs: Tensor, need: Need = "context") -> Written:
        """Symbols B T -> logits B T V: all states, then all looks, in one call each."""
        carry = self.begin(source, need)
        states = self.stack(self.dropout(self.embed(inputs)), carry.hidden)
        seen = self.attention(states, carry.ask.memory, carry.state, need=need)
        return self.write(self.join(seen.context, states), seen)


class InputFeeding(Luong):
    """Luong's decoder whose h̃ goes into the next step, so that it knows where it looked. §3.3"""

    def begin(self, source: Encoded, need: Need = "context") -> Carry:
        carry = super().begin(source, need)
        fed = source.last.new_zeros(len(source.last), self.fed)
        return Carry(carry.hidden, carry.ask, carry.state, fed, self.join.in_steps())

    @property
    def fed(self) -> int:
        return self.join.width

    forward = Decoder.forward


class Fixed(nn.Module):
    """No attention: the source is one vector, and a `Generator` does the rest. Sutskever 2014."""

    def __init__(self, generator: Generator, *, summary: Summary = "last") -> None:
        super().__init__()
        self.generator, self.summary = generator, summary

    def begin(self, source: Encoded, need: Need = "context") -> Any:
        """The carry before the first symbol."""
        return self.generator.begin(source.summary(self.summary))

    def step(self, carry: Any, symbols: Tensor) -> Step:
        """The next symbol of each row.    N -> N V"""
        return self.generator.step(carry, symbols)

    def forward(self, source: Encoded, inputs: Tensor, need: Need = "context") -> Written:
        """Symbols B T -> logits B T V"""
        written: Written = self.generator(source.summary(self.summary), inputs)
        return written

    if TYPE_CHECKING:
        __call__ = forward


class RecurrentTranslator(nn.Module):
    """A recurrent encoder and one of the decoders."""

    def __init__(self, encoder: Encoder, decoder: Decoder | Fixed) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(
        self,
        source: Tensor,
        lengths: Tensor,
        inputs: Tensor,
        need: Need = "context",
        aligned: bool = False,
    ) -> Written:
        """Source B S, its lengths B, the symbols written so far B T -> logits B T V

        aligned  the weights of `alignment` are needed, whatever `need` says
        """
        need = "weight" if aligned and need == "context" else need
        written: Written = self.decoder(self.encoder(source, lengths), inputs, need)
        return written

    if TYPE_CHECKING:
        __call__ = forward

    def begin(self, source: Tensor, lengths: Tensor, need: Need = "context") -> Any:
        """Read the source: what the first step needs."""
        return self.decoder.begin(self.encoder(source, lengths), need)

    def step(self, carry: Any, symbols: Tensor) -> Step:
        """The next symbol of each hypothesis.    N -> N V"""
        return self.decoder.step(carry, symbols)

    def select(self, carry: Any, rows: Tensor, same: bool = False) -> Any:
        """The carry of the chosen rows, in that order; rows may repeat or be left out.

        same  each row goes on with the same sentence in the same place: its source is not copied
        """
        return carry.select(rows, same)

    @property
    def aligning(self) -> heed.Attention | None:
        """The attention whose weights stand for the word alignment; None without any."""
        return None if isinstance(self.decoder, Fixed) else self.decoder.attention

    def alignment(self, seen: dict[str, Attended]) -> Tensor:
        """The weights that stand for the word alignment.    B T S"""
        if not seen:
            raise Refused("this network has no attention, so it has no alignment to show")
        return seen["decoder.attention"].weight[:, 0]
