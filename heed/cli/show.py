"""heed show: where a model looks, step by step, and over its training."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heed.cli.options import check_text, safe, said
from heed.errors import Refused

if TYPE_CHECKING:
    from rich.console import Console

    from heed.running.showing import Seen, Subject
    from heed.viewing.looking import Look
    from heed.viewing.walk import Told

EXAMPLES = (
    "heed show runs/grammar '我 爱 中国'\n\n"
    "heed show runs/grammar '我 爱 中国' --html look.html --beside runs/other\n\n"
    "heed show runs/grammar '我 爱 中国' --walk --at love\n\n"
    "heed show runs/grammar --history --html training.html"
)
LONGEST = 400  # letters of a text or an answer that a terminal prints


def run(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A run, one of its checkpoints, the folder of a pretrained model or its name at "
            "the hub, or the file of a saved heed.watch.",
        ),
    ],
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INPUT]...", help="Texts to show; by default a few that the run keeps."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--heads", help="Draw every head of every attention.")
    ] = False,
    walk: Annotated[
        bool,
        typer.Option("--walk", help="The attention of one word, step by step, with its numbers."),
    ] = False,
    at: Annotated[str | None, typer.Option(help="With --walk: the word, or its position.")] = None,
    layer: Annotated[
        int | None,
        typer.Option(help="With --walk: the attention, from 0."),
    ] = None,
    head: Annotated[int | None, typer.Option(help="With --walk: the head, from 0.")] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Loss, scores and statistics over the training.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Write an interactive page: every layer and head, and a walk."),
    ] = None,
    beside: Annotated[
        Path | None,
        typer.Option(help="With --html: another SOURCE to show side by side, with the difference."),
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Write a PNG picture.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write an SVG picture.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Show a model's answers and its attention: in the terminal, as a picture or as a page."""
    from rich.console import Console

    console = Console(highlight=False)
    which, texts = said(at=at, layer=layer, head=head), text or []
    check_text(texts)
    _warn(texts)
    _check(walk, history, which, texts, every, png or svg, html, beside)
    pictures = [path for path in (png, svg) if path is not None]
    if history:
        _history(source, html, console)
        return
    if html is not None:
        _explore(source, beside, texts, which, walk, html, device)
    elif walk:
        for told in _walks(_opened(source, device), texts, which):
            console.print(told)
            console.print()
    elif not pictures:
        _tell(source, texts, every, device, console)
    if pictures:
        _pictures(_shown(source, texts, every, device), pictures)


def _warn(texts: Sequence[str]) -> None:
    """Say of a text that has the name of a file that it is not read: other verbs do."""
    for text in texts:
        if isfile(text):  # unlike a Path, it takes a name of any length
            said = f"'{safe(text)}' is shown as a text, not read as the file of that name"
            typer.echo(f"{said}; heed predict reads files", err=True)


def _check(
    walk: bool,
    history: bool,
    which: dict[str, Any],
    text: list[str],
    every: bool,
    picture: Path | None,
    html: Path | None,
    beside: Path | None,
) -> None:
    """Refuse options that do not go together."""
    if which and not walk:
        raise Refused(f"--{next(iter(which))} is for --walk")
    if history and (walk or text or every or beside):
        other = {"--walk": walk, "--heads": every, "--beside": beside, "an INPUT": text}
        named = next(name for name, given in other.items() if given)
        raise Refused(f"--history shows the whole training; leave out {named}")
    if (walk or history) and picture is not None:
        raise Refused(
            f"{'--walk' if walk else '--history'} cannot be a picture; write a page: --html"
        )
    if beside is not None and picture is not None:
        raise Refused("a picture shows one model: leave out --beside, or --png and --svg")
    if beside is not None and html is None:
        raise Refused("--beside shows two models side by side on a page; name it: --html look.html")


def _opened(source: Path, device: str) -> Subject:
    """The subject that is named, ready to be looked into."""
    from heed.running.showing import is_foreign, opened

    if not is_foreign(source):
        return opened(source, device)
    from heed.integrations.folders import Foreign
    from heed.running.devices import chosen

    return Foreign(source, chosen(device))


