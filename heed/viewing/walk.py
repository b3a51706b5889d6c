"""A walk through attention, told: the stages with their numbers, for the terminal and a page.

    rich.print(told)                              a screen
    Page("one word", told.blocks()).write(path)   every column

The record holds plain words and numbers, and knows no model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from heed.errors import ShapeError
from heed.viewing.blocks import Block, Column, Heading, Paragraph, Table, Value
from heed.viewing.drawing import others, written
from heed.viewing.page import Page
from heed.viewing.terminal import shown

FEW = 6  # keys that a terminal shows
FIRST = 4  # numbers of a vector that are shown
BAR = 10  # cells of a full bar
LONGEST = 24  # letters of a word in the terminal
MOST = 128  # keys that a page shows: if there are more, those of the largest weights


@dataclass(frozen=True, slots=True)
class Stage:
    """One of the stages: its formula, and its details, a line each."""

    name: str
    formula: str
    lines: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages as a block of a page."""

    stages: Sequence[Stage]

    def html(self) -> str:
        """Markup, with all text escaped."""
        each = (
            f"<dt>{n} {written(stage.name)}</dt>"
            f"<dd>{'<br>'.join(map(_line, (stage.formula, *stage.lines)))}</dd>"
            for n, stage in enumerate(self.stages, 1)
        )
        return f'<dl class="sentences">{"".join(each)}</dl>'


def _line(text: str) -> str:
    return f"<span>{written(text)}</span>"


@dataclass(frozen=True, slots=True)
class Key:
    """A key: a number for each column, or why it was hidden."""

    word: str
    numbers: Sequence[float]
    value: Sequence[float]  # its contribution: its weight times its value
    hidden: str = ""

    @property
    def weight(self) -> float:
        """The last of the numbers."""
        return self.numbers[-1]


@dataclass(frozen=True, slots=True)
class Told:
    """The attention of one query, step by step, in words and numbers.

    columns  the names of every key's numbers, in the order of the stages; the weight is the last
    context  the sum of the keys' contributions; empty if there is none
    check    the comparison with the model's own result
    choice   how many attentions and heads there are
    options  the options that choose one; only the terminal shows them
    """

    title: str
    stages: Sequence[Stage]
    columns: Sequence[str]
    keys: Sequence[Key]
    context: Sequence[float] = ()
    check: str = ""
    agrees: bool | None = None
    choice: str = ""
    options: str = ""

    def __post_init__(self) -> None:
        for key in self.keys:
            if len(key.numbers) != len(self.columns):
                raise ShapeError(
                    f"'{key.word}' has {len(key.numbers)} numbers for {len(self.columns)} columns"
                )

    def ranked(self) -> list[Key]:
        """The visible keys, those of the largest weights first."""
        return sorted((key for key in self.keys if not key.hidden), key=lambda key: -key.weight)

    def rest(self, few: int) -> str:
        """The keys after the first `few`, and why others are hidden, in one line."""
        left, whys = self.ranked()[few:], [key.hidden for key in self.keys if key.hidden]
        said = []
        if left:
            weight = sum(key.weight for key in left)
            said.append(f"{others(len(left))}: {number(weight)} in total")
        said += [f"{whys.count(why)} hidden: {why}" for why in dict.fromkeys(whys)]
        return " · ".join(said)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(shown(self.title), "bold")
        if self.choice:
            how = f" ({self.options})" if self.options else ""
            yield Text(f"  {shown(self.choice + how)}", "dim")
        yield from self._stages()
        yield Text()
        yield self._grid(options)
        if rest := self.rest(FEW):
            yield Text(f"  {shown(rest)}", "dim")
        if self.context:
            look = {True: "green", False: "bold red", None: "dim"}[self.agrees]
            line = Text.assemble(("  Σ     ", "bold"), vector(self.context))
            check = Text(shown(self.check), look)
            if line.cell_len + 2 + check.cell_len <= options.max_width:
                yield line.append("  ").append_text(check)
            else:
                yield line
                yield Padding(check, (0, 0, 0, 8), expand=False)
        elif self.check:
            yield Text(f"  {shown(self.check)}", "dim")

    def _stages(self) -> Iterator[Text]:
        for n, stage in enumerate(self.stages, 1):
            name = f"{n} {shown(stage.name):<6}"
            yield Text.assemble(("  " + name, "bold"), shown(stage.formula))
            for line in stage.lines:
                yield Text(" " * 10 + shown(line), "dim", no_wrap=True, overflow="ellipsis")

    def _grid(self, options: ConsoleOptions) -> Grid:
        plain = options.ascii_only
        grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
        grid.add_column("  key", no_wrap=True, overflow="ellipsis", max_width=LONGEST)
        for name in self.columns:
            grid.add_column(escape(shown(name)), justify="right", no_wrap=True)
        grid.add_column("", no_wrap=True, min_width=BAR)
        if self.context:
            grid.add_column("a·v", no_wrap=True, overflow="ellipsis")
        for key in self.ranked()[:FEW]:
            bar = ("#" if plain else "█") * round(BAR * min(1.0, max(0.0, key.weight)))
            cells = [Text("  " + shown(key.word)), *(Text(number(x)) for x in key.numbers)]
            cells.append(Text(bar, "bright_blue"))
            grid.add_row(*cells, *([Text(vector(key.value, 3), "dim")] if self.context else []))
        return grid

    def blocks(self) -> list[Block]:
        """The blocks of a page."""
        names = [Column("key"), *(Column(name, ".4f") for name in self.columns)]
        gathers = [Column("a·v")] if self.context else []
        hides = [Column("hidden")] if any(key.hidden for key in self.keys) else []
        keys = self.keys if len(self.keys) <= MOST else self.ranked()[:MOST]
        rows: list[list[Value]] = [
            [
                key.word,
                *(x if math.isfinite(x) else None for x in key.numbers),
                *([vector(key.value)] if self.context else []),
                *([key.hidden] if hides else []),
            ]
            for key in keys
        ]
        more = [self.check] if self.check else []
        if self.context:
            more = [f"context = Σ a·v = {vector(self.context, 8)}", *more]
        if left := len(self.keys) - len(keys):
            more = [f"The table leaves out {others(left)}.", *more]
        return [
            Heading(self.title, 3),
            *([Paragraph(self.choice)] if self.choice else []),
            Stages(self.stages),
            Table([*names, *gathers, *hides], rows),
            *(Paragraph(line) for line in more),
        ]

    def _repr_html_(self) -> str:
        return Page(self.title, self.blocks())._repr_html_()


@dataclass(frozen=True, slots=True)
class Section:
    """Walks of one text, as a block of a page."""

    title: str
    walks: Sequence[Told]

    def html(self) -> str:
        """Markup, with all text escaped."""
        blocks: list[Block] = [Heading(self.title)]
        for told in self.walks:
            blocks += told.blocks()
        return f'<section class="walk">{"".join(block.html() for block in blocks)}</section>'


def number(x: float) -> str:
    """A number with three decimals, or in powers of ten if it is too small or too large."""
    if not math.isfinite(x):
        return "–"
    if x and not 0.0005 <= abs(x) < 10_000:
        return f"{x:.0e}"
    return f"{x:.3f}"


def vector(numbers: Sequence[float], first: int = FIRST) -> str:
    """The first few numbers."""
    said = " ".join(f"{x: .3f}" for x in numbers[:first])
    return said + (" …" if len(numbers) > first else "")
