"""Labels: one for a whole input, by what its places come to together, or one for each place.

A reader gives a state for each place; a pool makes one vector of them: a static attention, which
shows the weight of each place, or the mean, the maximum, the last or the first state. Yang 2016,
Kim 2014, Devlin 2019 §4.1, Yang 2019. Without a pool each place gets a label of its own
(`heed.models.tagger`).

    network = build(ClassifierSettings(pool="static/additive"), symbols=8000, labels=2)
    said = network(symbols, lengths, need="weight")          # B S, B
    said.logits                                              # B C
    said.seen["pool"].weight                                 # B H 1 S

    network = build(ClassifierSettings(encoder={"kind": "gru"}), features=12, labels=9)
    network(numbers, lengths).logits                         # B S F, B -> B C
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from heed.attention.catalogue import CATALOGUE
from heed.attention.names import check_options, claims_of, options_of
from heed.errors import HeedError, Refused
from heed.models import reader_settings, xlnet_settings
from heed.models.answers import Answered, at
from heed.models.pool import FirstPool, LastPool, MaxPool, MeanPool, StaticPool, SummaryPool
from heed.models.positioned_words import lengths_of
from heed.models.reader import Reader
from heed.models.reader_settings import PRETRAINED, ReaderSettings, build_spelled
from heed.models.recurrent_settings import Option
from heed.models.text_settings import TextSettings, draw_linear
from heed.models.transformer_settings import Share
from heed.models.vectors import Spelled
from heed.models.xlnet_settings import XLNetSettings
from heed.records import Need

POOLS = ("mean", "max", "last", "first")
"""Pools that make one vector of the states without attention; all others are attentions."""


class ClassifierSettings(ReaderSettings):
    """A recipe's settings of a classifier.

    pool     mean, max, last (of XLNet its summary), first (of BERT), or a static attention by name:
             static/additive
    letters  words are also known by their runs of so many to so many letters (data/letters.py)
    """

    kind: Literal["classifier"] = "classifier"
    pool: str = Field("static/additive", max_length=200)
    options: dict[str, Option] = Field(default_factory=dict, max_length=32)  # of the pool
    heads: int = Field(1, ge=1, le=64, description="Looks of a static attention, side by side.")
    attention_dropout: Share = Field(0.0, description="On the weights of a static attention.")

    @model_validator(mode="after")
    def _fits(self) -> ClassifierSettings:
        try:
            check_pool(self.pool, self.options)
        except HeedError as error:  # some are not ValueErrors, which pydantic expects
            raise ValueError(str(error)) from error
        if self.heads > 1 and self.pool in POOLS:
            raise ValueError(f"heads need an attention, which '{self.pool}' is not; set heads=1")
        if self.encoder.kind == "xlnet" and self.pool == "first":
            raise ValueError(
                "pool=first is for BERT; XLNet summarises in the last symbol: model.pool=last"
            )
        reader_settings.check(self)
        return self

    @property
    def reads(self) -> int | None:
        """The most symbols of a text that it can read, if there is a limit."""
        own = super().reads
        places = [] if own is None else [own]
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


def exchanged(model: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The model of a raw recipe with another pool: mean, max, last, first, or a static attention,
    whose `static/` may be left out. With BERT and XLNet, any other name is the attention between
    their words."""
    model = {key: value for key, value in model.items() if key != "options"}
    encoder = model.get("encoder")
    plain = name == "none" or is_pool(name)
    if not plain and isinstance(encoder, Mapping) and encoder.get("kind") in PRETRAINED:
        return {**model, "encoder": {**encoder, "attention": name}}
    pool = "mean" if name == "none" else name if plain else f"static/{name}"
    looks = {"heads": 1} if pool in POOLS else {}  # only an attention has several
    return {**model, "pool": pool, **looks}


@dataclass(eq=False, slots=True)
class Classified(Answered):
    """Answers, and the word vectors that they were computed from.    B S E"""

    vectors: Tensor


class Classifier(nn.Module):
    """A reader, a pool, and an output layer for the label.

    reader   an input to states
    pool     states to one vector; None: each state gets a label of its own
    answer   M -> C
    dropout  on what `answer` is given
    spelled  what is added to the words' vectors for their letters
    """

    def __init__(
        self,
        reader: Reader,
        pool: nn.Module | None,
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
        inputs: Tensor,
        lengths: Tensor | Sequence[int],
        need: Need = "context",
        nudge: Tensor | None = None,
        letters: Tensor | None = None,
        asked: Tensor | None = None,
    ) -> Classified:
        """Inputs of some lengths B -> logits B C; without a pool B S C

        inputs   symbols B S, or real numbers B S F
        nudge    what is added to the vectors that are read  B S E
        letters  the words' runs of letters, used in place of `spelled.known`  B S K
        asked    without a pool: the places whose labels are wanted, in place of all  B K
        """
        lengths = lengths_of(lengths, inputs)
        if self.spelled is not None:
            own = self.spelled(inputs, letters)
            nudge = own if nudge is None else own + nudge
        read = self.encoder(inputs, lengths, need, nudge)
        if self.pool is None:
            logits = self.answer(self.dropout(at(read.states, asked)))
            return Classified(read.states, None, None, None, logits, read.seen, read.vectors)
        pooled, looked = self.pool(read, need)
        logits = self.answer(self.dropout(pooled))
        seen = {**read.seen, **looked}
        return Classified(read.states, pooled, None, None, logits, seen, read.vectors)

    if TYPE_CHECKING:
        __call__ = forward


def build(
    settings: ClassifierSettings,
    *,
    symbols: int | None = None,
    features: int | None = None,
    labels: int,
    letters: tuple[int, int] = (0, 1),
) -> Classifier:
    """The network for so many labels.

    symbols   the size of the vocabulary
    features  in its place: inputs are so many real numbers at every place
    letters   how many runs of letters there are, and how many of them a word has at most
    """
    reader = reader_settings.build(settings, symbols=symbols, features=features)
    pool = _pool(settings, reader.width)
    answer = nn.Linear(reader.width * settings.heads, labels)
    if isinstance(settings.encoder, TextSettings):
        fresh = [answer, pool.dense] if isinstance(pool, FirstPool | SummaryPool) else [answer]
        draw_linear(fresh, settings.encoder.initial)
    spelled = build_spelled(settings, symbols=symbols, letters=letters)
    return Classifier(reader, pool, answer, settings.dropout, spelled)


def _pool(settings: ClassifierSettings, width: int) -> nn.Module:
    if settings.pool == "last" and isinstance(settings.encoder, XLNetSettings):
        return SummaryPool(width, "last", xlnet_settings.bend(settings.encoder))
    plain = {"mean": MeanPool, "max": MaxPool, "last": LastPool}
    if settings.pool in plain:
        return plain[settings.pool]()
    if settings.pool == "first":
        return FirstPool(width)
    dropout, options = settings.attention_dropout, settings.options
    return StaticPool(settings.pool, options, width=width, heads=settings.heads, dropout=dropout)
