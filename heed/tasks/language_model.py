r"""Language-model: from plain text to a model that goes on writing it.

    First Citizen:\nBefore we proceed any  ->   further, hear me speak.

Data     Text files of any size, as they stand: every space and line break counts. What to judge by
         is files of its own, or the last part of the text. Symbols are characters, or pieces of
         bytes that are learnt from the text (`data/verbatim.py`).
Model    A recurrent network (`models/recurrent_language.py`), a Transformer decoder, GPT-2
         (`models/text_settings.py`), or XLNet from left to right (`models/xlnet_settings.py`): each
         symbol is predicted from those before it, in rows of `context` symbols that are cut
         somewhere else in every epoch (`data/packing.py`). With `memory`, XLNet's rows go on from
         batch to batch, and it remembers what stood before them.
Judged   The loss over the whole of what was held out, in nats per symbol; perplexity; bits per
         character and per byte, which can be compared between vocabularies.
A good run  `shakespeare-gpt` passes 1.47 nats per character; docs/results.md has the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import nn

from heed.data.tokenise import SPECIALS
from heed.data.verbatim import Kind, Verbatim, read_text
from heed.errors import Refused
from heed.models import recurrent_language, text_settings, xlnet_settings
from heed.models.recurrent_language import RecurrentLanguageSettings
from heed.models.text_settings import GPT2Settings
from heed.models.xlnet_settings import XLNetSettings
from heed.tasks.writer import Reading

Model = Annotated[
    RecurrentLanguageSettings | GPT2Settings | XLNetSettings, Field(discriminator="kind")
]
"""The settings of any model that goes on writing a text."""

BYTES = 256 + len(SPECIALS)
Paths = Annotated[list[str], Field(min_length=1, max_length=100_000)]


class Tokens(BaseModel):
    """How text is cut into symbols."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind = "character"
    size: int = Field(4096, ge=5, le=1_000_000, description="Symbols in the vocabulary, at most.")

    @model_validator(mode="after")
    def _room(self) -> Tokens:
        if self.kind == "byte-bpe" and self.size < BYTES:
            raise ValueError(f"byte-bpe has {BYTES} symbols or more; got size={self.size}")
        return self


