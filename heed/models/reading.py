"""Texts to states: five readers with one interface, and pools that make one vector of the states.

RecurrentReader    an RNN in one direction or both
ConvolutionReader  filters over neighbouring words. Kim 2014
FilteredReader     an RNN over words and the outputs of such filters. After Zhou 2015
AttentiveReader    a Transformer's encoder
ContentReader      XLNet's content stream

Vectors            words as vectors; Spelled: words by their letters

Static, Mean, Greatest, Last, First, Gathered    from B S M to B M; only real places count
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, pad

import heed
from heed.attention.attention import Attending
from heed.attention.initial_weights import Drawn, initialise
from heed.attention.multi_head import join
from heed.attention.names import build
from heed.models.answers import Pooler
from heed.models.cells import Dropout
from heed.models.sequence import Encoder as Recurrent
from heed.models.sequence import ends
from heed.models.transformer import Encoder as Attentive
from heed.models.xlnet import TwoStreams
from heed.models.xlnet_answers import Summary
from heed.records import EMPTY, Attended, Need


class Read(NamedTuple):
    """What a reader made of texts."""

    states: Tensor  # B S M, zero on padding
    last: Tensor  # B M, the state where the text ends; with two directions each at its own end
    there: Tensor  # B S, True at real places
    seen: dict[str, Attended]
    vectors: Tensor  # of the words, as they were read  B S E


class Reader(Protocol):
    """Symbols to states."""

    def read(
        self,
        symbols: Tensor,
        lengths: Tensor,
        need: Need = "context",
        nudge: Tensor | None = None,
    ) -> Read:
        """B S, B -> B S M; the nudge, B S E, is added to the words' vectors."""


class Vectors(nn.Module):
    """Words as vectors. In training whole words are left out, as well as parts of each.

    words    how many of the words are left out. Iyyer 2015 §2.3
    dropout  how much of each vector
    """

    def __init__(self, symbols: int, width: int, *, words: float = 0.0, dropout: float = 0.0):
        super().__init__()
        self.table = nn.Embedding(symbols, width)
        initialise(self.table, weight=partial(nn.init.uniform_, a=-0.1, b=0.1))
        self.words, self.dropout = words, Dropout(dropout)

    def forward(self, symbols: Tensor) -> Tensor:
        """B S -> B S M"""
        x: Tensor = self.table(symbols)
        if self.training and self.words:
            kept = torch.rand(symbols.shape, device=symbols.device) >= self.words
            x = x * kept[..., None]
        return self.dropout(x)  # type: ignore[no-any-return]


def _but_nothing(table: Tensor) -> None:
    """Draw vectors; the first stands for nothing, and is zero.    N M"""
    nn.init.uniform_(table, -0.1, 0.1)
    table[0] = 0


