"""heed demo: learn to translate, translate, and draw where the model looked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from heed.cli.following import follow
from heed.running.demo import COLUMNS, Demo, demo, rows
from heed.viewing.blocks import said
from heed.viewing.terminal import HeatMap

EXAMPLES = "heed demo\n\nheed demo --attention local-p/general"


def run(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Any key of the recipe `demo`."),
    ] = None,
    attention: Annotated[
        str, typer.Option(help="A mechanism by name; `heed list mechanisms` shows the parts.")
    ] = "additive",
    folder: Annotated[
        Path, typer.Option("--run", help="Where to write the runs and the page.")
    ] = Path("runs/demo"),
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train on the built-in Chinese-English corpus with and without attention; show both."""
    result = follow(demo(attention, folder, overrides or [], device=device), quiet=as_json)
    if as_json:
        trained = {name: each.as_data() for name, each in result.trained.items()}
        texts = {each.translation.source: each.translation.text for each in result.shown}
        data = {"trained": trained, "translations": texts, "page": str(result.page)}
        print(json.dumps(data, ensure_ascii=False, indent=1))
    else:
        tell(result, Console(highlight=False))


def tell(result: Demo, console: Console) -> None:
    """Translations, a heat map, the two models side by side, and where the page is."""
    for each in result.shown:
        console.print(f"{each.translation.source}\n  [bold]→ {each.translation.text}[/]")
    console.print()
    for each in result.shown[:2]:
        if each.panel is not None:
            console.print(HeatMap(each.panel))
            console.print()
    table = Table(box=None, padding=(0, 3, 0, 0))
    for column in COLUMNS:
        table.add_column(column.name, justify="left" if column is COLUMNS[0] else "right")
    for row in rows(result):
        values = zip(row, COLUMNS, strict=True)
        table.add_row(*(said(value, column.form) for value, column in values))
    console.print(table)
    console.print()
    console.print(result.chart)
    console.print(f"\nopen [bold]{result.page}[/] in a browser for all of it")
