r"""Language-model: from plain text to a model that goes on writing it.

    First Citizen:\nBefore we proceed any  ->   further, hear me speak.

Data     Text files of any size, as they stand: every space and line break counts; or columns of
         tables and JSON lines, several of them as one corpus (`data/sources.py`). What to judge by
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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field, field_validator, model_validator
from torch import nn

from heed.data.sources import (
    FilesReport,
    TextFiles,
    TextSources,
    each_file,
    json_documents,
    text_lines,
)
from heed.data.tokenise import SPECIALS
from heed.data.verbatim import Kind, Verbatim, in_pieces
from heed.errors import Refused
from heed.models import recurrent_language, text_settings, xlnet_settings
from heed.models.recurrent_language import RecurrentLanguageSettings
from heed.models.text_settings import GPT2Settings
from heed.models.xlnet_settings import XLNetSettings
from heed.settings import Settings
from heed.tasks.writer import Reading

Model = Annotated[
    RecurrentLanguageSettings | GPT2Settings | XLNetSettings, Field(discriminator="kind")
]
"""The settings of any model that goes on writing a text."""

BYTES = 256 + len(SPECIALS)


class Tokens(Settings):
    """How text is cut into symbols."""

    kind: Kind = "character"
    size: int = Field(4096, ge=5, le=1_000_000, description="Symbols in the vocabulary, at most.")

    @model_validator(mode="after")
    def _room(self) -> Tokens:
        if self.kind == "byte-bpe" and self.size < BYTES:
            raise ValueError(f"byte-bpe has {BYTES} symbols or more; got size={self.size}")
        return self


class Data(Settings):
    """Where the text comes from, and what is held out of it. Files are settings, or simply paths:
    text, or *.jsonl; or a list of either, which is read as one corpus."""

    folder: str = Field(".", description="Paths start here; a name is looked up in $HEED_DATA.")
    train: TextSources
    valid: TextSources | None = Field(None, description="None: the last part of the text.")
    test: TextSources | None = None
    held_out: float | None = Field(
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

    @field_validator("held_out", mode="before")
    @classmethod
    def _one_share(cls, given: Any) -> Any:
        if isinstance(given, dict):
            raise ValueError("give one share, which the end of the text is: data.held_out=0.1")
        return given

    @model_validator(mode="after")
    def _once(self) -> Data:
        for part in ("train", "valid", "test"):
            found = getattr(self, part)
            sources = found if isinstance(found, tuple) else [found] if found else []
            paths = [path for source in sources for path in source.paths]
            if len(set(paths)) < len(paths):
                raise ValueError(f"{part} names a file twice")
        return self

    @model_validator(mode="after")
    def _judged_by_something(self) -> Data:
        if self.valid is None and self.held_out is None:
            raise ValueError(
                "data.valid is missing: text to validate the model while it trains; or hold some "
                "out: data.held_out=0.1"
            )
        return self


def build(settings: Model, *, symbols: int, context: int) -> nn.Module:
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
    if settings.symbols is not None and settings.symbols < symbols:
        raise Refused(
            f"model.symbols={settings.symbols}, but the vocabulary has {symbols}; leave it out"
        )
    rows = max(symbols, settings.symbols or 0)
    if xlnet:
        if settings.options.get("segments") not in (None, False, "optional"):
            raise Refused("one text has no segments to compare: leave model.options.segments out")
        ahead = {"symbols": rows, "head": "language", "direction": "left-to-right"}
        return settings.model_copy(update=ahead)
    if context > settings.longest:
        raise Refused(
            f"data.context={context} symbols exceed the model's positions: "
            f"set model.longest={context}"
        )
    return settings.model_copy(update={"symbols": rows})


def places(settings: Model) -> int | None:
    """How many symbols a model can see at once; None: any number."""
    return settings.longest if isinstance(settings, GPT2Settings) else None


class Piece(NamedTuple):
    """Some of a text, and whether a document begins with it."""

    text: str
    opens: bool


@dataclass
class DocumentReport(FilesReport):
    """What became of the documents: read = kept + dropped, at every moment."""

    one: ClassVar[str] = "document"

    characters: int = 0

    def add(self, name: str, own: Any) -> None:
        """Add the report on a file that was read to its end."""
        super().add(name, own)
        self.characters += own.characters

    def __str__(self) -> str:
        return f"{super().__str__()}; {self.characters:,} characters"


@dataclass(frozen=True, slots=True)
class Texts:
    """The text of some files, as one corpus.

    start  how many characters of the first file are left out
    end    how many characters of the last file there are; None: all
    """

    files: Sequence[tuple[str, TextFiles]]
    start: int = 0
    end: int | None = None

    def pieces(self, report: DocumentReport | None = None) -> Iterator[Piece]:
        """The text from its beginning, some of it at a time; `report` counts along."""
        report = DocumentReport() if report is None else report
        for number, (name, file) in enumerate(self.files, 1):
            own = DocumentReport()
            start = self.start if number == 1 else 0
            end = self.end if number == len(self.files) else None
            yield from _counted(between(read_pieces(file), start, end), own)
            report.add(name, own)


def texts(data: Data, root: Path) -> dict[str, Texts]:
    """The text of each part: train, valid, and test if there is one.

    Without files to validate by, the end of the last training file is held out: of all the
    training text the share that was asked for, in characters; of several files no more than half
    of the last. Where that file has several documents, each stays whole.
    """
    folder = root / data.folder
    parts = {part: getattr(data, part) for part in ("train", "valid", "test")}
    files = {part: each_file(some, folder) for part, some in parts.items() if some is not None}
    found = {part: Texts(some) for part, some in files.items()}
    if "valid" not in found:
        train = files["train"]
        assert data.held_out is not None  # or there is text to validate by
        cut = _cut([file for _, file in train], data.held_out)
        found["train"], found["valid"] = Texts(train, end=cut), Texts(train[-1:], start=cut)
    return found


def _cut(files: list[TextFiles], share: float) -> int:
    """How many characters of the last file are not held out."""
    sizes = [sum(len(piece.text) for piece in read_pieces(file)) for file in files]
    asked = sum(sizes) - int(sum(sizes) * (1 - share))
    cut = sizes[-1] - min(asked, sizes[-1] if len(sizes) == 1 else sizes[-1] // 2)
    at = begun = 0
    for text, opens in read_pieces(files[-1]):
        if opens and text and at:
            begun = at
        if begun >= cut:
            break
        at += len(text)
    return begun or cut


def read_pieces(file: TextFiles) -> Iterator[Piece]:
    """The documents of one file, some of each at a time; one that is blank is an empty piece."""
    for document in _documents(file):
        opens = True
        for text in document:
            yield Piece(text, opens)
            opens = False
        if opens:
            yield Piece("", opens)


def _documents(file: TextFiles) -> Iterator[Iterable[str]]:
    r"""The documents of one file, in pieces. Every line ends at "\n", the last one too."""
    (path,) = file.paths
    if file.text and file.lines == "together":
        yield in_pieces(text_lines(path, file.column))
        return
    several = json_documents(path, file.key) if file.jsonl else None
    lines = ([line] for line in text_lines(path, file.column)) if several is None else several
    for document in lines:
        text = "\n".join(document)
        yield [text if text.endswith("\n") else f"{text}\n"] if text.strip() else []


def between(pieces: Iterator[Piece], start: int, end: int | None) -> Iterator[Piece]:
    """The characters of a text from `start` to `end`, by the pieces that it comes in."""
    at, first = 0, True
    for text, opens in pieces:
        if end is not None and at >= end:
            return
        some = text[max(0, start - at) : None if end is None else end - at]
        if some or (not text and at >= start):
            yield Piece(some, opens or first)
            first = False
        at += len(text)


def _counted(pieces: Iterator[Piece], report: DocumentReport) -> Iterator[Piece]:
    """The pieces of documents that are not blank, counted as they pass."""
    for piece in pieces:
        report.read += piece.opens
        if not piece.text:
            report.drop("blank")
            continue
        report.kept += piece.opens
        report.characters += len(piece.text)
        yield piece


def joined(pieces: Iterable[Piece]) -> list[str]:
    """Whole documents, each joined from its pieces."""
    found: list[list[str]] = []
    for text, opens in pieces:
        found += [[]] if opens else []
        found[-1].append(text)
    return ["".join(each) for each in found]


def vocabulary(settings: Tokens, text: Texts) -> Verbatim:
    """A vocabulary learnt from the training text."""
    every = (piece.text for piece in text.pieces())
    return Verbatim.train(settings.kind, every, settings.size)


@dataclass(frozen=True, slots=True)
class Scores:
    """How well a text is predicted."""

    symbols: int
    characters: int
    unknown: int  # symbols that the vocabulary does not know
    context: int  # symbols in a window
    overlap: int  # how many of these were read before
    loss: float  # nats per symbol
    perplexity: float
    bits_per_character: float
    bits_per_byte: float

    def line(self) -> str:
        """The scores in one line."""
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
