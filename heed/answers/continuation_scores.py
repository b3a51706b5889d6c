"""Scores of predicted texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from heed.answers.form import Reading, loss_of
from heed.viewing.blocks import Table


@dataclass(frozen=True, slots=True)
class PredictedText(Reading):
    """The surprise of a model at a text, and the length of the text."""

    characters: int
    bytes: int
    unknown: int  # symbols that the vocabulary does not know

    @property
    def loss(self) -> float:
        """Nats per symbol."""
        return loss_of([self])


UNREAD = PredictedText(nats=0.0, count=0, characters=0, bytes=0, unknown=0)
"""A text in which nothing can be predicted."""


@dataclass(frozen=True, slots=True)
class LanguageScores:
    """Scores of a predicted text."""

    symbols: int
    characters: int
    unknown: int  # symbols that the vocabulary does not know
    context: int  # symbols in a window
    overlap: int  # how many of these were read before
    loss: float  # nats per symbol
    perplexity: float
    bits_per_character: float
    bits_per_byte: float

    @classmethod
    def of(
        cls, readings: Sequence[PredictedText], *, context: int, overlap: int = 0
    ) -> LanguageScores:
        """The scores of some texts together."""
        loss = loss_of(readings)
        symbols, characters, size, unknown = (
            sum(getattr(each, name) for each in readings)
            for name in ("count", "characters", "bytes", "unknown")
        )
        bits = sum(each.nats for each in readings) / math.log(2)
        return cls(
            symbols,
            characters,
            unknown,
            context,
            overlap,
            loss,
            math.exp(min(loss, 700)),
            bits / max(characters, 1),
            bits / max(size, 1),
        )

    def line(self) -> str:
        """The scores in one line."""
        return (
            f"loss {self.loss:.4f} · perplexity {self.perplexity:.3f} · "
            f"{self.bits_per_character:.4f} bits per character"
        )

    def facts(self) -> list[tuple[str, str, str]]:
        """The scores, each with what makes it comparable."""
        window = f"windows of {self.context} symbols"
        window += f", with an overlap of {self.overlap}" if self.overlap else ""
        strange = f"{self.unknown:,} unknown" if self.unknown else ""
        return [
            ("symbols", f"{self.symbols:,}", strange),
            ("loss", f"{self.loss:.4f}", f"nats per symbol, in {window}"),
            ("perplexity", f"{self.perplexity:.3f}", "per symbol"),
            ("bits per character", f"{self.bits_per_character:.4f}", ""),
            ("bits per byte", f"{self.bits_per_byte:.4f}", ""),
        ]

    def tables(self) -> list[Table]:
        """There are none."""
        return []
