"""A story: all that running must know of a task. The loop around it is the same for every task.

    class Sorting(Story):                 # stories/sorting.py
        name, recipe, config = "sort", SortingRecipe, SortingConfig
        ...
    STORY = Sorting()

A verb that a task does not have is refused in words; so is an option that it does not know.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from heed.errors import Refused
from heed.running.events import Work
from heed.running.stories.records import Answer, Evaluated, Scores, Shown, Validated, Validator
from heed.training.fit import Source
from heed.training.folder import RunFolder
from heed.training.settings import Training
from heed.viewing.blocks import Block, Column, Value

__all__ = [
    "Answer",
    "Config",
    "Evaluated",
    "Recipe",
    "Run",
    "Scores",
    "Shown",
    "Start",
    "Story",
    "Validated",
    "Validator",
]


class Recipe(BaseModel):
    """One training run. A task narrows down `task`, `data` and `model`, and adds what it needs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str
    about: str = Field("", description="What this recipe is for.")
    needs: str = Field("", description="Where its data is expected.")
    good: str = Field("", description="What a good run looks like.")
    seed: int = Field(1, ge=0, le=2**31 - 1)
    data: Any
    model: Any
    training: Training


class Config(BaseModel):
    """config.json: all that is needed to build the model again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    heed: str = Field(max_length=100, description="The version that wrote it.")
    task: str
    model: Any

    def build(self) -> nn.Module:
        """The network, its weights drawn at random."""
        raise NotImplementedError

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of its weights, with nothing allocated."""
        with torch.device("meta"):
            network = self.build()
        return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


class Start(NamedTuple):
    """What a training begins with instead of random weights (running/starting.py).

    task       of the run it was; None for a pretrained folder that is no run of heed
    tokeniser  that its weights were learnt with (data/tokenise.py); None where it has none
    """

    path: Path
    task: str | None
    weights: Mapping[str, Tensor]
    tokeniser: Any = None


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder, opened: its worker is the trained model at work."""

    folder: RunFolder
    config: Any
    worker: Any
    story: Story


class Story(ABC):
    """What running must know of a task."""

    name: ClassVar[str]
    about: ClassVar[str]  # a line for `heed list tasks`
    unit: ClassVar[str] = "symbols"  # what the objective counts
    recipe: ClassVar[type[Recipe]]
    config: ClassVar[type[Config]]
    judged: ClassVar[Sequence[str]] = ("test",)  # parts that are scored when training ends
    whole: ClassVar[bool] = False  # a start must fit to the last weight
    columns: ClassVar[Sequence[Column]] = ()  # of `heed compare`; the first is the mechanism
    looks: ClassVar[str] = ""  # heading of a comparison's pictures; none without

    @abstractmethod
    def check(self, recipe: Any) -> None:
        """Refuse what cannot be built, before anything is read."""

    def with_attention(self, raw: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The raw recipe with another mechanism: --attention."""
        raise Refused(f"the recipes of {self.name} have no attention to exchange")

    @abstractmethod
    def prepare(self, recipe: Any, folder: RunFolder, start: Start | None = None) -> Work[Any]:
        """Tokenisers, a cache and examples, in the run folder; what is there already is kept.

        A start's tokeniser counts, since its weights mean nothing with another.
        """

    @abstractmethod
    def describe(self, recipe: Any, prepared: Any) -> Config:
        """config.json."""

    @abstractmethod
    def objective(self, recipe: Any, prepared: Any) -> Any:
        """An nn.Module: `count(batch)`, `forward(model, batch) -> Loss` (training/objective.py)."""

    @abstractmethod
    def batches(self, recipe: Any, prepared: Any, *, shard: tuple[int, int], fixed: bool) -> Source:
        """Batches by the epoch, of which each process gets its part (data/batches.py)."""

    @abstractmethod
    def tokens(self, folder: RunFolder, config: Any) -> Any:
        """The tokenisers of a run, refused where the config is not of them; small and quick."""

    def tokeniser(self, tokens: Any) -> Any:
        """Of what `tokens` gave, the one that other trainings begin with."""
        return tokens

    @abstractmethod
    def worker(self, model: nn.Module, tokens: Any, config: Any, device: torch.device) -> Any:
        """The trained model at work, with what `tokens` gave."""

    @abstractmethod
    def validator(self, worker: Any, prepared: Any, folder: RunFolder) -> Validator:
        """Who judges while it trains."""

    def parts(self, folder: RunFolder) -> list[str]:
        """The parts that the folder keeps and that are scored when training ends."""
        return [p for p in self.judged if (folder.examples / f"{p}.jsonl").exists()]

    @abstractmethod
    def score(self, recipe: Any, worker: Any, folder: RunFolder, part: str) -> Work[Any]:
        """The `Scores` of a part that the folder keeps."""

    def adopted(self, model: nn.Module, start: Start) -> Mapping[str, Tensor]:
        """A start's weights under the names that this model has for them."""
        return start.weights

    def evaluate(
        self, run: Run, data: str | Sequence[Path], options: Mapping[str, Any]
    ) -> Work[Evaluated]:
        """Score a run on files, or on a part that it keeps. Options are what was said, no more."""
        self._lacks("evaluate")

    def predict(
        self,
        run: Run,
        lines: Iterator[str],
        options: Mapping[str, Any],
        *,
        look: bool,
        at_once: int,
    ) -> Iterator[Answer]:
        """An answer for each line, whatever the line; `at_once` lines are waited for."""
        self._lacks("predict")

    def show(self, run: Run, texts: Sequence[str], *, every: bool) -> list[Any]:
        """`Shown` for texts, or for a few examples of the run; `every` head of every attention."""
        self._lacks("show")

    def row(self, mechanism: str, trained: Any, memory: float | None) -> list[Value]:
        """As in columns; `trained` is running/train.py's."""
        self._lacks("compare")

    def compared(self, trained: Mapping[str, Any]) -> list[Block]:
        """What a comparison's page has below its table; `trained` is by mechanism."""
        return []

    def only(self, options: Mapping[str, Any], *known: str) -> None:
        """Refuse an option that this task does not have."""
        for name in options:
            if name not in known:
                option = name.replace("_", "-")
                raise Refused(f"--{option} is not for runs of the task {self.name}")

    def _lacks(self, verb: str) -> NoReturn:
        raise Refused(f"runs of the task {self.name} cannot be asked to {verb}")
