"""A recurrent language model: each symbol from all that stand before it. Mikolov 2010.

    network = build(RecurrentLanguageSettings(hidden=512), symbols=69)
    network(inputs).logits                                       # B T -> B T V

It is decoded as a Transformer's decoder is: `begin` with prompts, `step`, `select`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from heed.attention.initial_weights import initialise, normal, tie
from heed.attention.memory import key_table
from heed.errors import Refused
from heed.models.cells import Dropout
from heed.models.positioned_words import Real, not_padding
from heed.models.recurrent_encoder import RecurrentCarry, RecurrentEncoder
from heed.models.written import Unformed, Written, WrittenStep
from heed.records import Need
from heed.settings import Settings


class RecurrentLanguageSettings(Settings):
    """A recipe's settings of a recurrent language model."""

    kind: Literal["recurrent-language"] = "recurrent-language"
    cell: Literal["lstm", "gru", "tanh"] = "lstm"
    embedding: int = Field(128, ge=1, le=8192)
    hidden: int = Field(512, ge=1, le=8192)
    layers: int = Field(2, ge=1, le=32)
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0  # before every layer, and before the output
    variational: bool = False  # the same units at every step: Gal 2016
    tied: bool = False  # output = embedding, which needs embedding = hidden. Press 2017


class RecurrentLanguage(nn.Module):
    """Writes a text symbol by symbol; what it has read is in its state, however long it was."""

    def __init__(self, encoder: RecurrentEncoder, out: nn.Linear) -> None:
        super().__init__()
        self.encoder, self.out = encoder, out

    def forward(self, inputs: Tensor, need: Need = "context") -> Written:
        """A whole text at once.    B T -> logits B T V

        Padding comes after a text, so no state of the text depends on it. There is no attention:
        `seen` is empty, whatever `need` is.
        """
        states = self.encoder.dropout(self.encoder(inputs).states)
        return Written(Unformed.of(states, self.out))

    if TYPE_CHECKING:
        __call__ = forward

    def begin(
        self,
        inputs: Tensor,
        need: Need = "context",
        lengths: Real | None = None,
        first: Tensor | Sequence[int] | None = None,
    ) -> RecurrentCarry:
        """The carry after a prompt, which may be empty.    N T -> carry

        lengths  of each prompt, N, with padding behind it; or which symbols are not padding, N T
        first    the column of each prompt's first symbol, N, with padding in front of it
        """
        N, T = inputs.shape
        exists = not_padding(lengths, first, inputs)
        read = None if exists is None else key_table(exists, T, inputs.device)
        hidden = self.encoder.begin(N)
        for t in range(T):
            after = self.encoder.step(inputs[:, t], hidden)
            if read is not None:
                there = read[:, t, None]
                pairs = zip(after, hidden, strict=True)
                after = tuple(
                    tuple(torch.where(there, new, old) for new, old in zip(*each, strict=True))
                    for each in pairs
                )
            hidden = after
        return RecurrentCarry(hidden)

    def step(self, carry: RecurrentCarry, symbols: Tensor) -> WrittenStep:
        """One more symbol for each text.    N -> N V"""
        hidden = self.encoder.step(symbols, carry.hidden)
        return WrittenStep(self.out(hidden[-1][0]), RecurrentCarry(hidden), None)

    def select(self, carry: RecurrentCarry, rows: Tensor, same: bool = False) -> RecurrentCarry:
        """The chosen texts, in that order."""
        return carry.select(rows, same)


def build(settings: RecurrentLanguageSettings, *, symbols: int) -> RecurrentLanguage:
    """The network of the settings, for a vocabulary of `symbols`."""
    if settings.tied and settings.embedding != settings.hidden:
        raise Refused(
            f"tied=true shares the embedding with the output: embedding={settings.embedding} and "
            f"hidden={settings.hidden} must agree"
        )
    embed = nn.Embedding(symbols, settings.embedding)
    if settings.tied:  # or the first logits would be as wide as the embeddings
        initialise(embed, weight=normal(settings.hidden**-0.5))
    encoder = RecurrentEncoder(
        embed,
        inputs=settings.embedding,
        hidden=settings.hidden,
        layers=settings.layers,
        cell=settings.cell,
        bidirectional=False,
        dropout=Dropout(settings.dropout, variational=settings.variational),
    )
    out = nn.Linear(settings.hidden, symbols)
    if settings.tied:
        tie(out, embed)
    return RecurrentLanguage(encoder, out)
