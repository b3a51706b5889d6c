"""heed list: what there is."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heed.errors import Refused, UnknownName

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    import heed
    from heed.attention.catalogue import Beside, Entry

EXAMPLES = "heed list mechanisms hard\n\nheed list recipes --json"

WIDE = 240  # columns, where no terminal says how many: a line each, for grep
DEVICES = {"cpu": "CPU", "cuda": "GPU"}

LIMITS = {
    "has_steps": "no steps",
    "takes_several": "one query",
    "fits_heads": "not in heads",
    "gives_context": "no context",
}
MASSES = {"one": "", "at most one": "rows sum to 1 or less", "any": "rows sum to any number"}
LEARNS = {
    "exact": "",
    "straight-through": "learns straight through",
    "score-function": "learns by REINFORCE",
}


def run(
    collection: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTION",
            help="What to list: mechanisms, kernels, models, tasks or recipes.",
        ),
    ],
    word: Annotated[
        str | None,
        typer.Argument(
            metavar="[WORD]",
            help="Only mechanisms that are called so in the literature, such as hard or 点积, or "
            "that have the word in their description or source.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List mechanisms (by their parts), kernels, models, tasks or recipes."""
    from rich.console import Console

    if collection not in COLLECTIONS:
        raise UnknownName("collection", collection, COLLECTIONS)
    if word is not None and collection != "mechanisms":
        raise Refused(f"only mechanisms are searched by a word: heed list {collection}")
    found = COLLECTIONS[collection]() if word is None else _searched(word)
    if as_json:
        print(json.dumps(found, ensure_ascii=False, indent=1))
    elif collection == "mechanisms":
        tell(found, Console(highlight=False), searched=word is not None)
    elif collection == "kernels":
        tell_kernels(found, Console(highlight=False))
    else:
        tell_plainly(found, Console(highlight=False))


def tell_plainly(found: list[dict[str, Any]], console: Console) -> None:
    """Each name in bold, and the facts about it below."""
    from rich.markup import escape
    from rich.padding import Padding

    for each in found:
        console.print(f"[bold]{escape(each['name'])}[/]  {escape(each['about'])}")
        kinds = {f"{key}.kind": list(named) for key, named in each.get("kinds", {}).items()}
        facts = {key: each.get(key) for key in ("needs", "good", "sizes", "keys")} | kinds
        for key, fact in facts.items():
            if fact:
                line = f"[dim]{key}[/]  {escape(_words(fact))}"
                console.print(Padding(line, (0, 0, 0, 2), expand=False))
        console.print()


def tell_kernels(found: list[dict[str, Any]], console: Console) -> None:
    """A line each: where it runs, and what it computes."""
    from rich.markup import escape
    from rich.table import Table

    if not console.is_terminal:
        console.width = WIDE
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("name", "runs on", "what it computes"):
        table.add_column(name, no_wrap=name != "what it computes", overflow="fold")
    for each in found:
        devices = ", ".join(DEVICES[device] for device in each["devices"])
        table.add_row(f"[bold]{each['name']}[/]", devices, escape(each["about"]))
    console.print(table)
    console.print(
        '\n[dim]name:[/] with heed.kernels.off("sdpa", ...): another serves, and in the end the '
        "reference or PyTorch"
    )


def _size(size: dict[str, int]) -> str:
    return ", ".join(f"{what} {number:,}" for what, number in size.items())


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} ({_size(size)})" for name, size in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def tell(found: list[dict[str, Any]], console: Console, searched: bool = False) -> None:
    """A table, one section per slot; after a search each part has its description and synonyms."""
    from rich.markup import escape
    from rich.table import Table

    from heed.attention.catalogue import DEFAULTS

    if not console.is_terminal:
        console.width = WIDE
    wide = console.width >= 160
    columns = ("name", "formula", "options", "but", "source", "kernel") if wide else ("name", "")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_header=wide)
    for name in columns:
        table.add_column(name, no_wrap=name == "name", overflow="fold")
    for slot, entries in groupby((x for x in found if x["slot"]), lambda each: each["slot"]):
        default = DEFAULTS[slot]
        table.add_row(f"\n[bold magenta]{slot}[/]", f"\n[dim]default: {default or 'none'}[/]")
        for each in entries:
            formula, *facts = cells(each)
            if not wide:
                facts, formula = [], f"{formula}\n[dim]{' · '.join(filter(None, facts))}[/]"
            table.add_row(f"  [bold]{each['name']}[/]", formula, *facts)
            if searched:
                table.add_row("", f"[dim]{escape(synonyms(each))}[/]")
    if table.row_count:
        console.print(table)
    for each in found:
        if not each["slot"]:  # no part, but a use of any mechanism
            console.print(f"\n[bold]{escape(each['name'])}[/]\n  {escape(synonyms(each))}")
    if not table.row_count:
        return
    console.print(
        "\n[dim]names:[/] parts joined by /, at most one per slot: local-p/general, "
        "coverage/additive\n"
        "[dim]options:[/] with their defaults: heed.Attention('local-p', query=512, window=5); "
        "None is chosen from the widths\n"
        "[dim]kernel:[/] what serves a long text, where no weights are asked for; in a short one a "
        "window is a mask like any other, and the reference serves everything: .why says which did"
    )


