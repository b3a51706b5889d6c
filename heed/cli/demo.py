"""heed demo: learn to translate, translate, and draw where the model looked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from heed.running.demo import Demo
    from heed.viewing.looking import Look

EXAMPLES = "heed demo\n\nheed demo --attention local-p/general"


def run(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Keys of the recipe `demo` to override."),
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
    import torch
    from rich.console import Console

    from heed.cli.following import follow
    from heed.running.demo import LEAST, demo, label

    # In so small a network threads wait for each other at every product: two gain a third on a
    # quiet machine, and on a busy one they take several times as long as one.
    torch.set_num_threads(1)
    result = follow(demo(attention, folder, overrides or [], device=device), quiet=as_json)
    if as_json:
        print(json.dumps(as_data(result), ensure_ascii=False, indent=1))
    else:
        tell(result, Console(highlight=False))
    if result.bleu < LEAST:
        typer.echo(
            f"heed: {label(attention)} reached BLEU {result.bleu:.1f} on new sentences; "
            f"it should reach {LEAST:.0f}",
            err=True,
        )
        raise typer.Exit(1)


def as_data(result: Demo) -> dict[str, object]:
    """The result as plain data, for JSON."""
    texts = {each.source: each.text for each in result.shown}
    trained = {name: each.as_data() for name, each in result.trained.items()}
    return {"trained": trained, "translations": texts, "page": str(result.page)}


def tell(result: Demo, console: Console) -> None:
    """Print what was learnt, a picture of it, the two models side by side, and the page's path."""
    from rich.text import Text

    from heed.cli.tables import drawn
    from heed.running.demo import COLUMNS, PICTURED, legend, rows
    from heed.viewing.terminal import HeatMap

    console.print(f"\n{result.summary()}\n")
    for each in result.shown:
        console.print(_translation(each))
    for picture in result.shown[PICTURED].leading:
        titled = replace(picture, title="alignment: where each written word attended")
        console.print("", HeatMap(titled), sep="\n")
    console.print("", drawn(COLUMNS, rows(result)), Text(legend(result), style="dim"), "", sep="\n")
    console.print(result.chart)
    where = Text.assemble("\nThe same as a page for a browser: ", (str(result.page), "bold"))
    console.print(where, soft_wrap=True)


def _translation(shown: Look) -> Text:
    """Source and translation; where that is wrong, also what would be right."""
    from rich.text import Text

    from heed.running.demo import reference, right

    text = Text.assemble(shown.source, "\n  → ", (shown.text, "bold"))
    if not right(shown):
        text.append(f"\n  wrong; reference: {reference(shown)}", "red")
    return text
