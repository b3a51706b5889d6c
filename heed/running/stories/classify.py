"""The story of classification: from labelled texts to a model that labels texts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field, ValidationError, model_validator
from torch import Tensor, nn

from heed.data.batches import Batches
from heed.data.labelled import NAMES, Column, Labelled, LabelledFiles, TextReport, read_labelled
from heed.data.letters import GRAMS, MOST
from heed.data.naming import format_of
from heed.data.tables import read_texts
from heed.data.text import is_json_lines
from heed.data.tokenise import SPECIALS
from heed.errors import Refused
from heed.models import classifier
from heed.models.classifier import POOLS, PRETRAINED, ClassifierSettings, is_pool
from heed.running.devices import version
from heed.running.events import Note, Work
from heed.running.stories.labelling import (
    Evaluated,
    Labelling,
    LabelTraining,
    Validator,
    evaluated,
)
from heed.running.stories.labels import Prepared, kept, prepare, words_of
from heed.running.stories.story import (
    Config,
    Recipe,
    Run,
    Start,
    Story,
    check_vocabulary,
    headline,
    scored_part,
    shown_part,
)
from heed.running.stories.weighing import Answer, Shown, look
from heed.storage.run_folder import RunFolder
from heed.tasks import classify
from heed.tasks.cutting import Gathers, Words
from heed.tasks.labeller import Labeller
from heed.tasks.walking import Heard, labelled
from heed.viewing import blocks
from heed.viewing.blocks import Block, Charts, Value
from heed.viewing.chart import BarChart, Bars
from heed.viewing.looking import Look
from heed.viewing.panels import of_heads

if TYPE_CHECKING:
    from heed.running.learner import Trained

FEW = 5  # texts that are shown if none is given
KNOWN = "spelled.known"  # the buffer of a network that reads letter n-grams

Label = Annotated[str, Field(min_length=1, max_length=1000)]


class ClassifyRecipe(Recipe):
    """One training run: task, data, model, training."""

    task: Literal["classify"]
    data: classify.Data
    model: ClassifierSettings
    training: LabelTraining

    @model_validator(mode="after")
    def _spelled(self) -> ClassifyRecipe:
        if self.model.letters is not None and self.data.tokens.kind != "word":
            raise ValueError(
                f"model.letters needs whole words, but data.tokens.kind={self.data.tokens.kind} "
                "makes pieces; set it to word, or leave letters out"
            )
        return self


class ClassifyConfig(Config):
    """config.json of a run that labels texts."""

    task: Literal["classify"]
    model: ClassifierSettings
    symbols: int = Field(ge=4, le=2_000_000)
    labels: list[Label] = Field(min_length=2, max_length=10_000)
    names: dict[Label, Label] = Field(
        default_factory=dict, max_length=10_000, description="Names of the labels in data files."
    )
    longest: int = Field(ge=2, le=1_000_000, description="Symbols of a text that are read.")
    grams: int = Field(0, ge=0, le=GRAMS, description="Letter n-grams that the words share.")
    text: Column | None = Field(None, description="The column of the text in data files.")
    label: Column | None = Field(None, description="The column of the label.")

    def build(self) -> nn.Module:
        """The network, its weights drawn at random."""
        return classifier.build(
            self.model,
            symbols=self.symbols,
            labels=len(self.labels),
            letters=(self.grams, MOST),
        )


ClassifyRun = Run[ClassifyConfig, Labeller]


class Classifying(Story[ClassifyRecipe, ClassifyConfig, Prepared, Words, Labeller]):
    """What running needs to know of classification."""

    name = "classify"
    about = headline(classify)
    unit = "texts"
    recipe = ClassifyRecipe
    config = ClassifyConfig
    looks = "One text: the attention weights of each mechanism"
    figures = (
        blocks.Column("accuracy", ".2f", "high"),
        blocks.Column("macro-F1", ".2f", "high"),
        blocks.Column("loss", ".4f", "low"),
    )

    def draft(self, recipe: ClassifyRecipe) -> None:
        """Build the network; neither the vocabulary nor the labels matter."""
        classifier.build(recipe.model, symbols=len(SPECIALS), labels=2)

    def exchanged(self, model: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Another pool: mean, max, last, first, or a static attention, whose `static/` may be left
        out. With BERT and XLNet, any other name is the attention between their words."""
        model = {key: value for key, value in model.items() if key != "options"}
        encoder = model.get("encoder")
        plain = name == "none" or is_pool(name)
        if not plain and isinstance(encoder, Mapping) and encoder.get("kind") in PRETRAINED:
            return {**model, "encoder": {**encoder, "attention": name}}
        pool = "mean" if name == "none" else name if plain else f"static/{name}"
        looks = {"heads": 1} if pool in POOLS else {}  # only an attention has several
        return {**model, "pool": pool, **looks}

    def prepare(
        self, recipe: ClassifyRecipe, folder: RunFolder, start: Start | None = None
    ) -> Work[Prepared]:
        """A tokeniser, a cache, and the texts to validate on."""
        model = recipe.model
        return prepare(recipe.data, folder, start, gathers=gathers(model), reads=model.reads)

    def describe(self, recipe: ClassifyRecipe, prepared: Prepared) -> ClassifyConfig:
        """config.json."""
        words = spelled(prepared.words, recipe.model)
        return ClassifyConfig(
            heed=version(),
            task=recipe.task,
            model=recipe.model,
            symbols=words.tokeniser.size,
            labels=list(words.labels),
            names=recipe.data.names,
            longest=words.longest or recipe.data.longest,
            grams=0 if words.letters is None else words.letters.size,
            text=recipe.data.train.text,
            label=recipe.data.train.label,
        )

    def objective(self, recipe: ClassifyRecipe, prepared: Prepared) -> Labelling:
        """The label of each text."""
        return Labelling(recipe.training)

    def batches(
        self, recipe: ClassifyRecipe, prepared: Prepared, *, shard: tuple[int, int], fixed: bool
    ) -> Batches:
        """Texts of similar length together."""
        tokens = recipe.training.batch_tokens
        return Batches(prepared.train, tokens=tokens, seed=recipe.seed, shard=shard, fixed=fixed)

    def tokens(self, folder: RunFolder, config: ClassifyConfig) -> Words:
        """The tokeniser, the labels, and the letter n-grams of words."""
        place, symbols = gathers(config.model), config.symbols
        words = words_of(folder, config.labels, place, config.longest, symbols)
        check_vocabulary(folder, words.tokeniser.size, symbols)
        if len(set(config.labels)) != len(config.labels):
            raise Refused(f"{folder.config}: one of its labels occurs twice")
        if not set(config.names.values()) <= set(config.labels):
            raise Refused(f"{folder.config}: names has a name that is not among the labels")
        words = spelled(words, config.model)
        if config.grams != (0 if words.letters is None else words.letters.size):
            raise Refused(f"{folder.config}: its grams do not fit the words of tokenizer.json")
        return words

    def tokeniser(self, tokens: Words) -> Any:
        """The only tokeniser of a run."""
        return tokens.tokeniser.tokeniser

    def worker(
        self, model: nn.Module, tokens: Words, config: ClassifyConfig, device: torch.device
    ) -> Labeller:
        """A labeller."""
        letters = tokens.letters
        if letters and not all(_same(x, letters.known) for x in words_known(model).values()):
            raise Refused("the letters in the weights do not fit the words of tokenizer.json")
        return Labeller(model, tokens, device)

    def ready(self, model: nn.Module, tokens: Words) -> None:
        """Copy the letter n-grams of the words into the model."""
        if tokens.letters is not None:
            for own in words_known(model).values():
                own.copy_(tokens.letters.known)

    def adopted(self, model: nn.Module, start: Start) -> Mapping[str, Tensor]:
        """All weights of the start, XLNet's streams under the encoder's name; those of letters only
        if the n-grams have the same numbers."""
        own = words_known(model)
        there = {
            f"encoder.{name}" if name.startswith("streams.") else name: x
            for name, x in start.weights.items()
        }
        strange = [x for x in own if x in there and not _same(there[x], own[x])]
        letters = tuple(name.removesuffix("known") for name in strange)
        return {name: x for name, x in there.items() if not name.startswith(letters)}

    def validator(self, worker: Labeller, prepared: Prepared, folder: RunFolder) -> Validator:
        """Validates on texts that are not in the training set."""
        return Validator(worker, prepared.valid, folder)

    def score(
        self, recipe: ClassifyRecipe, worker: Labeller, folder: RunFolder, part: str
    ) -> Work[classify.Scores]:
        """Accuracy, macro-F1, scores by label."""
        rows = list(kept(folder, part, worker.words.labels))
        return (yield from evaluated(worker, rows, stage=f"scoring {part}")).scores

    def evaluate(
        self, run: ClassifyRun, data: str | Sequence[Path], options: Mapping[str, Any]
    ) -> Work[Evaluated]:
        """Score a kept part, or a file of labelled texts; options: text and label, its columns."""
        self.only(options, "out", *NAMES)
        named = {name: options[name] for name in NAMES if name in options}
        labels, names = run.config.labels, run.config.names
        if isinstance(data, str):
            if named:
                raise Refused(f"--{next(iter(named))} needs a file; name one")
            data = yield from scored_part(run.folder, data)
            rows = list(kept(run.folder, data, labels))
        else:
            report, known = TextReport(), {label: label for label in labels} | names
            found = read_labelled(files_from(data, run.config, named), labels=known, report=report)
            rows = [row._replace(label=names.get(row.label, row.label)) for row in found]
            yield Note(str(report))
        return (yield from evaluated(run.worker, rows))

    def lines(self, file: str, options: Mapping[str, Any]) -> Iterator[str]:
        """The lines of a text, or the texts in a column of a table; option: text, the column."""
        kind = format_of(file, ("tsv", "csv", "jsonl"))
        if "text" in options:
            named = options["text"]
            return read_texts(file, named if kind == "jsonl" else _column(named))
        if kind is not None and Path(file).exists():
            what, which = "a table", "COLUMN, by name or by number from 0"
            if kind == "jsonl":
                what, which = "JSON lines", "KEY"
            raise Refused(
                f"{file} has the ending of {what}; say where the text is: --text {which}; to read "
                f"each line as a text: heed predict RUN - < {shlex.quote(file)}"
            )
        return super().lines(file, options)

    def predict(
        self,
        run: ClassifyRun,
        lines: Iterator[str],
        options: Mapping[str, Any],
        *,
        look: bool,
        at_once: int,
    ) -> Iterator[Answer]:
        """The label of each line, or of each text in a column; option: text, the column."""
        self.only(options, "text")
        while chunk := list(islice(lines, at_once)):
            yield from map(Answer, run.worker.label(chunk, look=look))

    def show(self, run: ClassifyRun, texts: Sequence[str], *, every: bool) -> list[Shown]:
        """The labels and weights of texts, or of a few that the run keeps."""
        rows = [Labelled(text, "") for text in texts] or examples_of(run.folder, run.config.labels)
        said = run.worker.label([row.text for row in rows], look=True)
        found = []
        for row, each in zip(rows, said, strict=True):
            heads = of_heads(each.heads, each.pieces) if every or each.looks is None else ()
            found.append(Shown(each, row.label, heads, every))
        return found

    def look(
        self, run: ClassifyRun, texts: Sequence[str], given: Sequence[Look] = ()
    ) -> list[Look]:
        """The label of each text, or of a few that the run keeps."""
        rows = [Labelled(text, "") for text in texts] or examples_of(run.folder, run.config.labels)
        return [look(run.worker, row.text, row.label) for row in rows]

    def hear(self, run: ClassifyRun, text: str) -> Heard:
        """The attention that leads to the label while a text is read."""
        return labelled(run.worker, text)

    def figured(self, trained: Trained) -> list[Value]:
        """The values of `figures`."""
        (scores,) = trained.scores.values()
        return [scores.accuracy, scores.macro_f1, scores.loss]

    def compared(self, trained: Mapping[str, Trained]) -> list[Block]:
        """F1 of each label, side by side."""
        tested = {name: next(iter(each.scores.values())) for name, each in trained.items()}
        if not tested:
            return []
        labels = next(iter(tested.values())).labels
        bars = [Bars(n, [each.f1 for each in test.by_label]) for n, test in tested.items()]
        return [Charts([BarChart("F1 of each label", labels, bars)])]


