r"""Documents of sentences out of plain text or JSON lines, streamed, and kept as numbers.

    A sentence a line.            documents are parted by blank lines; a line is a sentence, or,
    Or marks. Tell them apart.    with `sentences="marks"`, text flows on from line to line and a
                                  sentence ends at . ! ? and the like
    Another document.

In the cache a row is a sentence: the column "text" has its symbols, without an end, and "opens" is
1 where it is the first of its document, else 0. The sentences of a document stand side by side, so
any stretch of a document is a stretch of the file, whatever its size.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from heed.data import cache
from heed.data.pairs import Report
from heed.data.plan import Ints
from heed.data.sentences import flowing
from heed.data.text import read_lines
from heed.data.tokenise import Tokeniser
from heed.errors import Refused

Ends = Literal["lines", "marks"]


class Sentence(NamedTuple):
    """A sentence, and whether a document begins with it."""

    text: str
    opens: bool


class DocumentFiles(BaseModel):
    """Where documents are: text files, or JSON lines with a document each; plain or gzip."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: tuple[Path, ...] = Field(default=(), description="plain text, parted by blank lines")
    jsonl: tuple[Path, ...] = Field(default=(), description="a JSON object a line")
    column: int | None = Field(
        default=None, ge=0, le=1000, description="of text files that are tables with tabs, from 0"
    )
    key: str = Field(
        default="text", description="of the JSON objects: a text, or a list of its sentences"
    )
    sentences: Ends = Field(
        default="lines", description="each line is a sentence; or they end at marks such as ."
    )

    @model_validator(mode="before")
    @classmethod
    def _one_file_is_a_list(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        one = {k: (v,) for k, v in given.items() if k in ("text", "jsonl") and _single(v)}
        return {**given, **one}

    @model_validator(mode="after")
    def _some_place(self) -> Self:
        if bool(self.text) == bool(self.jsonl):
            raise ValueError("give text files as `text`, or JSON lines as `jsonl`")
        if self.column is not None and not self.text:
            raise ValueError("a column is that of text files, and none is given")
        return self

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file, in the order in which it is read."""
        return self.text or self.jsonl

    def under(self, folder: Path) -> Self:
        """The same files, looked for in a folder unless their paths are absolute."""
        moved = {name: tuple(folder / p for p in getattr(self, name)) for name in ("text", "jsonl")}
        return self.model_copy(update=moved)

    def __str__(self) -> str:
        return " and ".join(map(str, self.paths))


def _single(value: Any) -> bool:
    return isinstance(value, str | Path)


@dataclass
class SentenceReport(Report):
    """What became of the sentences: read = kept + dropped, at every moment."""

    documents: int = 0

    def __str__(self) -> str:
        counted = super().__str__().replace(" pairs ", " sentences ", 1)
        return f"{counted}; {self.documents:,} document{'s' * (self.documents != 1)}"


def read_sentences(
    files: DocumentFiles, *, longest_characters: int = 20_000, report: SentenceReport | None = None
) -> Iterator[Sentence]:
    """The sentences worth keeping, in their order; `report` counts along. None at all is refused.

    Where the first sentence of a document is dropped, the document opens with its second.
    """
    report = SentenceReport() if report is None else report
    opens = True
    for text in _sentences(files, longest_characters):
        if text is None:
            opens = True
            continue
        report.read += 1
        if len(text) > longest_characters:
            report.drop("too long")
            continue
        report.kept += 1
        report.documents += opens
        yield Sentence(text, opens)
        opens = False
    if not report.kept:
        raise Refused(f"nothing to learn from in {files}: {report}")


def _sentences(files: DocumentFiles, longest: int) -> Iterator[str | None]:
    """Sentences without the space around them, none of them blank; None between documents."""
    for path in files.paths:
        yield None
        lines = _of_json(path, files.key) if files.jsonl else _of_text(path, files.column)
        yield from lines if files.sentences == "lines" else flowing(lines, longest)


def _of_text(path: Path, column: int | None) -> Iterator[str | None]:
    for number, line in read_lines(path):
        if column is not None and line.strip():
            cells = line.split("\t")
            if len(cells) <= column:
                raise Refused(f"{path}:{number}: {len(cells)} columns, and `column` is {column}")
            line = cells[column]
        yield line.strip() or None


def _of_json(path: Path, key: str) -> Iterator[str | None]:
    for number, line in read_lines(path):
        if not line.strip():
            continue
        yield None
        for sentence in _document(line, key, f"{path}:{number}"):
            if not sentence.isspace() and sentence:
                yield sentence.strip()


def _document(line: str, key: str, where: str) -> list[str]:
    """A text has a sentence a line; in a list each text is one, whatever is inside."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{where}: not JSON ({error})") from None
    if not isinstance(row, dict) or key not in row:
        has = f"; it has {', '.join(map(str, list(row)[:10]))}" if isinstance(row, dict) else ""
        raise Refused(f"{where}: not a JSON object with the key '{key}'{has}")
    found = row[key].split("\n") if isinstance(row[key], str) else row[key]
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise Refused(f"{where}: the key '{key}' is neither a text nor a list of texts")
    try:  # JSON can spell half a surrogate pair, which no UTF-8 text holds
        "".join(found).encode()
    except UnicodeEncodeError:
        raise Refused(f"{where}: holds half a surrogate pair") from None
    return found


class Documents:
    """Sentences as numbers, and which of them open a document.

    stream      all symbols, one sentence after the other
    offsets     where each sentence begins in the stream, and the end    N + 1
    documents   the sentence that each document opens with, and N        D + 1
    """

    def __init__(self, corpus: cache.Corpus) -> None:
        if set(corpus.tokens) != {"text", "opens"}:
            raise Refused("the cache holds no documents; begin anew")
        self.stream, self.offsets = corpus.tokens["text"], corpus.offsets["text"]
        flags = corpus.tokens["opens"]
        opens = np.flatnonzero(flags)
        if len(flags) != len(corpus) or not len(opens) or opens[0] != 0:
            raise Refused("the cache holds sentences of no document; begin anew")
        self.documents: Ints = np.append(opens, len(corpus)).astype(np.int64)

    @classmethod
    def of(cls, documents: Iterable[Iterable[Sequence[int]]]) -> "Documents":
        """Held in memory, for little data."""
        rows = [(s, [int(i == 0)]) for document in documents for i, s in enumerate(document)]
        text, opens = zip(*rows, strict=True) if rows else ((), ())
        return cls(cache.Corpus.of({"text": text, "opens": opens}))

    def __len__(self) -> int:
        return len(self.documents) - 1

    @property
    def borders(self) -> Ints:
        """Where in the stream each document begins, and the end.    D + 1"""
        return np.asarray(self.offsets)[self.documents]


def encode(
    folder: Path,
    name: str,
    sentences: Iterable[Sentence],
    tokeniser: Tokeniser,
    *,
    chunk: int = 2000,
) -> Iterator[int]:
    """Tokenise into a cache that `Documents(Corpus.open(...))` reads; gives how many were read."""

    def text(texts: Sequence[str]) -> list[list[int]]:
        return [ids[:-1] for ids in tokeniser.encode(texts)]  # no end, which rows bring themselves

    def opens(flags: Sequence[str]) -> list[list[int]]:
        return [[len(flag)] for flag in flags]

    return cache.encode(
        folder,
        name,
        ((sentence.text, "1" * sentence.opens) for sentence in sentences),
        {"text": text, "opens": opens},
        vocabulary=tokeniser.size,
        fingerprint=tokeniser.fingerprint,
        chunk=chunk,
    )
