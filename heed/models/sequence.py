"""Recurrent networks over rows of different lengths: the shapes that need no attention.

N→N   Labeller    a label for every place, or the next symbol: a language model
N→1   Classifier  a whole sequence to one answer
1→N   Generator   a vector to a sequence: fed once, as the first state, or at every step
(N→M, the encoder-decoders, are in recurrent.py.)

What goes in is a module: `nn.Embedding` for symbols, `nn.Linear` for real numbers. Rows are padded
and never packed: packing asks the host for the lengths, and no graph could capture that. Padding
comes last, so reading forwards never meets it before the end of a row; reading backwards, each row
is turned round within its own length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from heed.errors import Refused
from heed.kernels.ability import transformed
from heed.models.cells import (
    Dropout,
    First,
    Hidden,
    Layer,
    Readout,
    Stack,
    in_pieces,
    select,
    together,
)
from heed.models.written import Step, Unformed, Written

Summary = Literal["last", "mean"]
"""What stands for a whole row: where it ends, or the mean of all its places."""


class Encoded(NamedTuple):
    """What an encoder read: a state per place (zero on padding), and the ends of the row."""

    states: Tensor  # B S M
    last: Tensor  # B M; of both directions where there are two: the last place and the first
    lengths: Tensor  # B
    vectors: Tensor  # what was read, B S E, zero on padding

    def summary(self, kind: Summary) -> Tensor:
        """One vector for the row: its ends ("last"), or the mean of all states.    B M"""
        if kind == "last":
            return self.last
        return self.states.sum(1) / self.lengths.clamp(min=1)[:, None].to(self.states.dtype)


class Encoder(nn.Module):
    """A stack that reads padded rows, in one direction or in both.

    embed   symbols or numbers to vectors: nn.Embedding, nn.Linear, or any module
    hidden  the width of a state, both directions together
    """

    def __init__(
        self,
        embed: nn.Module,
        *,
        inputs: int,
        hidden: int,
        layers: int = 1,
        cell: str = "gru",
        bidirectional: bool = True,
        dropout: Dropout | None = None,
    ) -> None:
        super().__init__()
        if bidirectional and hidden % 2:
            raise Refused(
                f"two directions share the width of a state, so it must be even; got {hidden}"
            )
        own = hidden // 2 if bidirectional else hidden
        widths = [inputs, *[hidden] * (layers - 1)]
        self.embed, self.width = embed, hidden
        self.ahead = nn.ModuleList(Layer(cell, width, own) for width in widths)
        back = widths if bidirectional else []
        self.back = nn.ModuleList(Layer(cell, width, own) for width in back)
        self.dropout = dropout or Dropout()

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, nudge: Tensor | None = None
    ) -> Encoded:
        """Symbols B S, or numbers B S X -> states B S M; without lengths, rows are full.

        nudge  what is added to the vectors that are read  B S E
        """
        B, S = x.shape[:2]
        padded = lengths is not None
        if lengths is None:
            lengths = torch.full((B,), S, device=x.device)
        there = (torch.arange(S, device=x.device) < lengths[:, None])[..., None]  # B S 1
        if x.is_floating_point():
            x = x.where(there, 0)  # or NaN in padding would reach the gradients
        place = turned(lengths, S) if len(self.back) else None
        x = self.embed(x)
        x = x if nudge is None else x + nudge
        if padded:  # for the same reason
            x = x.where(there, 0)
        vectors = x
        for i, ahead in enumerate(self.ahead):
            x = self.dropout(x)
            if place is None:
                states = ahead(x)
            else:
                both = _both(self._ahead[i], self._back[i], x, turn(x, place))
                states = torch.cat([both[0], turn(both[1], place)], -1)
            x = states.where(there, 0)
        return Encoded(x, self._ends(x, lengths), lengths, vectors)

    if TYPE_CHECKING:
        __call__ = forward

    def _ends(self, states: Tensor, lengths: Tensor) -> Tensor:
        """The states in which each direction ends.    B S M -> B M"""
        last = ends(states, lengths)
        if not len(self.back):
            return last
        own = self.width // 2
        return torch.cat([last[:, :own], states[:, 0, own:]], -1)

    def begin(self, rows: int) -> tuple[Hidden, ...]:
        """The state before the first place, for reading step by step."""
        if len(self.back):
            raise Refused("a bidirectional network cannot run step by step")
        return tuple(layer.zero(rows) for layer in self._ahead)

    def step(self, x: Tensor, hidden: tuple[Hidden, ...]) -> tuple[Hidden, ...]:
        """Read one more place: symbols N, or numbers N X -> the next state of every layer"""
        x, after = self.embed(x), []
        for layer, before in zip(self._ahead, hidden, strict=True):
            after.append(layer.step(layer.project(x), before))
            x = after[-1][0]
        return tuple(after)

    @property
    def _ahead(self) -> list[Layer]:
        return cast(list[Layer], list(self.ahead))

    @property
    def _back(self) -> list[Layer]:
        return cast(list[Layer], list(self.back))


def ends(states: Tensor, lengths: Tensor) -> Tensor:
    """The state of each row's last place.    B S M, B -> B M"""
    end = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[-1])
    return states.gather(1, end)[:, 0]


def _both(ahead: Layer, back: Layer, x: Tensor, turned: Tensor) -> list[Tensor]:
    """Two directions through a row and its reverse, together where that is faster."""
    if in_pieces(x, ahead, back):
        return together([ahead, back], [x, turned])
    return [ahead(x), back(turned)]


