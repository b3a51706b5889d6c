"""XLNet's heads: next symbols, hidden symbols in any order, a label, a label per symbol, a span.

    said = network(symbols, targets=places, visible=order)   # B T, B P, B T T -> said.logits B P V
    said = network(symbols)                                  # each next symbol -> said.logits B T V
    carry = network.begin(prompts, lengths=lengths)          # N T, N
    step = network.step(carry, symbols)                      # N -> step.logits N V

Yang 2019 §2; the summary of a text is the state of its last symbol, which pre-training ends with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor, nn

import heed
from heed.attention.initial_weights import Drawn
from heed.attention.score import constant
from heed.errors import Refused, ShapeError
from heed.models.answers import Answered
from heed.models.positioned_words import Real, not_padding, sight
from heed.models.written import Unformed, Written, WrittenStep, formed
from heed.models.xlnet import TwoStreams
from heed.models.xlnet_sights import Memories, Segment
from heed.records import Attended, Need
from heed.visible import Visible, as_visible, both


@dataclass(init=False, eq=False, slots=True)
class Predicted(Written):
    """The requested logits, and the memories for the next segment."""

    memories: Memories

    def __init__(
        self, logits: Tensor | Unformed, seen: dict[str, Attended], memories: Memories
    ) -> None:
        Written.__init__(self, logits, seen)
        self.memories = memories


@dataclass(eq=False, slots=True)
class Recalled(Answered):
    """Answers, and the memories for the next segment."""

    memories: Memories


class ContentCarry(NamedTuple):
    """The state between steps: the content, as each layer keeps it."""

    layers: tuple[heed.Memory, ...]


class LanguageModel(Drawn):
    """Predicts symbols: any of a text in any order, or each next one. Yang 2019 eq. 5.

    The output is the transposed embedding and a bias, unless an `output` of its own is given.
    """

    def __init__(self, streams: TwoStreams, output: nn.Linear | None = None) -> None:
        super().__init__()
        self.streams, self.output = streams, output
        if output is None:
            self.bias = constant(0, streams.words.num_embeddings)

    def forward(
        self,
        symbols: Tensor,
        need: Need = "context",
        *,
        targets: Tensor | None = None,
        visible: Tensor | Visible | None = None,
        lengths: Real | None = None,
        types: Tensor | None = None,
        memories: Memories | None = None,
    ) -> Predicted:
        """Symbols B T -> logits of the targets B P V, or without targets of each next symbol B T V.

        targets   the positions to be predicted, B P; below 0: none, with meaningless logits
        visible   which symbols each may attend to in the order of prediction, B T T: those that a
                  target sees, and those that a symbol sees besides itself; None: no symbol sees a
                  target, unless the network is causal. Without targets the order is left to right
        lengths   of each text, B; or which symbols are not padding, B T; None: all
        types     which of several texts each symbol belongs to, B T
        memories  those of the segment before
        """
        read = self.streams(
            symbols,
            lengths,
            types,
            need,
            targets=targets,
            visible=visible,
            memories=memories,
            ahead=targets is None,
        )
        return Predicted(self.unformed(read.states), read.seen, read.memories)

    if TYPE_CHECKING:
        __call__ = forward

    def begin(
        self,
        inputs: Tensor,
        need: Need = "context",
        *,
        lengths: Real | None = None,
        first: Tensor | Sequence[int] | None = None,
        types: Tensor | None = None,
        memories: Memories | None = None,
    ) -> ContentCarry:
        """The carry after a prompt, which may be empty.    N T -> carry

        lengths  of each prompt, N, with padding behind it; or which symbols are not padding, N T
        first    the column of each prompt's first symbol, N, with padding in front of it
        Padding is never seen. Unless the network is causal, a prompt's symbols see each other;
        each symbol written after it sees the prompt and the symbols written before.
        """
        types = types if inputs.shape[1] else None
        exists = not_padding(lengths, first, inputs)
        return ContentCarry(self.streams.begin(inputs, exists, types, memories))

    def step(self, carry: ContentCarry, symbols: Tensor) -> WrittenStep:
        """One more symbol for each text, and the query for the next.    N -> logits N V"""
        states, layers = self.streams.further(symbols, carry.layers)
        return WrittenStep(formed(self.unformed(states)), ContentCarry(layers), None)

    def select(self, carry: ContentCarry, rows: Tensor, same: bool = False) -> ContentCarry:
        """The chosen texts, in that order."""
        return ContentCarry(tuple(memory.select(rows) for memory in carry.layers))

    def unformed(self, states: Tensor) -> Tensor | Unformed:
        """The logits of any states, computed only when needed.    B T M -> B T V"""
        if self.output is not None:
            return Unformed.of(states, self.output)
        table = self.streams.words.weight
        return Unformed(states, table.view_as(table), self.bias.view_as(self.bias))


class TextSummary(nn.Module):
    """tanh(W x + b) of the text's last symbol, its first one, or the mean of all.    B T M -> B M

    Padding, on either side, does not count.
    """

    def __init__(
        self, width: int, which: Literal["last", "first", "mean"], activation: nn.Module
    ) -> None:
        super().__init__()
        self.dense, self.which, self.activation = nn.Linear(width, width), which, activation

    def forward(self, states: Tensor, exists: Tensor | None = None) -> Tensor:
        """B T M, B T -> B M"""
        if not states.shape[1]:
            raise ShapeError("the summary of a text needs at least one symbol")
        if exists is None:
            exists = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        if self.which == "mean":
            share = exists / exists.sum(-1, keepdim=True).clamp(min=1)
            states = states.where(exists[..., None], 0)  # 0 times NaN is NaN
            chosen = (states * share.to(states.dtype)[..., None]).sum(1)
        else:
            T = exists.shape[1]
            order = torch.arange(T, device=exists.device)
            order = order + 1 if self.which == "last" else T - order
            place = (order * exists).argmax(-1)  # B
            chosen = states.gather(1, place[:, None, None].expand(-1, 1, states.shape[-1]))[:, 0]
        known: Tensor = self.activation(self.dense(chosen))
        return known


class XLNetAnswerer(nn.Module):
    """Encodes a text, and answers from the content stream.

    pool     the text as one vector
    answer   M -> C, of the text if there is a pool, otherwise of each symbol
    dropout  on the input of `answer`
    """

    def __init__(
        self,
        streams: TwoStreams,
        *,
        pool: TextSummary | None = None,
        answer: nn.Linear | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.streams, self.pool, self.answer = streams, pool, answer
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        symbols: Tensor,
        lengths: Real | None = None,
        types: Tensor | None = None,
        need: Need = "context",
        asked: Tensor | None = None,
        *,
        visible: Tensor | Visible | None = None,
        memories: Memories | None = None,
    ) -> Recalled:
        """Symbols B T -> answers.

        lengths  of each text, B; or which symbols are not padding, B T; None: all
        types    which of several texts each symbol belongs to, B T
        asked    refused unless None: only the language model predicts words
        visible  which symbols each may attend to; those hidden from all are padding
        """
        if asked is not None:
            raise Refused("this head predicts no words; head='language' does, at its targets")
        exists, visible = (None, None) if visible is None else as_visible(visible).split()
        lengths = both(sight(lengths, symbols), exists)
        read = self.streams(symbols, lengths, types, need, visible=visible, memories=memories)
        pooled = None
        if self.pool is not None:
            pooled = self.pool(read.states, Segment.of(symbols, lengths).table)
        known = read.states if pooled is None else pooled
        logits = None if self.answer is None else self.answer(self.dropout(known))
        return Recalled(read.states, pooled, None, None, logits, read.seen, read.memories)

    if TYPE_CHECKING:
        __call__ = forward
