"""The settings of translation: the recipe, and config.json of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from torch import nn

from heed.models import building
from heed.running.stories.story import Config, Recipe, changed
from heed.tasks import translate
from heed.tasks.translator import Decoding
from heed.training.settings import Training, Weight


class TranslateTraining(Training):
    """How a translation model learns."""

    guided: Weight = Field(
        0.0, description="weight of the cross entropy of its attention against given alignments"
    )


class TranslateRecipe(Recipe):
    """One training run: task, data, model, training, decoding."""

    task: Literal["translate"]
    data: translate.Data
    model: building.Model
    training: TranslateTraining
    decoding: Decoding = Decoding()
    scores: translate.Scoring = translate.Scoring()


class TranslateConfig(Config):
    """config.json of a run that translates."""

    task: Literal["translate"]
    model: building.Model
    source: int = Field(ge=4, le=2_000_000, description="Symbols of the source.")
    target: int = Field(ge=4, le=2_000_000)
    shared: bool
    longest: int = Field(ge=1, le=1_000_000, description="The longest source it is built for.")
    lowercase: bool
    decoding: Decoding
    scores: translate.Scoring = translate.Scoring()

    def build(self) -> nn.Module:
        """The network, its weights drawn at random."""
        return building.build(
            self.model,
            source=self.source,
            target=self.target,
            shared=self.shared,
            longest=self.longest,
        )

    @property
    def reads(self) -> int | None:
        """The longest source that it can read, if there is a limit."""
        return building.reads(self.model, self.longest)

    @property
    def writes(self) -> int | None:
        """The longest target that it can write, if there is a limit."""
        return building.writes(self.model, self.longest)

    def chosen(self, changes: Mapping[str, Any]) -> Decoding:
        """The run's decoding settings, with some of them changed."""
        return changed(self.decoding, changes)
