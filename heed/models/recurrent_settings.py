"""Recurrent encoder-decoders (N→M): a sequence to a sequence, with any attention or none.

    network = build(RecurrentSettings(attention="local-p/general", decoder="luong"),
                    source=8000, target=8000, shared=False, longest=60)

It takes any mechanism that can be asked at every step of a decoder. The writers are in
`heed.models.recurrent`; `build_writer` builds one for any other reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator
from torch import nn

import heed
from heed.attention.catalogue import CATALOGUE
from heed.attention.initial_weights import initialise, normal, tie
from heed.attention.names import check_options, options_for_sentences, options_of, parse
from heed.attention.read import Join
from heed.errors import HeedError, Refused
from heed.models.cells import Dropout, First, Readout, Stack
from heed.models.encoder_decoder import EncoderDecoder
from heed.models.reader import SummaryKind
from heed.models.recurrent import Generator, InputFeeding, Luong, RecurrentDecoder, Search
from heed.models.recurrent_encoder import RecurrentEncoder
from heed.settings import Settings


class Size(NamedTuple):
    """Sizes of a network."""

    embedding: int
    hidden: int
    layers: int


SIZES = {
    "tiny": Size(64, 128, 1),  # the built-in corpus
    "small": Size(128, 256, 1),
    "base": Size(256, 512, 1),
    "big": Size(512, 1024, 2),  # about Bahdanau 2015 and Luong 2015
}

DEFAULT_ATTENTION = {"search": "additive", "luong": "general", "fixed": "none"}

Option = (
    bool | Annotated[int, Field(ge=-65536, le=65536)] | Annotated[float, Field(ge=-1e6, le=1e6)]
)


class RecurrentSettings(Settings):
    """A recipe's settings of a recurrent encoder-decoder. `size` fills in what is None."""

    kind: Literal["recurrent"] = "recurrent"
    size: Literal["tiny", "small", "base", "big"] = "small"
    embedding: int | None = Field(None, ge=1, le=8192)
    hidden: int | None = Field(None, ge=1, le=8192)  # in the encoder, both directions together
    layers: int | None = Field(None, ge=1, le=16)
    cell: Literal["tanh", "gru", "lstm"] = "gru"
    bidirectional: bool = True
    decoder: Literal["search", "luong", "fixed"] = "search"
    attention: str | None = Field(None, max_length=200)  # a mechanism, "none", or the decoder's own
    options: dict[str, Option | Annotated[str, Field(max_length=40)]] = Field(
        default_factory=dict, max_length=32
    )  # of the mechanism
    input_feeding: bool = True  # luong: h̃ goes into the next step
    context: Literal["first", "every"] = "every"  # without attention: where the vector enters
    summary: SummaryKind = "last"  # what the decoder's first state is made of
    readout: Literal["tanh", "maxout"] = "tanh"  # search and fixed
    dropout: float = Field(0.2, ge=0, lt=1)  # on embeddings, between layers, before the output
    variational: bool = False  # the same units at every step
    tied: bool = True  # output = target embedding
    share: bool = True  # one embedding for both sides where they share symbols

    @property
    def sizes(self) -> Size:
        """The sizes of the network: the named size, and what is given besides."""
        given = {field: getattr(self, field) for field in Size._fields}
        kept = {field: x for field, x in given.items() if x is not None}
        return SIZES[self.size]._replace(**kept)

    @property
    def mechanism(self) -> str:
        """The attention's name, or "none"."""
        return DEFAULT_ATTENTION[self.decoder] if self.attention is None else self.attention

    @model_validator(mode="after")
    def _fits(self) -> RecurrentSettings:
        name = self.mechanism
        if self.decoder == "fixed" and name != "none":
            raise ValueError(f"a fixed decoder has no attention: '{name}' needs search or luong")
        if self.decoder == "luong" and self.readout != "tanh":
            raise ValueError(f"luong has a tanh readout; readout '{self.readout}' is for search")
        if name == "none" and self.options:
            raise ValueError("options need an attention, and there is none")
        if name != "none":
            try:
                check_mechanism(name, self.options)
            except HeedError as error:  # some are not ValueErrors, which pydantic expects
                raise ValueError(str(error)) from error
        return self


