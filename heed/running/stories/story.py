"""A story: all that running needs to know of a task. The loop is the same for every task.

    class Sorting(Story[SortingRecipe, SortingConfig, Prepared, Tokeniser, Sorter]):
        name, recipe, config = "sort", SortingRecipe, SortingConfig
        ...
    STORY = Sorting()

A command or an option that a task does not have is refused with a message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import lexists
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from heed.data.text import read_lines
from heed.errors import HeedError, Refused
from heed.events import Note, Work
from heed.running.stories.records import (
    Answer,
    Evaluated,
    Listened,
    Movable,
    Scores,
    Shown,
    Validated,
    Validator,
)
from heed.storage.run_folder import RunFolder
from heed.tasks.task import Config, Recipe, Start, changed, check_vocabulary, headline
from heed.training.fit import Source
from heed.viewing.blocks import Block, Column, Value
from heed.viewing.looking import Look

if TYPE_CHECKING:
    from heed.running.learner import Trained

__all__ = [
    "Answer",
    "AnyRun",
    "AnyStory",
    "Config",
    "Evaluated",
    "Listened",
    "Recipe",
    "Run",
    "Scores",
    "Shown",
    "Start",
    "Story",
    "Validated",
    "Validator",
    "changed",
    "check_vocabulary",
    "headline",
    "judged_part",
    "kept_part",
    "scored_part",
    "shown_part",
]

R = TypeVar("R", bound=Recipe)
C = TypeVar("C", bound=Config)
P = TypeVar("P")
T = TypeVar("T")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class Run(Generic[C, W]):
    """A run folder, opened: its worker applies the trained model."""

    folder: RunFolder
    config: C
    worker: W
    story: AnyStory


class Story(ABC, Generic[R, C, P, T, W]):
    """What running needs to know of a task.

    R  its recipe
    C  its config.json
    P  its prepared data: the examples for training and for validation
    T  its tokenisers, with everything that is made of them
    W  its worker, which applies the trained model
    """

    name: ClassVar[str]
    about: ClassVar[str]  # a line for `heed list tasks`
    unit: ClassVar[str] = "symbols"  # what the objective counts
    recipe: ClassVar[type[Recipe]]
    config: ClassVar[type[Config]]
    whole: ClassVar[bool] = False  # every weight of a start must fit
    continues: ClassVar[bool] = False  # texts are continued, so that their ends matter most
    figures: ClassVar[Sequence[Column]] = ()  # of each mechanism in `heed compare`
    onward: ClassVar[Sequence[str]] = ("predict {run} FILE", "show {run}")  # once it is trained
    looks: ClassVar[str] = ""  # heading of a comparison's pictures; none without

    def check(self, recipe: R) -> None:
        """Refuse a recipe that cannot be built, before anything is read."""
        try:
            with torch.device("meta"):
                self.draft(recipe)
        except HeedError as error:
            raise Refused(f"the recipe's model cannot be built: {error}") from None

    @abstractmethod
    def draft(self, recipe: R) -> None:
        """Build the recipe's network for any vocabulary; nothing is allocated."""

    def with_attention(self, raw: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The raw recipe with another mechanism: --attention."""
        model = raw.get("model") or {}
        if not isinstance(model, Mapping):
            return dict(raw)  # refused later
        return {**raw, "model": self.exchanged(model, name)}

    def exchanged(self, model: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The model of a raw recipe, with another mechanism."""
        raise Refused(f"the recipes of {self.name} have no attention to replace")

    @abstractmethod
    def prepare(self, recipe: R, folder: RunFolder, start: Start | None = None) -> Work[P]:
        """Write tokenisers, a cache and examples to the run folder; a finished one is kept.

        With a start its tokeniser is used, since its weights fit no other.
        """

    @abstractmethod
    def describe(self, recipe: R, prepared: P) -> C:
        """The config.json of the run."""

    @abstractmethod
    def objective(self, recipe: R, prepared: P) -> Movable:
        """An nn.Module that is an objective (training/objective.py)."""

    @abstractmethod
    def batches(self, recipe: R, prepared: P, *, shard: tuple[int, int], fixed: bool) -> Source:
        """Batches of each epoch; every process gets its part (data/batches.py)."""

    @abstractmethod
    def tokens(self, folder: RunFolder, config: C) -> T:
        """The tokenisers of a run; refused if the config does not match. This must be quick."""

    def tokeniser(self, tokens: T) -> Any:
        """The tokeniser, out of those of `tokens`, for a training that starts from this run."""
        return tokens

    @abstractmethod
    def worker(self, model: nn.Module, tokens: T, config: C, device: torch.device) -> W:
        """What applies the trained model, with the tokenisers of `tokens`."""

    @abstractmethod
    def validator(self, worker: W, prepared: P, folder: RunFolder) -> Validator:
        """What validates the model during training."""

    def parts(self, folder: RunFolder) -> list[str]:
        """The parts to score when training ends: the test, or otherwise the validation."""
        return [judged_part(folder)]

    @abstractmethod
    def score(self, config: C, worker: W, folder: RunFolder, part: str) -> Work[Scores]:
        """How good the model is on a part that the folder keeps."""

    def ready(self, model: nn.Module, tokens: T) -> None:
        """Copy what a model takes from its tokenisers into it, before training."""

    def adopted(self, model: nn.Module, start: Start) -> Mapping[str, Tensor]:
        """A start's weights under the names of this model."""
        return start.weights

    def evaluate(
        self, run: Run[C, W], data: str | Sequence[Path], options: Mapping[str, Any]
    ) -> Work[Evaluated]:
        """Score a run on files, or on a part that it keeps; `options` are those that were given."""
        self._lacks("evaluate")

    def lines(self, file: str, options: Mapping[str, Any]) -> Iterator[str]:
        """What of a file is given to `predict`: its lines; "-" is the standard input."""
        return (text for _, text in read_lines(file))

    def predict(
        self,
        run: Run[C, W],
        lines: Iterator[str],
        options: Mapping[str, Any],
        *,
        look: bool,
        at_once: int,
    ) -> Iterator[Answer]:
        """An answer for each line, even a blank one, once `at_once` lines have been read."""
        self._lacks("predict")

    def show(self, run: Run[C, W], texts: Sequence[str], *, every: bool) -> Sequence[Shown]:
        """Texts, or a few examples of the run, with `every` head of every attention."""
        self._lacks("show")

    def look(self, run: Run[C, W], texts: Sequence[str], given: Sequence[Look] = ()) -> list[Look]:
        """The maps of every attention over texts of any length, for a page to explore.

        given  another model's looks at the same texts: if an answer is read word by word, the
               other's answer is read, so that both have the same words
        """
        self._lacks("show")

    def hear(self, run: Run[C, W], text: str) -> Listened:
        """The calls of every attention while the model reads a text, for walks."""
        self._lacks("walk")

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of `heed compare`: mechanism, figures and costs; none without figures."""
        if not self.figures:
            return ()
        return (
            Column("mechanism"),
            *self.figures,
            Column(f"{self.unit}/s", ",.0f", "high"),
            Column("memory, MiB", ",.0f", "low"),
            Column("parameters", ",d"),
            Column("seconds", ",.0f", "low"),
        )

    def row(self, mechanism: str, trained: Trained, memory: float | None) -> list[Value]:
        """The values of `columns`; `trained` is what running/train.py returns."""
        spent = (trained.tokens_per_second, memory, trained.parameters, trained.seconds)
        return [mechanism, *self.figured(trained), *spent]

    def figured(self, trained: Trained) -> list[Value]:
        """The values of `figures`."""
        self._lacks("compare")

    def compared(self, trained: Mapping[str, Trained]) -> list[Block]:
        """The blocks below the table of a comparison's page; `trained` is by mechanism."""
        return []

    def only(self, options: Mapping[str, Any], *known: str) -> None:
        """Refuse an option that this task does not have."""
        for name in options:
            if name not in known:
                option = name.replace("_", "-")
                raise Refused(f"--{option} is not for runs of the task {self.name}")

    def _lacks(self, verb: str) -> NoReturn:
        raise Refused(f"runs of the task {self.name} do not support {verb}")


AnyRun = Run[Any, Any]
AnyStory = Story[Any, Any, Any, Any, Any]


def kept_part(folder: RunFolder) -> str | None:
    """The test that a run keeps, or otherwise its validation; None if it keeps neither.

    Anything of the test's name counts, even if it is not a file: that is refused when it is read.
    """
    parts = ("test", "valid")
    return next((part for part in parts if lexists(folder.examples / f"{part}.jsonl")), None)


def judged_part(folder: RunFolder) -> str:
    """The part for the final scores: the test, unless a run keeps only the validation."""
    return kept_part(folder) or "test"


def scored_part(folder: RunFolder, part: str) -> Work[str]:
    """The part that is requested; if there is no test, the validation."""
    if part == "test" and (other := judged_part(folder)) != "test":
        yield Note("this run keeps no test text: scoring the validation text")
        return other
    return part


def shown_part(folder: RunFolder, what: str = "text") -> str:
    """The part with examples to show; refused if none is kept."""
    part = kept_part(folder)
    if part is None:
        raise Refused(f"{folder.path} keeps no examples; give a {what}")
    return part
