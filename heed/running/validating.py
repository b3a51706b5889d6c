"""Validating: how surprised the model is by pairs it does not learn from, what it writes for a few
of them, and where each of its attentions looks.

At each validation `samples/` gets the translations and the picture of one alignment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from heed.running.showing import panel
from heed.tasks.translator import Decoding, Example, Translation, Translator
from heed.training.folder import RunFolder
from heed.viewing.image import svg

SAMPLES = 3
WATCHED = 32  # pairs whose attentions are measured
GREEDY = Decoding(method="greedy")


@dataclass(frozen=True, slots=True)
class Validated:
    """What a validation found."""

    loss: float  # nats per symbol
    perplexity: float
    figures: dict[str, Any]
    sample: Translation

    def line(self) -> str:
        """In one line."""
        return (
            f"validation perplexity {self.perplexity:.2f} · "
            f"{self.sample.source} -> {self.sample.text}"
        )


class Validator:
    """Judges a model by the same pairs each time."""

    def __init__(self, translator: Translator, pairs: list[Example], folder: RunFolder) -> None:
        self.translator, self.pairs, self.folder = translator, pairs, folder

    def loss(self) -> float:
        """Nats per symbol of the targets."""
        readings = self.translator.read(self.pairs, look=False)
        return sum(r.surprise for r in readings) / sum(r.symbols for r in readings)

    def judge(self, step: int) -> Validated:
        """Loss, a few translations with a picture, and the attentions' statistics."""
        loss = self.loss()
        perplexity = math.exp(min(loss, 700))
        samples = self._samples(step)
        figures = {
            "loss": loss,
            "perplexity": perplexity,
            "attention": self.translator.sharpness(self.pairs[:WATCHED]),
        }
        return Validated(loss, perplexity, figures, samples[0])

    def _samples(self, step: int) -> list[Translation]:
        pairs = self.pairs[:SAMPLES]
        written = self.translator.translate([pair.source for pair in pairs], GREEDY, look=True)
        samples = [best[0] for best in written]
        text = "".join(
            f"source     {pair.source}\nreference  {pair.target}\nwritten    {sample.text}\n\n"
            for pair, sample in zip(pairs, samples, strict=True)
        )
        name = f"step-{step:07d}"
        self.folder.write_text(self.folder.samples / f"{name}.txt", text)
        pictured = next(filter(None, (panel(each, each.source) for each in samples)), None)
        if pictured is not None:
            self.folder.write_text(self.folder.samples / f"{name}.svg", svg(pictured))
        return samples
