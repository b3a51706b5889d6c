"""heed convert: to and from the layouts of Hugging Face."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = (
    "heed convert bert-base-uncased models/bert\n\nheed convert runs/shakespeare-gpt exported"
)


def run(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A Hugging Face folder, a name at its hub, or a folder of heed.",
        ),
    ],
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="A new folder, in the other layout.")
    ],
    head: Annotated[
        str | None,
        typer.Option(help="A head other than that of SOURCE; none keeps the body alone."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="A branch, tag or commit at the hub.")
    ] = None,
    pickled: Annotated[
        bool,
        typer.Option("--pickled", help="Read pytorch_model.bin if there is no safetensors file."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Convert a BERT, GPT-2 or XLNet: from Hugging Face to heed, or from heed to Hugging Face."""
    from heed.cli.following import follow
    from heed.running.converting import convert

    work = convert(source, target, head=head, revision=revision, pickled=pickled)
    done = follow(work, quiet=as_json)
    if as_json:
        print(json.dumps(done.as_data(), ensure_ascii=False, indent=1))
    else:
        print(done.line())
