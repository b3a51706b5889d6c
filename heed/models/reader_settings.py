"""Readers from settings: an RNN, filters, a Transformer's encoder, BERT, XLNet.

    reader = build(TaggerSettings(encoder={"kind": "gru"}), symbols=8000)     # or features=12
    read = reader(symbols, lengths)                                          # B S, B -> B S M

`features` says that inputs are real numbers, B S F, which a linear map makes vectors of.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from torch import nn

from heed.errors import HeedError, Refused
from heed.models import xlnet_settings
from heed.models.reader import ConvolutionReader, FilteredReader, Reader
from heed.models.recurrent_encoder import RecurrentEncoder
from heed.models.text_settings import BertSettings, TextSettings, build_bert, with_symbols
from heed.models.transformer_settings import (
    Layers,
    Option,
    Share,
    TransformerSettings,
    build_encoder,
    check_options,
    options_of,
)
from heed.models.vectors import Numbers, Spelled, Vectors
from heed.models.xlnet_reader import ContentReader
from heed.models.xlnet_settings import XLNetSettings
from heed.settings import Settings

PRETRAINED = {"bert": "BERT", "xlnet": "XLNet"}
Gathers = Literal["first", "last"]
GATHERED: dict[str, Gathers] = {"bert": "first", "xlnet": "last"}
"""Where each of them expects the symbol whose state stands for the whole text."""
"""Encoders that may have learnt from plain text before, and what they are called."""

Run = Annotated[int, Field(ge=1, le=8)]
Wide = Annotated[int, Field(ge=1, le=63)]


class RecurrentReaderSettings(Settings):
    """An RNN over words; with `widths`, over words and the outputs of filters around them."""

    kind: Literal["lstm", "gru", "tanh"] = "lstm"
    embedding: int = Field(200, ge=1, le=8192)
    hidden: int = Field(200, ge=1, le=8192, description="Both directions together.")
    layers: int = Field(1, ge=1, le=16)
    bidirectional: bool = True
    channels: int = Field(100, ge=1, le=8192, description="Filters of each width.")
    widths: tuple[Wide, ...] = Field(
        (), max_length=16, description="Of the filters; none if empty."
    )


class ConvolutionReaderSettings(Settings):
    """Filters over neighbouring words."""

    kind: Literal["cnn"] = "cnn"
    embedding: int = Field(200, ge=1, le=8192)
    channels: int = Field(100, ge=1, le=8192, description="Filters of each width.")
    layers: int = Field(
        1, ge=1, le=9, description="All but the first add to the states that they read."
    )
    widths: tuple[Wide, ...] = Field((3, 4, 5), min_length=1, max_length=16)


class TransformerReaderSettings(Settings):
    """A Transformer's encoder over words."""

    kind: Literal["transformer"] = "transformer"
    layers: int = Field(2, ge=1, le=100)
    width: int = Field(128, ge=2, le=8192)
    feed: int = Field(256, ge=1, le=65536)
    heads: int = Field(4, ge=1, le=256)
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["relu", "gelu", "gelu-tanh"] = "relu"
    position: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    dropout: Share = Field(0.1, description="On what each sublayer adds, and on the embeddings.")
    attention_dropout: Share = 0.0
    attention: Layers = "scaled-dot"
    options: dict[str, Option] = Field(default_factory=dict, max_length=32)  # of the mechanisms
    longest: int = Field(512, ge=1, le=65536)  # for learned positions, and `location`

    @model_validator(mode="after")
    def _fits(self) -> TransformerReaderSettings:
        try:
            check_options(self.options, [self.attention], self.heads)
        except HeedError as error:  # some are not ValueErrors, which pydantic expects
            raise ValueError(str(error)) from error
        return self

    @property
    def reads(self) -> int | None:
        """The most symbols of a text that it can read, if there is a limit."""
        places = [self.longest] if self.position == "learned" else []
        if "longest" in options_of([self.attention], self.heads):
            places.append(int(self.options.get("longest", self.longest)))
        return min(places, default=None)

    @property
    def whole(self) -> TransformerSettings:
        """The settings of a Transformer that has this encoder."""
        own = self.model_dump(exclude={"kind", "layers", "attention"})
        return TransformerSettings(
            **own, encoder_layers=self.layers, encoder_attention=self.attention
        )


class ReaderSettings(Settings):
    """A recipe's settings of a reader.

    letters  words are also known by their runs of so many to so many letters (data/letters.py)
    """

    kind: str
    encoder: Annotated[
        RecurrentReaderSettings
        | ConvolutionReaderSettings
        | TransformerReaderSettings
        | BertSettings
        | XLNetSettings,
        Field(discriminator="kind"),
    ] = RecurrentReaderSettings()
    letters: tuple[Run, Run] | None = None
    dropout: Share = Field(0.3, description="On what the label is told from, and between layers.")
    embedding_dropout: Share | None = Field(
        None, description="On the words' vectors; as dropout if not said."
    )
    word_dropout: Share = Field(
        0.0, description="Whole words that are left out in training; their letters stay."
    )

    @property
    def gathers(self) -> Gathers | None:
        """The place of the symbol whose state stands for the whole text in BERT and XLNet."""
        return GATHERED.get(self.encoder.kind)

    @property
    def reads(self) -> int | None:
        """The most symbols of a text that it can read, if there is a limit."""
        chosen = self.encoder
        if isinstance(chosen, BertSettings):
            return chosen.longest
        if isinstance(chosen, TransformerReaderSettings):
            return chosen.reads
        return None


