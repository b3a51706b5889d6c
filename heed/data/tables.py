"""Tables: the rows of TSV and CSV, columns by number or name, and the texts of one column."""

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from os import PathLike

from heed.data.file_format import format_of
from heed.data.text import counted, encodable, read_json, read_lines
from heed.errors import Refused

FEW = 10
"""Columns or keys that an error names."""
LONGEST_CELL = 1 << 23
"""The most characters of a CSV cell; a longer one is a quote that was not closed."""
MANY, LONG = 20, 1 << 20
"""The lines that show what separates the columns of CSV, and their characters, at most."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}

File = str | PathLike[str]
Table = Iterator[tuple[int, list[str]]]


def tsv_rows(path: File) -> Table:
    """Each row of a table with tabs, with the number of its line."""
    return ((number, line.split("\t") if line else []) for number, line in read_lines(path))


def csv_rows(path: File) -> Table:
    """Rows of CSV, each with the number of its last line: cells may hold commas and newlines.

    Commas, semicolons or tabs separate the columns, as the first lines show. A row with more cells
    than the first one is refused: its text would be cut where it has a comma. Texts that are too
    long are left to whoever reads them.
    """
    lines = (line + "\n" for _, line in read_lines(path))
    first = _sample(lines)
    separator, most = _separator(first, path), 0
    reader = csv.reader(chain(first, lines), delimiter=separator, strict=True)
    try:
        for cells in _cut(reader):
            most = most or len(cells)
            if any(cells[most:]):
                found, named = counted(len(cells), "column"), SEPARATORS[separator]
                raise Refused(
                    f"{path}:{reader.line_num}: {found} separated by {named} ({few(cells)}), but "
                    f"the first row has {most}; quote the cells that have {named}"
                )
            yield reader.line_num, cells
    except csv.Error as error:
        raise Refused(f"{path}:{reader.line_num}: not CSV ({error})") from None


def _cut(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """The rows of a reader of `csv`, whose limit of a cell is a setting of the whole process: it is
    changed for one row at a time."""
    while True:
        before = csv.field_size_limit(LONGEST_CELL)
        try:
            cells = next(reader, None)
        finally:
            csv.field_size_limit(before)
        if cells is None:
            return
        yield cells


def _sample(lines: Iterator[str]) -> list[str]:
    """The first lines, until they are many or long."""
    found: list[str] = []
    while len(found) < MANY and sum(map(len, found)) < LONG:
        line = next(lines, None)
        if line is None:
            break
        found.append(line)
    return found


def _separator(first: list[str], path: File) -> str:
    """The sign that parts the columns of a CSV file, by its first lines.

    It cuts all rows into equally many cells, at least two. Where several do, it is the one that is
    not always followed by a space, as a comma in a sentence is; where none does, the first row
    decides, and without a comma, semicolon or tab in it there is one column.
    """
    widths = {each: _widths(first, each) for each in SEPARATORS}
    even = [each for each, found in widths.items() if len({*found}) == 1 and found[0] > 1]
    if len(even) > 1:
        even = [each for each in even if re.search(f"{each}[^ ]", "".join(first))]
        if len(even) != 1:
            raise Refused(
                f"{path}: its first lines can be cut into columns in several ways; quote the cells "
                "that have commas or semicolons, or write the table with tabs, as .tsv"
            )
    first_row = [each for each, found in widths.items() if found and found[0] > 1]
    return next(iter((*even, *first_row)), ",")


def _widths(first: list[str], separator: str) -> list[int]:
    """The numbers of cells of the first rows, except empty ones and one that goes on after these
    lines; none if they are not CSV."""
    found: list[int] = []
    try:
        for cells in _cut(csv.reader(first, delimiter=separator, strict=True)):
            found += [len(cells)] if cells else []
    except csv.Error as error:
        return found if "unexpected end" in str(error) else []
    return found


def plain(name: str) -> str:
    """The name of a column, without case and outer space."""
    return name.strip().casefold()


def places(names: list[str], name: str) -> list[int]:
    """The columns of a name in the first line: as it is written, or otherwise in another case or
    with space around it."""
    exact = [place for place, each in enumerate(names) if each == name]
    return exact or [place for place, each in enumerate(names) if plain(each) == plain(name)]


def place_of(names: list[str], name: str, where: object, which: str) -> int:
    """The one column of a name in the first line.

    which  how to choose another column, for the error
    """
    found = places(names, name)
    if len(found) != 1:
        what = "has more than one column" if found else "has no column"
        raise Refused(f"{where}:1: the first line {what} '{name}'; it has: {few(names)}; {which}")
    return found[0]


def few(names: Iterable[str]) -> str:
    """The first names of columns or keys, or the first cells of a row."""
    return ", ".join(" ".join(name[:40].split()) for name in islice(names, FEW)) or "nothing"


def read_texts(path: File, column: int | str) -> Iterator[str]:
    """The texts in one column of a table, or under one key of JSON lines, one for each row.

    A column by name takes the first line as a header; by number, from 0, every line is a row. An
    empty line is an empty text.
    """
    kind = format_of(path, ("csv", "jsonl"))
    if kind == "jsonl":
        return _under(path, str(column))
    return _cells(path, csv_rows(path) if kind == "csv" else tsv_rows(path), column)


def _cells(path: File, table: Table, column: int | str) -> Iterator[str]:
    if isinstance(column, str):
        names = next(table, (1, []))[1]
        column = place_of(names, column, path, "choose one: --text COLUMN")
    for number, cells in table:
        if cells and len(cells) <= column:
            raise Refused(
                f"{path}:{number}: {counted(len(cells), 'column')} ({few(cells)}), but the text is "
                f"in column {column}, counted from 0; choose another: --text COLUMN"
            )
        yield cells[column] if cells else ""


def _under(path: File, key: str) -> Iterator[str]:
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        row = read_json(line, where) if line.strip() else {key: ""}
        if not isinstance(row, dict):
            raise Refused(f"{where}: not a JSON object with the key {key}")
        if not isinstance(row.get(key), str):
            what = "is not a text" if key in row else f"is missing; it has: {few(row)}"
            raise Refused(f"{where}: the key '{key}' {what}; choose one: --text KEY")
        yield encodable(row[key], where)
