"""Recurrent encoder-decoders (N→M): a sequence to a sequence, with any attention or none.

search         attention before the update: it asks with s_{t-1}. Bahdanau 2015 (RNNsearch)
luong          attention after it: h̃_t = tanh(W [c_t; h_t]), fed back to the next step or not.
               Luong 2015
fixed          no attention: all the decoder knows is one vector, told once or at every step

A decoder writes a whole text (`forward`) or symbol by symbol (`begin`, `step`, `select`), with the
same numbers. Where nothing is fed back there is no loop over T; where something is, only what
depends on the step before stays inside the loop.

    network = build(RecurrentSettings(attention="local-p/general", decoder="luong"),
                    source=8000, target=8000, shared=False, longest=60)
    written = network(source, lengths, inputs, need="weight")  # B S, B, B T -> B T V
    network.alignment(written.seen)                            # B T S
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, cast

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

import heed
from heed.attention.asking import Asking
from heed.attention.catalogue import CATALOGUE
from heed.attention.naming import options_of, parse
from heed.attention.read import Join
from heed.errors import HeedError, Refused, UnknownName
from heed.models.cells import Dropout, First, Hidden, Loop, Readout, Stack, select
from heed.models.sequence import Encoded, Encoder, Generator
from heed.models.written import Step, Unformed, Written
from heed.records import Attended, Need, State


class Size(NamedTuple):
    """How large a network is."""

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
DEFAULT_OPTIONS: dict[str, dict[str, Any]] = {
    "fixed-window": {"window": 10},
    "expanded-window": {"window": 10},
    "sample": {"soft": 0.5},
}
"""Windows to the measure of a sentence; what catalogues suggest is for long texts. And half of the
rows read softly in training, as Xu 2015 §4.1 advises."""

Option = (
    bool | Annotated[int, Field(ge=-65536, le=65536)] | Annotated[float, Field(ge=-1e6, le=1e6)]
)


class RecurrentSettings(BaseModel):
    """What a recipe says of a recurrent encoder-decoder. What is None is as `size` has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["recurrent"] = "recurrent"
    size: Literal["tiny", "small", "base", "big"] = "small"
    embedding: int | None = Field(None, ge=1, le=8192)
    hidden: int | None = Field(None, ge=1, le=8192)  # of the encoder both directions together
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
    summary: Literal["last", "mean"] = "last"  # what the decoder's first state is made of
    readout: Literal["tanh", "maxout"] = "tanh"  # search and fixed
    dropout: float = Field(0.2, ge=0, lt=1)  # on embeddings, between layers, before the output
    variational: bool = False  # the same units at every step
    tied: bool = True  # output = target embedding
    share: bool = True  # one embedding for both sides where they share symbols

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
            raise ValueError(f"luong reads out by tanh; readout '{self.readout}' is for search")
        if name == "none" and self.options:
            raise ValueError("options are the attention's, and there is none")
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
        if not (claims.step and claims.at_once):
            raise Refused(f"'{word}' asks once of a whole text; a decoder asks at every step")
        if not claims.context:
            raise Refused(f"'{word}' gathers nothing a decoder could read; leave it out")
    known = options_of(name)
    for option, value in options.items():
        if option not in known:
            raise UnknownName(f"option of '{name}'", option, list(known) or ["(it takes none)"])
        if option == "segments" and value:
            raise Refused("segments are for texts in parts; a translator's source has none")


@dataclass(frozen=True, slots=True)
class Carry:
    """What the next step needs."""

    hidden: tuple[Hidden, ...]  # of every layer
    ask: Asking  # the attention, and the source, projected once
    state: State  # of the attention
    fed: Tensor | None = None  # luong: h̃ of the step before
    join: Callable[..., Tensor] | None = None  # luong: how it is made, where a loop learns

    @property
    def top(self) -> Tensor:
        """The topmost state.    B H"""
        return self.hidden[-1][0]

    def select(self, rows: Tensor, same: bool = False) -> Carry:
        """The carry of the chosen rows; with `same`, their sources stay where they are."""
        return Carry(
            select(self.hidden, rows),
            self.ask if same else self.ask.select(rows),
            self.state.select(rows),
            None if self.fed is None else self.fed.index_select(0, rows),
            self.join,
        )


