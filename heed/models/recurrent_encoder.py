"""A recurrent reader: rows of different lengths, in one direction or in both.

What goes in is a module: `nn.Embedding` for symbols, `nn.Linear` for real numbers. Rows are padded
and never packed: packing asks the host for the lengths, and no graph could capture that. Padding
comes last, so reading forwards never meets it before the end of a row; reading backwards, each row
is turned round within its own length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from heed.errors import Refused
from heed.kernels.ability import transformed
from heed.models.cells import (
    Dropout,
    Hidden,
    Layer,
    in_pieces,
    select,
    together,
)
from heed.models.reader import Encoded, each_length, real, without_padding
from heed.records import Need
from heed.visible import Visible


class RecurrentEncoder(nn.Module):
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
        self,
        x: Tensor,
        lengths: Tensor | None = None,
        need: Need = "context",
        nudge: Tensor | None = None,
    ) -> Encoded:
        """Symbols B S, or numbers B S X -> states B S M; without lengths, rows are full.

        nudge  what is added to the vectors that are read  B S E
        """
        padded = lengths is not None
        lengths = each_length(x, lengths)
        exists = real(x, lengths)
        there, x = exists[..., None], without_padding(x, exists)
        place = turned(lengths, x.shape[1]) if len(self.back) else None
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
        return self._ends(Encoded(x, Visible.keys(exists), {}, vectors))

    if TYPE_CHECKING:
        __call__ = forward

    def _ends(self, read: Encoded) -> Encoded:
        """The states in which two directions end: the last place and the first.    B M"""
        if not len(self.back):
            return read
        own = self.width // 2
        ends = torch.cat([read.last[:, :own], read.states[:, 0, own:]], -1)
        return read._replace(ends=ends)

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


def _both(ahead: Layer, back: Layer, x: Tensor, turned: Tensor) -> list[Tensor]:
    """Two directions through a row and its reverse, together where that is faster."""
    if in_pieces(x, ahead, back):
        return together([ahead, back], [x, turned])
    return [ahead(x), back(turned)]


def turned(lengths: Tensor, S: int) -> Tensor:
    """The index of each place of B rows of S when every row is turned round.    B -> B·S"""
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


@dataclass(frozen=True, slots=True)
class RecurrentCarry:
    """State that the next step needs: that of every layer, and the vector fed at every step."""

    hidden: tuple[Hidden, ...]
    fed: Tensor | None = None  # B K

    def select(self, rows: Tensor, same: bool = False) -> RecurrentCarry:
        """The carry of the chosen rows; with `same`, what was fed need not be copied."""
        fed = self.fed if same or self.fed is None else self.fed.index_select(0, rows)
        return RecurrentCarry(select(self.hidden, rows), fed)
