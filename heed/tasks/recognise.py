"""Recognise: from labelled series of real numbers to a model that says what a series is.

    12 coefficients of a voice at each of 20 steps  ->  speaker 3

Data     Series with a label from .ts files, tables or JSON lines (`data/series.py`), brought to the
         mean and deviation of the training data; or the built-in one: a motif hidden in noise.
Model    `models/classifier.py` over numbers: an LSTM in both directions or filters, and a static
         attention over time, or another pool.
Judged   Accuracy, macro-F1 and what is taken for what, beside the most frequent label; where it is
         known which steps decide, how much of the attention they get.
A good run  JapaneseVowels: 98 % of 370 recordings by nine speakers, in half a minute. The recipe
         `motifs` finds 96 %, and looks at them; docs/results.md has the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import nn

import heed
from heed.answers.form import Example
from heed.answers.label import Label, LabelTraining
from heed.data import motifs
from heed.data.kinds.series import Series
from heed.data.labelled import ordered
from heed.data.scale import Scale
from heed.data.series import SeriesFiles, SeriesReport, read_series
from heed.errors import Refused
from heed.events import Note, Work
from heed.models import classifier
from heed.models.classifier import ClassifierSettings
from heed.settings import Settings
from heed.storage.run_folder import RunFolder
from heed.tasks.task import (
    Codec,
    Config,
    FileData,
    Name,
    Prepared,
    Recipe,
    Start,
    Task,
    headline,
)


class Motifs(Settings):
    """Series of the built-in corpus: a motif in noise."""

    series: int = Field(2_000, ge=1, le=1_000_000, description="Of the training part.")
    channels: int = Field(2, ge=1, le=64)
    shortest: int = Field(40, ge=motifs.WIDEST, le=10_000)
    longest: int = Field(100, ge=motifs.WIDEST, le=10_000)
    noise: float = Field(0.5, ge=0, le=100, description="Its deviation; a motif's is 1.")
    held_out: int = Field(300, ge=1, le=100_000, description="Series in each of valid and test.")
    seed: int = Field(0, ge=0, le=2**31 - 1)


class Data(FileData):
    """The source of the series: files, or the built-in corpus."""

    things: ClassVar[str] = "series"

    train: SeriesFiles | None = None
    valid: SeriesFiles | None = None
    test: SeriesFiles | None = None
    built_in: Motifs | None = None
    longest: int = Field(2_000, ge=1, le=100_000, description="Steps; longer series are cut.")


class RecogniseRecipe(Recipe):
    """One training run: task, data, model, training."""

    task: Literal["recognise"]
    data: Data
    model: ClassifierSettings
    training: LabelTraining


class RecogniseConfig(Config):
    """config.json of a run that labels series."""

    task: Literal["recognise"]
    model: ClassifierSettings
    labels: list[Name] = Field(min_length=2, max_length=10_000)
    scale: dict[str, list[float]] = Field(description="Mean and deviation of each channel.")
    longest: int = Field(ge=1, le=1_000_000, description="Steps of a series that are read.")

    def build(self) -> nn.Module:
        """The network, its weights drawn at random."""
        features = len(Scale.from_data(self.scale).mean)
        return classifier.build(self.model, features=features, labels=len(self.labels))


class SeriesLabel(Label):
    """The label of a series."""

    unit = "series"


class Recognise(Task[RecogniseRecipe, RecogniseConfig]):
    """The task of recognition, for running."""

    name = "recognise"
    about = headline(sys.modules[__name__])
    recipe, config, form = RecogniseRecipe, RecogniseConfig, SeriesLabel
    examples_are = "series"
    looks = "One series: the attention weights of each mechanism"

    def draft(self, recipe: RecogniseRecipe) -> None:
        """Build the network; neither the channels nor the labels matter."""
        classifier.build(recipe.model, features=1, labels=2)

    def exchanged(self, model: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Another pool: mean, max, last, or a static attention."""
        return classifier.exchanged(model, name)

    def report(self) -> SeriesReport:
        """A count of series, steps and missing values."""
        return SeriesReport()

    def examples(
        self, data: Data, part: str, root: Path, report: Any, codec: Codec | None = None
    ) -> Iterator[Example]:
        """The series of one part, with the steps that decide where they are built in."""
        if data.built_in is not None:
            told = data.built_in
            count = told.series if part == "train" else told.held_out
            more: Any = told.model_dump(exclude={"series", "held_out"}) | {"part": part}
            for each in motifs.draw(count, **more):
                report.read, report.kept = report.read + 1, report.kept + 1
                report.steps += len(each.values)
                yield Example((each.values,), each.label, (each.start, each.stop))
            return
        files, only = self.files(data, part, root)
        labels = None if codec is None else codec.form.names
        for row in read_series(files, labels=labels, only=only, report=report):
            yield Example((row.values,), row.label)
        if not report.kept:
            data.held_out.lacks(part, report)

    def fit(
        self, recipe: RecogniseRecipe, folder: RunFolder, root: Path, start: Start | None
    ) -> Work[Codec]:
        """The labels, and the scale of the training series."""
        data, found = recipe.data, set()
        for each in self.examples(data, "train", root, SeriesReport()):
            found.add(each.answer)
        if len(found) < 2:
            raise Refused(f"every series has the label '{min(found)}': there is nothing to learn")
        again = self.examples(data, "train", root, SeriesReport())
        scale = Scale.fit(each.inputs[0] for each in again)
        yield Note(f"{len(scale.mean)} channels, {len(found)} labels")
        return _codec(scale, ordered(found), data.longest)

    def describe(self, recipe: RecogniseRecipe, prepared: Prepared) -> RecogniseConfig:
        """config.json."""
        kind, form = prepared.codec.inputs["series"], prepared.codec.form
        return RecogniseConfig(
            heed=heed.__version__,
            task=recipe.task,
            model=recipe.model,
            labels=list(form.names),
            scale=kind.scale.as_data(),
            longest=kind.longest,
        )

    def codec(self, folder: RunFolder, config: RecogniseConfig) -> Codec:
        """The scale and the labels."""
        return _codec(Scale.from_data(config.scale), config.labels, config.longest)

    def given(
        self,
        config: RecogniseConfig,
        codec: Codec,
        paths: Sequence[Path],
        options: Mapping[str, Any],
    ) -> Work[Any]:
        """The series of a file."""
        if len(paths) != 1:
            raise Refused(f"give one file of series; got {len(paths)} files")
        report, files = SeriesReport(), SeriesFiles.model_validate(str(paths[0]))
        rows = list(read_series(files, labels=config.labels, report=report))
        yield Note(str(report))
        return [Example((row.values,), row.label) for row in rows]


def _codec(scale: Scale, labels: Sequence[str], longest: int) -> Codec:
    return Codec({"series": Series(scale, longest=longest)}, SeriesLabel(labels))


TASK = Recognise()
