"""Labelled texts out of TSV, CSV or JSON lines, counted as they are read.

1<tab>a stirring , funny film            columns by number: label 0, text 1
label,text                               or by the names of a first line; these two names may be
                                         in capitals and have space around them
{"text": "a stirring film", "label": 1}  or by key
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self
from unicodedata import category

from pydantic import Field, model_validator

from heed.data.file_format import by_format
from heed.data.pairs import Report, one_place
from heed.data.tables import Table, csv_rows, few, place_of, plain, tsv_rows
from heed.data.text import counted, encodable, read_json, read_lines
from heed.errors import Refused
from heed.settings import Settings

Column = Annotated[int, Field(ge=0, le=1000)] | Annotated[str, Field(min_length=1, max_length=200)]
MOST = 10_000
"""The most labels; a column with more of them holds something else."""
LONGEST_LABEL = 200
FEW = 10
"""Labels, columns or keys that an error names."""
NAMES = ("text", "label")
"""The default names of columns and keys."""
OPTIONS = ("--text", "--label")
"""The options that choose the columns of text and label, by default."""
APART = 5
"""With so many texts, labels must not all be different: they would be texts themselves."""


class Labelled(NamedTuple):
    """A text and its label."""

    text: str
    label: str


class LabelledFiles(Settings):
    """A file of labelled texts: one of `tsv`, `csv` and `jsonl`, plain or gzip; or simply a path
    whose ending shows which.

    A column is given by its number, from 0, or by its name in the file's first line; a JSON object
    has keys. By default the first line of a table may name the columns "text" and "label";
    otherwise the label comes first and the text second. Keys are "label" and "text".
    """

    tsv: Path | None = None
    csv: Path | None = None
    jsonl: Path | None = None
    text: Column | None = Field(default=None, description="the column or key of the text")
    label: Column | None = Field(default=None, description="the column or key of the label")

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, given: Any) -> Any:
        return by_format(given, ("tsv", "csv", "jsonl"))

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        one_place({"tsv": self.tsv}, {"csv": self.csv}, {"jsonl": self.jsonl})
        text, label = self.columns
        if self.jsonl is not None and not (isinstance(text, str) and isinstance(label, str)):
            raise ValueError("JSON objects have keys: give text and label as names")
        if isinstance(text, str) != isinstance(label, str):
            raise ValueError("give both columns by number, or both by the names of the first line")
        if text == label:
            raise ValueError(f"text and label are the same column, {text}")
        return self

    @property
    def columns(self) -> tuple[int | str, int | str]:
        """The columns or keys of the text and of the label."""
        named = self.jsonl is not None or isinstance(self.text, str) or isinstance(self.label, str)
        text, label = NAMES if named else (1, 0)
        return (
            text if self.text is None else self.text,
            label if self.label is None else self.label,
        )

    @property
    def path(self) -> Path:
        """The file."""
        path = self.tsv or self.csv or self.jsonl
        assert path is not None
        return path

    def under(self, folder: Path) -> Self:
        """The same file, looked for in a folder unless its path is absolute."""
        found = {"tsv": self.tsv, "csv": self.csv, "jsonl": self.jsonl}
        moved = {name: folder / path for name, path in found.items() if path is not None}
        return self.model_copy(update=moved)

    def __str__(self) -> str:
        return str(self.path)


@dataclass
class TextReport(Report):
    """The texts read, kept and dropped, counted: read = kept + dropped, at every moment."""

    one: ClassVar[str] = "text"

    alone: str = ""  # the label of a table's first line, if no other text has it
    first: str = ""  # the text of that line


def read_labelled(
    files: LabelledFiles,
    *,
    labels: Mapping[str, str] | None = None,
    only: Callable[[str], bool] | None = None,
    longest_characters: int = 100_000,
    report: TextReport | None = None,
    options: tuple[str, str] = OPTIONS,
) -> Iterator[Labelled]:
    """The usable texts, streamed; `report` counts them. A file without any is refused.

    labels   those of the training data, with their names: any other is refused, with its line
    only     whether a text is wanted; others are not counted, and there may be none at all. Those
             with another label are dropped: the same file has no training text with it
    options  the options that choose the columns, for errors
    """
    report = TextReport() if report is None else report
    which = _which(files, options)
    for number, row in _rows(files, which):
        if only is not None and not only(row.text):
            continue
        report.read += 1
        if not row.text or row.text.isspace():
            report.drop("blank text")
        elif not row.label:
            report.drop("without a label")
        elif len(row.text) > longest_characters:
            report.drop("too long")
        else:
            first = number == 1 and files.jsonl is None
            if labels is not None and row.label not in labels:
                if only is not None:
                    report.drop("with a label of no training text")
                    continue
                header = f"; is line 1 a header? {which.capitalize()}" if first else ""
                raise Refused(f"{files}:{number}: {_unseen(row.label, labels)}{header}")
            report.kept += 1
            if first:
                report.first, report.alone = row
            elif row.label == report.alone:
                report.alone = ""
            yield row
    if not report.kept and only is None:
        raise Refused(f"there is no text in {files}: {report}")


def label_set(labels: Iterable[str], hint: Callable[[], str] = str) -> tuple[str, ...]:
    """Every label once, in numerical order if all are numbers, otherwise in that of letters.

    hint  the end of errors: how to choose another column
    """
    found: set[str] = set()
    texts = 0
    for label in labels:
        texts += 1
        found.add(label)
        if len(found) > MOST:
            break
    wrong = ""
    if len(found) > MOST:
        wrong = f"more than {MOST:,} different labels, such as {_some(found)}"
    elif texts >= APART and len(found) > 0.9 * texts:
        wrong = f"{texts:,} texts have {len(found):,} different labels, such as {_some(found)}"
    elif len(found) == 1:
        wrong = f"every text has the label '{min(found)}': there is nothing to classify"
    if wrong:
        raise Refused(f"{wrong}; is data.train.label the right column? {hint()}".rstrip())
    return ordered(found)


def ordered(labels: Collection[str]) -> tuple[str, ...]:
    """Labels in numerical order if all are numbers, otherwise in that of letters."""
    numbers = all(label.isascii() and label.isdecimal() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if numbers else 0, label)))


def choice(files: LabelledFiles, options: tuple[str, str] = OPTIONS) -> str:
    """A sentence: the columns of a file's first line, and how to choose text and label."""
    which = _which(files, options)
    if files.jsonl is not None:
        lines = ((number, line) for number, line in read_lines(files.path) if line.strip())
        number, line = next(lines)
        names, how = read_json(line, f"{files}:{number}"), ""
    else:
        number, names = next(_table(files))
        how = ", by name or by number from 0"
    return f"Line {number} of {files} has: {few(names)}; {which}{how}"


