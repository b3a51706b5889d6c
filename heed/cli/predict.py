"""heed predict: one answer per line, always as many as came in."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heed.cli.options import decoding_options
from heed.errors import Refused

if TYPE_CHECKING:
    from heed.running.predict import Translation

EXAMPLES = "heed predict runs/grammar input.txt\n\necho '我 爱 中国' | heed predict runs/grammar"


def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="A line each; - is the standard input.")
    ] = "-",
    method: Annotated[str | None, typer.Option(help="beam, greedy or sample.")] = None,
    width: Annotated[int | None, typer.Option(help="Beam width.")] = None,
    best: Annotated[int, typer.Option(min=1, help="Answers per line, best first.")] = 1,
    temperature: Annotated[float | None, typer.Option(help="For sampling.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among the k likeliest.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample among the likeliest of mass p.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="For sampling.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with what it looked at for each line.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object per line.")] = False,
) -> None:
    """Translate line by line: a blank line gives a blank line."""
    from heed.running.predict import CHUNK, predict
    from heed.running.showing import Shown, page

    decoding = decoding_options(
        method=method, width=width, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
    )
    if best > 1 and decoding.setdefault("method", "beam") != "beam":
        raise Refused(f"--best {best} is for a beam; {decoding['method']} gives one answer")
    answers = predict(
        folder,
        file,
        device=device,
        decoding=decoding,
        look=html is not None,
        best=best,
        at_once=1 if file == "-" and sys.stdin.isatty() else CHUNK,
    )
    kept = list(printed(answers, best, as_json, keep=html is not None))
    if html is not None:
        page(f"{folder.name}: what it looked at", [Shown(each) for each in kept]).write(html)


def printed(
    answers: Iterator[list[Translation]], best: int, as_json: bool, *, keep: bool
) -> Iterator[Translation]:
    """Print the answers as they come; pass on the best of each where they are kept."""
    for found in answers:
        texts = [each.text for each in found] + [""] * (best - len(found))
        if as_json:
            print(json.dumps(as_data(found), ensure_ascii=False), flush=True)
        else:
            print("\t".join(texts), flush=True)
        if keep:
            yield found[0]


def as_data(found: list[Translation]) -> dict[str, Any]:
    """One line's answers, as JSON has them."""
    answers = [{"text": each.text, "log_prob": each.log_prob} for each in found]
    return {"source": found[0].source, "answers": answers}
