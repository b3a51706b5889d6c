"""The story of language modelling: from plain text to a model that continues it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import nn

from heed.data.packing import Packed
from heed.data.sources import TextFiles, each_file, told
from heed.errors import Refused
from heed.events import Work
from heed.models.xlnet_settings import XLNetSettings
from heed.running.devices import version
from heed.running.stories.remembering import Remembering
from heed.running.stories.story import (
    Config,
    Recipe,
    Run,
    Start,
    Story,
    changed,
    check_vocabulary,
    headline,
    scored_part,
    shown_part,
)
from heed.running.stories.texts import Prepared, kept, prepare, vocabulary_of
from heed.running.stories.writing import (
    Answer,
    Evaluated,
    NextSymbol,
    Shown,
    Validator,
    evaluated,
    look,
    shown,
    unescaped,
)
from heed.storage.run_folder import RunFolder
from heed.tasks import language_model
from heed.tasks.borrowing import Text
from heed.tasks.walking import Heard, continued
from heed.tasks.writer import Decoding, Writer
from heed.viewing.blocks import Column, Value
from heed.viewing.looking import Look

if TYPE_CHECKING:
    from heed.running.learner import Trained

FEW = 2  # openings that are shown if no text is given
OPENING = 32  # symbols of each


class LanguageRecipe(Recipe):
    """One training run: task, data, model, training, decoding."""

    task: Literal["language-model"]
    data: language_model.Data
    model: language_model.Model
    decoding: Decoding = Decoding()

    @model_validator(mode="after")
    def _remembers(self) -> LanguageRecipe:
        if self.data.memory and self.model.kind != "xlnet":
            raise ValueError(f"data.memory needs an xlnet; the model is {self.model.kind}")
        if self.data.memory and self.training.capture:
            raise ValueError("data.memory changes with each batch: set training.capture=false")
        return self


class LanguageConfig(Config):
    """config.json of a run that generates text."""

    task: Literal["language-model"]
    model: language_model.Model
    symbols: int = Field(ge=4, le=2_000_000)
    context: int = Field(ge=1, le=65536)
    memory: int = Field(0, ge=0, le=65536, description="Symbols that are remembered before a row.")
    decoding: Decoding

    def build(self) -> nn.Module:
        """The network, its weights drawn at random."""
        return language_model.build(self.model, symbols=self.symbols, context=self.context)

    @property
    def places(self) -> int | None:
        """How many symbols it can see at once, if there is a limit."""
        return language_model.places(self.model)

    def chosen(self, changes: Mapping[str, Any]) -> Decoding:
        """The run's decoding settings, with some of them changed."""
        return changed(self.decoding, changes)


LanguageRun = Run[LanguageConfig, Writer]


