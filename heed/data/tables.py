"""Tables: the rows of TSV and CSV, columns by number or name, and the texts of one column."""

import csv
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from os import PathLike

from heed.data.naming import format_of
from heed.data.text import counted, encodable, read_json, read_lines
from heed.errors import Refused

FEW = 10
"""Columns or keys that an error names."""
LONGEST_CELL = 1 << 23
"""The most characters of a CSV cell; a longer one is a quote that was not closed."""

File = str | PathLike[str]
Table = Iterator[tuple[int, list[str]]]


def tsv_rows(path: File) -> Table:
    """Each row of a table with tabs, with the number of its line."""
    return ((number, line.split("\t") if line else []) for number, line in read_lines(path))


def csv_rows(path: File) -> Table:
    """Rows of CSV, each with the number of its last line: cells may hold commas and newlines.

    A first line with semicolons and without commas shows that semicolons separate the columns. The
    limit of a cell is a setting of the whole process, so it is changed for one row at a time. Texts
    that are too long are left to whoever reads them.
    """
    lines = (line + "\n" for _, line in read_lines(path))
    first = list(islice(lines, 1))
    reader = csv.reader(chain(first, lines), delimiter=_separator(*first), strict=True)
    while True:
        before = csv.field_size_limit(LONGEST_CELL)
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise Refused(f"{path}:{reader.line_num}: not CSV ({error})") from None
        finally:
            csv.field_size_limit(before)
        if cells is None:
            return
        yield reader.line_num, cells


def _separator(line: str = "") -> str:
    """What separates the columns of a CSV file, by its first line."""
    whole = line.count('"') % 2 == 0  # or it ends within a quoted cell, and shows nothing
    return ";" if whole and ";" in line and "," not in line else ","


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