class Decoder(nn.Module):
    """What decoders with attention share: a loop over T around one step, `advance`.

    embed    what was written so far to vectors
    stack    the recurrent layers
    first    their first state from a summary of the source
    attention  asked by the topmost state
    out      to the symbols; its weight may be the embedding's
    """

    def __init__(
        self,
        *,
        embed: nn.Embedding,
        stack: Stack,
        first: First,
        attention: heed.Attention,
        out: nn.Linear,
        summary: Literal["last", "mean"] = "last",
        dropout: Dropout | None = None,
    ) -> None:
        super().__init__()
        self.embed, self.stack, self.first = embed, stack, first
        self.attention, self.out, self.summary = attention, out, summary
        self.dropout = dropout or Dropout()

    def begin(self, source: Encoded, need: Need = "context") -> Carry:
        """Before the first symbol."""
        place = torch.arange(source.states.shape[1], device=source.lengths.device)
        there = heed.Visible.keys(place < source.lengths[:, None])  # a table: each step needs it
        memory = self.attention.remember(source.states, visible=there)
        ask = Asking(self.attention, memory, need)
        return Carry(self.first(source.summary(self.summary)), ask, State())

    fed: int = 0
    """The width of what is fed back."""

    def advance(
        self, x: Tensor, carry: Carry, loop: tuple[Loop, ...], noise: tuple[Tensor, ...] = ()
    ) -> tuple[Carry, Attended]:
        """One step; x is what the embedding brings to the first layer's gates.    B G"""
        raise NotImplementedError

    def known(self, steps: list[Carry], seen: Attended, e: Tensor) -> Tensor:
        """What the output is computed from, for all steps at once.    -> B T width"""
        raise NotImplementedError

    def forward(self, source: Encoded, inputs: Tensor, need: Need = "context") -> Written:
        """Symbols B T -> logits B T V"""
        e = self.dropout(self.embed(inputs))
        carry, loop = self.begin(source, need), self.stack.loop(self.fed)
        gates = self.stack.each[0].project(e.transpose(0, 1)).unbind(0)  # T × B G
        steps, records = [], []
        for x, noise in zip(gates, self.stack.noise(source.last, len(gates)), strict=True):
            carry, record = self.advance(x, carry, loop, noise)
            steps.append(carry)
            records.append(record)
        seen = Attended.join(records)
        return self.write(self.known(steps, seen, e), seen)

    def write(self, known: Tensor, seen: Attended) -> Written:
        """B T width -> logits B T V"""
        return Written(Unformed.of(self.dropout(known), self.out), {"decoder.attention": seen})

    def step(self, carry: Carry, symbols: Tensor) -> Step:
        """The next symbol of each row.    N -> N V"""
        e = self.embed(symbols)
        carry, seen = self.advance(self.stack.each[0].project(e), carry, self.stack.loop(self.fed))
        known = self.known([carry], seen, e[:, None])[:, 0]
        weight = None if carry.ask.need == "context" else seen.weight[:, 0, 0]
        return Step(self.out(known), carry, weight)


class Search(Decoder):
    """Look, then move on: s_t = f(s_{t-1}, [y_{t-1}; c_t]). Bahdanau 2015 A.2."""

    def __init__(self, *, readout: Readout, context: int, **parts: Any) -> None:
        super().__init__(**parts)
        self.readout = readout
        self.fed = context

    def advance(
        self, x: Tensor, carry: Carry, loop: tuple[Loop, ...], noise: tuple[Tensor, ...] = ()
    ) -> tuple[Carry, Attended]:
        seen = carry.ask(carry.top[:, None], carry.state)
        hidden = self.stack.step(x, carry.hidden, noise, loop, seen.context.squeeze(1))
        return Carry(hidden, carry.ask, seen.state), seen

    def known(self, steps: list[Carry], seen: Attended, e: Tensor) -> Tensor:
        states = torch.stack([step.top for step in steps], 1)
        return cast(Tensor, self.readout(states, seen.context, e))


class Luong(Decoder):
    """Move on, then look: h̃_t = tanh(W [c_t; h_t]). Luong 2015 §3. Nothing is fed back."""

    def __init__(self, *, join: Join, **parts: Any) -> None:
        super().__init__(**parts)
        self.join = join

    def advance(
        self, x: Tensor, carry: Carry, loop: tuple[Loop, ...], noise: tuple[Tensor, ...] = ()
    ) -> tuple[Carry, Attended]:
        hidden = self.stack.step(x, carry.hidden, noise, loop, carry.fed)
        top = hidden[-1][0]
        seen = carry.ask(top[:, None], carry.state)
        fed = (carry.join or self.join)(seen.context.squeeze(1), top)
        return Carry(hidden, carry.ask, seen.state, fed, carry.join), seen

    def known(self, steps: list[Carry], seen: Attended, e: Tensor) -> Tensor:
        return torch.stack([step.fed for step in steps if step.fed is not None], 1)

    def forward(self, source: Encoded, inputs: Tensor, need: Need = "context") -> Written:
        """Symbols B T -> logits B T V: all states, then all looks, in one call each."""
        carry = self.begin(source, need)
        states = self.stack(self.dropout(self.embed(inputs)), carry.hidden)
        seen = self.attention(states, carry.ask.memory, carry.state, need=need)
        return self.write(self.join(seen.context, states), seen)


class InputFeeding(Luong):
    """Luong's decoder whose h̃ goes into the next step, so that it knows where it looked. §3.3"""

    def begin(self, source: Encoded, need: Need = "context") -> Carry:
        carry = super().begin(source, need)
        fed = source.last.new_zeros(len(source.last), self.join.linear.out_features)
        return Carry(carry.hidden, carry.ask, carry.state, fed, self.join.in_steps())

    @property
    def fed(self) -> int:  # type: ignore[override]
        return self.join.linear.out_features

    forward = Decoder.forward