class Writing(Story[LanguageRecipe, LanguageConfig, Prepared, Text, Writer]):
    """What running needs to know of language modelling."""

    name = "language-model"
    about = headline(language_model)
    recipe = LanguageRecipe
    config = LanguageConfig
    continues = True
    figures = (
        Column("loss", ".4f", "low"),
        Column("perplexity", ".3f", "low"),
        Column("bits per character", ".4f", "low"),
    )

    def draft(self, recipe: LanguageRecipe) -> None:
        """Build the network; the vocabulary does not matter."""
        symbols = getattr(recipe.model, "symbols", None) or 8
        language_model.build(recipe.model, symbols=symbols, context=recipe.data.context)

    def exchanged(self, model: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The model with another mechanism in every layer."""
        if model.get("kind") == "recurrent-language":
            raise Refused("a recurrent language model has no attention to replace")
        return {**model, "attention": name}

    def prepare(
        self, recipe: LanguageRecipe, folder: RunFolder, start: Start | None = None
    ) -> Work[Prepared]:
        """A tokeniser, a cache, and the texts to validate on."""
        return prepare(recipe.data, folder, start)

    def describe(self, recipe: LanguageRecipe, prepared: Prepared) -> LanguageConfig:
        """config.json."""
        memory = recipe.data.memory
        kept = {"memory": memory} if memory else {}
        return LanguageConfig(
            heed=version(),
            task=recipe.task,
            model=recipe.model.model_copy(update=kept),
            symbols=prepared.vocabulary.size,
            context=recipe.data.context,
            memory=memory,
            decoding=recipe.decoding,
        )

    def objective(self, recipe: LanguageRecipe, prepared: Prepared) -> NextSymbol:
        """Each symbol given those before it."""
        if not recipe.data.memory:
            return NextSymbol(recipe.training)
        assert isinstance(recipe.model, XLNetSettings)
        size, places = recipe.model.sizes, recipe.data.memory
        lanes = {"lanes": _rows(recipe), "layers": size.layers}
        return NextSymbol(recipe.training, Remembering(**lanes, places=places, width=size.width))

    def batches(
        self, recipe: LanguageRecipe, prepared: Prepared, *, shard: tuple[int, int], fixed: bool
    ) -> Packed:
        """Rows of `context` symbols, cut at other places in every epoch."""
        return Packed(
            prepared.train.tokens["text"],
            length=recipe.data.context,
            rows=_rows(recipe),
            seed=recipe.seed,
            onward=recipe.data.memory > 0,
            shard=shard,
            fixed=fixed,
        )

    def tokens(self, folder: RunFolder, config: LanguageConfig) -> Text:
        """The tokeniser."""
        vocabulary = vocabulary_of(folder, config.symbols)
        check_vocabulary(folder, vocabulary.size, config.symbols)
        return vocabulary

    def worker(
        self, model: nn.Module, tokens: Text, config: LanguageConfig, device: torch.device
    ) -> Writer:
        """A writer."""
        places, context, remembers = config.places, config.context, config.memory > 0
        return Writer(model, tokens, device, places=places, context=context, remembers=remembers)

    def validator(self, worker: Writer, prepared: Prepared, folder: RunFolder) -> Validator:
        """Validates by the loss on text that is not in the training set."""
        return Validator(worker, prepared.valid, folder)

    def score(
        self, config: LanguageConfig, worker: Writer, folder: RunFolder, part: str
    ) -> Work[language_model.Scores]:
        """Loss, perplexity, bits."""
        found = yield from evaluated(worker, kept(folder, part), stage=f"scoring {part}")
        return found.scores

    def evaluate(
        self, run: LanguageRun, data: str | Sequence[Path], options: Mapping[str, Any]
    ) -> Work[Evaluated]:
        """Score a run on a kept part or on files; options: overlap, symbols that windows repeat."""
        self.only(options, "out", "overlap")
        if not isinstance(data, str):
            files = language_model.Texts(each_file(told(TextFiles)(list(data))))
            texts = language_model.joined(files.pieces()) or [""]  # an empty text is refused later
        else:
            texts = kept(run.folder, (yield from scored_part(run.folder, data)))
        return (yield from evaluated(run.worker, texts, overlap=options.get("overlap", 0)))

    def predict(
        self,
        run: LanguageRun,
        lines: Iterator[str],
        options: Mapping[str, Any],
        *,
        look: bool,
        at_once: int,
    ) -> Iterator[Answer]:
        r"""Continuations of each line, in which \n stands for a line break.

        options  samples (how many of each; for a beam, best), and those of decoding
        """
        self.only(options, "samples", "best", *Decoding.model_fields)
        changes = dict(options)
        best, samples = changes.pop("best", 1), changes.pop("samples", 1)
        if best > 1 and changes.setdefault("method", "beam") != "beam":
            drawn = changes["method"] == "sample"
            cure = f"to sample: --samples {best}" if drawn else "greedy search has one answer"
            raise Refused(f"--best {best} needs --method beam; {cure}")
        if best > 1 and samples > 1:
            raise Refused(
                f"--best {best} is for beam search, --samples {samples} for sampling: give one"
            )
        choice, writer = run.config.chosen(changes), run.worker
        while chunk := list(islice(lines, at_once)):
            prompts = [unescaped(line) for line in chunk]
            for found in writer.write(prompts, choice, max(best, samples)):
                yield Answer(found, writer if look else None)

    def show(self, run: LanguageRun, texts: Sequence[str], *, every: bool) -> list[Shown]:
        """The attention while texts are read, or the openings of the test or validation text."""
        texts = [unescaped(text) for text in texts] or self._openings(run)
        return [shown(run.worker, text, every=every) for text in texts]

    def look(
        self, run: LanguageRun, texts: Sequence[str], given: Sequence[Look] = ()
    ) -> list[Look]:
        """The attention while texts are read, of any length within the model's positions."""
        texts = [unescaped(text) for text in texts] or self._openings(run)
        return [look(run.worker, text) for text in texts]

    def _openings(self, run: LanguageRun) -> list[str]:
        texts = kept(run.folder, shown_part(run.folder))
        ids = run.worker.vocabulary.encode([text[: 8 * OPENING * FEW] for text in texts[:FEW]])
        cuts = [row[i : i + OPENING] for row in ids for i in range(0, OPENING * FEW, OPENING)]
        return [run.worker.vocabulary.decode(cut) for cut in cuts if cut][:FEW]

    def hear(self, run: LanguageRun, text: str) -> Heard:
        """The self-attention while a text is read."""
        return continued(run.worker, unescaped(text))

    def figured(self, trained: Trained) -> list[Value]:
        """The values of `figures`."""
        (scores,) = trained.scores.values()
        return [scores.loss, scores.perplexity, scores.bits_per_character]


def _rows(recipe: LanguageRecipe) -> int:
    """How many rows a batch has."""
    return max(1, recipe.training.batch_tokens // recipe.data.context)


STORY = Writing()