def gathers(model: ClassifierSettings) -> Gathers | None:
    """The place of the symbol whose state represents the text: BERT and XLNet have one."""
    places: dict[str, Gathers] = {"bert": "first", "xlnet": "last"}
    return places.get(model.encoder.kind)


def spelled(words: Words, model: ClassifierSettings) -> Words:
    """The words with their letter n-grams, if the model reads them."""
    if model.letters is None:
        return words
    return replace(words, letters=words.tokeniser.letters(*model.letters))


def words_known(model: nn.Module) -> dict[str, Tensor]:
    """The buffers with the letter n-grams of a model's words."""
    return {name: x for name, x in model.named_buffers() if name.endswith(KNOWN)}


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())


def _column(named: str) -> int | str:
    """A column by its number, of a few digits, or by its name."""
    return int(named) if named.isdecimal() and len(named) < 10 else named


def files_from(
    paths: Sequence[Path], config: ClassifyConfig, named: Mapping[str, str] = {}
) -> LabelledFiles:
    """Labelled texts as the command line names them: one file, with the run's columns.

    named  the columns of this file that differ, by number or name
    """
    if len(paths) != 1:
        raise Refused(f"give one file of labelled texts; got {len(paths)} files")
    told: dict[str, Any] = {"text": config.text, "label": config.label}
    if is_json_lines(paths[0]):
        kind = "jsonl"
        told = {key: column for key, column in told.items() if isinstance(column, str)}
        told |= named
    else:
        kind = "csv" if paths[0].name.removesuffix(".gz").endswith(".csv") else "tsv"
        told |= {key: _column(name) for key, name in named.items()}
    try:
        return LabelledFiles(**{kind: paths[0]}, **told)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise Refused(f"--text and --label: {message}") from None


def examples_of(folder: RunFolder, labels: Sequence[str]) -> list[Labelled]:
    """The first few texts that the run keeps for tests, or otherwise for validation."""
    return list(islice(kept(folder, shown_part(folder), labels), FEW))


STORY = Classifying()