class Spelled(Drawn):
    """Words as the mean of their letters' vectors, zero where nothing of them is known; to be added
    to the words' own. Bojanowski 2017 §3.2

    letters  how many runs of letters there are, numbered from 1
    most     how many of them a word has at most
    known    the runs of each symbol, filled in from the vocabulary; 0 is none  V K
    """

    known: Tensor

    def __init__(
        self, symbols: int, width: int, *, letters: int, most: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(letters + 1, width, padding_idx=0)
        initialise(self.table, weight=_but_nothing)
        self.register_buffer("known", torch.zeros(symbols, most, dtype=torch.int32))
        initialise(self, known=nn.init.zeros_)
        self.dropout = Dropout(dropout)

    def forward(self, symbols: Tensor, letters: Tensor | None = None) -> Tensor:
        """B S -> B S M

        letters  used in place of `known`, as for words outside the vocabulary  B S K
        """
        letters = self.known[symbols] if letters is None else letters
        table = self.table.weight
        x = embedding_bag(letters.flatten(0, 1), table, mode="mean", padding_idx=0)
        return self.dropout(x.unflatten(0, symbols.shape))  # type: ignore[no-any-return]


class RecurrentReader(Recurrent):
    """An RNN over words."""

    def read(
        self,
        symbols: Tensor,
        lengths: Tensor,
        need: Need = "context",
        nudge: Tensor | None = None,
    ) -> Read:
        """B S, B -> B S M"""
        found = self(symbols, lengths, nudge)
        return Read(found.states, found.last, real(symbols, lengths), {}, found.vectors)


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

    def read(
        self,
        symbols: Tensor,
        lengths: Tensor,
        need: Need = "context",
        nudge: Tensor | None = None,
    ) -> Read:
        """B S, B -> B S M"""
        there = real(symbols, lengths)
        vectors = self.embed(symbols)
        vectors = vectors if nudge is None else vectors + nudge
        vectors = vectors.where(there[..., None], 0)
        x = vectors.mT  # B E S
        found = [each(pad(x, side)) for each, side in zip(self.filters, self.sides, strict=True)]
        states = torch.relu(torch.cat(found, 1)).where(there[:, None], 0)  # B M S
        for layer in self.above:
            added = torch.relu(layer(self.dropout(states)))
            states = (states + added).where(there[:, None], 0)
        states = states.mT
        return Read(states, ends(states, lengths), there, {}, vectors)


class FilteredReader(nn.Module):
    """An RNN that reads each word's vector and the outputs of filters around it, side by side.

    After Zhou 2015 §3, where the RNN reads the filters' outputs only.

    rnn  its inputs are as wide as a word's vector and the filters' outputs together
    """

    def __init__(self, filters: ConvolutionReader, rnn: Recurrent) -> None:
        super().__init__()
        self.filters, self.rnn = filters, rnn

    def read(
        self,
        symbols: Tensor,
        lengths: Tensor,
        need: Need = "context",
        nudge: Tensor | None = None,
    ) -> Read:
        """B S, B -> B S M"""
        below = self.filters.read(symbols, lengths, need, nudge)
        found = self.rnn(torch.cat([below.vectors, below.states], -1), lengths)
        return below._replace(states=found.states, last=found.last)


class AttentiveReader(Attentive):
    """The encoder of a Transformer; its weights keep their usual names."""

    def read(
        self,
        symbols: Tensor,
        lengths: Tensor,
        need: Need = "context",
        nudge: Tensor | None = None,
    ) -> Read:
        """B S, B -> B S M"""
        there = real(symbols, lengths)
        vectors, exists = self.look_up(symbols, lengths)
        vectors = vectors if nudge is None else vectors + nudge
        states, seen = self.through(vectors, exists, need)
        states = states.where(there[..., None], 0)
        return Read(states, ends(states, lengths), there, seen, vectors)


GATHERS = 2
"""The type of the symbol that gathers a text, which ends it; those of the text are 0. Yang 2019's
code counts two texts as 0 and 1."""


class ContentReader(nn.Module):
    """XLNet's content stream, under the names that it has in XLNet."""

    def __init__(self, streams: TwoStreams) -> None:
        super().__init__()
        self.streams = streams

    def read(
        self,
        symbols: Tensor,
        lengths: Tensor,
        need: Need = "context",
        nudge: Tensor | None = None,
    ) -> Read:
        """B S, B -> B S M"""
        there = real(symbols, lengths)
        places = torch.arange(symbols.shape[1], device=symbols.device)
        types = GATHERS * (places == lengths[:, None] - 1)
        found = self.streams(symbols, lengths, types, need, nudge=nudge)
        states = found.states.where(there[..., None], 0)
        return Read(states, ends(states, lengths), there, found.seen, found.vectors)


def real(symbols: Tensor, lengths: Tensor) -> Tensor:
    """Which places are no padding.    B S, B -> B S"""
    return torch.arange(symbols.shape[1], device=symbols.device) < lengths[:, None]


class Looks(Attending):
    """Several looks at the same states, each with a question of its own, side by side. Lin 2017 §2

    All looks share one projection of the keys; values are not projected, so H looks read H M
    numbers.
    """

    def __init__(
        self, mechanism: str, options: Mapping[str, Any], *, width: int, heads: int, dropout: float
    ) -> None:
        super().__init__()
        self.position, self.widths = None, (width, width, None)
        self.mechanism = build(
            mechanism, query=width, key=width, heads=heads, groups=1, dropout=dropout, **options
        )

    def shape_query(self, query: Tensor) -> Tensor:
        """B T M -> B 1 T M"""
        return query.unsqueeze(1)

    def shape_keys(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """B S M -> B 1 S M"""
        return keys.unsqueeze(1), values.unsqueeze(1)

    def shape_context(self, context: Tensor) -> Tensor:
        """B H 1 M -> B 1 (H M)"""
        return join(context)


class Static(nn.Module):
    """One look at the whole text, or several, by any mechanism that has `static` in it.

    Yang 2016 §2.2; several: Lin 2017 §2.
    """

    def __init__(
        self,
        mechanism: str,
        options: Mapping[str, Any] = EMPTY,  # of the mechanism: its own width, too
        *,
        width: int,
        heads: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = Looks(mechanism, options, width=width, heads=heads, dropout=dropout)

    def forward(self, read: Read, need: Need = "context") -> tuple[Tensor, dict[str, Attended]]:
        """B S M -> B (H M), and what was looked at"""
        memory = self.attention.remember(read.states, visible=heed.Visible.keys(read.there))
        seen = self.attention(None, memory, need=need)
        return seen.context[:, 0], {"pool": seen}


class Mean(nn.Module):
    """The mean of all states."""

    def forward(self, read: Read, need: Need = "context") -> tuple[Tensor, dict[str, Attended]]:
        """B S M -> B M"""
        count = read.there.sum(1, keepdim=True).clamp(min=1)
        return read.states.sum(1) / count, {}


class Greatest(nn.Module):
    """The greatest value of each unit over all states."""

    def forward(self, read: Read, need: Need = "context") -> tuple[Tensor, dict[str, Attended]]:
        """B S M -> B M"""
        least = torch.finfo(read.states.dtype).min
        return read.states.where(read.there[..., None], least).amax(1), {}


class Last(nn.Module):
    """The state where the text ends."""

    def forward(self, read: Read, need: Need = "context") -> tuple[Tensor, dict[str, Attended]]:
        """B S M -> B M"""
        return read.last, {}


class First(Pooler):
    """BERT's pooler, with the same names of weights: the first state stands for the text."""

    def forward(  # type: ignore[override]
        self, read: Read, need: Need = "context"
    ) -> tuple[Tensor, dict[str, Attended]]:
        """B S M -> B M"""
        return super().forward(read.states), {}


class Gathered(Summary):
    """What stands for the text in XLNet, under the same names."""

    def forward(  # type: ignore[override]
        self, read: Read, need: Need = "context"
    ) -> tuple[Tensor, dict[str, Attended]]:
        """B S M -> B M"""
        return super().forward(read.states, read.there), {}
