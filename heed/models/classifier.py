"""Classifiers: a text to one of several labels, by what its words come to together.

A reader gives a state for each word; a pool makes one vector of them: a static attention, which
shows the weight of each word, or the mean, the maximum, the last or the first state. Yang 2016,
Kim 2014, Devlin 2019 §4.1, Yang 2019.

    network = build(ClassifierSettings(pool="static/additive"), symbols=8000, labels=2)
    said = network(symbols, lengths, need="weight")          # B S, B
    said.logits                                              # B C
    said.seen["pool"].weight                                 # B H 1 S
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from heed.attention.catalogue import CATALOGUE
from heed.attention.names import check_options, claims_of, options_of
from heed.errors import HeedError, Refused
from heed.models import xlnet_settings
from heed.models.answers import Answered
from heed.models.reading import (
    AttentiveReader,
    ContentReader,
    ConvolutionReader,
    FilteredReader,
    First,
    Gathered,
    Greatest,
    Last,
    Mean,
    Reader,
    RecurrentReader,
    Spelled,
    Static,
    Vectors,
)
from heed.models.recurrent_settings import Option
from heed.models.sequence import Encoder as Recurrent
from heed.models.text_settings import (
    BertSettings,
    TextSettings,
    build_bert,
    draw_linear,
    with_symbols,
)
from heed.models.transformer_settings import Share
from heed.models.words import lengths_of
from heed.models.xlnet_settings import XLNetSettings
from heed.records import Need
from heed.settings import Settings

POOLS = ("mean", "max", "last", "first")
"""Pools that make one vector of a text's states without attention; all others are attentions."""

PRETRAINED = {"bert": "BERT", "xlnet": "XLNet"}
"""Encoders that may have learnt from plain text before, and what they are called."""

Run = Annotated[int, Field(ge=1, le=8)]
Wide = Annotated[int, Field(ge=1, le=63)]


class RecurrentEncoder(Settings):
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


class ConvolutionEncoder(Settings):
    """Filters over neighbouring words."""

    kind: Literal["cnn"] = "cnn"
    embedding: int = Field(200, ge=1, le=8192)
    channels: int = Field(100, ge=1, le=8192, description="Filters of each width.")
    layers: int = Field(
        1, ge=1, le=9, description="All but the first add to the states that they read."
    )
    widths: tuple[Wide, ...] = Field((3, 4, 5), min_length=1, max_length=16)


