"""Sentences with a label for every word, out of columns or JSON lines, counted as they are read.

The    DET      a word a line, its columns parted by tabs or spaces: by default the first has the
cat    NOUN     word and the last its label; a blank line ends the sentence
sleeps VERB
                {"words": ["The", "cat", "sleeps"], "labels": ["DET", "NOUN", "VERB"]}

A line that begins with # is a comment, unless it has as many columns as the first word: "# O".
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import Field, model_validator

from heed.data.file_format import by_format, format_of
from heed.data.labelled import FEW, LONGEST_LABEL, MOST, fits_a_line
from heed.data.pairs import Report, one_place
from heed.data.tables import few
from heed.data.text import counted, encodable, read_json, read_lines
from heed.errors import Refused, close_to
from heed.settings import Settings

Column = Annotated[int, Field(ge=-1000, le=1000)]
FORMATS = ("conll", "tsv", "jsonl")
CONLL = ("conllu", "iob", "iob2", "bio", "txt")
"""Further endings of files in columns."""
LONGEST = 1000
"""The most words of a sentence; a longer one has lost its blank lines."""
APART = 20
"""With so many words, most labels must not be different: they would be words themselves."""
DOCUMENT = "-DOCSTART-"


class Tagged(NamedTuple):
    """The words of a sentence, and the label of each: its part of speech, say."""

    words: tuple[str, ...]
    tags: tuple[str, ...]

    @property
    def text(self) -> str:
        """The words separated by spaces: what decides whether a sentence is held out."""
        return " ".join(self.words)


class TaggedFiles(Settings):
    """A file of tagged sentences: one of `conll`, `tsv` and `jsonl`, plain or gzip; or simply a
    path whose ending shows which.

    Columns of `tsv` are parted by tabs alone, so a word may have spaces; those of `conll` by spaces
    where a line has no tab. A path that ends in .conllu has words in column 1 and labels in 3.
    """

    conll: Path | None = None
    tsv: Path | None = None
    jsonl: Path | None = None
    columns: tuple[Column, Column] | None = Field(
        default=None, description="of the word and of its label, from 0; -1 is the last"
    )
    keys: tuple[str, str] = Field(default=("words", "labels"), description="of the JSON objects")

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, given: Any) -> Any:
        path = given.get("path") if isinstance(given, dict) else given
        if isinstance(path, str | PathLike) and format_of(path, CONLL):
            rest = given if isinstance(given, dict) else {}
            return {"conll": path} | {key: rest[key] for key in rest if key != "path"}
        return by_format(given, FORMATS)

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        one_place({"conll": self.conll}, {"tsv": self.tsv}, {"jsonl": self.jsonl})
        if self.columns is not None and self.jsonl is not None:
            raise ValueError("JSON objects have keys: give `keys` in place of `columns`")
        for name, two in (("columns", self.columns), ("keys", self.keys)):
            if two is not None and two[0] == two[1]:
                raise ValueError(f"{name}: word and label are the same, {two[0]}")
        return self

    @property
    def path(self) -> Path:
        """The file."""
        path = self.conll or self.tsv or self.jsonl
        assert path is not None
        return path

    @property
    def is_universal(self) -> bool:
        """Whether the file is in the format of Universal Dependencies, by its name."""
        return self.conll is not None and format_of(self.conll, ("conllu",)) is not None

    @property
    def places(self) -> tuple[int, int]:
        """The columns of the word and of its label."""
        return self.columns or ((1, 3) if self.is_universal else (0, -1))

    def under(self, folder: Path) -> Self:
        """The same file, looked for in a folder unless its path is absolute."""
        found = {name: getattr(self, name) for name in FORMATS}
        moved = {name: folder / path for name, path in found.items() if path is not None}
        return self.model_copy(update=moved)

    def __str__(self) -> str:
        return str(self.path)


@dataclass
class TaggedReport(Report):
    """The sentences read, kept and dropped, counted: read = kept + dropped, at every moment."""

    one: ClassVar[str] = "sentence"

    words: int = 0  # of the sentences kept
    skipped: int = 0  # lines that hold no word: comments, and where a document starts

    def __str__(self) -> str:
        skipped = f"; {counted(self.skipped, 'line')} without words left out" * bool(self.skipped)
        return f"{super().__str__()}; {counted(self.words, 'word')}{skipped}"


def read_tagged(
    files: TaggedFiles,
    *,
    labels: Collection[str] | None = None,
    only: Callable[[str], bool] | None = None,
    longest: int = LONGEST,
    report: TaggedReport | None = None,
) -> Iterator[Tagged]:
    """The usable sentences, streamed; `report` counts them. A file without any is refused.

    labels   those of the training data: any other is refused, with its line
    only     whether a text is wanted; others are not counted, and there may be none at all. Those
             with another label are dropped: the same file has no training sentence with it
    longest  the most words of a sentence; longer ones are dropped
    """
    report = TaggedReport() if report is None else report
    rows = _json(files) if files.jsonl is not None else _columns(files, report)
    for numbers, sentence in rows:
        if only is not None and not only(sentence.text):
            continue
        report.read += 1
        unseen = None if labels is None else _unseen(sentence, labels)
        if not sentence.words:
            report.drop("without words")
        elif len(sentence.words) > longest:
            report.drop("too long")
        elif unseen is not None and only is not None:
            report.drop("with a label of no training sentence")
        elif unseen is not None and labels is not None:
            raise Refused(f"{files}:{numbers[unseen]}: {_told(sentence.tags[unseen], labels)}")
        else:
            report.kept += 1
            report.words += len(sentence.words)
            yield sentence
    if not report.kept and only is None:
        parted = "; a blank line must end each sentence" * ("too long" in report.dropped)
        raise Refused(f"there is no sentence in {files}: {report}{parted}")


def tag_set(sentences: Iterable[Tagged]) -> tuple[str, ...]:
    """Every label once, in the order of letters."""
    found: set[str] = set()
    words = 0
    for sentence in sentences:
        words += len(sentence.words)
        found.update(sentence.tags)
        if len(found) > MOST:
            break
    if len(found) > MOST or (words >= APART and len(found) > words / 2):
        wrong = (
            f"{words:,} words have {len(found):,} different labels, such as {few(sorted(found))}"
        )
    elif len(found) == 1:
        wrong = f"every word has the label '{min(found)}': there is nothing to learn"
    else:
        return tuple(sorted(found))
    raise Refused(f"{wrong}; is the label in the right column? Choose: data.train.columns=[0,1]")


def _unseen(sentence: Tagged, labels: Collection[str]) -> int | None:
    """The first word whose label is not among these."""
    return next((i for i, tag in enumerate(sentence.tags) if tag not in labels), None)


def _told(label: str, labels: Collection[str]) -> str:
    near = close_to(label, labels)[:1]
    meant = f"; did you mean {near[0]}?" if near else ""
    more = " and more" * (len(labels) > FEW)
    return (
        f"the label '{label}' never occurs in the training data, which has "
        f"{few(labels)}{more}{meant}"
    )


def _columns(files: TaggedFiles, report: TaggedReport) -> Iterator[tuple[Sequence[int], Tagged]]:
    """Each sentence with the lines of its words."""
    rows: list[tuple[int, str, str]] = []
    shape = False, 0  # of the first word's line: whether it has tabs, and how many columns
    for number, line in read_lines(files.path):
        cells = _cells(line, files)
        ends = not line.strip() or cells[0] == DOCUMENT
        if ends and rows:
            yield _sentence(rows)
            rows = []
        found = "\t" in line, len(cells)
        is_comment = line.startswith("#") and found != shape
        if ends or is_comment or (files.is_universal and not cells[0].isdecimal()):
            report.skipped += bool(line.strip())
            continue
        shape = shape if shape[1] else found
        rows.append((number, *_word(cells, shape[1], f"{files}:{number}", files.places)))
    if rows:
        yield _sentence(rows)


def _sentence(rows: Iterable[tuple[int, str, str]]) -> tuple[Sequence[int], Tagged]:
    numbers, words, tags = zip(*rows, strict=True)
    return numbers, Tagged(words, tags)


def _cells(line: str, files: TaggedFiles) -> list[str]:
    if files.tsv is not None or "\t" in line:
        return [cell.strip(" ") for cell in line.split("\t")]
    return re.split(" +", line.strip(" "))


def _word(cells: list[str], width: int, where: str, places: tuple[int, int]) -> tuple[str, str]:
    """The word and the label of a line. Where a column is counted from the end, all lines must have
    as many."""
    count = f"{counted(len(cells), 'column')} ({few(cells)})"
    if len(cells) == 1:
        raise Refused(f"{where}: {count}: a word needs a label, after a tab or a space")
    if min(places) < 0 and len(cells) != width:
        raise Refused(
            f"{where}: {count}, but the lines before have {width}; choose those of word and label "
            "from the left: data.train.columns=[0,1]"
        )
    if not all(-len(cells) <= place < len(cells) for place in places):
        raise Refused(
            f"{where}: {count}, and `columns` asks for {places[0]} and {places[1]}, counted from 0"
        )
    word, label = (cells[place] for place in places)
    return _checked(word, label, where)


def _checked(word: str, label: str, where: str) -> tuple[str, str]:
    """A word and its label that can be printed in two columns."""
    if not word or not label:
        raise Refused(f"{where}: a word without a label" if word else f"{where}: a blank word")
    if len(label) > LONGEST_LABEL:
        raise Refused(f"{where}: a label of {len(label):,} characters; is it the right column?")
    if "\t" in word or "\n" in word or not fits_a_line(label):
        raise Refused(
            f"{where}: {word[:40]!r} with the label {label!r} has a tab, a line break or another "
            "control character, so it cannot be printed in two columns"
        )
    return word, label


def _json(files: TaggedFiles) -> Iterator[tuple[Sequence[int], Tagged]]:
    for number, line in read_lines(files.path):
        if not line.strip():
            continue
        where = f"{files}:{number}"
        row = read_json(line, where)
        if not isinstance(row, dict):
            raise Refused(f"{where}: not a JSON object with the keys {' and '.join(files.keys)}")
        words, labels = (_texts(row, key, where) for key in files.keys)
        if len(words) != len(labels):
            raise Refused(
                f"{where}: {counted(len(words), 'word')} and {counted(len(labels), 'label')}; "
                "every word needs one label"
            )
        pairs = [_checked(*pair, where) for pair in zip(words, labels, strict=True)]
        yield [number] * len(pairs), Tagged(tuple(w for w, _ in pairs), tuple(l for _, l in pairs))


def _texts(row: dict[str, Any], key: str, where: str) -> list[str]:
    """A list of words or of labels; whole numbers are spelt out."""
    if key not in row:
        raise Refused(f"{where}: the key '{key}' is missing; it has: {few(row)}")
    found = row[key]
    if not isinstance(found, list):
        raise Refused(f"{where}: the key '{key}' is not a list")
    for item in found:
        if isinstance(item, bool) or not isinstance(item, str | int):
            raise Refused(f"{where}: the key '{key}' has {str(item)[:40]!r}, which is not a text")
    return [encodable(str(item), where).strip(" ") for item in found]
