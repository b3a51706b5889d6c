"""heed list: what there is."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import heed
from heed.attention.catalogue import CATALOGUE, DEFAULTS, Entry
from heed.attention.naming import options_of
from heed.errors import UnknownName
from heed.records import Claims

EXAMPLES = "heed list mechanisms\n\nheed list mechanisms --json"

CAN = {
    "s": "goes step by step",
    "a": "takes many queries at once",
    "h": "inside heads",
    "c": "gives a context",
    "∂": "learns by its exact gradient (≈ straight through, R by REINFORCE)",
}
GRADIENTS = {"exact": "∂", "straight-through": "≈", "score-function": "R"}


def run(
    collection: Annotated[str, typer.Argument(help="What to list: mechanisms.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List the parts of every mechanism: formula, source, kernels."""
    if collection != "mechanisms":
        raise UnknownName("collection", collection, ["mechanisms"])
    found = [as_data(entry) for entry in CATALOGUE.values()]
    if as_json:
        print(json.dumps(found, ensure_ascii=False, indent=1))
    else:
        tell(found, Console(highlight=False))


def tell(found: list[dict[str, Any]], console: Console) -> None:
    """A table, one section per slot."""
    if not console.is_terminal:
        console.width = 160  # a line each, for grep
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("name", "formula", "source", "can", "kernel"):
        table.add_column(name, no_wrap=name in ("name", "can"), overflow="fold")
    for slot, entries in groupby(found, lambda each: each["slot"]):
        default = DEFAULTS[slot]
        table.add_row(f"\n[bold magenta]{slot}[/]", f"\n[dim]default: {default or 'none'}[/]")
        for each in entries:
            table.add_row(
                f"  [bold]{each['name']}[/]",
                escape(each["formula"]),
                escape(each["source"]),
                letters(Claims(**each["claims"])),
                each["kernels"][0],
            )
    console.print(table)
    can = ", ".join(f"[bold]{sign}[/] {what}" for sign, what in CAN.items())
    console.print(
        f"\n[dim]can:[/] {can}\n"
        "[dim]kernel:[/] the fastest that serves it; the reference serves everything\n"
        "[dim]names:[/] parts joined by /, at most one per slot: local-p/general, coverage/additive"
    )


def letters(claims: Claims) -> str:
    """What a mechanism can do, in one letter each."""
    yes = zip("sahc", (claims.step, claims.at_once, claims.heads, claims.context), strict=True)
    return "".join([sign if can else "·" for sign, can in yes] + [GRADIENTS[claims.gradient]])


def as_data(entry: Entry) -> dict[str, Any]:
    """One entry as plain data."""
    claims = entry.claims
    return {
        "name": entry.name,
        "slot": entry.slot,
        "formula": entry.formula,
        "source": entry.source,
        "about": entry.about,
        "claims": {name: getattr(claims, name) for name in Claims.__slots__},
        "options": options_of(entry.name),
        "kernels": kernels_of(entry.name),
    }


@torch.no_grad()
def kernels_of(name: str) -> list[str]:
    """Who serves this name, fastest first: asked, not assumed."""
    attend = heed.Attention(name, query=4, key=4).eval()
    served: dict[str, None] = {}
    if attend.mechanism.claims.at_once and not attend.mechanism.in_line:
        served |= _served(attend, torch.randn(1, 600, 4), 600)  # a long text, by itself
    served |= _served(attend, torch.randn(1, 3, 4), 1)  # a step
    return sorted(served, key="reference".__eq__)


def _served(attend: heed.Attention, keys: torch.Tensor, T: int) -> dict[str, None]:
    """The kernel of a call, and what serves it when that is switched off, to the reference."""
    served: dict[str, None] = {}
    fast: set[str] = set()
    while "reference" not in served:
        with heed.kernels.off(*fast):
            seen = attend(keys[:, :T], attend.remember(keys))
        lanes = dict.fromkeys(seen.kernel.split(" + "))  # two where mechanisms are mixed
        served[" + ".join(lanes)] = None
        fast |= lanes.keys() - {"reference"}
    return served