def _explore(
    source: Path,
    beside: Path | None,
    texts: list[str],
    which: dict[str, Any],
    walk: bool,
    html: Path,
    device: str,
) -> None:
    """Write the page, and say in a line what is on it."""
    from heed.running.showing import explored, sides
    from heed.viewing.looking import page

    subject = _opened(source, device)
    other = None if beside is None else _opened(beside, device)
    found = explored(subject, texts, other)
    looks = [look for look, _ in found]
    walks = [_walk(seen, which, walk) for _, seen in found]
    if not (walk or any(take.layers for look in looks for take in look.takes)):
        raise Refused(NOTHING)
    whose = subject.name if other is None else " and ".join(sides(subject, other))
    page(f"{whose}: attention", looks, walks).write(html)
    attentions, heads = looks[0].counts()
    there = {take.side for look in looks for take in look.takes}
    lacking = () if other is None else (s for s in sides(subject, other) if s not in there)
    print(
        f"{html}: {_count(len(looks), 'text')}, {_count(attentions, 'attention')}, "
        f"{_count(heads, 'head')}; {html.stat().st_size / 1e6:.1f} MB"
        + "".join(f"; {safe(side)}: no attention to show" for side in lacking)
    )


def _count(n: int, name: str) -> str:
    return f"{n:,} {name}{'' if n == 1 else 's'}"


def _walk(seen: Seen, which: dict[str, Any], wanted: bool) -> list[Told]:
    """A walk through a pass; none where there can be none, which is refused if it is wanted."""
    from heed.running.walking import told

    try:
        return [told(seen, **which)]
    except Refused:
        if wanted:
            raise
        return []


def _walks(subject: Subject, texts: Sequence[str], which: dict[str, Any]) -> list[Told]:
    from heed.running.walking import told

    found = subject.passes(texts)
    return [told(seen, **which) for seen in (found if texts else found[:1])]


def _history(folder: Path, html: Path | None, console: Console) -> None:
    from heed.running.history import history

    found = history(folder)
    if html is None:
        console.print(found)
    else:
        found.page().write(html)
        print(f"{html}: the history of {folder.name}; {html.stat().st_size / 1e6:.1f} MB")


def _shown(source: Path, texts: list[str], every: bool, device: str) -> list[Any]:
    from dataclasses import replace

    from heed.running.showing import is_foreign, show

    if is_foreign(source):
        seen = _opened(source, device).passes(texts)
        return [replace(each.look, every=every) for each in seen]
    return show(source, texts, every=every, device=device)


def _tell(source: Path, texts: list[str], every: bool, device: str, console: Console) -> None:
    for each in _shown(source, texts, every, device):
        tell(each, console)


def _pictures(shown: list[Look], paths: Sequence[Path]) -> None:
    from heed.viewing import image

    groups = [image.Group(each.source, each.panels, _answer(each)) for each in shown]
    maps = sum(len(group.panels) for group in groups)
    if not maps:
        raise Refused(NOTHING)
    for path in paths:
        image.save(groups, path)
        print(f"{path}: {_count(maps, 'map')}")


def tell(shown: Look, console: Console) -> None:
    """Print source, answer and heat map."""
    from rich.text import Text

    from heed.cli.tables import drawn as table

    answer = _short(_answer(shown))
    if answer and shown.weighed and console.color_system:
        console.print(Text(f"→ {answer}"))  # the text follows, in colour
    else:
        said = (_short(shown.source), "bold")
        console.print(Text.assemble(said, f" → {answer}" if answer else ""))
    if remark := shown.remark:
        console.print(Text(safe(remark), "dim"))
    drawn = list(shown.drawn())
    drawn += [table(each.columns, each.rows) for each in shown.figures]
    for each in drawn:
        console.print(each)
    if not drawn:
        console.print("[dim]no attention to show[/]")
    console.print()


def _answer(shown: Look) -> str:
    """The answer, and what it is if that is not plain; "" without one."""
    named = f"{shown.named}: " if shown.named else ""
    return f"{named}{shown.text}" if shown.text else ""


def _short(text: str) -> str:
    """A text as a terminal prints it, shortened."""
    return safe(text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text):,} characters)")


NOTHING = (
    "there is nothing to draw: the model has no attention, or wrote nothing, or the file has "
    "statistics without a map (heed.Summary(map=(64, 64)) keeps one)"
)
