"""Generators (1→N): from a class, or a vector of real numbers, to a text.

    network = build(GeneratorSettings(cell="lstm"), classes=4, symbols=60)
    written = network(classes, None, inputs)                 # B, B T -> B T V
    carry = network.begin(classes, None)
    step = network.step(carry, symbols)                      # N -> step.logits N V

What is given is the first state, and with `context: every` an input to every step, too.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from heed.attention.initial_weights import tie
from heed.errors import Refused
from heed.models.cells import Dropout
from heed.models.encoder_decoder import EncoderDecoder
from heed.models.reader import VectorReader
from heed.models.recurrent import Generator
from heed.models.recurrent_settings import embedding
from heed.models.transformer_settings import Share, TransformerSettings, build_writer
from heed.settings import Settings

VECTOR = 64
"""The width of what is given to a Transformer's decoder."""


class GeneratorSettings(Settings):
    """A recipe's settings of a generator."""

    kind: Literal["generator"] = "generator"
    cell: Literal["gru", "lstm", "tanh"] = "gru"
    vector: int = Field(64, ge=1, le=8192, description="The width of what is given.")
    embedding: int = Field(64, ge=1, le=8192)
    hidden: int = Field(256, ge=1, le=8192)
    layers: int = Field(1, ge=1, le=16)
    context: Literal["first", "every"] = "every"  # where what is given enters
    readout: Literal["tanh", "maxout"] = "tanh"
    dropout: Share = 0.2  # on embeddings, between layers, before the output
    variational: bool = False  # the same units at every step
    tied: bool = True  # output = embedding


def build(
    settings: GeneratorSettings | TransformerSettings,
    *,
    classes: int | None = None,
    features: int | None = None,
    symbols: int,
) -> EncoderDecoder:
    """The network for a vocabulary of `symbols`: an RNN, or a Transformer's decoder.

    classes   how many there are
    features  in their place: a vector of so many real numbers is given
    """
    given: nn.Module
    vector = settings.vector if isinstance(settings, GeneratorSettings) else VECTOR
    if classes is not None:
        given = nn.Embedding(classes, vector)
    elif features is not None:
        given = nn.Linear(features, vector)
    else:
        raise Refused("say what is given: classes=..., or features=... of a vector")
    reader = VectorReader(given, vector)
    if isinstance(settings, TransformerSettings):
        chosen = build_writer(settings, symbols=symbols, memory=vector, longest=1)
        return EncoderDecoder(reader, chosen)
    width, embed = settings.embedding, embedding(symbols, settings.embedding)
    out = nn.Linear(width if settings.tied else settings.hidden, symbols)
    if settings.tied:
        tie(out, embed)
    writer = Generator(
        embed,
        inputs=width,
        vector=settings.vector,
        hidden=settings.hidden,
        out=out,
        layers=settings.layers,
        cell=settings.cell,
        every=settings.context == "every",
        readout=settings.readout,
        dropout=Dropout(settings.dropout, variational=settings.variational),
    )
    return EncoderDecoder(reader, writer)
