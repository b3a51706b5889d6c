"""heed train: from a recipe to a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from heed.cli.options import put
from heed.errors import Refused

EXAMPLES = "heed train grammar --attention local-p/general\n\nheed train runs/grammar --resume"


def run(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A recipe's name, a YAML file, or with --resume a run's folder.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Keys of the recipe to override."),
    ] = None,
    attention: Annotated[
        str | None, typer.Option(help="A mechanism by name; none trains without attention.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--run", help="Where to write; by default runs/RECIPE.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in that folder.")
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Start again; the run that is there is renamed to NAME.1."
        ),
    ] = False,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Start from the weights of a run, or of a pretrained model: its folder, or its "
            "name at the Hugging Face hub.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the whole recipe and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a model by a recipe. A stopped run continues with --resume."""
    from heed.cli.following import follow
    from heed.running import recipe as recipes
    from heed.running.devices import speaks
    from heed.running.train import onward, train

    going = resume and Path(recipe).is_dir()
    resolved = None
    if going and (overrides or attention or start or overwrite or folder):
        raise Refused(
            "a run is resumed with its own recipe: leave out keys, --attention, --run, --from and "
            f"--overwrite; a new run can start from its weights: heed train RECIPE --from {recipe}"
        )
    if resume and overwrite:
        raise Refused("--resume continues a run, and --overwrite starts it again: give one")
    if going and print_config:
        put((Path(recipe) / "recipe.yaml").read_text("utf-8").rstrip("\n"))
        return
    if not going:
        changes = list(overrides or [])
        raw = recipes.overridden(recipes.load(recipe), changes)
        resolved = recipes.resolve(recipes.with_attention(raw, attention))
    if resolved is not None and start is not None and print_config:
        from heed.running.starting import opened, sized

        resolved, _ = sized(resolved, opened(start))
    if resolved is not None and print_config:
        print(recipes.as_yaml(resolved), end="")
        return
    place = Path(recipe) if going else folder or Path("runs", Path(recipe).stem)
    work = train(resolved, place, resume=resume, overwrite=overwrite, start=start, device=device)
    trained = follow(work, quiet=as_json or not speaks())
    if not speaks():
        return
    if as_json:
        print(json.dumps(trained.as_data(), ensure_ascii=False, indent=1))
        return
    told = f"{trained.folder}: {trained.parameters:,} parameters, {trained.steps:,} steps"
    print(told, flush=True)
    commands = "\n      ".join(f"heed {command}" for command in onward(trained.folder))
    typer.echo(f"next: {commands}", err=True)  # stdout is for the result
