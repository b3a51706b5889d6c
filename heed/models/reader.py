"""Readers: an input to a memory, a state for each of its places, and to one vector.

    read = reader(symbols, lengths)       # B S, B; or real numbers, B S F
    read.states                           # B S M, zero on padding
    read.summary("last")                  # B M

Any reader goes in front of any writer (`heed.models.writer`), any pool (`heed.models.pool`), and a
label for every place (`heed.models.classifier`). The readers of other files are the RNN
(`heed.models.recurrent_encoder`), a Transformer's encoder (`heed.models.transformer`) and XLNet's
content stream (`heed.models.xlnet_reader`).

ConvolutionReader  filters over neighbouring places. Kim 2014
FilteredReader     an RNN over vectors and the outputs of such filters. After Zhou 2015
VectorReader       an input that is one thing: a class, or a vector of real numbers
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from heed.attention.memory import key_table
from heed.records import Attended, Need
from heed.visible import Visible

if TYPE_CHECKING:
    from heed.models.recurrent_encoder import RecurrentEncoder

SummaryKind = Literal["last", "mean"]
"""The vector of a whole input: where it ends, or the mean of all its places."""


class Encoded(NamedTuple):
    """An input as a reader made it: its memory, and its summary."""

    states: Tensor  # B S M, zero on padding
    exists: Visible | None  # which places are not padding; None: all
    seen: dict[str, Attended]
    vectors: Tensor  # what was read, as vectors    B S E
    ends: Tensor | None = None  # B M, of two directions; None: the state of the last place

    @staticmethod
    def of(
        states: Tensor, exists: Visible | None, seen: dict[str, Attended], vectors: Tensor
    ) -> Encoded:
        """The record of states that may be anything on padding.    B S M"""
        read = Encoded(states, exists, seen, vectors)
        if exists is None or not exists.about_keys_alone:
            return read
        return read._replace(states=states.where(read.there[..., None], 0))

    @property
    def there(self) -> Tensor:
        """The places that are not padding.    B S"""
        (B, S), device = self.states.shape[:2], self.states.device
        if self.exists is None or not self.exists.about_keys_alone:
            return torch.ones(B, S, dtype=torch.bool, device=device)
        return key_table(self.exists, S, device).expand(B, -1)

    @property
    def last(self) -> Tensor:
        """The state where the input ends; of two directions, each at its own end.    B M"""
        if self.ends is not None:
            return self.ends
        places = torch.arange(self.states.shape[1], device=self.states.device)
        end = (places * self.there).amax(1)[:, None, None].expand(-1, 1, self.states.shape[-1])
        return self.states.gather(1, end)[:, 0]

    def summary(self, kind: SummaryKind) -> Tensor:
        """One vector for the input: its ends ("last"), or the mean of all states.    B M"""
        if kind == "last":
            return self.last
        count = self.there.sum(1, keepdim=True).clamp(min=1)
        return self.states.sum(1) / count.to(self.states.dtype)


class Reader(Protocol):
    """An input to states."""

    @property
    def width(self) -> int:
        """The width of a state."""

    def __call__(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        /,
        need: Need = "context",
        nudge: Tensor | None = None,
    ) -> Encoded:
        """Symbols B S, or real numbers B S F, and how many places of each row are not padding B
        (None: all) -> B S M

        need   what every attention must give
        nudge  what is added to the vectors that are read  B S E
        """


def each_length(inputs: Tensor, lengths: Tensor | None) -> Tensor:
    """The number of places of each row that are not padding; all without lengths.    B S -> B"""
    if lengths is not None:
        return lengths
    return torch.full((len(inputs),), inputs.shape[1], device=inputs.device)


def real(inputs: Tensor, lengths: Tensor) -> Tensor:
    """The places that are not padding.    B S, B -> B S"""
    return torch.arange(inputs.shape[1], device=inputs.device) < lengths[:, None]


def without_padding(inputs: Tensor, there: Tensor) -> Tensor:
    """Real numbers with zeros for padding: NaN in it would reach the gradients. Symbols stay."""
    return inputs.where(there[..., None], 0) if inputs.is_floating_point() else inputs


class ConvolutionReader(nn.Module):
    """Filters of several widths over neighbouring words, side by side. Kim 2014 §2

    A place sees as many words to its left as to its right, or one more to its right. Each further
    layer adds relu(W [h_{t-1}; h_t; h_{t+1}] + b) to the states below it. He 2016 §3.1

    layers   of filters, in all
    dropout  on what a further layer reads
    """

    def __init__(
        self,
        embed: nn.Module,
        *,
        inputs: int,
        channels: int,
        widths: Sequence[int],
        layers: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed, self.dropout = embed, nn.Dropout(dropout)
        self.filters = nn.ModuleList(nn.Conv1d(inputs, channels, width) for width in widths)
        self.sides = [((width - 1) // 2, width // 2) for width in widths]
        self.width = width = channels * len(widths)
        self.above = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(1, layers))

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        need: Need = "context",
        nudge: Tensor | None = None,
    ) -> Encoded:
        """B S, B -> B S M"""
        there = real(inputs, each_length(inputs, lengths))
        vectors = self.embed(without_padding(inputs, there))
        vectors = vectors if nudge is None else vectors + nudge
        vectors = vectors.where(there[..., None], 0)
        x = vectors.mT  # B E S
        found = [each(pad(x, side)) for each, side in zip(self.filters, self.sides, strict=True)]
        states = torch.relu(torch.cat(found, 1)).where(there[:, None], 0)  # B M S
        for layer in self.above:
            added = torch.relu(layer(self.dropout(states)))
            states = (states + added).where(there[:, None], 0)
        states = states.mT
        return Encoded(states, Visible.keys(there), {}, vectors)

    if TYPE_CHECKING:
        __call__ = forward


class FilteredReader(nn.Module):
    """An RNN that reads each word's vector and the outputs of filters around it, side by side.

    After Zhou 2015 §3, where the RNN reads the filters' outputs only.

    rnn  its inputs are as wide as a word's vector and the filters' outputs together
    """

    def __init__(self, filters: ConvolutionReader, rnn: RecurrentEncoder) -> None:
        super().__init__()
        self.filters, self.rnn = filters, rnn

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        need: Need = "context",
        nudge: Tensor | None = None,
    ) -> Encoded:
        """B S, B -> B S M"""
        below = self.filters(inputs, lengths, need, nudge)
        found = self.rnn(torch.cat([below.vectors, below.states], -1), lengths)
        return below._replace(states=found.states, ends=found.ends)

    if TYPE_CHECKING:
        __call__ = forward

    @property
    def width(self) -> int:
        """The width of a state."""
        return self.rnn.width


class VectorReader(nn.Module):
    """An input that is one thing, as the memory of a single place.

    embed  nn.Embedding for a class, or nn.Linear for a vector of real numbers
    width  of what `embed` gives
    """

    def __init__(self, embed: nn.Module, width: int) -> None:
        super().__init__()
        self.embed, self.width = embed, width

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        need: Need = "context",
        nudge: Tensor | None = None,
    ) -> Encoded:
        """Classes B or B 1, or vectors B F -> B 1 M; lengths say nothing here."""
        x = self.embed(inputs)
        x = x[:, None] if x.ndim == 2 else x
        x = x if nudge is None else x + nudge
        return Encoded(x, None, {}, x)

    if TYPE_CHECKING:
        __call__ = forward
