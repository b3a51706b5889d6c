"""A form of answer: how it is learnt, decoded, kept, and what a person sees of it.

A form knows neither a task nor the kind of the input: it gets batches of tensors and a network that
takes them, `network(*inputs, ...)` or step by step, `begin(*inputs)`, `step`, `select`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from heed.data.plan import longest_first
from heed.errors import Refused
from heed.records import Attended
from heed.settings import Settings
from heed.training.objective import Objective
from heed.training.settings import Training
from heed.viewing.blocks import Block, Column, Value
from heed.viewing.panels import Panel
from heed.viewing.words import Weighed

if TYPE_CHECKING:
    from heed.answers.worker import Worker

Gold = TypeVar("Gold")
Given = TypeVar("Given", bound="Answer")

WIDEST = 1000  # hypotheses that a beam keeps at most

Words = tuple[Sequence[str], Sequence[str] | None]
"""The words of an attention's queries and of its keys; None: the same."""


class Example(NamedTuple):
    """One example.

    inputs  an item for each part of the input
    answer  the right answer
    gold    where attention should be, where that is known
    """

    inputs: tuple[Any, ...]
    answer: Any
    gold: Any = None


class Movable(Objective, Protocol):
    """An objective that can be moved to a device, as an nn.Module can."""

    def to(self, device: torch.device) -> Objective:
        """The same objective, on that device."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The surprise of a model at a right answer.

    nats   summed over all that was predicted
    count  how much that was
    """

    nats: float
    count: int


class Answer(Protocol):
    """A model's answer to one input."""

    @property
    def source(self) -> str:
        """The input, in a line."""

    @property
    def text(self) -> str:
        """The answer as a terminal shows it beside the input."""

    @property
    def remark(self) -> str:
        """A warning, such as that the input was cut; "" without one."""

    @property
    def answer(self) -> str:
        """The answer alone, in a line, for `heed evaluate --out`."""

    def line(self) -> str:
        """The answer in a line of `heed predict`; blank for a blank input."""

    def as_data(self) -> dict[str, Any]:
        """The answer as plain data, for --json."""

    def facts(self, gold: Any = None) -> tuple[list[tuple[str, str]], int | None]:
        """Names and values for a page, and which of them is the answer; `gold` is the right one."""


class Lead(NamedTuple):
    """The part of an answer's attention that a terminal draws first.

    weighed  words by the weight of one query for a whole input, for each head
    panels   the most telling maps; with neither, all heads are drawn small
    opens    the layer that a page shows first, by its path; None: the first
    """

    weighed: Sequence[Weighed] = ()
    panels: Sequence[Panel] = ()
    opens: str | None = None


