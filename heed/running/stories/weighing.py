"""How a classified text is printed and shown: its label, and the weights of its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from heed.tasks.labeller import Judgement, Labeller
from heed.tasks.looking import looked
from heed.viewing.atlas import Take
from heed.viewing.looking import Look
from heed.viewing.panels import Panel, of_heads
from heed.viewing.taking import layers
from heed.viewing.terminal import WITHIN, HeatMap, shown
from heed.viewing.words import Said, Weighed


@dataclass(frozen=True, slots=True)
class Shown:
    """A text, its label, and the attention; `right` is the true label, if it is known.

    every  each head of a static attention by itself, instead of their mean
    """

    judgement: Judgement
    right: str = ""
    heads: Sequence[Panel] = ()
    every: bool = False

    @property
    def source(self) -> str:
        """The text."""
        return self.judgement.text

    @property
    def text(self) -> str:
        """The label with its probability; the right label if that is another."""
        if not self.judgement.label:
            return ""
        wrong = (
            f"; true label: {self.right}" if self.right not in ("", self.judgement.label) else ""
        )
        return f"{self._label} ({self.judgement.probability:.2f}{wrong})"

    @property
    def remark(self) -> str:
        """A warning if the text was too long."""
        return self.judgement.remark

    @property
    def _label(self) -> str:
        return shown(self.judgement.label)  # untrusted: it must not control the terminal

    @property
    def weighed(self) -> Weighed | None:
        """The words with their weights by a static attention, the mean of its heads."""
        said = self.judgement
        if said.looks is None or said.weight is None:
            return None
        heads = len(said.looks)
        mean = f", mean of {heads} heads" if heads > 1 else ""
        return Weighed(f"attention weights{mean}", said.pieces, said.weight.tolist())

    @property
    def _looks(self) -> list[Weighed]:
        """The words with their weights, by the mean of the heads or by each head."""
        said = self.judgement
        if not self.every or said.looks is None or len(said.looks) == 1:
            return [] if self.weighed is None else [self.weighed]
        return [
            Weighed(f"attention weights · head {n}", said.pieces, weight.tolist())
            for n, weight in enumerate(said.looks)
        ]

    @property
    def panels(self) -> list[Panel]:
        """The words with their weights, and every head of every other attention."""
        return [*(each.panel for each in self._looks), *self.heads]

    def drawn(self) -> list[Any]:
        """What a terminal shows."""
        return [*self._looks, *(HeatMap(panel, WITHIN) for panel in self.heads)]

    def block(self, note: str = "") -> Said:
        """What a page shows."""
        shares = " · ".join(f"{name} {p:.3f}" for name, p in self.judgement.shares.items())
        facts = [("Text", self.source), ("Predicted", self._label), ("Probabilities", shares)]
        facts += [("Label", self.right)] if self.right else []
        return Said(facts, self.weighed, self.heads, note or self.remark)


@dataclass(frozen=True, slots=True)
class Answer:
    """The label of a line."""

    judgement: Judgement

    @property
    def remark(self) -> str:
        """A warning if the line was too long."""
        return self.judgement.remark

    def line(self) -> str:
        """Label, tab, probability; blank for a blank line."""
        said = self.judgement
        return f"{shown(said.label)}\t{said.probability:.4f}" if said.label else ""

    def as_data(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        said = self.judgement
        found: dict[str, Any] = {"text": said.text, "label": said.label or None}
        found |= {"probability": said.probability, "probabilities": said.shares, "cut": said.cut}
        return found

    def shown(self) -> Shown:
        """The line with its attention."""
        return Shown(self.judgement, heads=of_heads(self.judgement.heads, self.judgement.pieces))


def look(labeller: Labeller, text: str, right: str = "") -> Look:
    """A text, its label, and the maps of every attention."""
    (said,), seen = looked(labeller.model, lambda: labeller.label([text]))
    found = layers(seen, lambda path: (said.pieces, None)) if said.pieces else []
    maps = [record.statistics.map for path, record in seen.items() if "pool" in path.split(".")]
    whole = [x[0, :, 0] for x in maps if x is not None and x.shape[-1] == len(said.pieces)]
    if whole:
        said = replace(said, looks=torch.cat(whole).float().cpu().numpy())
    shown = Shown(said, right)
    takes = [Take("", found)] if found else []
    return Look(text, shown.text, takes, shown.block, remark=shown.remark)
