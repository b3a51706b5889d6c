"""Taggers: a label for every word of a text, or for every place of a series.

network = build(TaggerSettings(encoder={"kind": "gru"}), symbols=8000, labels=17)
network(symbols, lengths).logits                         # B S, B -> B S C
network(symbols, lengths, asked=places).logits           # of some places alone, B K -> B K C
"""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator
from torch import nn

from heed.models import reader_settings
from heed.models.classifier import Classifier
from heed.models.reader_settings import ReaderSettings, build_spelled
from heed.models.text_settings import TextSettings, draw_linear


class TaggerSettings(ReaderSettings):
    """A recipe's settings of a tagger."""

    kind: Literal["tagger"] = "tagger"

    @model_validator(mode="after")
    def _fits(self) -> TaggerSettings:
        reader_settings.check(self)
        return self


def build(
    settings: TaggerSettings,
    *,
    symbols: int | None = None,
    features: int | None = None,
    labels: int,
    letters: tuple[int, int] = (0, 1),
) -> Classifier:
    """The network for so many labels.

    symbols   the size of the vocabulary
    features  in its place: inputs are so many real numbers at every place
    letters   how many runs of letters there are, and how many of them a word has at most
    """
    reader = reader_settings.build(settings, symbols=symbols, features=features)
    answer = nn.Linear(reader.width, labels)
    if isinstance(settings.encoder, TextSettings):
        draw_linear([answer], settings.encoder.initial)
    spelled = build_spelled(settings, symbols=symbols, letters=letters)
    return Classifier(reader, None, answer, settings.dropout, spelled)
