"""Lines with their masked words filled in, as `heed predict` and `heed show` print them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heed.tasks.looking import looked
from heed.tasks.pretrainer import MASKED, Filled, Pretrainer
from heed.viewing.atlas import Take
from heed.viewing.looking import Look
from heed.viewing.panels import Panel, of_heads
from heed.viewing.taking import layers as maps
from heed.viewing.terminal import WITHIN, HeatMap
from heed.viewing.words import Said


@dataclass(frozen=True, slots=True)
class Answer:
    """A line with its masks replaced.

    best  how many words are listed for each mask; 1: only the text
    """

    found: Filled
    best: int = 1

    def line(self) -> str:
        """The text; whether the second text follows; words with their probabilities."""
        found = self.found
        cells = [found.text]
        if found.follows is not None:
            cells.append(f"follows {found.follows:.3f}")
        if self.best > 1:
            cells += [", ".join(f"{w} {p:.3f}" for w, p in named) for named in found.words]
        return "\t".join(cells)

    def as_data(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        words = [[{"word": w, "probability": p} for w, p in named] for named in self.found.words]
        return {
            "source": self.found.source,
            "text": self.found.text,
            "words": words,
            "follows": self.found.follows,
            "unread": self.found.unread,
        }

    @property
    def remark(self) -> str:
        """A warning if the answer is the line itself, or the line was not read as intended."""
        line, read = self.found.source, _read(self.found)
        if self.found.follows is not None or not line.strip() or MASKED.search(line):
            return read
        return "; ".join(filter(None, (read, "the line has no [MASK], so nothing is filled in")))

    def shown(self) -> Shown:
        """The line with its attention."""
        return Shown(self.found, of_heads(self.found.heads, self.found.pieces))


@dataclass(frozen=True, slots=True)
class Shown:
    """A line, the words found for its masks, and the attention."""

    found: Filled
    panels: Sequence[Panel]

    @property
    def source(self) -> str:
        """The line."""
        return self.found.source

    @property
    def text(self) -> str:
        """The line with its masks replaced."""
        return Answer(self.found).line()

    def drawn(self) -> list[HeatMap]:
        """What a terminal shows."""
        return [HeatMap(panel, WITHIN) for panel in self.panels]

    def block(self, note: str = "") -> Said:
        """What a page shows."""
        facts = [("Text", self.source), ("Answer", self.text)]
        return Said(facts, None, self.panels, note or _read(self.found))


def _read(found: Filled) -> str:
    """A warning if the model cannot read pairs of texts, or the line is too long for it."""
    said = []
    if found.joined:
        said.append("both texts are read as one: this model was not trained on pairs of texts")
    if found.unread:
        said.append(f"the last {found.unread} symbols were not read: the model's limit is reached")
    return "; ".join(said)


def layers(found: Filled) -> list[Panel]:
    """Every layer, as the mean of its heads."""
    return [
        Panel.of(_mean(path, len(weight)), weight.mean(0), found.pieces, found.pieces)
        for path, weight in found.heads.items()
    ]


def _mean(path: str, heads: int) -> str:
    layer = f"layer {path.split('.')[0]}"
    return layer if heads == 1 else f"{layer} · mean of {heads} heads"


def look(worker: Pretrainer, line: str) -> Look:
    """A line, the words found, and the maps of every attention: of two streams, the content's."""
    (found,), seen = looked(worker.model, lambda: worker.fill([line]))
    every = list(maps(seen, lambda path: (found.pieces, None)).values()) if found.pieces else []
    shown = Shown(found, ())
    takes = [Take("", every)] if every else []
    return Look(line, shown.text, takes, facts=shown.block().facts, remark=_read(found))