def _some(labels: Iterable[str]) -> str:
    """The longest label, which looks least like one."""
    longest = max(labels, key=lambda label: (len(label), label))
    return repr(longest[:40])


def fits_a_line(label: str) -> bool:
    """Whether a label can be printed in a column: it has no tab, line break or the like."""
    return label.isprintable() or not any(category(c) in ("Cc", "Zl", "Zp") for c in label)


def _unseen(label: str, labels: Mapping[str, str]) -> str:
    """The error about an unknown label; known ones are shown with their names: 0 (negative)."""
    files = {name: label for label, name in labels.items() if name != label}
    called = {
        name: f"{files[name]} ({name})" if name in files else name for name in labels.values()
    }
    near = get_close_matches(label, [*labels, *called], n=1)
    meant = f"; did you mean {called[labels.get(near[0], near[0])]}?" if near else ""
    some = few(called.values())
    return (
        f"the label '{label}' never occurs in the training data, which has "
        f"{some}{' and more' * (len(called) > FEW)}{meant}"
    )


def _which(files: LabelledFiles, options: tuple[str, str]) -> str:
    """The way to choose the columns: --text COLUMN, or in a recipe data.train.text=COLUMN."""
    named = "KEY" if files.jsonl is not None else "COLUMN"
    each = " ".join(f"{option}{'=' if '.' in option else ' '}{named}" for option in options)
    return f"choose with {each}"


