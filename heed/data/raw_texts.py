"""Texts of any length as they stand in files: documents, piece by piece.

texts = Texts(each_file(sources))
for text, opens in texts.pieces(report): ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from heed.data.sources import FilesReport, TextFiles, json_documents, text_lines
from heed.data.verbatim import in_pieces

Files = Sequence[tuple[str, TextFiles]]
"""Each file by itself, and its name."""


class Piece(NamedTuple):
    """Some of a text, and whether a document begins with it."""

    text: str
    opens: bool


@dataclass
class DocumentReport(FilesReport):
    """Counts of documents: read = kept + dropped, at every moment."""

    one: ClassVar[str] = "document"

    characters: int = 0
    unknown: int = 0  # symbols that the vocabulary does not know

    def add(self, name: str, own: Any) -> None:
        """Add the report on a file that was read to its end."""
        super().add(name, own)
        self.characters += own.characters

    def __str__(self) -> str:
        unknown = f"; {self.unknown:,} symbols of it are unknown" if self.unknown else ""
        return f"{super().__str__()}; {self.characters:,} characters{unknown}"


@dataclass(frozen=True, slots=True)
class Texts:
    """The text of some files, as one corpus.

    start  how many characters of the first file are left out
    end    how many characters of the last file there are; None: all
    """

    files: Files
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


def parted(files: Files, share: float) -> tuple[Texts, Texts]:
    """The text that is trained on, and the end of the last file, which is held out.

    Of all the text it is the share that is asked for, in characters; of several files no more than
    half of the last. Where that file has several documents, each stays whole.
    """
    every = tuple(file for _, file in files)
    cut = _cut(every, share, tuple(map(_stamp, every)))
    return Texts(files, end=cut), Texts(files[-1:], start=cut)


@lru_cache(maxsize=1)
def _cut(files: tuple[TextFiles, ...], share: float, stamps: tuple[tuple[int, int], ...]) -> int:
    """The number of characters of the last file that are not held out; found once for all parts.

    stamps  of the files, so that changed ones are read again
    """
    sizes, starts = [], list[int]()
    for file in files:
        starts, at = [], 0  # of documents, but not of the first
        for text, opens in read_pieces(file):
            starts += [at] if opens and text and at else []
            at += len(text)
        sizes.append(at)
    asked = sum(sizes) - int(sum(sizes) * (1 - share))
    cut = sizes[-1] - min(asked, sizes[-1] if len(sizes) == 1 else sizes[-1] // 2)
    return next((start for start in starts if start >= cut), starts[-1] if starts else cut)


def _stamp(file: TextFiles) -> tuple[int, int]:
    (path,) = file.paths
    found = path.stat()
    return found.st_size, found.st_mtime_ns


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
