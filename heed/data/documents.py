r"""Documents of sentences out of plain text or JSON lines, streamed, and kept as numbers.

    A sentence a line.            documents are parted by blank lines; a line is a sentence, or,
    Or marks. Tell them apart.    with `sentences="marks"`, text flows on from line to line and a
                                  sentence ends at . ! ? and the like
    Another document.

In the cache a row is a sentence: the column "text" has its symbols, without an end, and "opens" is
1 where it is the first of its document, else 0. The sentences of a document stand side by side, so
any stretch of a document is a stretch of the file, whatever its size.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from pydantic import BeforeValidator, Field

from heed.data import cache
from heed.data.plan import Ints
from heed.data.sentences import flowing
from heed.data.sources import (
    FilesReport,
    TextFiles,
    each_file,
    json_documents,
    text_lines,
    told,
)
from heed.data.text import counted
from heed.errors import Refused

Ends = Literal["lines", "marks"]


class Sentence(NamedTuple):
    """A sentence, and whether a document begins with it."""

    text: str
    opens: bool


class DocumentFiles(TextFiles):
    """The place of documents: text files, or JSON lines with a document each; plain or gzip."""

    sentences: Ends = Field(
        default="lines", description="each line is a sentence; or they end at marks such as ."
    )


DocumentSources = Annotated[
    DocumentFiles | tuple[DocumentFiles, ...], BeforeValidator(told(DocumentFiles))
]
"""Files of one format, or of several."""


@dataclass
class SentenceReport(FilesReport):
    """The sentences, counted: read = kept + dropped, at every moment."""

    one: ClassVar[str] = "sentence"

    documents: int = 0

    def add(self, name: str, own: Any) -> None:
        """Add the report on a file that was read to its end."""
        super().add(name, own)
        self.documents += own.documents

    def __str__(self) -> str:
        return f"{super().__str__()}; {counted(self.documents, 'document')}"


LONGEST = 20_000  # characters of a sentence


def read_sentences(
    sources: DocumentFiles | Sequence[DocumentFiles],
    *,
    folder: Path | None = None,
    longest_characters: int = LONGEST,
    report: SentenceReport | None = None,
) -> Iterator[Sentence]:
    """The sentences worth keeping, in order; `report` counts along. Files without any are refused.

    Where the first sentence of a document is dropped, the document opens with its second.
    """
    report = SentenceReport() if report is None else report
    for name, file in each_file(sources, folder):
        own = SentenceReport()
        yield from read_file(file, own, longest_characters)
        report.add(name, own)
    refuse_nothing(report)


def read_file(
    file: DocumentFiles, report: SentenceReport, longest: int = LONGEST
) -> Iterator[Sentence]:
    """The sentences of one file, which may be none."""
    opens = True
    for text in _sentences(file, longest):
        if text is None:
            opens = True
            continue
        report.read += 1
        if len(text) > longest:
            report.drop("too long")
            continue
        report.kept += 1
        report.documents += opens
        yield Sentence(text, opens)
        opens = False


def refuse_nothing(report: SentenceReport) -> None:
    """Refuse files without a sentence that was kept."""
    if not report.kept:
        names = " and ".join(name for name, _ in report.files)
        raise Refused(f"there is no document in {names}: {report}")


def _sentences(file: DocumentFiles, longest: int) -> Iterator[str | None]:
    """Sentences without the space around them, none of them blank; None between documents."""
    (path,) = file.paths
    lines = _of_json(path, file.key) if file.jsonl else _of_text(path, file)
    return lines if file.sentences == "lines" else flowing(lines, longest)


def _of_text(path: Path, file: DocumentFiles) -> Iterator[str | None]:
    for line in text_lines(path, file.column):
        yield line.strip() or None
        if file.lines == "apart":
            yield None


def _of_json(path: Path, key: str) -> Iterator[str | None]:
    for document in json_documents(path, key):
        yield None
        for sentence in document:
            if not sentence.isspace() and sentence:
                yield sentence.strip()


class Documents:
    """Sentences as numbers, and which of them open a document.

    stream      all symbols, one sentence after the other
    offsets     where each sentence begins in the stream, and the end    N + 1
    documents   the sentence that each document opens with, and N        D + 1
    """

    def __init__(self, corpus: cache.Corpus) -> None:
        if set(corpus.tokens) != {"text", "opens"}:
            raise Refused("the cache holds no documents; start again")
        self.stream, self.offsets = corpus.tokens["text"], corpus.offsets["text"]
        flags = corpus.tokens["opens"]
        opens = np.flatnonzero(flags)
        if len(flags) != len(corpus) or not len(opens) or opens[0] != 0:
            raise Refused("the cache holds sentences without a document; start again")
        self.documents: Ints = np.append(opens, len(corpus)).astype(np.int64)

    @classmethod
    def of(cls, documents: Iterable[Iterable[Sequence[int]]]) -> "Documents":
        """Documents held in memory, for little data."""
        rows = [(s, [int(i == 0)]) for document in documents for i, s in enumerate(document)]
        text, opens = zip(*rows, strict=True) if rows else ((), ())
        return cls(cache.Corpus.of({"text": text, "opens": opens}))

    def __len__(self) -> int:
        return len(self.documents) - 1

    @property
    def borders(self) -> Ints:
        """The place in the stream where each document begins, and the end.    D + 1"""
        return np.asarray(self.offsets)[self.documents]


class Cutter(Protocol):
    """A tokeniser of sentences, such as that of `data/tokenise.py`."""

    @property
    def size(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text's numbers, and one more: its end."""


def encode(
    folder: Path,
    name: str,
    sentences: Iterable[Sentence],
    tokeniser: Cutter,
    *,
    chunk: int = 2000,
) -> Iterator[int]:
    """Tokenise into a cache that `Documents(Corpus.open(...))` reads; yields how many were read."""

    def text(texts: Sequence[str]) -> list[list[int]]:
        return [ids[:-1] for ids in tokeniser.encode(texts)]  # rows add their own </s>

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
