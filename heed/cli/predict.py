"""heed predict: one answer per line, always as many as came in."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heed.cli.options import decoding_options, lines, put, safe, said
from heed.errors import Refused

if TYPE_CHECKING:
    from heed.running.predict import Answered
    from heed.viewing.looking import Look

EXAMPLES = "heed predict runs/grammar input.txt\n\necho '我 爱 中国' | heed predict runs/grammar"


def run(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="The folder of a run or of a pretrained model, or its name at the hub.",
        ),
    ],
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="One text per line; - is the standard input.")
    ] = "-",
    text: Annotated[
        str | None,
        typer.Option(help="For classifiers: FILE's column or key of the text (CSV, TSV, JSON)."),
    ] = None,
    method: Annotated[str | None, typer.Option(help="Decoding: beam, greedy or sample.")] = None,
    width: Annotated[int | None, typer.Option(help="Beam width.")] = None,
    best: Annotated[
        int | None, typer.Option(min=1, help="Answers per line, best first; by default 1.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Continuations per line, for a language model.")
    ] = None,
    longest: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of symbols to write.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Temperature of sampling.")] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Sample among the k most likely symbols.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample among the most likely symbols with total probability p."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of sampling.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with the attention of each line.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per line.")] = False,
) -> None:
    """Print one answer for each line of a file.

    A blank line gives a blank answer, except for a language model, which continues it."""
    from heed.running.predict import CHUNK, predict

    decoding = decoding_options(
        method=method, width=width, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
    )
    answers = predict(
        folder,
        file,
        device=device,
        look=html is not None,
        at_once=1 if file == "-" and sys.stdin.isatty() else CHUNK,
        **decoding | said(text=text, best=best, samples=samples, longest=longest),
    )
    kept = list(printed(answers, as_json, keep=html is not None))
    if html is not None:
        from heed.running.showing import page

        page(f"{folder.name}: attention", kept).write(html)


def printed(answers: Iterator[Answered], as_json: bool, *, keep: bool) -> Iterator[Look]:
    """Print the answers as they come; yield what each looked at, where that is kept.

    A remark that the next answers share is printed once, since there may be many: at the first, as
    somebody may be waiting for it; which others share it is said where they end.
    """
    before, first, number = "", 0, 0
    for number, found in enumerate(answers, 1):
        put(_json(found.as_data()) if as_json else lines([found.line()])[:-1])
        remark = getattr(found, "remark", "")
        if remark != before:
            _same(before, first, number)
            before, first = remark, number
            if remark:
                typer.echo(f"heed: line {number}: {safe(remark)}", err=True)
        if keep:
            yield found.shown()
    _same(before, first, number + 1)


def _same(remark: str, first: int, end: int) -> None:
    """Report the lines after the first that had its remark, too."""
    if remark and end - first > 1:
        one = end - first == 2
        lines = f"line {end - 1}" if one else f"lines {first + 1} to {end - 1}"
        typer.echo(f"heed: {lines}: the same", err=True)


def _json(data: dict[str, Any]) -> str:
    try:
        return json.dumps(data, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise Refused("the model's answers are NaN: its weights contain NaN") from None
