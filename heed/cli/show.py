"""heed show: where a model looks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heed.cli.options import safe
from heed.errors import Refused

if TYPE_CHECKING:
    from rich.console import Console

    from heed.running.stories.story import Shown
    from heed.viewing.panels import Panel

EXAMPLES = "heed show runs/grammar '我 爱 中国'\n\nheed show runs/grammar --html look.html"


def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="[INPUT]...", help="Texts; some of the run's own if none."),
    ] = None,
    every: Annotated[bool, typer.Option("--heads", help="Every head of every attention.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write a picture.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write a picture.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Answer, and draw what was looked at: in the terminal, as a picture, as a page."""
    from rich.console import Console

    from heed.running.showing import page, show
    from heed.viewing import image

    shown = show(folder, text or [], every=every, device=device)
    console = Console(highlight=False)
    if html is not None:
        page(f"{folder.name}: where it looks", shown).write(html)
    for path in (png, svg):
        if path is not None:
            image.save(_panels(shown), path)
    if html is png is svg is None:
        for each in shown:
            tell(each, console)


def tell(shown: Shown, console: Console) -> None:
    """Source, answer, heat map."""
    from rich.text import Text

    console.print(Text.assemble((safe(shown.source), "bold"), " → ", safe(shown.text)))
    if remark := getattr(shown, "remark", ""):
        console.print(Text(safe(remark), "dim"))
    drawn = shown.drawn()
    for each in drawn:
        console.print(each)
    if not drawn:
        console.print("[dim]no attention to show[/]")
    console.print()


def _panels(shown: list[Shown]) -> list[Panel]:
    panels = [panel for each in shown for panel in each.panels]
    if not panels:
        raise Refused("there is nothing to draw: this model has no attention, or wrote nothing")
    return panels