class ClassifierSettings(Settings):
    """What a recipe says of a classifier.

    pool     mean, max, last (of XLNet its summary), first (of BERT), or a static attention by name:
             static/additive
    letters  words are also known by their runs of so many to so many letters (data/letters.py)
    """

    kind: Literal["classifier"] = "classifier"
    encoder: Annotated[
        RecurrentEncoder | ConvolutionEncoder | BertSettings | XLNetSettings,
        Field(discriminator="kind"),
    ] = RecurrentEncoder()
    pool: str = Field("static/additive", max_length=200)
    options: dict[str, Option] = Field(default_factory=dict, max_length=32)  # of the pool
    heads: int = Field(1, ge=1, le=64, description="Looks of a static attention, side by side.")
    letters: tuple[Run, Run] | None = None
    dropout: Share = Field(0.3, description="On what the label is told from, and between layers.")
    embedding_dropout: Share | None = Field(
        None, description="On the words' vectors; as dropout if not said."
    )
    word_dropout: Share = Field(
        0.0, description="Whole words that are left out in training; their letters stay."
    )
    attention_dropout: Share = Field(0.0, description="On the weights of a static attention.")

    @model_validator(mode="after")
    def _fits(self) -> ClassifierSettings:
        try:
            check_pool(self.pool, self.options)
        except HeedError as error:  # some are not ValueErrors, which pydantic expects
            raise ValueError(str(error)) from error
        least = 3 if self.encoder.kind in PRETRAINED else 2  # those add a symbol of their own
        if self.reads is not None and self.reads < least:
            raise ValueError(
                f"longest={self.reads} leaves no word beside the symbols that every text has; set "
                f"it to {least} or more"
            )
        if self.heads > 1 and self.pool in POOLS:
            raise ValueError(f"heads need an attention, which '{self.pool}' is not; set heads=1")
        if self.letters is not None and self.letters[0] > self.letters[1]:
            raise ValueError("letters are a shortest and a longest run: letters=[3, 5]")
        name = PRETRAINED.get(self.encoder.kind)
        if name is None or not isinstance(self.encoder, TextSettings):
            return self
        if self.letters is not None:
            raise ValueError(
                f"letters need whole words, which {name} does not read; leave them out"
            )
        if self.encoder.head != "none":
            raise ValueError("encoder.head belongs to the classifier; leave it out")
        if self.word_dropout or self.embedding_dropout is not None:
            key = "word_dropout" if self.word_dropout else "embedding_dropout"
            raise ValueError(f"{name} has no {key}; use encoder.dropout")
        if name == "XLNet" and self.pool == "first":
            raise ValueError(
                "pool=first is for BERT; XLNet summarises in the last symbol: model.pool=last"
            )
        return self

    @property
    def reads(self) -> int | None:
        """How many symbols of a text it can read, if there is a limit."""
        places = [self.encoder.longest] if self.encoder.kind == "bert" else []
        if self.pool not in POOLS and "longest" in options_of(self.pool):
            places.append(int(self.options.get("longest", options_of(self.pool)["longest"])))
        return min(places, default=None)


def is_pool(name: str) -> bool:
    """Whether a name is that of a pool: a way to make one vector of a text."""
    entries = (CATALOGUE.get(word) for word in name.split("/"))
    return name in POOLS or any(entry and not entry.claims.takes_several for entry in entries)


def check_pool(pool: str, options: dict[str, Any]) -> None:
    """Refuse a pool that does not make one vector of a text, and options that it does not take."""
    if pool in POOLS:
        if options:
            raise Refused(f"options need an attention, which '{pool}' is not")
        return
    claims = claims_of(pool)
    if claims.takes_several:
        raise Refused(
            f"'{pool}' has a query for each word; a text needs a single one: static/{pool}"
        )
    if not claims.gives_context:
        raise Refused(f"'{pool}' returns no context to classify; leave pointer out")
    check_options(pool, options)
    if options.get("segments"):
        raise Refused("segments are for texts in parts, and a pool looks at a whole one")
    if not options.get("learned", True):
        raise Refused("nothing asks a pool but a query that it learns: leave learned=false out")


@dataclass(eq=False, slots=True)
class Classified(Answered):
    """Answers, and the word vectors that they were computed from.    B S E"""

    vectors: Tensor


class Classifier(nn.Module):
    """A reader, a pool, and an output layer for the label.

    reader   words to states
    pool     states to one vector
    answer   M -> C
    dropout  on what `answer` is given
    spelled  what is added to the words' vectors for their letters
    """

    def __init__(
        self,
        reader: Reader,
        pool: nn.Module,
        answer: nn.Linear,
        dropout: float = 0.0,
        spelled: Spelled | None = None,
    ) -> None:
        super().__init__()
        self.encoder: Any = reader
        self.spelled = spelled
        self.pool, self.answer, self.dropout = pool, answer, nn.Dropout(dropout)

    def forward(
        self,
        symbols: Tensor,
        lengths: Tensor | Sequence[int],
        need: Need = "context",
        nudge: Tensor | None = None,
        letters: Tensor | None = None,
    ) -> Classified:
        """Texts B S of some lengths B -> logits B C

        nudge    what is added to the words' vectors  B S E
        letters  the words' runs of letters, used in place of `spelled.known`  B S K
        """
        lengths = lengths_of(lengths, symbols)
        if self.spelled is not None:
            own = self.spelled(symbols, letters)
            nudge = own if nudge is None else own + nudge
        read = self.encoder.read(symbols, lengths, need, nudge)
        pooled, looked = self.pool(read, need)
        logits = self.answer(self.dropout(pooled))
        seen = {**read.seen, **looked}
        return Classified(read.states, pooled, None, None, logits, seen, read.vectors)

    if TYPE_CHECKING:
        __call__ = forward