class Data(BaseModel):
    """Where the text comes from, and what is held out of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str = Field(".", description="Paths start here; a name is looked up in $HEED_DATA.")
    train: str | Paths
    valid: str | Paths | None = Field(None, description="None: the last part of the text.")
    test: str | Paths | None = None
    held_out: float = Field(
        0.1, gt=0, lt=1, description="The share at the end of the text to judge by, without valid."
    )
    tokens: Tokens = Tokens()
    context: int = Field(256, ge=1, le=65536, description="Symbols in a row.")
    memory: int = Field(
        0,
        ge=0,
        le=65536,
        description="Symbols before a row that XLNet remembers; rows go on from batch to batch.",
    )

    @model_validator(mode="after")
    def _once(self) -> Data:
        for part in ("train", "valid", "test"):
            paths = listed(getattr(self, part))
            if len(set(paths)) < len(paths):
                raise ValueError(f"{part} names a file twice")
        return self


def listed(paths: str | list[str] | None) -> list[str]:
    """One path or several, as a list."""
    return [paths] if isinstance(paths, str) else paths or []


def build(settings: Any, *, symbols: int, context: int) -> nn.Module:
    """The network of the settings, for a vocabulary and for rows of `context` symbols."""
    if isinstance(settings, RecurrentLanguageSettings):
        return recurrent_language.build(settings, symbols=symbols)
    known = fitted(settings, symbols=symbols, context=context)
    if isinstance(known, XLNetSettings):
        return xlnet_settings.build(known)
    return text_settings.build(known)


def fitted(
    settings: GPT2Settings | XLNetSettings, *, symbols: int, context: int
) -> GPT2Settings | XLNetSettings:
    """Settings that know the vocabulary; refused where the text does not fit them.

    XLNet reads from left to right here, whatever its settings say, and has a head that writes.
    """
    xlnet = isinstance(settings, XLNetSettings)
    if settings.head != "language" and not (xlnet and settings.head == "none"):
        raise Refused(f"a language model has the head 'language', not '{settings.head}'")
    if settings.symbols not in (None, symbols):
        raise Refused(
            f"model.symbols={settings.symbols}, and the vocabulary has {symbols}; leave it out"
        )
    if xlnet:
        ahead = {"symbols": symbols, "head": "language", "direction": "left-to-right"}
        return settings.model_copy(update=ahead)
    if context > settings.longest:
        raise Refused(
            f"data.context={context} symbols do not fit the model's places: "
            f"set model.longest={context}"
        )
    return settings.model_copy(update={"symbols": symbols})


def places(settings: Any) -> int | None:
    """How many symbols a model can see at once; None: any number."""
    return settings.longest if isinstance(settings, GPT2Settings) else None


Texts = Callable[[], Iterator[str]]
"""A text, some of it at a time; from its beginning whenever it is called."""


def texts(data: Data, root: Path) -> dict[str, list[Texts]]:
    """The documents of each part: train, valid, and test if there is one.

    Without files to validate by, the end of the last training file is held out: of all the
    training text the share that was asked for, in characters; of several files no more than half
    of the last.
    """
    found: dict[str, list[Texts]] = {}
    paths = {
        part: [root / data.folder / path for path in listed(getattr(data, part))]
        for part in ("train", "valid", "test")
    }
    for part, files in paths.items():
        if files:
            found[part] = [_whole(path) for path in files]
    if "valid" not in found:
        last, cut = paths["train"][-1], _cut(paths["train"], data.held_out)
        found["train"][-1] = lambda: between(read_text(last), 0, cut)
        found["valid"] = [lambda: between(read_text(last), cut, None)]
    return found


def _cut(files: list[Path], share: float) -> int:
    """How many characters of the last file are not held out."""
    sizes = [sum(map(len, read_text(path))) for path in files]
    asked = sum(sizes) - int(sum(sizes) * (1 - share))
    return sizes[-1] - min(asked, sizes[-1] if len(sizes) == 1 else sizes[-1] // 2)


def _whole(path: Path) -> Texts:
    return lambda: read_text(path)


def between(pieces: Iterator[str], start: int, end: int | None) -> Iterator[str]:
    """The characters of a text from `start` to `end`, by the pieces that it comes in."""
    at = 0
    for piece in pieces:
        if end is not None and at >= end:
            return
        some = piece[max(0, start - at) : None if end is None else end - at]
        at += len(piece)
        if some:
            yield some


def vocabulary(settings: Tokens, documents: Sequence[Texts]) -> Verbatim:
    """Learnt from the training text."""
    every = (piece for document in documents for piece in document())
    return Verbatim.train(settings.kind, every, settings.size)


@dataclass(frozen=True, slots=True)
class Scores:
    """How well a text is predicted."""

    symbols: int
    characters: int
    unknown: int  # symbols that the vocabulary does not know
    context: int  # symbols in a window
    overlap: int  # of these, what was read before
    loss: float  # nats per symbol
    perplexity: float
    bits_per_character: float
    bits_per_byte: float

    def line(self) -> str:
        """In one line."""
        return (
            f"loss {self.loss:.4f} · perplexity {self.perplexity:.3f} · "
            f"{self.bits_per_character:.4f} bits per character"
        )


def judged(readings: Sequence[Reading], *, context: int, overlap: int = 0) -> Scores:
    """The scores of some texts together."""
    nats, symbols, characters, size, unknown = (
        sum(getattr(each, field) for each in readings)
        for field in ("nats", "symbols", "characters", "bytes", "unknown")
    )
    loss = nats / max(symbols, 1)
    bits = nats / math.log(2)
    return Scores(
        symbols,
        characters,
        unknown,
        context,
        overlap,
        loss,
        math.exp(min(loss, 700)),
        bits / max(characters, 1),
        bits / max(size, 1),
    )
