"""heed evaluate: how good a trained model is."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heed.cli.options import decoding_options, files_from
from heed.errors import Refused

if TYPE_CHECKING:
    from rich.console import Console

    from heed.running.evaluate import Evaluated

EXAMPLES = "heed evaluate runs/grammar\n\nheed evaluate runs/zh-en pairs.tsv --json"


def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    data: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DATA]...",
            help="A .tsv or .jsonl file of pairs, or two aligned files, source first.",
        ),
    ] = None,
    part: Annotated[str, typer.Option(help="Of what the run keeps: valid, test or long.")] = "test",
    alignments: Annotated[
        Path | None, typer.Option(help="Gold word alignments of DATA, in Pharaoh format.")
    ] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Beam width; 1 is greedy.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Write the translations here.")] = None,
    links: Annotated[
        Path | None, typer.Option(help="Write the word alignments here, in Pharaoh format.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
) -> None:
    """Score a run: BLEU and chrF with signatures, perplexity, alignment error, BLEU by length."""
    from rich.console import Console

    from heed.cli.following import follow
    from heed.running.evaluate import evaluate

    if alignments is not None and not data:
        raise Refused("--alignments are those of DATA, and none is given")
    source = files_from(data, alignments) if data else part
    work = evaluate(folder, source, device=device, decoding=decoding_options(width=width))
    found = follow(work, quiet=as_json)
    if out is not None:
        out.write_text("".join(f"{each.text}\n" for each in found.written), "utf-8")
    if links is not None:
        links.write_text("".join(f"{line}\n" for line in found.pharaoh()), "utf-8")
    if as_json:
        print(json.dumps(asdict(found.scores), ensure_ascii=False, indent=1))
    else:
        tell(found, Console(highlight=False))


def tell(found: Evaluated, console: Console) -> None:
    """The scores, each with what makes it comparable."""
    from rich.table import Table

    if not console.is_terminal:
        console.width = 160  # signatures are whole, or of no use
    scores = found.scores
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("pairs", f"{scores.pairs:,}")
    table.add_row("BLEU", f"{scores.bleu:.2f}", f"[dim]{scores.bleu_signature}")
    table.add_row("chrF", f"{scores.chrf:.2f}", f"[dim]{scores.chrf_signature}")
    table.add_row("perplexity", f"{scores.perplexity:.3f}", "[dim]per symbol of the reference")
    if scores.entropy is not None:
        table.add_row("entropy", f"{scores.entropy:.3f}", "[dim]of the attention, in nats")
    if scores.aer is not None:
        table.add_row("AER", f"{scores.aer:.4f}", "[dim]of the words that the gold aligns")
    console.print(table)
    lengths = Table("source words", "pairs", "BLEU", box=None, padding=(0, 2, 0, 0))
    for label, count, bleu in scores.by_length:
        lengths.add_row(label, f"{count:,}", f"{bleu:.1f}")
    console.print(lengths)
