"""Sequences of real numbers with a label each, out of .ts files, tables or JSON lines.

@classLabel true up down        .ts, the format of the UCR and UEA archives: channels are parted by
@data                           colons, their values by commas; the label comes last
0.5,0.7,?:1,2,3:up

series,label,x,y                CSV or TSV: a row for each step; a column names its series, one has
a,up,0.5,1                      its label, the others are channels
a,up,0.7,2
                                {"values": [[0.5, 1], [0.7, 2], [null, 3]], "label": "up"}

A missing value (?, nan, null, an empty cell) stays so, as NaN, and is counted.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from heed.data.file_format import by_format
from heed.data.labelled import FEW, LONGEST_LABEL, fits_a_line
from heed.data.pairs import Report, one_place
from heed.data.series_formats import Columns, Floats, Rows, json_rows, table_rows, ts_rows
from heed.data.tables import csv_rows, few, tsv_rows
from heed.data.text import counted
from heed.errors import Refused, close_to
from heed.settings import Settings

Column = Annotated[int, Field(ge=0, le=100_000)] | Annotated[str, Field(min_length=1)]
FORMATS = ("ts", "csv", "tsv", "jsonl")
LONGEST = 100_000
"""The most steps of a series."""


class Series(NamedTuple):
    """A value of each channel at each step, NaN where it is missing, and the label of them all."""

    values: Floats  # S F
    label: str

    @property
    def text(self) -> str:
        """A digest of the values: what decides whether a series is held out."""
        return blake2b(self.values.tobytes(), digest_size=16).hexdigest()


class SeriesFiles(Settings):
    """A file of labelled series: one of `ts`, `csv`, `tsv` and `jsonl`, plain or gzip; or simply a
    path whose ending shows which.

    The columns of a table are given by the names in its first line, or, where that is a row like
    the others, by number from 0. By default they are called "series" and "label".
    """

    ts: Path | None = None
    csv: Path | None = None
    tsv: Path | None = None
    jsonl: Path | None = None
    series: Column = Field(default="series", description="the column that names the series")
    label: Column = Field(default="label", description="the column or key of the label")
    channels: tuple[Column, ...] = Field(
        default=(), description="the columns of values; all others, if none is given"
    )
    values: str = Field(default="values", description="the key of the values in JSON objects")

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, given: Any) -> Any:
        return by_format(given, FORMATS)

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        one_place(*({name: getattr(self, name)} for name in FORMATS))
        if self.jsonl is not None and not isinstance(self.label, str):
            raise ValueError("JSON objects have keys: give the label as a name")
        columns = (self.series, self.label, *self.channels)
        if self.is_table and len({type(column) for column in columns}) > 1:
            raise ValueError("give all columns by number, or all by the names of the first line")
        if self.is_table and len({*columns}) < len(columns):
            raise ValueError(f"a column is given twice: {', '.join(map(str, columns))}")
        return self

    @property
    def is_table(self) -> bool:
        """Whether the file has a row for each step."""
        return self.csv is not None or self.tsv is not None

    @property
    def path(self) -> Path:
        """The file."""
        path = self.ts or self.csv or self.tsv or self.jsonl
        assert path is not None
        return path

    def under(self, folder: Path) -> Self:
        """The same file, looked for in a folder unless its path is absolute."""
        found = {name: getattr(self, name) for name in FORMATS}
        moved = {name: folder / path for name, path in found.items() if path is not None}
        return self.model_copy(update=moved)

    def __str__(self) -> str:
        return str(self.path)


@dataclass
class SeriesReport(Report):
    """The series read, kept and dropped, counted: read = kept + dropped, at every moment."""

    one: ClassVar[str] = "sequence"

    steps: int = 0  # of the series kept
    missing: int = 0  # values of the series kept

    def __str__(self) -> str:
        missing = f", {counted(self.missing, 'value')} missing" * bool(self.missing)
        return f"{super().__str__()}; {counted(self.steps, 'step')}{missing}"


def read_series(
    files: SeriesFiles,
    *,
    labels: Collection[str] | None = None,
    only: Callable[[str], bool] | None = None,
    longest: int = LONGEST,
    report: SeriesReport | None = None,
) -> Iterator[Series]:
    """The usable series, streamed; `report` counts them. A file without any is refused.

    labels   those of the training data: any other is refused, with its line
    only     whether a series is wanted, by its `text`; others are not counted, and there may be
             none at all. Those with another label are dropped: no training series has it
    longest  the most steps of a series; longer ones are dropped
    """
    report = SeriesReport() if report is None else report
    width = 0
    for number, values, label in _rows(files):
        where, series = f"{files}:{number}", Series(values, label)
        width = width or values.shape[1]
        _check(series, width, where)
        if only is not None and not only(series.text):
            continue
        report.read += 1
        if not series.label:
            report.drop("without a label")
        elif len(series.values) > longest:
            report.drop("too long")
        elif labels is not None and series.label not in labels:
            if only is None:
                raise Refused(f"{where}: {_unseen(series.label, labels)}")
            report.drop("with a label of no training series")
        else:
            report.kept += 1
            report.steps += len(series.values)
            report.missing += int(np.isnan(series.values).sum())
            yield series
    if not report.kept and only is None:
        raise Refused(f"there is no series in {files}: {report}")


def _rows(files: SeriesFiles) -> Rows:
    if files.ts is not None:
        return ts_rows(files.ts)
    if files.jsonl is not None:
        return json_rows(files.jsonl, files.values, str(files.label))
    table = csv_rows(files.path) if files.csv is not None else tsv_rows(files.path)
    return table_rows(table, Columns(files.series, files.label, files.channels), files.path)


def _check(series: Series, width: int, where: str) -> None:
    S, F = series.values.shape
    if not S * F:
        raise Refused(f"{where}: an empty series")
    if width != F:
        raise Refused(f"{where}: {counted(F, 'channel')}, but the series before have {width}")
    if infinite := np.argwhere(np.isinf(series.values)).tolist():
        step, channel = infinite[0]
        raise Refused(
            f"{where}: the value of channel {channel + 1} at step {step + 1} is infinite, or too "
            "large for 32 bits"
        )
    if len(series.label) > LONGEST_LABEL or not fits_a_line(series.label):
        raise Refused(
            f"{where}: {series.label[:40]!r} is no label: it is longer than {LONGEST_LABEL} "
            "characters, or has a control character"
        )


def _unseen(label: str, labels: Collection[str]) -> str:
    near = close_to(label, labels)[:1]
    meant = f"; did you mean {near[0]}?" if near else ""
    return (
        f"the label '{label}' never occurs in the training data, which has "
        f"{few(labels)}{' and more' * (len(labels) > FEW)}{meant}"
    )
