"""A page's table in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from heed.cli.options import safe
from heed.viewing.blocks import Column, said


def drawn(
    columns: Sequence[Column], rows: Iterable[Sequence[Any]], short: Mapping[str, str] | None = None
) -> Table:
    """A table of columns and rows; `short` has headings that leave room for the figures."""
    names = short or {}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        name = names.get(column.name, column.name)
        table.add_column(
            Text(safe(name)), justify="left" if column is columns[0] else "right", no_wrap=True
        )
    for row in rows:
        values = zip(row, columns, strict=True)
        table.add_row(*(Text(safe(said(value, column.form))) for value, column in values))
    return table