def check_mechanism(name: str, options: Mapping[str, Any]) -> None:
    """Refuse what a decoder cannot use, and options the mechanism does not take."""
    for word in parse(name).values():
        claims = CATALOGUE[word].claims
        if not (claims.has_steps and claims.takes_several):
            raise Refused(
                f"'{word}' has one query for a whole text; a decoder has one at every step"
            )
        if not claims.gives_context:
            raise Refused(f"'{word}' returns no context that a decoder could read; leave it out")
    check_options(name, options)
    if options.get("segments"):
        raise Refused("segments are for texts in parts; a source sentence has none")


def build(
    settings: RecurrentSettings, *, source: int, target: int, shared: bool, longest: int
) -> EncoderDecoder:
    """The network that the settings describe.

    source, target  the sizes of the vocabularies
    shared          whether they are one vocabulary
    longest         the longest source, for a score that must know it (`location`)
    """
    size = settings.sizes
    read = embedding(source, size.embedding)
    encoder = RecurrentEncoder(
        read,
        inputs=size.embedding,
        hidden=size.hidden,
        layers=size.layers,
        cell=settings.cell,
        bidirectional=settings.bidirectional,
        dropout=Dropout(settings.dropout, variational=settings.variational),
    )
    shares = shared and settings.share
    writer = build_writer(
        settings,
        symbols=target,
        memory=encoder.width,
        longest=longest,
        embed=read if shares else None,
    )
    return EncoderDecoder(encoder, writer)


def build_writer(
    settings: RecurrentSettings,
    *,
    symbols: int,
    memory: int,
    longest: int,
    embed: nn.Embedding | None = None,
) -> RecurrentDecoder | Generator:
    """The writer of the settings, for any reader.

    memory   the width of the reader's states
    longest  the most places of a memory, for a score that must know it (`location`)
    embed    the embedding that it shares with the reader
    """
    width, hidden, layers = settings.sizes
    dropout = Dropout(settings.dropout, variational=settings.variational)
    embed = embedding(symbols, width) if embed is None else embed
    out = nn.Linear(width if settings.tied else hidden, symbols)
    if settings.tied:
        tie(out, embed)
    cell: dict[str, Any] = {"cell": settings.cell, "hidden": hidden, "layers": layers}
    parts: dict[str, Any] = {"out": out, "summary": settings.summary, "dropout": dropout}
    if settings.mechanism == "none":
        parts |= {"every": settings.context == "every", "readout": settings.readout}
        return Generator(embed, inputs=width, vector=memory, **cell, **parts)
    fed = {"search": memory, "luong": out.in_features if settings.input_feeding else 0}
    parts |= {
        "embed": embed,
        "stack": Stack(inputs=width + fed[settings.decoder], dropout=dropout, **cell),
        "first": First(memory, **cell),
        "attention": _attention(settings, hidden, memory, longest),
    }
    if settings.decoder == "search":
        known = hidden + memory + width
        readout = Readout(settings.readout, parts=known, width=out.in_features)
        return Search(readout=readout, context=memory, **parts)
    kind = InputFeeding if settings.input_feeding else Luong
    return kind(join=Join(context=memory, query=hidden, width=out.in_features), **parts)


def _attention(
    settings: RecurrentSettings, hidden: int, memory: int, longest: int
) -> heed.Attention:
    name = settings.mechanism
    options: dict[str, Any] = {**options_for_sentences(name), **settings.options}
    if "longest" in options_of(name):
        options.setdefault("longest", longest)
    return heed.Attention(name, query=hidden, key=memory, **options)


def embedding(symbols: int, width: int) -> nn.Embedding:
    """Vectors of length about one: as the output's weights too, they give modest logits."""
    embed = nn.Embedding(symbols, width)
    initialise(embed, weight=normal(width**-0.5))
    return embed
