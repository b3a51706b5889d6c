"""A text and a model's attention over it: as one page to explore, and small maps in a terminal.

page("runs/mine: attention", looks, walks).write("look.html")
rich.print(*look.drawn())
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heed.viewing.atlas import Atlas, Take
from heed.viewing.blocks import Block, Examples, Heading, Paragraph, Table
from heed.viewing.page import Page
from heed.viewing.panels import Panel
from heed.viewing.small import SmallMaps
from heed.viewing.terminal import WITHIN, HeatMap
from heed.viewing.walk import Section, Told

BUDGET = 9_000_000  # bytes that all maps of a page may take
LEAST = 1_000_000  # bytes that the maps of each text may always take
HEADING = 120  # letters of a text above its maps
SAME = "both models read the answer of {} here"
NOTHING = "There is no attention to show."


@dataclass(frozen=True, slots=True)
class Look:
    """A text, the model's answer, and the maps of every attention.

    source    the text
    text      the answer
    named     the name of the answer on a page, if it is not "answer"
    takes     the passes over it: one, or one for each hypothesis; none without attention
    item      makes the item of a page's list beside the maps, given a remark
    figures   further tables of a page
    remark    a warning, such as that the text was cut
    readings  the answers in a form that another model can read
    every     whether a terminal draws every head by itself, or all of them small
    """

    source: str
    text: str
    takes: Sequence[Take]
    item: Callable[[str], Any] | None = None
    figures: Sequence[Table] = ()
    remark: str = ""
    readings: Sequence[str] = ()
    every: bool = False
    named: str = ""

    @property
    def panels(self) -> list[Panel]:
        """Every head of the first pass, pooled if it is long."""
        return [panel for take in self.takes[:1] for one in take.layers for panel in one.panels()]

    def drawn(self) -> list[Any]:
        """The maps as a terminal shows them."""
        maps: list[Any] = []
        if self.panels:
            maps = [SmallMaps(self.panels)]
            maps = [HeatMap(panel, WITHIN) for panel in self.panels] if self.every else maps
        return maps

    def blocks(self, budget: int, *, titled: bool) -> list[Block]:
        """The blocks of a page; `titled` if it shows several texts."""
        found: list[Block] = [Heading(_heading(self.source))] if titled else []
        found += [] if self.item is None else [Examples([self.item(self.remark)])]
        found += (
            [Atlas(self.source, self.takes, budget, against=True)]
            if self.takes
            else [Paragraph(NOTHING)]
        )
        return [*found, *self.figures]

    def facts(self) -> tuple[int, int]:
        """The number of attentions to explore, and of all their heads."""
        first = [one for take in self.takes[:1] for one in take.layers]
        return len(first), sum(len(one.heads) for one in first)


def _heading(text: str) -> str:
    return text if len(text) <= HEADING else f"{text[:HEADING]} …"


def beside(mine: Look, theirs: Look, sides: tuple[str, str]) -> Look:
    """The looks of two models at one text, side by side.

    If answers are read word by word, the second model has read the first one's answer: maps can
    only be compared over the same words. The remark says so, and has the second one's own answer.
    The difference on the page is that of the first and the second.
    """
    takes = [
        replace(take, side=side)
        for look, side in zip((mine, theirs), sides, strict=True)
        for take in look.takes
    ]
    lent = bool(mine.readings and theirs.readings and mine.takes and theirs.takes)
    said = [f"answer of {sides[1]}: {theirs.text}"] if theirs.text else []
    said += [SAME.format(sides[0])] if lent else []
    both = zip((mine, theirs), sides, strict=True)
    said += [f"{side}: no attention to show" for look, side in both if not look.takes]
    remark = " · ".join(filter(None, (mine.remark, theirs.remark, *said)))
    figures = [*mine.figures, *theirs.figures]
    return replace(mine, takes=takes, figures=figures, remark=remark)


def page(title: str, looks: Sequence[Look], walks: Sequence[Sequence[Told]] = ()) -> Page:
    """A page of all texts, each with its walks below.

    walks  of each text
    """
    budget = max(LEAST, BUDGET // max(1, len(looks)))
    blocks: list[Block] = []
    for n, look in enumerate(looks):
        blocks += look.blocks(budget, titled=len(looks) > 1)
        if n < len(walks) and walks[n]:
            whose = f": {look.takes[0].side}" if look.takes and look.takes[0].side else ""
            blocks.append(Section(f"Step by step{whose}", walks[n]))
    return Page(title, blocks)
