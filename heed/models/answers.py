"""Heads on an encoder: words in place of masks, one answer for a text, or one for each symbol.

An encoder reads (heed.models.transformer), and heads answer. Devlin 2019 §3, §4.

    network = build(BertSettings(size="tiny", symbols=8000, head="pretraining"))
    said = network(symbols, lengths, types)         # B S, B, B S
    said.words.form()                               # B S V, what each place should hold
    said.follows                                    # B 2, whether the second text follows the first
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from heed.attention.initial_weights import Drawn
from heed.attention.score import constant
from heed.errors import Refused, ShapeError
from heed.models.layers import bend_of
from heed.models.positioned_words import Real, in_front, sight, within
from heed.models.transformer import Encoder
from heed.models.written import Unformed
from heed.records import Attended, Need


@dataclass(eq=False, slots=True)
class Answered:
    """Answers of a model about texts.

    states   of every symbol, zero on padding                                    B S M
    pooled   the whole text as one vector, where the head has one                B M
    words    what each place (or each that was asked for) should hold, unformed  B S V, B K V
    follows  whether the second text follows the first: yes, no                  B 2
    logits   of the text's label (B C), of each symbol's label (B S C), or of each symbol as the
             first and as the last of an answer (B S 2)
    seen     every attention, as "0.self"
    """

    states: Tensor
    pooled: Tensor | None
    words: Unformed | None
    follows: Tensor | None
    logits: Tensor | None
    seen: dict[str, Attended]


class Pooler(nn.Module):
    """tanh(W x + b) of the text's first symbol, which stands for it. Devlin 2019 §3

    Padding in front is no symbol of the text.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, states: Tensor, first: Tensor | None = None) -> Tensor:
        """B S M -> B M; `first` the column of each text's first symbol, B"""
        if not states.shape[1]:
            raise ShapeError("a text needs at least one symbol, which represents it")
        if first is None:
            return torch.tanh(self.dense(states[:, 0]))
        places = first.clamp(max=states.shape[1] - 1)  # an empty text has no first symbol
        return torch.tanh(self.dense(at(states, places[:, None])[:, 0]))


class MaskedWords(Drawn):
    """Predicts masked words: dense, activation, norm, and the embeddings transposed.

    The table of embeddings is handed in: it belongs to the encoder.
    """

    def __init__(self, symbols: int, width: int, activation: str, epsilon: float) -> None:
        super().__init__()
        self.dense, self.bend = nn.Linear(width, width), bend_of(activation)
        self.norm = nn.LayerNorm(width, eps=epsilon)
        self.bias = constant(0, symbols)

    def forward(self, states: Tensor, table: Tensor) -> Unformed:
        """B K M, V M -> B K V, computed only when needed"""
        known = self.norm(self.bend(self.dense(states)))
        return Unformed(known, table.view_as(table), self.bias.view_as(self.bias))


class Answerer(nn.Module):
    """An encoder with embeddings of its own, and heads that answer from its states.

    pool     the text as one vector; `follows` and `answer` look at that
    words    predicts masked words
    follows  M -> 2
    answer   M -> C, of the text where there is a pool, else of each symbol
    dropout  on what `answer` is given
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        pool: Pooler | None = None,
        words: MaskedWords | None = None,
        follows: nn.Linear | None = None,
        answer: nn.Linear | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if follows is not None and pool is None:
            raise Refused("the head for next sentences needs pooling")
        self.encoder, self.pool, self.words = encoder, pool, words
        self.follows, self.answer = follows, answer
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        symbols: Tensor,
        lengths: Real | None = None,
        types: Tensor | None = None,
        need: Need = "context",
        asked: Tensor | None = None,
    ) -> Answered:
        """Symbols B S -> answers.

        lengths  of each text, B; or which symbols are not padding, B S, as an attention mask has
                 it, too; None: all. Pad behind a text: positions count columns, so padding in
                 front would move it
        types    which of two texts each symbol belongs to, B S
        asked    the places whose words are wanted, B K, whole numbers; None: every place
        """
        exists = sight(lengths, symbols)
        read = self.encoder(symbols, exists, need, types=types)
        states, seen = read.states, read.seen
        pooled = None if self.pool is None else self.pool(states, in_front(exists, symbols))
        return Answered(
            states,
            pooled,
            None if self.words is None else self.words(at(states, asked), self.table),
            None if self.follows is None else self.follows(pooled),
            None
            if self.answer is None
            else self.answer(self.dropout(states if pooled is None else pooled)),
            seen,
        )

    if TYPE_CHECKING:
        __call__ = forward

    @property
    def table(self) -> Tensor:
        """The embeddings.    V M"""
        table: Tensor = self.encoder.words.table.weight
        return table


def at(states: Tensor, places: Tensor | None) -> Tensor:
    """The states of some places of each row.    B S M, B K -> B K M"""
    if places is None:
        return states
    if places.ndim != 2 or len(places) != len(states):
        raise ShapeError(
            f"asked has positions of each row, B K with B={len(states)}; got {tuple(places.shape)}"
        )
    within("asked", places, 0, states.shape[1])
    return states.gather(1, places[..., None].expand(-1, -1, states.shape[-1]))
