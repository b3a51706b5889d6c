"""A task: a kind for each part of its input, a form of answer, and what a right answer is.

    class Tag(Task[TagRecipe, TagConfig]):
        name, recipe, config = "tag", TagRecipe, TagConfig
        ...
    TASK = Tag()

Preparing, training, validating, predicting and showing are written once, in running/.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import torch
from pydantic import Field, ValidationError, model_validator
from torch import Tensor, nn

from heed.answers.form import Example, Form
from heed.answers.worker import Worker
from heed.data.batches import Batches
from heed.data.cache import Corpus
from heed.data.held_out import Held, HeldOut, check, without_files
from heed.data.kinds import text
from heed.data.pairs import Report
from heed.data.text import read_lines
from heed.data.tokenise import Kind as Pieces
from heed.data.tokenise import Tokeniser
from heed.data.vocabularies import Vocabulary
from heed.errors import HeedError, Refused
from heed.events import Progress, Work
from heed.settings import Settings, complaint
from heed.storage.run_folder import RunFolder
from heed.training.settings import Training
from heed.viewing.blocks import Block, Column, Table, Value

Choice = TypeVar("Choice", bound=Settings)

Name = Annotated[str, Field(min_length=1, max_length=1000)]
"""A label in config.json."""


class Recipe(Settings):
    """One training run. A task narrows down `task`, `data` and `model`, and adds what it needs."""

    task: str
    about: str = Field("", description="What this recipe is for.")
    needs: str = Field("", description="Where its data is expected.")
    good: str = Field("", description="What a good run looks like.")
    seed: int = Field(1, ge=0, le=2**31 - 1)
    data: Any
    model: Any
    training: Training


class Config(Settings):
    """config.json: all that is needed to build the model again."""

    heed: str = Field(max_length=100, description="The version that wrote it.")
    task: str
    model: Any

    def build(self) -> nn.Module:
        """The network, its weights drawn at random."""
        raise NotImplementedError

    def outline(self) -> dict[str, Tensor]:
        """Its weights without values: nothing is allocated. Shared weights are one tensor."""
        with torch.device("meta"):
            return self.build().state_dict(keep_vars=True)


class Start(NamedTuple):
    """The model that a training starts from instead of random weights (running/starting.py).

    task       of the run; None for a pretrained folder that is not a run of heed
    tokeniser  the one that its weights were trained with, or None
    settings   of its model, as in a recipe
    """

    path: Path
    task: str | None
    weights: Mapping[str, Tensor]
    tokeniser: Any = None
    settings: Any = None


class FileData(Settings):
    """The source of the examples: files, or a share of the training file that is held out."""

    things: ClassVar[str] = "texts"  # what a file has

    folder: str = Field(".", description="Paths start here; a name is looked up in $HEED_DATA.")
    held_out: Held = HeldOut()

    @model_validator(mode="before")
    @classmethod
    def _shares(cls, given: Any) -> Any:
        return without_files(given)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        own: Any = self
        built_in = getattr(self, "built_in", None)
        if (own.train is None) == (built_in is None):
            raise ValueError(f"give the {self.things} as data.train, or draw them by data.built_in")
        if built_in is None:
            check(self.held_out, valid=own.valid, test=own.test, what=self.things, share=0.1)
        return self


class Tokens(Settings):
    """Settings of how text is cut into symbols."""

    kind: Pieces = "word"
    size: int = Field(20_000, ge=16, le=1_000_000, description="Symbols in the vocabulary.")
    lowercase: bool = True
    least: int = Field(1, ge=1, le=1_000_000, description="Rarer words are all one: unknown.")


def fitted_pieces(
    tokens: Tokens, texts: Iterable[str], path: Path, start: Start | None
) -> Work[Any]:
    """A tokeniser, learnt from the training texts or taken from a start; saved."""
    pieces: Any
    if start is not None:
        if not isinstance(start.tokeniser, Tokeniser | Vocabulary):
            raise Refused(f"{start.path} has no tokeniser of sentences, which these texts need")
        pieces = start.tokeniser
    else:
        yield Progress(f"learning {tokens.kind} tokens", 0)
        choices: dict[str, Any] = {"lowercase": tokens.lowercase, "least": tokens.least}
        pieces = Tokeniser.train(tokens.kind, texts, tokens.size, **choices)
    pieces.save(path)
    return text.load(path)


READ = 512  # symbols at a time of a pretrained model that has no limit of positions


class Frame(NamedTuple):
    """The templates of a text and of a pair, each part with its segment."""

    single: str
    pair: str


BERT_FRAME = Frame("{bos}:0 $A:0 {eos}:0", "{bos}:0 $A:0 {eos}:0 $B:1 {eos}:1")


class Exported(NamedTuple):
    """A run as a pretrained model, for other libraries.

    settings  of its network
    frame     in which its task passes texts to it; None: as they are
    longest   symbols to which its tokeniser cuts texts, if it does
    """

    settings: Any
    frame: Frame | None = None
    longest: int | None = None


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec of examples into numbers and back: a kind for each part of the input, and a form."""

    inputs: Mapping[str, Any]  # of Kind; a task knows which
    form: Any  # of Form

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides the numbers."""
        told = [(name, kind.fingerprint) for name, kind in self.inputs.items()]
        return hashlib.sha256(repr([*told, self.form.fingerprint]).encode()).hexdigest()

    @property
    def sizes(self) -> dict[str, int]:
        """The number of different numbers that each column of symbols may have."""
        symbols = {n: int(kind.size) for n, kind in self.inputs.items() if not kind.width}
        return {**symbols, **self.form.sizes}

    @property
    def widths(self) -> dict[str, int]:
        """The number of real numbers at a position, in the columns that have such."""
        return {name: kind.width for name, kind in self.inputs.items() if kind.width}

    def rows(self, examples: Sequence[Example]) -> dict[str, list[Any]]:
        """The rows of examples by column, however long those of the inputs are."""
        items = zip(*(each.inputs for each in examples), strict=True)
        whole = {
            name: kind.whole(some)
            for (name, kind), some in zip(self.inputs.items(), items, strict=True)
        }
        return {**whole, **self.form.rows(examples)}

    def as_data(self, example: Example) -> dict[str, Any]:
        """An example as plain data, as a run folder keeps it."""
        parts = zip(self.inputs.items(), example.inputs, strict=True)
        found = {name: kind.as_data(item) for (name, kind), item in parts}
        gold = {} if example.gold is None else {"gold": self.form.gold_as_data(example.gold)}
        return {**found, self.form.column: self.form.as_data(example.answer), **gold}

    def of_data(self, found: Any) -> Example:
        """The inverse of `as_data`; an error means that it is no example."""
        inputs = tuple(kind.of_data(found[name]) for name, kind in self.inputs.items())
        gold = self.form.gold_of_data(found["gold"]) if "gold" in found else None
        return Example(inputs, self.form.of_data(found[self.form.column]), gold)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Prepared data that training reads."""

    codec: Codec
    train: Corpus
    valid: Sequence[Example]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The report of `heed evaluate`.

    scores  a dataclass of plain data, with `line()`: --json prints its fields
    told    the answer to each example, a line each, for --out
    links   where the model looked for each word of each right answer, a line each, for --links
    """

    scores: Any
    told: Sequence[str] = ()
    links: Sequence[str] = ()

    def facts(self) -> list[tuple[str, str, str]]:
        """Name, figure and remark, a row each."""
        found: list[tuple[str, str, str]] = self.scores.facts()
        return found

    def tables(self) -> list[Table]:
        """The tables that follow the facts."""
        found: list[Table] = self.scores.tables()
        return found

    def answers(self) -> list[str]:
        """A line for each example."""
        return list(self.told)

    def pharaoh(self) -> list[str]:
        """The links of each example, in Pharaoh format."""
        return list(self.links)

    def placed(self, examples: Sequence[Example | None]) -> Evaluated:
        """The same, with blank lines where a file has no example."""
        there = [each is not None for each in examples]
        return replace(self, told=_placed(self.told, there), links=_placed(self.links, there))


def _placed(lines: Sequence[str], there: Sequence[bool]) -> list[str]:
    found = iter(lines)
    return [next(found) if each else "" for each in there] if lines else []


R = TypeVar("R", bound=Recipe)
C = TypeVar("C", bound=Config)


class Task(ABC, Generic[R, C]):
    """A task, for running."""

    name: ClassVar[str]
    about: ClassVar[str] = ""  # a line for `heed list tasks`
    recipe: ClassVar[type[Recipe]]
    config: ClassVar[type[Config]]
    form: ClassVar[type[Form[Any, Any]]]
    examples_are: ClassVar[str] = "examples"  # what messages call them
    whole: ClassVar[bool] = False  # every weight of a start of the same task must fit
    continues: ClassVar[bool] = False  # inputs are continued, so that their ends matter most
    onward: ClassVar[Sequence[str]] = ("predict {run} FILE", "show {run}")  # once it is trained
    looks: ClassVar[str] = ""  # heading of a comparison's pictures; none without
    few: ClassVar[int] = 5  # examples that are shown if no input is given
    sampled: ClassVar[int] = 5  # of each validation, written to samples/
    watched: ClassVar[int] = 64  # examples whose attention each validation measures
    options: ClassVar[Sequence[str]] = ()  # of `predict`, beside those of decoding
    scoring: ClassVar[Sequence[str]] = ("out",)  # options of `evaluate`
    adopts: ClassVar[Collection[tuple[str, str]]] = ()  # pretrained models: family and head

    # Before a run

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

    def exchanged(self, model: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The model of a raw recipe, with another mechanism: --attention."""
        raise Refused(f"the recipes of {self.name} have no attention to replace")

    # Examples and their numbers

    def parts(self, data: Any) -> list[str]:
        """The parts of the data beside what is trained on."""
        tested = getattr(data, "built_in", None) or data.test
        tested = tested or getattr(data.held_out, "test", None)
        return ["valid", "test"] if tested else ["valid"]

    def files(self, data: Any, part: str, root: Path) -> tuple[Any, Callable[[str], bool] | None]:
        """The file of a part, and which of its examples belong there; None: all."""
        own = getattr(data, part)
        only = data.held_out.only(part) if own is None or part == "train" else None
        return (own or data.train).under(root / data.folder), only

    def report(self) -> Report:
        """A new count of what was read, kept and dropped."""
        return Report()

    @abstractmethod
    def examples(
        self, data: Any, part: str, root: Path, report: Any, codec: Codec | None = None
    ) -> Iterator[Example]:
        """The examples of one part, counted in the report.

        codec  fitted to the training examples: what it has no number for may be refused
        """

    @abstractmethod
    def fit(self, recipe: R, folder: RunFolder, root: Path, start: Start | None) -> Work[Codec]:
        """Learn tokenisers, labels and scales from the training examples, and save them.

        With a start its tokeniser is used, since its weights fit no other.
        """

    def rows(self, codec: Codec, examples: Sequence[Example]) -> dict[str, list[Any]]:
        """Examples as rows of the cache, by column."""
        return codec.rows(examples)

    def longest(self, recipe: R) -> int | None:
        """Positions of an example of the training data at most; longer ones are dropped."""
        return None

    def report_lines(self, part: str, report: Any, codec: Codec, cut: int) -> Iterator[str]:
        """Notes on a part that was read; `cut` examples were longer than the model reads."""
        longest = next(iter(codec.inputs.values())).longest
        long = f"; {cut:,} longer than {longest} symbols were cut" if cut else ""
        which = "training" if part == "train" else part
        *files, whole = report.told(f"{which} {self.examples_are}")
        yield from [*files, f"{whole}{long}"]

    def beside(self, folder: RunFolder, prepared: Prepared) -> None:
        """Write what else a run keeps of its training examples."""

    def joined(self, examples: Iterator[Example]) -> Iterator[Example]:
        """The examples of a part, put together where the run keeps them in pieces."""
        return examples

    def excerpts(self, codec: Codec, examples: Iterable[Example], count: int) -> list[Example]:
        """The first few examples; of long ones, only parts."""
        return list(islice(examples, count))

    def noted(self, recipe: R, prepared: Prepared) -> Iterator[str]:
        """Notes on the training examples as numbers; what cannot be trained on is refused."""
        yield from ()

    @abstractmethod
    def describe(self, recipe: R, prepared: Prepared) -> C:
        """The config.json of the run."""

    @abstractmethod
    def codec(self, folder: RunFolder, config: C) -> Codec:
        """The codec of a run; refused if the config does not match. This must be quick."""

    def tokeniser(self, codec: Codec) -> Any:
        """The tokeniser for a training that starts from this run."""
        return getattr(next(iter(codec.inputs.values())), "pieces", None)

    def ready(self, model: nn.Module, codec: Codec) -> None:
        """Copy what a model takes from its tokenisers into it, before training."""

    def adopted(self, model: nn.Module, start: Start) -> Mapping[str, Tensor]:
        """A start's weights under the names of this model."""
        return start.weights

    def suits(self, settings: Any) -> bool:
        """Whether a pretrained model of these settings was made for this task more than others."""
        return True

    def adopt(self, found: Any, words: Vocabulary, path: Path) -> tuple[Config, Codec]:
        """The config and the codec of a pretrained model (running/loading.py)."""
        raise NotImplementedError

    def exported(self, config: C) -> Exported | None:
        """A run as a pretrained model; None if other libraries have no such network."""
        return None

    def batches(self, recipe: R, prepared: Prepared, *, shard: tuple[int, int], fixed: bool) -> Any:
        """Batches of each epoch, examples of similar length together."""
        return Batches(
            prepared.train,
            aside=prepared.codec.form.optional,
            tokens=recipe.training.batch_tokens,
            seed=recipe.seed,
            shard=shard,
            fixed=fixed,
        )

    def worker(self, model: nn.Module, codec: Codec, config: C, device: torch.device) -> Worker:
        """The trained model at work."""
        return Worker(model, codec.inputs, codec.form, device)

    # Judging

    def judged(self, worker: Worker, examples: Sequence[Example], said: Sequence[Any]) -> Any:
        """The scores of the best answer to each example."""
        return worker.form.judged(worker, examples, said)

    def scored_parts(self, there: Sequence[str]) -> Sequence[str]:
        """The parts to score when training ends, of those that a run keeps."""
        return [part for part in ("test", "valid") if part in there][:1] or ["test"]

    def evaluated(
        self,
        worker: Worker,
        examples: Sequence[Example | None],
        config: C,
        options: Mapping[str, Any],
        stage: str,
    ) -> Work[Evaluated]:
        """Answer examples and score the answers; None stands for a line without an example."""
        there = [each for each in examples if each is not None]
        said = yield from self.answered(worker, there, config, options, stage)
        found = Evaluated(self.judged(worker, there, said), [each.answer for each in said])
        return found.placed(examples)

    def answered(
        self,
        worker: Worker,
        examples: Sequence[Example],
        config: C,
        options: Mapping[str, Any],
        stage: str,
    ) -> Work[list[Any]]:
        """The best answer to each example."""
        choice, _ = self.chosen(config, options)
        found: dict[int, Any] = {}
        for done in worker.stream([each.inputs for each in examples], choice):
            found |= {i: best[0] for i, best in done.items()}
            yield Progress(stage, len(found), len(examples))
        return [found[i] for i in range(len(examples))]

    def given(
        self, config: C, codec: Codec, paths: Sequence[Path], options: Mapping[str, Any]
    ) -> Work[list[Any]]:
        """The examples in files that `heed evaluate` names; None for a line that has none."""
        raise Refused(f"runs of the task {self.name} are scored on their own data alone")

    def of_kept(self, options: Mapping[str, Any]) -> None:
        """Refuse options that need files, where a part that the run keeps is scored."""
        for name in options:
            if name in self.scoring and name != "out":
                raise Refused(f"--{name.replace('_', '-')} needs a file; name one")

    # Answering

    def chosen(self, config: C, options: Mapping[str, Any]) -> tuple[Any, int]:
        """The settings of decoding, and how many answers, by the options that were given."""
        changes = {k: x for k, x in options.items() if k not in (*self.options, *self.scoring)}
        changes, best = self.form.asked(changes)
        decoding = getattr(config, "decoding", None)
        return None if decoding is None else changed(decoding, changes), best

    def predict_options(self) -> Sequence[str]:
        """The options of `predict`."""
        decoding = self.form.decoding
        return (*self.options, *((*self.form.options, *decoding.model_fields) if decoding else ()))

    def evaluate_options(self) -> Sequence[str]:
        """The options of `evaluate`."""
        decoding = self.form.decoding
        return (*self.scoring, *(decoding.model_fields if decoding else ()))

    def lines(self, file: str, options: Mapping[str, Any]) -> Iterator[str]:
        """Inputs for `predict` in a file: its lines; "-" is the standard input."""
        return (text for _, text in read_lines(file))

    def of_line(self, codec: Codec, line: str) -> tuple[Any, ...]:
        """The input that a line stands for; its parts are parted by tabs."""
        kinds = list(codec.inputs.values())
        cells = [line] if len(kinds) == 1 else line.split("\t")
        if len(cells) != len(kinds):
            raise Refused(f"give {' TAB '.join(codec.inputs)} in a line; got {len(cells)} of them")
        return tuple(kind.of_line(cell) for kind, cell in zip(kinds, cells, strict=True))

    # Comparing

    def figured(self, scores: Mapping[str, Any], perplexity: float | None) -> list[Value]:
        """The values of `figures`, from the scores of each part."""
        return self.form.figured(scores, perplexity)

    def compared(self, scores: Mapping[str, Mapping[str, Any]]) -> list[Block]:
        """The blocks below the table of a comparison's page; scores by mechanism and part."""
        return self.form.compared(scores)

    @property
    def figures(self) -> Sequence[Column]:
        """The figures of each mechanism in `heed compare`."""
        return self.form.figures

    def refuse_unknown(
        self, options: Mapping[str, Any], known: Sequence[str], run: Any = None
    ) -> None:
        """Refuse an option that this task does not have, or that this run does not."""
        for name in options:
            if name not in known:
                option = name.replace("_", "-")
                raise Refused(f"--{option} is not for runs of the task {self.name}")


def headline(task: ModuleType) -> str:
    """The first line of a task module's docstring; empty under `python -OO`."""
    return (task.__doc__ or "").partition("\n")[0].rstrip(".")


def check_vocabulary(folder: RunFolder, found: object, told: object) -> None:
    """Refuse a config.json whose vocabulary sizes are not those of the tokenisers."""
    if found != told:
        raise Refused(f"{folder.config}: its vocabulary size is not that of the tokeniser")


def changed(decoding: Choice, changes: Mapping[str, Any]) -> Choice:
    """A run's decoding settings, with some of them changed."""
    kind = type(decoding)
    try:
        return kind(**{**decoding.model_dump(), **changes})
    except ValidationError as error:
        raise Refused(f"decoding: {complaint(kind, error)}") from None