def turned(lengths: Tensor, S: int) -> Tensor:
    """Where each place of B rows of S goes when every row is turned round.    B -> B·S"""
    place = torch.arange(S, device=lengths.device)
    within = torch.where(place < lengths[:, None], lengths[:, None] - 1 - place, place)
    return (within + S * torch.arange(len(lengths), device=lengths.device)[:, None]).flatten()


class Turn(torch.autograd.Function):
    """Turn each row round within its length. It is its own inverse: no gradients are added up."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, place: Tensor) -> Tensor:
        """B S M, B·S -> B S M"""
        return x.flatten(0, 1).index_select(0, place).view_as(x)

    if TYPE_CHECKING:
        __call__ = forward

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Separate from forward, as torch.func requires."""
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return Turn.apply(grad.contiguous(), *ctx.saved_tensors), None  # type: ignore[no-untyped-call]


def turn(x: Tensor, place: Tensor) -> Tensor:
    """Each row turned round within its length.    B S M, B·S -> B S M

    Forward-mode differentiation sees the plain operation: torch.compile takes no jvp of our own.
    """
    turn = Turn.forward if transformed() is not None else Turn.apply
    return cast(Tensor, turn(x.contiguous(), place))


class Labeller(nn.Module):
    """N→N: an answer at every place of a row.

    With an encoder that reads one way, and the next symbol for an answer, it is a language model
    that goes on by itself: begin, step, select.
    """

    def __init__(self, encoder: Encoder, answers: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.out = nn.Linear(encoder.width, answers)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """B S (or B S X) -> B S V"""
        answers: Tensor = self.out(self.encoder.dropout(self.encoder(x, lengths).states))
        return answers

    if TYPE_CHECKING:
        __call__ = forward

    def begin(self, rows: int) -> Carry:
        """The carry before the first symbol of so many texts."""
        return Carry(self.encoder.begin(rows))

    def step(self, carry: Carry, symbols: Tensor) -> Step:
        """The next symbol of each text.    N -> N V"""
        hidden = self.encoder.step(symbols, carry.hidden)
        return Step(self.out(hidden[-1][0]), Carry(hidden), None)

    def select(self, carry: Carry, rows: Tensor, same: bool = False) -> Carry:
        """The carry of the chosen texts, in that order."""
        return carry.select(rows, same)


class Classifier(nn.Module):
    """N→1: one answer for a whole row, from its ends or from the mean of its states."""

    def __init__(self, encoder: Encoder, answers: int, *, summary: Summary = "last") -> None:
        super().__init__()
        self.encoder, self.summary = encoder, summary
        self.out = nn.Linear(encoder.width, answers)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """B S (or B S X) -> B V"""
        read = self.encoder(x, lengths).summary(self.summary)
        answer: Tensor = self.out(self.encoder.dropout(read[:, None])[:, 0])
        return answer

    if TYPE_CHECKING:
        __call__ = forward


@dataclass(frozen=True, slots=True)
class Carry:
    """What the next step needs: the state of every layer, and the vector fed at every step."""

    hidden: tuple[Hidden, ...]
    fed: Tensor | None = None  # B K

    def select(self, rows: Tensor, same: bool = False) -> Carry:
        """The carry of the chosen rows; with `same`, what was fed need not be copied."""
        fed = self.fed if same or self.fed is None else self.fed.index_select(0, rows)
        return Carry(select(self.hidden, rows), fed)


class Generator(nn.Module):
    """1→N: a vector becomes a sequence. It is the first state, and with `every` an input too.

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
        dropout: Dropout | None = None,
    ) -> None:
        super().__init__()
        told = vector if every else 0
        self.embed, self.every, self.out = embed, every, out
        self.first = First(vector, cell=cell, hidden=hidden, layers=layers)
        self.dropout = dropout or Dropout()
        self.stack = Stack(cell, inputs + told, hidden, layers, self.dropout)
        self.readout = Readout(readout, parts=hidden + told + inputs, width=out.in_features)

    def forward(self, vector: Tensor, inputs: Tensor) -> Written:
        """B K, symbols B T -> logits B T V, no loop over T"""
        e = self.dropout(self.embed(inputs))
        told = [vector[:, None].expand(-1, inputs.shape[1], -1)] if self.every else []
        states = self.stack(torch.cat([e, *told], -1), self.first(vector))
        known = self.dropout(self.readout(states, *told, e))
        return Written(Unformed.of(known, self.out))

    if TYPE_CHECKING:
        __call__ = forward

    def begin(self, vector: Tensor) -> Carry:
        """The carry before the first symbol.    B K"""
        return Carry(self.first(vector), vector if self.every else None)

    def step(self, carry: Carry, symbols: Tensor) -> Step:
        """The next symbol of each row.    N -> N V"""
        e = self.embed(symbols)
        told = [] if carry.fed is None else [carry.fed]
        x = self.stack.each[0].project(torch.cat([e, *told], -1))
        hidden = self.stack.step(x, carry.hidden)
        logits = self.out(self.readout(hidden[-1][0], *told, e))
        return Step(logits, Carry(hidden, carry.fed), None)

    def select(self, carry: Carry, rows: Tensor, same: bool = False) -> Carry:
        """The carry of the chosen rows, in that order."""
        return carry.select(rows, same)
