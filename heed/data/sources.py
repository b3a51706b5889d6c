r"""Files of text, of one format or of several, read one after the other as one corpus.

    book.txt                                        plain text, as each task reads it
    {text: reviews.tsv, column: 1, lines: apart}    a column of a table; each line is a document
    {jsonl: papers.jsonl, key: abstract}            a document a line: a text, or its sentences
    [book.txt, more.jsonl.gz, {text: ...}]          all of them, in this order

Each file is read by itself, so no document goes on from one into the next, and what became of it is
counted by itself, too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, TypeAdapter, model_validator

from heed.data.pairs import Report
from heed.data.text import counted, encodable, is_json_lines, read_json, read_lines
from heed.errors import Refused
from heed.settings import Settings

MOST = 20
"""The most files that are reported one by one; further ones count in the sum alone."""


class TextFiles(Settings):
    """The place of text: text files, or JSON lines with a document each; plain or gzip."""

    text: tuple[Path, ...] = Field(default=(), description="plain text")
    jsonl: tuple[Path, ...] = Field(default=(), description="a JSON object a line")
    column: int | None = Field(
        default=None, ge=0, le=1000, description="of text files that are tables with tabs, from 0"
    )
    lines: Literal["together", "apart"] = Field(
        default="together", description="of text files: apart, each line is a document"
    )
    key: str = Field(
        default="text", description="of the JSON objects: a text, or a list of its sentences"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_file_is_a_list(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if isinstance(path := given.get("path"), str | Path):  # alone, with further keys
            given = {_format(path): path} | {k: v for k, v in given.items() if k != "path"}
        one = {k: (v,) for k, v in given.items() if k in ("text", "jsonl") and _single(v)}
        return {**given, **one}

    @model_validator(mode="after")
    def _some_place(self) -> Self:
        if bool(self.text) == bool(self.jsonl):
            raise ValueError("give text files as `text`, or JSON lines as `jsonl`")
        if self.column is not None and not self.text:
            raise ValueError("a column needs text files, and none is given")
        if self.lines == "apart" and not self.text:
            raise ValueError("lines of JSON are documents: leave `lines` out")
        return self

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file, in the order in which it is read."""
        return self.text or self.jsonl

    def one(self, path: Path) -> Self:
        """The same settings for one of the files."""
        return self.model_copy(update={"text" if self.text else "jsonl": (path,)})

    def __str__(self) -> str:
        return " and ".join(map(str, self.paths))


Kind = TypeVar("Kind", bound=TextFiles)


def _single(value: Any) -> bool:
    return isinstance(value, str | Path)


def told(kind: type[Kind]) -> Callable[[Any], Kind | tuple[Kind, ...]]:
    """A validator of what a recipe says of files: settings, a path, or a list of either.

    The ending of a path tells its format; paths of one format are one source.
    """
    several = TypeAdapter(tuple[kind, ...])  # type: ignore[valid-type]

    def check(given: Any) -> Kind | tuple[Kind, ...]:
        if _single(given):
            given = [given]
        if not isinstance(given, list | tuple):
            return kind.model_validate(given)
        if all(map(_single, given)) and len({_format(path) for path in given}) < 2:
            return kind.model_validate({_format(given[0]) if given else "text": list(given)})
        each = [{_format(one): [one]} if _single(one) else one for one in given]
        found: tuple[Kind, ...] = several.validate_python(each)
        return found[0] if len(found) == 1 else found

    return check


def _format(path: str | Path) -> str:
    return "jsonl" if is_json_lines(path) else "text"


TextSources = Annotated[TextFiles | tuple[TextFiles, ...], BeforeValidator(told(TextFiles))]
"""Files of one format, or of several."""


def each_file(sources: Kind | Sequence[Kind], folder: Path | None = None) -> list[tuple[str, Kind]]:
    """Every file by itself, and its name as it was given. A missing one is refused at once, not
    when those before it have been read.

    folder  where they are looked for, unless their paths are absolute
    """
    listed = [sources] if isinstance(sources, TextFiles) else sources
    found = []
    for source in listed:
        for path in source.paths:
            place = path if folder is None else folder / path
            try:
                place.stat()
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise Refused(f"cannot read {place}: {reason}") from None
            found.append((str(path), source.one(place)))
    return found


def text_lines(path: Path, column: int | None = None) -> Iterator[str]:
    """The lines of a text file; or, with a column, the cells in that column of a table."""
    for number, line in read_lines(path):
        if column is None or not line.strip():
            yield line
            continue
        cells = line.split("\t")
        if len(cells) <= column:
            raise Refused(
                f"{path}:{number}: {counted(len(cells), 'column')}, and `column` is {column}"
            )
        yield cells[column]


def json_documents(path: Path, key: str) -> Iterator[list[str]]:
    """The sentences of each document: the lines of a text, or the texts of a list as they are."""
    for number, line in read_lines(path):
        if line.strip():
            yield _document(line, key, f"{path}:{number}")


def _document(line: str, key: str, where: str) -> list[str]:
    row = read_json(line, where)
    if not isinstance(row, dict) or key not in row:
        has = f"; it has {', '.join(map(str, list(row)[:10]))}" if isinstance(row, dict) else ""
        raise Refused(f"{where}: not a JSON object with the key '{key}'{has}")
    found = row[key].split("\n") if isinstance(row[key], str) else row[key]
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise Refused(f"{where}: the key '{key}' is neither a text nor a list of texts")
    encodable("".join(found), where)
    return found


@dataclass
class FilesReport(Report):
    """Counts of texts, by file and in all: read = kept + dropped, at every moment."""

    files: list[tuple[str, "FilesReport"]] = field(default_factory=list)

    def add(self, name: str, own: Any) -> None:
        """Add the report on a file that was read to its end."""
        self.read += own.read
        self.kept += own.kept
        for reason, count in own.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + count
        self.files.append((name, own))

    def told(self, what: str) -> Iterator[str]:
        """A line on each file, where there are several, and one on all together."""
        if len(self.files) < 2:
            yield from super().told(what)
            return
        yield from (f"{what}, {name}: {own}" for name, own in self.files[:MOST])
        more = len(self.files) - MOST
        rest = f", with {more:,} files more" if more > 0 else ""
        yield f"{what}, together{rest}: {self}"
