"""heed demo: a tiny network learns to reverse words, and shows where it looked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from heed.running.demo import STEPS, Demo, Moment, Report
from heed.viewing.terminal import HeatMap

EXAMPLES = "heed demo\n\nheed demo --attention local-p/general"


def run(
    attention: Annotated[
        str, typer.Option(help="A mechanism by name; `heed list mechanisms` shows the parts.")
    ] = "additive",
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Another seed gives another run.")
    ] = 0,
    steps: Annotated[int, typer.Option(min=1, help="How long to train.")] = STEPS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a tiny network to reverse words (or copy them), and draw what it looks at."""
    torch.set_num_threads(1)  # for tensors this small a second thread costs more than it brings
    demo = Demo(attention, seed=seed, steps=steps)
    console = Console(highlight=False)
    if not as_json:
        why = f" ({demo.task.why})" if demo.task.why else ""
        console.print(f"[bold]{attention}[/] learns to {demo.task.name} words{why}", soft_wrap=True)
    follow(demo.learn(), Console(stderr=True))
    report = demo.report()
    if as_json:
        print(json.dumps(as_data(report), ensure_ascii=False))
    else:
        tell(report, console)


def follow(moments: Iterator[Moment], console: Console) -> None:
    """A bar with the time left on a terminal, ten plain lines elsewhere."""
    looks = (
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    bar = Progress(*looks, console=console, transient=True, disable=not console.is_terminal)
    with bar:
        task = bar.add_task("starting", total=None)
        for moment in moments:
            said = f"step {moment.step} of {moment.steps}, loss {moment.loss:.3f}"
            bar.update(task, completed=moment.step, total=moment.steps, description=said)
            if bar.disable and moment.step % max(1, moment.steps // 10) == 0:
                print(said, file=console.file, flush=True)


def tell(report: Report, console: Console) -> None:
    """The score, some words, and the picture."""
    console.print(
        f"{report.right} of {report.words} held-out words right "
        f"([bold]{report.accuracy:.1%}[/]), after {report.steps} steps in {report.seconds:.1f} s"
    )
    if report.accuracy < 0.95:
        console.print("Learnt only in part: more --steps may help, or another mechanism.")
    console.print()
    table = Table.grid(padding=(0, 1))
    for word, written in report.samples.items():
        right = written == report.task.answer(word)
        verdict = "[green]right[/]" if right else f"[red]wrong: {report.task.answer(word)}[/]"
        table.add_row(f"  {word}", "→", f"[bold]{written}[/]", verdict)
    console.print(table)
    console.print()
    console.print(HeatMap(report.panel))


def as_data(report: Report) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "mechanism": report.mechanism,
        "task": report.task.name,
        "steps": report.steps,
        "seconds": round(report.seconds, 3),
        "words": report.words,
        "accuracy": report.accuracy,
        "samples": report.samples,
        "drawn": {
            "rows": report.panel.rows,
            "columns": report.panel.columns,
            "weights": report.panel.weight.round(6).tolist(),
        },
    }