class Form(ABC, Generic[Gold, Given]):
    """A form of answer, fitted to the data of a run."""

    name: ClassVar[str]
    unit: ClassVar[str] = "symbols"  # what the objective counts
    column: ClassVar[str] = "answer"  # of the cache
    optional: ClassVar[Sequence[str]] = ()  # columns in which an example may have no number
    training: ClassVar[type[Training]] = Training
    decoding: ClassVar[type[Settings] | None] = None
    options: ClassVar[Sequence[str]] = ("best",)  # of decoding, beside its settings
    tokens: ClassVar[int] = 8000  # positions in a batch that is answered, padding included
    rereads: ClassVar[bool] = False  # whether attention is watched while an answer is read again
    named: ClassVar[str] = ""  # what the answer is, if it is no plain answer
    figures: ClassVar[Sequence[Column]] = ()  # of each mechanism in `heed compare`
    pictured: ClassVar[int] = 1  # panels of each sample in the picture of a validation
    stream: ClassVar[int] = -1  # of a network with two (XLNet), the one that is looked at

    # What the cache has

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of all that decides the numbers of answers."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The number of different numbers that each column of answers may have."""

    @abstractmethod
    def rows(self, examples: Sequence[Example]) -> dict[str, list[Any]]:
        """The rows of right answers, by column."""

    @abstractmethod
    def as_data(self, gold: Gold) -> Any:
        """A right answer as plain data, as a run folder keeps it."""

    @abstractmethod
    def of_data(self, found: Any) -> Gold:
        """The inverse of `as_data`; a ValueError if it is none, since folders are not trusted."""

    def gold_as_data(self, gold: Any) -> Any:
        """The attention that is right, as plain data."""
        raise NotImplementedError

    def gold_of_data(self, found: Any) -> Any:
        """The inverse of `gold_as_data`; a ValueError if it is none."""
        raise ValueError

    # Learning

    @abstractmethod
    def objective(self, parts: Sequence[str], settings: Any) -> Movable:
        """The objective, for batches with these columns of inputs."""

    # Answering

    @classmethod
    def asked(cls, changes: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """Settings that the options of decoding change, and the number of answers they want: the
        best of a beam, or so many samples."""
        best, samples = changes.pop("best", 1), changes.pop("samples", 1)
        many, option = max(best, samples), "best" if best > 1 else "samples"
        if best > 1 and samples > 1:
            raise Refused(
                f"--best {best} is for beam search, --samples {samples} for sampling: give one"
            )
        if many > WIDEST:
            raise Refused(f"--{option} is {WIDEST} at most, like the width of a beam; got {many}")
        if best > 1 and changes.setdefault("method", "beam") != "beam":
            drawn = changes["method"] == "sample"
            cure = f"to sample: --samples {best}" if drawn else "greedy search has one answer"
            raise Refused(f"--best {best} needs --method beam; {cure}")
        if samples > 1:
            changes.setdefault("method", "sample")
        return changes, many

    def check(self, choice: Any, best: int) -> None:
        """Refuse settings of decoding that give no such answers."""
        if best > 1 and getattr(choice, "method", "greedy") == "greedy":
            raise Refused(f"greedy search has one answer, not {best}: use sampling or a beam")

    def blank(self, worker: Worker, item: tuple[Any, ...]) -> list[Given]:
        """The answer to a blank input."""
        raise NotImplementedError

    def settled(self, worker: Worker, choice: Any) -> Any:
        """Settings of decoding with whatever else all batches share."""
        return choice

    def batches(
        self, worker: Worker, rows: Mapping[int, Sequence[Any]], choice: Any = None, best: int = 1
    ) -> Iterator[list[int]]:
        """Batches of inputs to answer, by their numbers; to read, without a choice."""
        costs = {i: max(map(len, row)) for i, row in rows.items()}
        return longest_first(costs, worker.tokens)

    @abstractmethod
    def answers(
        self,
        worker: Worker,
        items: Sequence[Any],
        rows: Sequence[Any],
        choice: Any,
        best: int,
        numbers: Sequence[int],
    ) -> list[list[Given]]:
        """The answers to a batch of inputs, best first.

        numbers  of the inputs among all: samples may depend on them, but on nothing beside them
        """

    def as_line(self, answers: Sequence[Given], best: int) -> str:
        """The answers in a line, with tabs between them; missing ones are blank."""
        lines = [each.line() for each in answers]
        return "\t".join(lines + [""] * (best - len(lines)))

    def as_json(self, answers: Sequence[Given]) -> dict[str, Any]:
        """The answers to one input as plain data."""
        return answers[0].as_data()

    def explored(self, choice: Any) -> int:
        """The number of answers to one input that can be explored."""
        return 1

    @abstractmethod
    def readings(
        self, worker: Worker, examples: Sequence[Example], rows: Sequence[Any]
    ) -> Sequence[Reading]:
        """The surprise at a batch of right answers. A form may take further arguments."""

    def coded(self, worker: Worker, examples: Sequence[Example]) -> Any:
        """Right answers as numbers, for `read`; those of a validation are kept."""
        return worker.rows([each.inputs for each in examples])

    def read(
        self, worker: Worker, examples: Sequence[Example], coded: Any, **more: Any
    ) -> Iterable[Reading]:
        """The surprise at right answers; `more` is for `readings`."""
        told = self.rows(examples)[self.column]
        whole = {i: (*row, told[i]) for i, row in enumerate(coded)}
        found: dict[int, Reading] = {}
        for batch in self.batches(worker, whole):
            some = [examples[i] for i in batch], [coded[i] for i in batch]
            found |= zip(batch, self.readings(worker, *some, **more), strict=True)
        return [found[i] for i in range(len(examples))]

    def loss(self, readings: Sequence[Any]) -> float:
        """Nats per unit."""
        return loss_of(readings)

    # Looking inside

    @abstractmethod
    def seen(
        self, worker: Worker, examples: Sequence[Example], rows: Sequence[Any]
    ) -> Mapping[str, tuple[Attended, Tensor]]:
        """Every attention while right answers are read, with how many queries each row has."""

    def once(
        self, worker: Worker, item: tuple[Any, ...], answers: Sequence[Given] = ()
    ) -> list[Given]:
        """Answer one input in a single pass, so that its attention can be watched.

        answers  those that are known already
        """
        found: list[Given] = worker.answers([item])[0]
        return found

    def reread(self, worker: Worker, item: tuple[Any, ...], answer: Given) -> None:
        """Read an answer once more, so that its attention can be watched."""

    def borrowed(self, worker: Worker, answer: Given) -> Given:
        """Another model's answer, as this model reads it."""
        return answer

    def words(self, worker: Worker, item: tuple[Any, ...], answer: Given) -> Callable[[str], Words]:
        """The words of each attention, by its path."""
        words = worker.words(item)
        return lambda path: (words, None)

    def kind(self, path: str) -> Any:
        """Whether an attention is to itself or across, by its path; None: by its words."""
        return None

    def lead(self, worker: Worker, answer: Given, layers: Mapping[str, Any]) -> Lead:
        """The part of an answer's attention to draw first; `layers` by path."""
        return Lead()

    def walked(self, worker: Worker, paths: Sequence[str]) -> tuple[Sequence[str], int]:
        """The attentions to walk through, by path, and which of them is the most telling."""
        return paths, -1

    def first(self, worker: Worker, answer: Given) -> int:
        """The query that a walk shows by default."""
        return 0

    # Judging

    def judged(self, worker: Worker, examples: Sequence[Example], said: Sequence[Given]) -> Any:
        """The scores of the best answer to each example."""
        raise NotImplementedError

    @classmethod
    def figured(cls, scores: Mapping[str, Any], perplexity: float | None) -> list[Value]:
        """The values of `figures`, from the scores of each part."""
        return []

    @classmethod
    def compared(cls, scores: Mapping[str, Mapping[str, Any]]) -> list[Block]:
        """The blocks below the table of a comparison's page; scores by mechanism and part."""
        return []

    @abstractmethod
    def validated(
        self, worker: Worker, examples: Sequence[Example]
    ) -> tuple[float, dict[str, float], str]:
        """The loss, further figures, and a summary in a line."""

    def brief(self, answer: Given) -> str:
        """An answer in the line that reports a validation; "" leaves it out."""
        return ""

    def sample(self, example: Example, answer: Given) -> str:
        """The lines of a sample file about one example."""
        told, _ = answer.facts(example.answer)
        wide = max(len(name) for name, _ in told) + 2
        return "".join(f"{name.lower():{wide}}{value}\n" for name, value in told) + "\n"


def loss_of(readings: Sequence[Reading]) -> float:
    """Nats per unit."""
    return sum(each.nats for each in readings) / max(1, sum(each.count for each in readings))


def network_of(model: nn.Module) -> Any:
    """The network itself, inside DistributedDataParallel or not."""
    return getattr(model, "module", model)