class Fixed(nn.Module):
    """No attention: the source is one vector, and a `Generator` does the rest. Sutskever 2014."""

    def __init__(self, generator: Generator, *, summary: Literal["last", "mean"] = "last") -> None:
        super().__init__()
        self.generator, self.summary = generator, summary

    def begin(self, source: Encoded, need: Need = "context") -> Any:
        """Before the first symbol."""
        return self.generator.begin(source.summary(self.summary))

    def step(self, carry: Any, symbols: Tensor) -> Step:
        """The next symbol of each row.    N -> N V"""
        return self.generator.step(carry, symbols)

    def forward(self, source: Encoded, inputs: Tensor, need: Need = "context") -> Written:
        """Symbols B T -> logits B T V"""
        written: Written = self.generator(source.summary(self.summary), inputs)
        return written


class RecurrentTranslator(nn.Module):
    """A recurrent encoder and one of the decoders."""

    def __init__(self, encoder: Encoder, decoder: Decoder | Fixed) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(
        self, source: Tensor, lengths: Tensor, inputs: Tensor, need: Need = "context"
    ) -> Written:
        """Source B S, its lengths B, what was written before each symbol B T -> logits B T V"""
        written: Written = self.decoder(self.encoder(source, lengths), inputs, need)
        return written

    def begin(self, source: Tensor, lengths: Tensor, need: Need = "context") -> Any:
        """Read the source: what the first step needs."""
        return self.decoder.begin(self.encoder(source, lengths), need)

    def step(self, carry: Any, symbols: Tensor) -> Step:
        """The next symbol of each hypothesis.    N -> N V"""
        return self.decoder.step(carry, symbols)

    def select(self, carry: Any, rows: Tensor, same: bool = False) -> Any:
        """The carry of the chosen rows, in that order, which may repeat or leave out some.

        same  each row goes on with the same sentence in the same place: its source is not copied
        """
        return carry.select(rows, same)

    def alignment(self, seen: dict[str, Attended]) -> Tensor:
        """The weights that stand for the word alignment.    B T S"""
        if not seen:
            raise Refused("this network has no attention, so it has no alignment to show")
        return seen["decoder.attention"].weight[:, 0]


def build(
    settings: RecurrentSettings, *, source: int, target: int, shared: bool, longest: int
) -> RecurrentTranslator:
    """The network that the settings describe.

    source, target  the sizes of the vocabularies
    shared          whether they are one
    longest         the longest source, for a score that must know (`location`)
    """
    standard = SIZES[settings.size]
    width = settings.embedding or standard.embedding
    hidden = settings.hidden or standard.hidden
    layers, cell = settings.layers or standard.layers, settings.cell
    dropout = Dropout(settings.dropout, variational=settings.variational)
    read = _embedding(source, width)
    embed = read if shared and settings.share else _embedding(target, width)
    out = nn.Linear(width if settings.tied else hidden, target)
    if settings.tied:
        out.weight = embed.weight
    encoder = Encoder(
        read,
        inputs=width,
        hidden=hidden,
        layers=layers,
        cell=cell,
        bidirectional=settings.bidirectional,
        dropout=dropout,
    )
    if settings.mechanism == "none":
        generator = Generator(
            embed,
            inputs=width,
            vector=hidden,
            hidden=hidden,
            out=out,
            layers=layers,
            cell=cell,
            every=settings.context == "every",
            readout=settings.readout,
            dropout=dropout,
        )
        return RecurrentTranslator(encoder, Fixed(generator, summary=settings.summary))
    fed = {"search": hidden, "luong": out.in_features if settings.input_feeding else 0}
    parts: dict[str, Any] = {
        "embed": embed,
        "stack": Stack(cell, width + fed[settings.decoder], hidden, layers, dropout),
        "first": First(hidden, cell=cell, hidden=hidden, layers=layers),
        "attention": _attention(settings, hidden, longest),
        "out": out,
        "summary": settings.summary,
        "dropout": dropout,
    }
    return RecurrentTranslator(encoder, _decoder(settings, parts, width, hidden))


def _decoder(
    settings: RecurrentSettings, parts: dict[str, Any], width: int, hidden: int
) -> Decoder:
    to = parts["out"].in_features
    if settings.decoder == "search":
        readout = Readout(settings.readout, parts=2 * hidden + width, width=to)
        return Search(readout=readout, context=hidden, **parts)
    kind = InputFeeding if settings.input_feeding else Luong
    return kind(join=Join(context=hidden, query=hidden, width=to), **parts)


def _attention(settings: RecurrentSettings, hidden: int, longest: int) -> heed.Attention:
    name = settings.mechanism
    options: dict[str, Any] = dict(settings.options)
    for word in parse(name).values():
        options = {**DEFAULT_OPTIONS.get(word, {}), **options}
    if "longest" in options_of(name):
        options.setdefault("longest", longest)
    return heed.Attention(name, query=hidden, key=hidden, **options)


def _embedding(symbols: int, width: int) -> nn.Embedding:
    """Vectors of length about one: as the output's weights too, they give modest logits."""
    embed = nn.Embedding(symbols, width)
    nn.init.normal_(embed.weight, std=width**-0.5)
    return embed
