"""heed compare: the same task under several mechanisms."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heed.cli.options import put, safe

if TYPE_CHECKING:
    from rich.console import Console

    from heed.running.compare import Cell

EXAMPLES = (
    "heed compare grammar --attention additive,general,local-p/general,none\n\n"
    "heed compare demo --attention additive,none training.epochs=2"
)

SHORT = {
    "long BLEU": "long",
    "perplexity": "ppl",
    "symbols/s": "sym/s",
    "memory, MiB": "MiB",
    "parameters": "params",
    "seconds": "s",
}
"""Headings that leave room for the figures on a terminal."""


def run(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe's name or a YAML file.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Keys of the recipe to override."),
    ] = None,
    attention: Annotated[
        str,
        typer.Option(
            help="Mechanisms by name, separated by commas; none trains without attention."
        ),
    ] = "additive,none",
    folder: Annotated[
        Path | None, typer.Option("--run", help="Where to write; by default runs/compare-RECIPE.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, max=64, help="How many to train at the same time.")
    ] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the comparison in that folder.")
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Start again; runs that are there are renamed to NAME.1."),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Train one recipe under several mechanisms: quality, alignment, entropy, speed, memory."""
    from rich.console import Console

    from heed.cli.following import follow
    from heed.running import recipe as recipes
    from heed.running.compare import compare

    raw = recipes.overridden(recipes.load(recipe), overrides or [])
    place = folder or Path("runs", f"compare-{Path(recipe).stem}")
    work = compare(
        raw,
        [name.strip() for name in attention.split(",") if name.strip()],
        place,
        device=device,
        jobs=jobs,
        resume=resume,
        overwrite=overwrite,
    )
    try:
        cells = follow(work, quiet=as_json)
    except KeyboardInterrupt:
        work.close()  # each that trains saves
        print("heed: stopped; to continue, run the same command with --resume", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        put((place / "comparison.json").read_text("utf-8"))
    else:
        tell(cells, raw["task"], Console(highlight=False))
    if any(cell.trained is None for cell in cells):
        raise typer.Exit(1)


def tell(cells: list[Cell], task: str, console: Console) -> None:
    """The table, as on the page."""
    from heed.cli.tables import drawn
    from heed.running.compare import table

    if not console.is_terminal:
        console.width = 160  # a line each
    found = table(cells, task)
    console.print(drawn(found.columns, found.rows, SHORT))
    for cell in cells:
        if cell.error:
            console.print(safe(f"{cell.mechanism}: {cell.error}"), markup=False, soft_wrap=True)
