"""heed show: where a model looks, step by step, and over its training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heed.cli.options import safe, said
from heed.errors import Refused

if TYPE_CHECKING:
    from rich.console import Console

    from heed.running.stories.story import Shown
    from heed.viewing.panels import Panel

EXAMPLES = (
    "heed show runs/grammar '我 爱 中国'\n\n"
    "heed show runs/grammar '我 爱 中国' --walk --at love\n\n"
    "heed show runs/grammar --history --html training.html"
)


def run(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run, or of a pretrained model.")
    ],
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="[INPUT]...", help="Texts; some of the run's own if none."),
    ] = None,
    every: Annotated[bool, typer.Option("--heads", help="Every head of every attention.")] = False,
    walk: Annotated[
        bool, typer.Option("--walk", help="One word's way through attention, in numbers.")
    ] = False,
    at: Annotated[str | None, typer.Option(help="With --walk: the word, or its place.")] = None,
    layer: Annotated[int | None, typer.Option(help="With --walk: which attention, from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="With --walk: which head, from 0.")] = None,
    history: Annotated[
        bool, typer.Option("--history", help="The time line of the training.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write a picture.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write a picture.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Answer, and draw what was looked at: in the terminal, as a picture, as a page."""
    from rich.console import Console

    from heed.running.showing import page, show
    from heed.viewing import image

    console = Console(highlight=False)
    which = said(at=at, layer=layer, head=head)
    _check(walk, history, which, text or [], every, png or svg)
    if history:
        return _history(folder, html, console)
    walks = _walks(folder, text or [], which, device) if walk else []
    if walk and html is None:
        for told in walks:
            console.print(told)
            console.print()
        return None
    shown = show(folder, text or [], every=every, device=device)
    if html is not None:
        made = page(f"{folder.name}: where it looks", shown)
        _with(made, walks).write(html)
    for path in (png, svg):
        if path is not None:
            image.save(_panels(shown), path)
    if html is png is svg is None:
        for each in shown:
            tell(each, console)
    return None


def _check(
    walk: bool,
    history: bool,
    which: dict[str, Any],
    text: list[str],
    every: bool,
    picture: Path | None,
) -> None:
    """Refuse what does not go together."""
    if which and not walk:
        raise Refused(f"--{next(iter(which))} is for --walk")
    if history and (walk or text or every):
        other = "--walk" if walk else "--heads" if every else "an INPUT"
        raise Refused(f"--history is of the whole training; leave out {other}")
    if (walk or history) and picture is not None:
        raise Refused(f"{'--walk' if walk else '--history'} is no picture; write a page: --html")


def _walks(folder: Path, text: list[str], which: dict[str, Any], device: str) -> list[Any]:
    from heed.running.walking import walk

    return walk(folder, text, **which, device=device)


def _with(page: Any, walks: list[Any]) -> Any:
    """The page, and a section with the walks."""
    from heed.viewing.page import Page
    from heed.viewing.walk import Section

    if not walks:
        return page
    return Page(page.title, [*page.blocks, Section("Step by step", walks)], page.language)


def _history(folder: Path, html: Path | None, console: Console) -> None:
    from heed.running.history import history

    found = history(folder)
    if html is None:
        console.print(found)
    else:
        found.page().write(html)


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