def check(settings: ReaderSettings) -> None:
    """Refuse settings that contradict each other."""
    least = 3 if settings.encoder.kind in PRETRAINED else 2  # those add a symbol of their own
    if settings.reads is not None and settings.reads < least:
        raise ValueError(
            f"longest={settings.reads} leaves no word beside the symbols that every text has; set "
            f"it to {least} or more"
        )
    if settings.letters is not None and settings.letters[0] > settings.letters[1]:
        raise ValueError("letters are a shortest and a longest run: letters=[3, 5]")
    if isinstance(settings.encoder, TransformerReaderSettings | TextSettings):
        name = PRETRAINED.get(settings.encoder.kind, "a Transformer")
        if settings.letters is not None and settings.encoder.kind in PRETRAINED:
            raise ValueError(
                f"letters need whole words, which {name} does not read; leave them out"
            )
        if settings.word_dropout or settings.embedding_dropout is not None:
            key = "word_dropout" if settings.word_dropout else "embedding_dropout"
            raise ValueError(f"{name} has no {key}; use encoder.dropout")
    if isinstance(settings.encoder, TextSettings) and settings.encoder.head != "none":
        raise ValueError("encoder.head belongs to the answer; leave it out")


def build(
    settings: ReaderSettings, *, symbols: int | None = None, features: int | None = None
) -> Reader:
    """The reader for a vocabulary of `symbols`, or for real numbers of so many `features`."""
    chosen = settings.encoder
    if symbols is None:
        _refuse_words(settings)
    if isinstance(chosen, TransformerReaderSettings):
        sizes = {"symbols": symbols, "features": features, "longest": chosen.longest}
        return build_encoder(chosen.whole, **sizes)  # type: ignore[arg-type]
    if isinstance(chosen, TextSettings):
        assert symbols is not None  # refused above
        if isinstance(chosen, BertSettings):
            return build_bert(with_symbols(chosen, symbols)).encoder
        return ContentReader(xlnet_settings.build(with_symbols(chosen, symbols)).streams)
    width, dropout = chosen.embedding, _vector_dropout(settings)
    if symbols is not None:
        words = settings.word_dropout
        return _over(settings, Vectors(symbols, width, words=words, dropout=dropout))
    if features is None:
        raise Refused("say what is read: symbols=... of a vocabulary, or features=... of numbers")
    return _over(settings, Numbers(features, width, dropout=dropout))


def _refuse_words(settings: ReaderSettings) -> None:
    """Refuse what belongs to words, where real numbers are read."""
    if isinstance(settings.encoder, TextSettings):
        name = PRETRAINED[settings.encoder.kind]
        raise Refused(f"{name} reads words; real numbers need lstm, gru, tanh, cnn or transformer")
    if settings.letters is not None or settings.word_dropout:
        key = "word_dropout" if settings.word_dropout else "letters"
        raise Refused(f"{key} belongs to words, and real numbers are none; leave it out")


def _over(settings: ReaderSettings, embed: nn.Module) -> Reader:
    """Filters or an RNN over vectors."""
    chosen = settings.encoder
    assert isinstance(chosen, RecurrentReaderSettings | ConvolutionReaderSettings)
    if isinstance(chosen, ConvolutionReaderSettings):
        return _filters(chosen, embed, layers=chosen.layers, dropout=settings.dropout)
    sizes: dict[str, Any] = {
        "hidden": chosen.hidden,
        "layers": chosen.layers,
        "cell": chosen.kind,
        "bidirectional": chosen.bidirectional,
    }
    if not chosen.widths:
        return RecurrentEncoder(embed, inputs=chosen.embedding, **sizes)
    filters = _filters(chosen, embed)
    rnn = RecurrentEncoder(nn.Identity(), inputs=chosen.embedding + filters.width, **sizes)
    return FilteredReader(filters, rnn)


def _filters(
    chosen: ConvolutionReaderSettings | RecurrentReaderSettings, embed: nn.Module, **more: Any
) -> ConvolutionReader:
    inputs, channels, widths = chosen.embedding, chosen.channels, chosen.widths
    return ConvolutionReader(embed, inputs=inputs, channels=channels, widths=widths, **more)


def build_spelled(
    settings: ReaderSettings, *, symbols: int | None, letters: tuple[int, int]
) -> Spelled | None:
    """The part that adds vectors of a word's letters, where the settings want it.

    letters  how many runs of letters there are, and how many of them a word has at most
    """
    chosen = settings.encoder
    if settings.letters is None or symbols is None or isinstance(chosen, TextSettings):
        return None
    width = chosen.width if isinstance(chosen, TransformerReaderSettings) else chosen.embedding
    (count, most), dropout = letters, _vector_dropout(settings)
    return Spelled(symbols, width, letters=count, most=most, dropout=dropout)


def _vector_dropout(settings: ReaderSettings) -> float:
    some = settings.embedding_dropout
    return settings.dropout if some is None else some
