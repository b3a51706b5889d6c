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
from heed.models.sequence import Carry, Encoder, Labeller
from heed.models.words import Real, not_padding
from heed.models.written import Step, Unformed, Written
from heed.records import Need
from heed.settings import Settings


class RecurrentLanguageSettings(Settings):
    """What a recipe says of a recurrent language model."""

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

    def __init__(self, labeller: Labeller) -> None:
        super().__init__()
        self.labeller = labeller

    def forward(self, inputs: Tensor, need: Need = "context") -> Written:
        """A whole text at once.    B T -> logits B T V

        Padding comes after a text, so no state of the text depends on it. There is no attention:
        `seen` is empty, whatever `need` is.
        """
        encoder = self.labeller.encoder
        states = encoder.dropout(encoder(inputs).states)
        return Written(Unformed.of(states, self.labeller.out))

    if TYPE_CHECKING:
        __call__ = forward

    def begin(
        self,
        inputs: Tensor,
        need: Need = "context",
        lengths: Real | None = None,
        first: Tensor | Sequence[int] | None = None,
    ) -> Carry:
        """The carry after a prompt, which may be empty.    N T -> carry

        lengths  of each prompt, N, with padding behind it; or which symbols are not padding, N T
        first    the column of each prompt's first symbol, N, with padding in front of it
        """
        N, T = inputs.shape
        exists = not_padding(lengths, first, inputs)
        read = None if exists is None else key_table(exists, T, inputs.device)
        carry = self.labeller.begin(N)
        for t in range(T):
            after = self.labeller.encoder.step(inputs[:, t], carry.hidden)
            if read is not None:
                there = read[:, t, None]
                pairs = zip(after, carry.hidden, strict=True)
                after = tuple(
                    tuple(torch.where(there, new, old) for new, old in zip(*each, strict=True))
                    for each in pairs
                )
            carry = Carry(after)
        return carry

    def step(self, carry: Carry, symbols: Tensor) -> Step:
        """One more symbol for each text.    N -> N V"""
        return self.labeller.step(carry, symbols)

    def select(self, carry: Carry, rows: Tensor, same: bool = False) -> Carry:
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
    encoder = Encoder(
        embed,
        inputs=settings.embedding,
        hidden=settings.hidden,
        layers=settings.layers,
        cell=settings.cell,
        bidirectional=False,
        dropout=Dropout(settings.dropout, variational=settings.variational),
    )
    labeller = Labeller(encoder, symbols)
    if settings.tied:
        tie(labeller.out, embed)
    return RecurrentLanguage(labeller)
