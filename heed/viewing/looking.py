"""A text and a model's attention over it: as one page to explore, and small maps in a terminal.

page("runs/mine: attention", looks, walks).write("look.html")
rich.print(*look.drawn())
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from heed.viewing.atlas import Atlas, Take
from heed.viewing.blocks import Block, Examples, Heading, Paragraph, Table
from heed.viewing.page import Page
from heed.viewing.panels import Panel
from heed.viewing.small import SmallMaps
from heed.viewing.terminal import HeatMap
from heed.viewing.walk import Section, Told
from heed.viewing.words import Said, Weighed

BUDGET = 9_000_000  # bytes that all maps of a page may take
LEAST = 1_000_000  # bytes that the maps of each text may always take
HEADING = 120  # letters of a text above its maps
SAME = "both models read the answer of {} here"
NOTHING = "There is no attention to show."


@dataclass(frozen=True, slots=True)
class Look:
    """A text, the model's answer, and the maps of every attention.

    source    the text, or any other input as a line
    text      the answer
    takes     the passes over it: one, or one for each hypothesis; none without attention
    facts     names and values on a page, the input and the answer among them
    answer    which of the facts is the answer; None if none is
    weighed   words by the weight of one query for the whole input: the mean, then each head
    leading   the most telling maps, which a terminal draws instead of all
    figures   further tables of a page
    remark    a warning, such as that the text was cut
    readings  the answers in a form that another model can read
    every     whether a terminal draws every head by itself
    named     the name of the answer on a page, if it is not "answer"
    """

    source: str
    text: str
    takes: Sequence[Take]
    facts: Sequence[tuple[str, str]] = ()
    answer: int | None = 1
    weighed: Sequence[Weighed] = ()
    leading: Sequence[Panel] = ()
    figures: Sequence[Table] = ()
    remark: str = ""
    readings: Sequence[Any] = ()
    every: bool = False
    named: str = ""

    @property
    def heads(self) -> list[Panel]:
        """Every head of the first pass, pooled if it is long."""
        return [panel for take in self.takes[:1] for one in take.layers for panel in one.panels()]

    @property
    def panels(self) -> list[Panel]:
        """The panels of a picture, the most telling first; none without attention."""
        if self.every:
            return [*self.leading, *self.heads]
        if self.weighed:
            return [self.weighed[0].panel]
        return list(self.leading) or self.heads

    def drawn(self) -> list[Any]:
        """The pictures for a terminal."""
        if self.every:
            return [*self.weighed, *(HeatMap(panel) for panel in self.panels)]
        if self.weighed or self.leading:
            return [*self.weighed[:1], *(HeatMap(panel) for panel in self.leading)]
        return [SmallMaps(self.heads)] if self.heads else []

    def block(self, note: str = "", *, maps: bool = True) -> Said:
        """The entry in a page's list; `maps` if no atlas follows."""
        weighed = self.weighed[0] if self.weighed else None
        panels = (self.leading or ([] if weighed else self.heads)) if maps else ()
        return Said(self.facts, weighed, panels, note or self.remark, self.answer)

    def blocks(self, budget: int, *, titled: bool) -> list[Block]:
        """The blocks of a page; `titled` if it shows several texts."""
        found: list[Block] = [Heading(_heading(self.source))] if titled else []
        found += [Examples([self.block(maps=False)])] if self.facts else []
        found += (
            [Atlas(self.source, self.takes, budget, against=True)]
            if self.takes
            else [Paragraph(NOTHING)]
        )
        return [*found, *self.figures]

    def counts(self) -> tuple[int, int]:
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
