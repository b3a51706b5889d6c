"""The rows of files of series: each series with the number of its line, its values and its label.

What cannot be read is refused with its line and its place; what is read may still be empty, or have
other channels than the series before.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from os import PathLike
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from heed.data.tables import Table, few, place_of
from heed.data.text import counted, read_json, read_lines
from heed.errors import Refused

File: TypeAlias = str | PathLike[str]
Floats: TypeAlias = NDArray[np.float32]
Rows: TypeAlias = Iterator[tuple[int, Floats, str]]
"""The number of a line, values by step and channel (S F), a label; a missing value is NaN."""
MISSING = frozenset(("?", "", "nan", "na", "null"))


class Columns(NamedTuple):
    """Columns of a table by name or by number; without channels, they are all the others."""

    series: int | str
    label: int | str
    channels: tuple[int | str, ...] = ()


def ts_rows(path: File) -> Rows:
    """The series of a file of the UCR and UEA archives, a line each."""
    told: dict[str, list[str]] = {}
    for number, line in read_lines(path):
        where, line = f"{path}:{number}", line.strip()
        if not line or line.startswith(("#", "%")):
            continue
        if "@data" in told:
            yield number, *_ts_row(line, told, where)
        elif not line.startswith("@"):
            raise Refused(f"{where}: a .ts file begins with lines such as @classLabel, and @data")
        else:
            key, *words = line.split()
            told[key.casefold()] = words
            _check_header(told, where)


def _check_header(told: dict[str, list[str]], where: str) -> None:
    if told.get("@timestamps", ["false"])[0].casefold() == "true":
        raise Refused(f"{where}: time stamps are not read; write values at even steps")
    if "@data" in told and told.get("@classlabel", ["false"])[0].casefold() != "true":
        raise Refused(f"{where}: the series have no labels: there is no line @classLabel true ...")


def _ts_row(line: str, told: dict[str, list[str]], where: str) -> tuple[Floats, str]:
    *parts, label = (part.strip() for part in line.split(":"))
    declared = told.get("@dimensions", told.get("@dimension", []))[:1]
    if not parts or (declared and declared != [str(len(parts))]):
        says = f" where @dimensions says {declared[0]}" if declared else " before the last colon"
        raise Refused(f"{where}: {counted(len(parts), 'channel')}{says}")
    known = told["@classlabel"][1:]
    if known and label not in (*known, ""):
        raise Refused(f"{where}: the label '{label[:40]}' is not one of @classLabel: {few(known)}")
    channels: list[list[float]] = []
    for i, part in enumerate(parts, 1):
        cells = part.split(",") if part else []
        names = (f"channel {i}, value {j}" for j in range(1, len(cells) + 1))
        channels.append(_numbers(cells, where, names))
        if len(cells) != len(channels[0]):
            raise Refused(
                f"{where}: channel {i} has {counted(len(cells), 'value')}, channel 1 has "
                f"{len(channels[0]):,}; all must be as long"
            )
    return _floats(channels, len(parts)).T.copy(), label


def table_rows(table: Table, columns: Columns, path: File) -> Rows:
    """The series of a table that has a row for each step; those of a series are neighbours."""
    seen: set[str] = set()
    for name, group in groupby(_steps(table, columns, path), key=lambda step: step.series):
        first, *more = group
        if name in seen:
            raise Refused(
                f"{path}:{first.number}: rows of the series '{name[:40]}' stand above, too; sort "
                "the table by series"
            )
        seen.add(name)
        for step in more:
            if step.label != first.label:
                raise Refused(
                    f"{path}:{step.number}: the series '{name[:40]}' has two labels: "
                    f"{few((first.label, step.label))}"
                )
        rows = [step.values for step in (first, *more)]
        yield first.number, _floats(rows, len(rows)), first.label


class _Step(NamedTuple):
    """A row of a table."""

    number: int
    series: str
    label: str
    values: list[float]


def _steps(table: Table, columns: Columns, path: File) -> Iterator[_Step]:
    table = (row for row in table if row[1])
    head = list(islice(table, 1))
    if not head:
        return
    ((first, names),) = head
    places = _places(names, columns, f"{path}:{first}", path)
    if isinstance(columns.series, int):
        table, names = chain(head, table), [str(place) for place in range(len(names))]
    channels = places[2:] or [i for i in range(len(names)) if i not in places]
    for number, cells in table:
        where = f"{path}:{number}"
        if len(cells) != len(names):
            raise Refused(
                f"{where}: {counted(len(cells), 'column')} ({few(cells)}), where the first line "
                f"has {len(names)}"
            )
        told = (f"column {names[i]}" for i in channels)
        values = _numbers([cells[i] for i in channels], where, told)
        yield _Step(number, cells[places[0]], cells[places[1]].strip(), values)


def _places(names: list[str], columns: Columns, where: str, path: File) -> list[int]:
    """The numbers of the columns of the name, of the label, and of channels that are chosen."""
    asked = (columns.series, columns.label, *columns.channels)
    cure = "choose with data.train.series=COLUMN data.train.label=COLUMN"
    if isinstance(columns.series, str):
        return [place_of(names, str(name), path, cure) for name in asked]
    places = [int(place) for place in asked]
    if max(places) >= len(names):
        raise Refused(
            f"{where}: {counted(len(names), 'column')} ({few(names)}), and {max(places)} is asked "
            f"for, counted from 0; {cure}"
        )
    return places


def json_rows(path: File, values: str, label: str) -> Rows:
    """The series of JSON lines, under two keys: values by step, and a label."""
    for number, line in read_lines(path):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        row = read_json(line, where)
        if not isinstance(row, dict):
            raise Refused(f"{where}: not a JSON object with the keys {values} and {label}")
        for key in (values, label):
            if key not in row:
                raise Refused(f"{where}: the key '{key}' is missing; it has: {few(row)}")
        found = "" if row[label] is None else row[label]
        if isinstance(found, bool) or not isinstance(found, str | int):
            raise Refused(f"{where}: the key '{label}' is neither a text nor a whole number")
        yield number, _json_values(row[values], values, where), str(found).strip()


def _json_values(given: Any, key: str, where: str) -> Floats:
    """A list of steps, each a list of a value for each channel, or the value of the only one."""
    if not isinstance(given, list):
        raise Refused(f"{where}: the key '{key}' is not a list")
    rows = [step if isinstance(step, list) else [step] for step in given]
    found = [
        [_json_number(value, f"{where}: step {i}, channel {j}") for j, value in enumerate(row, 1)]
        for i, row in enumerate(rows, 1)
    ]
    for i, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise Refused(
                f"{where}: step {i} has {counted(len(row), 'value')}, step 1 has {len(rows[0])}"
            )
    return _floats(found, len(rows))


def _json_number(value: Any, where: str) -> float:
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(f"{where}: {str(value)[:40]!r} is not a number")
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _numbers(cells: Sequence[str], where: str, names: Iterable[str]) -> list[float]:
    """The values of cells, whose names say where one is that holds no number."""
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        return [_number(cell, where, name) for cell, name in zip(cells, names, strict=True)]


def _number(cell: str, where: str, name: str) -> float:
    if cell.strip().casefold() in MISSING:
        return float("nan")
    try:
        return float(cell)
    except ValueError:
        raise Refused(f"{where}: {name}: '{cell[:40]}' is not a number") from None


def _floats(rows: Sequence[Sequence[float]], count: int) -> Floats:
    """Equally long rows, in 32 bits; what is too large for them becomes infinite."""
    with np.errstate(over="ignore"):
        found = np.asarray(rows, np.float64).astype(np.float32)
    return found.reshape(count, -1) if found.size else np.zeros((count, 0), np.float32)