def _rows(files: LabelledFiles, which: str) -> Iterator[tuple[int, Labelled]]:
    """Each row with the number of its line.

    which  how to choose the columns
    """
    json = files.jsonl is not None
    found = _json(files, which) if json else _cells(files, _table(files), which)
    for number, text, label in found:
        label = label.strip()
        if len(label) > LONGEST_LABEL:
            raise Refused(
                f"{files}:{number}: a label of {len(label):,} characters; is it the right column? "
                f"{which.capitalize()}"
            )
        if not fits_a_line(label):
            raise Refused(
                f"{files}:{number}: the label {label!r} has a tab, a line break or another control "
                "character, so it cannot be printed in a column"
            )
        yield number, Labelled(text, label)


def _table(files: LabelledFiles) -> Table:
    return csv_rows(files.path) if files.csv is not None else tsv_rows(files.path)


def _cells(files: LabelledFiles, table: Table, which: str) -> Iterator[tuple[int, str, str]]:
    columns, table = _numbers(files, table, which)
    last = max(columns)
    for number, cells in table:
        if not cells:  # an empty line is an empty text, counted as such
            yield number, "", ""
        elif len(cells) <= last:
            count = counted(len(cells), "column")
            parted = "tabs" if files.tsv else "commas, semicolons or tabs"
            raise Refused(
                f"{files}:{number}: {count} separated by {parted} ({few(cells)}); counted from 0, "
                f"the label is in column {columns[1]} and the text in column {columns[0]}; {which}"
            )
        else:
            yield number, cells[columns[0]], cells[columns[1]]


def _numbers(files: LabelledFiles, table: Table, which: str) -> tuple[tuple[int, int], Table]:
    """The numbers of the columns, and the rows without a header. Names are looked up in the first
    line. By default, a first line with both default names is a header; so is one that has them in
    the columns that were given by number."""
    text, label = files.columns
    first = list(islice(table, 1))
    names = first[0][1] if first else []
    spelt = [plain(name) for name in names]
    if files.text is None and files.label is None and set(NAMES) <= set(spelt):
        text, label = NAMES
    if isinstance(text, int) and isinstance(label, int):
        there = max(text, label) < len(spelt)
        header = there and (spelt[text], spelt[label]) == NAMES
        return (text, label), table if header else chain(first, table)
    found = [place_of(names, str(name), files, which) for name in (text, label)]
    return (found[0], found[1]), table


def _json(files: LabelledFiles, which: str) -> Iterator[tuple[int, str, str]]:
    text, label = files.columns
    for number, line in read_lines(files.path):
        if not line.strip():
            yield number, "", ""
            continue
        where = f"{files}:{number}"
        try:
            row = read_json(line, where, object_pairs_hook=_once)
        except KeyTwice as error:
            raise Refused(f"{where}: the key {error.args[0]!r} occurs twice") from None
        if not isinstance(row, dict):
            raise Refused(f"{where}: not a JSON object with the keys {text} and {label}")
        if not isinstance(row.get(text), str):
            what = "is not a text" if text in row else _missing(row, which)
            raise Refused(f"{where}: the key '{text}' {what}")
        found = _label(row, label, where, which)
        yield number, encodable(row[text], where), encodable(found, where)


class KeyTwice(Exception):
    """A JSON object has a key twice, so its value is unclear."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys are all different."""
    row = dict(pairs)
    if len(row) != len(pairs):
        keys = [key for key, _ in pairs]
        raise KeyTwice(next(key for key in keys if keys.count(key) > 1)[:40])
    return row


def _missing(row: Iterable[str], which: str) -> str:
    return f"is missing; it has: {few(row)}; {which}"


def _label(row: dict[Any, Any], key: Any, where: str, which: str) -> str:
    """The label of a JSON object: it may be a number; true and false are spelt as in JSON; null is
    no label."""
    value = row.get(key)
    if key not in row:
        raise Refused(f"{where}: the key '{key}' {_missing(row, which)}")
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int):
        raise Refused(f"{where}: the key '{key}' is not a label: it must be a text or an integer")
    return str(value)