def cells(each: dict[str, Any]) -> list[str]:
    """Formula, options, limits, source and kernel of one entry."""
    from rich.markup import escape

    options = " ".join(f"{name}={value}" for name, value in each["options"].items())
    source, kernel = each["source"], each["kernels"][0]
    said = (each["formula"], options, ", ".join(limits(each["claims"])), source, kernel)
    return [escape(words) for words in said]


def synonyms(each: dict[str, Any]) -> str:
    """A description of an entry, and its other names."""
    return f"{each['about']}; also called {', '.join(each['synonyms'])}"


def limits(claims: dict[str, Any]) -> list[str]:
    """Limits of a part; what its rows sum to, and how it learns, where that is special."""
    found = [words for claim, words in LIMITS.items() if not claims[claim]]
    return [*found, *filter(None, (MASSES[claims["mass"]], LEARNS[claims["gradient"]]))]


def as_data(entry: Entry | Beside) -> dict[str, Any]:
    """One entry as plain data; a use of any mechanism has no slot."""
    from heed.attention.catalogue import Beside
    from heed.attention.names import options_of
    from heed.records import Claims

    said = {"name": entry.name, "about": entry.about, "synonyms": list(entry.synonyms)}
    if isinstance(entry, Beside):
        return {**said, "slot": None}
    claims = entry.claims
    return {
        **said,
        "slot": entry.slot,
        "formula": entry.formula,
        "source": entry.source,
        "claims": {name: getattr(claims, name) for name in Claims.__slots__},
        "options": options_of(entry.name),
        "kernels": kernels_of(entry.name),
    }


def kernels_of(name: str) -> list[str]:
    """The kernels that serve this name, fastest first, as calls of it report them."""
    import torch

    import heed

    attend = heed.Attention(name, query=4, key=4).eval()
    served: dict[str, None] = {}
    with torch.no_grad():
        claims = attend.mechanism.claims
        if claims.takes_several and not claims.needs_line:
            served |= _served(attend, torch.randn(1, 2000, 4), 2000)  # a long text, by itself
        served |= _served(attend, torch.randn(1, 3, 4), 1)  # a step
    return sorted(served, key="reference".__eq__)


def _served(attend: heed.Attention, keys: Tensor, T: int) -> dict[str, None]:
    """The kernel of a call, what serves it with that switched off, and so on to the reference."""
    import heed

    served: dict[str, None] = {}
    fast: set[str] = set()
    while "reference" not in served:
        with heed.kernels.off(*fast):
            seen = attend(keys[:, :T], attend.remember(keys))
        lanes = dict.fromkeys(seen.kernel.split(" + "))  # two where mechanisms are mixed
        served[" + ".join(lanes)] = None
        fast |= lanes.keys() - {"reference"}
    return served


def _mechanisms() -> list[dict[str, Any]]:
    from heed.attention.catalogue import CATALOGUE

    return [as_data(entry) for entry in CATALOGUE.values()]


def _searched(word: str) -> list[dict[str, Any]]:
    from heed.attention.catalogue import CATALOGUE
    from heed.attention.synonyms import nearest, search

    found = search(word)
    if not found:
        raise UnknownName("mechanism", word, CATALOGUE, nearest(word))
    return [as_data(each) for each in found]


def _kernels() -> list[dict[str, Any]]:
    """The kernels, by the names that `heed.kernels.off` takes."""
    import heed

    alone = heed.kernels.CPU_ALONE
    return [
        {
            "name": name,
            "devices": ["cpu"] if name in alone else list(DEVICES),
            "about": (kernel.__doc__ or "").partition("\n")[0].rstrip("."),
        }
        for name, kernel in heed.kernels.NAMES.items()
    ]


def _listed(collection: str) -> list[dict[str, Any]]:
    from heed.running import listing

    found: list[dict[str, Any]] = getattr(listing, collection)()
    return found


COLLECTIONS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "mechanisms": _mechanisms,
    "kernels": _kernels,
    **{name: partial(_listed, name) for name in ("models", "tasks", "recipes")},
}