def build(
    settings: ClassifierSettings, *, symbols: int, labels: int, letters: tuple[int, int] = (0, 1)
) -> Classifier:
    """The network for a vocabulary and so many labels.

    letters  how many runs of letters there are, and how many of them a word has at most
    """
    reader, width = _reader(settings, symbols)
    pool = _pool(settings, width)
    answer = nn.Linear(width * settings.heads, labels)
    if isinstance(settings.encoder, TextSettings):
        fresh = [answer, pool.dense] if isinstance(pool, First | Gathered) else [answer]
        draw_linear(fresh, settings.encoder.initial)
    return Classifier(reader, pool, answer, settings.dropout, _spelled(settings, symbols, letters))


def _spelled(
    settings: ClassifierSettings, symbols: int, letters: tuple[int, int]
) -> Spelled | None:
    if settings.letters is None or isinstance(settings.encoder, TextSettings):
        return None
    (count, most), width, dropout = letters, settings.encoder.embedding, _vector_dropout(settings)
    return Spelled(symbols, width, letters=count, most=most, dropout=dropout)


def _vector_dropout(settings: ClassifierSettings) -> float:
    some = settings.embedding_dropout
    return settings.dropout if some is None else some


def _reader(settings: ClassifierSettings, symbols: int) -> tuple[Reader, int]:
    """The reader, and the width of its states."""
    chosen = settings.encoder
    if isinstance(chosen, BertSettings):
        whole = build_bert(with_symbols(chosen, symbols)).encoder
        return AttentiveReader(whole.words, whole.stack), chosen.sizes.width
    if isinstance(chosen, XLNetSettings):
        streams = xlnet_settings.build(with_symbols(chosen, symbols)).streams
        return ContentReader(streams), chosen.sizes.width
    some = _vector_dropout(settings)
    embed = Vectors(symbols, chosen.embedding, words=settings.word_dropout, dropout=some)
    if isinstance(chosen, ConvolutionEncoder):
        filters = _filters(chosen, embed, layers=chosen.layers, dropout=settings.dropout)
        return filters, filters.width
    sizes: dict[str, Any] = {
        "hidden": chosen.hidden,
        "layers": chosen.layers,
        "cell": chosen.kind,
        "bidirectional": chosen.bidirectional,
    }
    if not chosen.widths:
        return RecurrentReader(embed, inputs=chosen.embedding, **sizes), chosen.hidden
    filters = _filters(chosen, embed)
    rnn = Recurrent(nn.Identity(), inputs=chosen.embedding + filters.width, **sizes)
    return FilteredReader(filters, rnn), chosen.hidden


def _filters(
    chosen: ConvolutionEncoder | RecurrentEncoder, embed: nn.Module, **more: Any
) -> ConvolutionReader:
    inputs, channels, widths = chosen.embedding, chosen.channels, chosen.widths
    return ConvolutionReader(embed, inputs=inputs, channels=channels, widths=widths, **more)


def _pool(settings: ClassifierSettings, width: int) -> nn.Module:
    if settings.pool == "last" and isinstance(settings.encoder, XLNetSettings):
        return Gathered(width, "last", xlnet_settings.bend(settings.encoder))
    plain = {"mean": Mean, "max": Greatest, "last": Last}
    if settings.pool in plain:
        return plain[settings.pool]()
    if settings.pool == "first":
        return First(width)
    dropout, options = settings.attention_dropout, settings.options
    return Static(settings.pool, options, width=width, heads=settings.heads, dropout=dropout)
