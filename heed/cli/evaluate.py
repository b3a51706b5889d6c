"""heed evaluate: how good a trained model is."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heed.cli.options import decoding_options, lines, put, safe, said

if TYPE_CHECKING:
    from rich.console import Console

    from heed.running.evaluate import Evaluated

EXAMPLES = "heed evaluate runs/grammar\n\nheed evaluate runs/zh-en pairs.tsv --json"


def run(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="The folder of a run or of a pretrained model, or its name at the hub.",
        ),
    ],
    data: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DATA]...",
            help="A file of examples: .tsv, .jsonl or text, depending on the task; for translation "
            "also two aligned files, source first.",
        ),
    ] = None,
    part: Annotated[
        str, typer.Option(help="The part of the run's own data: valid, test or long.")
    ] = "test",
    text: Annotated[
        str | None, typer.Option(help="For labelled texts: DATA's column or key of the text.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="For labelled texts: DATA's column or key of the label.")
    ] = None,
    alignments: Annotated[
        Path | None,
        typer.Option(
            help="Gold word alignments of DATA, in Pharaoh format; 1-2-P is a possible link."
        ),
    ] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Beam width; 1 is greedy.")] = None,
    overlap: Annotated[
        int | None,
        typer.Option(min=0, help="For language models: symbols of overlap between windows."),
    ] = None,
    bleu_tokenize: Annotated[
        str | None,
        typer.Option(
            help="sacreBLEU's tokeniser: 13a, zh, char, intl, none, ja-mecab or ko-mecab; "
            "by default as the recipe has it, or by the script of the references."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Write the answers here.")] = None,
    links: Annotated[
        Path | None,
        typer.Option(
            help="Write how the model aligns the words of each given pair here, in Pharaoh format: "
            "a line for each line of DATA, empty for a dropped pair."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
) -> None:
    """Score a run by the metrics of its task: BLEU, alignment error, accuracy, perplexity."""
    from rich.console import Console

    from heed.cli.following import follow
    from heed.running.evaluate import evaluate

    options = said(alignments=alignments, overlap=overlap, out=out, links=links)
    options |= said(text=text, label=label, bleu_tokenize=bleu_tokenize) | decoding_options(
        width=width
    )
    found = follow(evaluate(folder, data or part, device=device, **options), quiet=as_json)
    if out is not None:
        out.write_text(lines(found.answers()), "utf-8")
    if links is not None:
        links.write_text("".join(f"{line}\n" for line in found.pharaoh()), "utf-8")
    if as_json:
        put(json.dumps(asdict(found.scores), ensure_ascii=False, indent=1))
    else:
        tell(found, Console(highlight=False))


def tell(found: Evaluated, console: Console) -> None:
    """The scores, each with what makes it comparable."""
    from rich.table import Table
    from rich.text import Text

    from heed.cli.tables import drawn

    if not console.is_terminal:
        console.width = 160  # signatures are whole, or of no use
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, figure, remark in found.facts():
        table.add_row(Text(safe(name)), Text(safe(figure)), Text(safe(remark), "dim"))
    console.print(table)
    for each in found.tables():
        if each.title:
            console.print(Text(f"\n{safe(each.title)}", "dim"))
        console.print(drawn(each.columns, each.rows))
