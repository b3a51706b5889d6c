"""The story of language modelling: text in, a model that goes on writing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError
from torch import nn

from heed.data.packing import Packed
from heed.data.verbatim import read_text
from heed.errors import HeedError, Refused
from heed.running.complaining import complaint
from heed.running.devices import version
from heed.running.events import Note, Work
from heed.running.stories.story import Config, Recipe, Run, Start, Story
from heed.running.stories.texts import Prepared, kept, prepare, vocabulary_of
from heed.running.stories.writing import (
    Answer,
    Evaluated,
    NextSymbol,
    Shown,
    Validator,
    evaluated,
    shown,
    unescaped,
)
from heed.tasks import language_model
from heed.tasks.borrowing import Text
from heed.tasks.writer import Decoding, Writer
from heed.training.folder import RunFolder
from heed.viewing.blocks import Column, Value

FEW = 2  # openings that are shown when no text is given
OPENING = 32  # symbols of each


class LanguageRecipe(Recipe):
    """One training run: task, data, model, training, decoding."""

    task: Literal["language-model"]
    data: language_model.Data
    model: language_model.Model
    decoding: Decoding = Decoding()


class LanguageConfig(Config):
    """config.json of a run that writes."""

    task: Literal["language-model"]
    model: language_model.Model
    symbols: int = Field(ge=4, le=2_000_000)
    context: int = Field(ge=1, le=65536)
    decoding: Decoding

    def build(self) -> nn.Module:
        """The network, its weights drawn at random."""
        return language_model.build(self.model, symbols=self.symbols, context=self.context)

    @property
    def places(self) -> int | None:
        """How many symbols it can see at once, if there is a limit."""
        return language_model.places(self.model)

    def chosen(self, changes: Mapping[str, Any]) -> Decoding:
        """The run's own way of choosing, with some of it changed."""
        try:
            return Decoding(**{**self.decoding.model_dump(), **changes})
        except ValidationError as error:
            raise Refused(f"decoding: {complaint(Decoding, error)}") from None


class Writing(Story):
    """What running must know of language modelling."""

    name = "language-model"
    about = (language_model.__doc__ or "").splitlines()[0].rstrip(".")
    recipe = LanguageRecipe
    config = LanguageConfig
    columns = (
        Column("mechanism"),
        Column("loss", ".4f", "low"),
        Column("perplexity", ".3f", "low"),
        Column("bits per character", ".4f", "low"),
        Column("symbols/s", ",.0f", "high"),
        Column("memory, MiB", ",.0f", "low"),
        Column("parameters", ",d"),
        Column("seconds", ",.0f", "low"),
    )

    def check(self, recipe: LanguageRecipe) -> None:
        """The vocabulary does not matter."""
        symbols = getattr(recipe.model, "symbols", None) or 8
        try:
            with torch.device("meta"):
                language_model.build(recipe.model, symbols=symbols, context=recipe.data.context)
        except HeedError as error:
            raise Refused(f"the recipe's model cannot be built: {error}") from None

    def with_attention(self, raw: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Another mechanism in every layer."""
        model = raw.get("model") or {}
        if not isinstance(model, Mapping):
            return dict(raw)  # refused as such later
        if model.get("kind") == "recurrent-language":
            raise Refused("a recurrent language model has no attention to exchange")
        return {**raw, "model": {**model, "attention": name}}

    def prepare(
        self, recipe: LanguageRecipe, folder: RunFolder, start: Start | None = None
    ) -> Work[Prepared]:
        """A tokeniser, a cache, and the texts to judge by."""
        return prepare(recipe.data, folder, start)

    def describe(self, recipe: LanguageRecipe, prepared: Prepared) -> LanguageConfig:
        """config.json."""
        return LanguageConfig(
            heed=version(),
            task=recipe.task,
            model=recipe.model,
            symbols=prepared.vocabulary.size,
            context=recipe.data.context,
            decoding=recipe.decoding,
        )

    def objective(self, recipe: LanguageRecipe, prepared: Prepared) -> NextSymbol:
        """Each symbol given those before it."""
        return NextSymbol(recipe.training)

    def batches(
        self, recipe: LanguageRecipe, prepared: Prepared, *, shard: tuple[int, int], fixed: bool
    ) -> Packed:
        """Rows of `context` symbols, cut somewhere else in every epoch."""
        context = recipe.data.context
        return Packed(
            prepared.train.tokens["text"],
            length=context,
            rows=max(1, recipe.training.batch_tokens // context),
            seed=recipe.seed,
            shard=shard,
            fixed=fixed,
        )

    def tokens(self, folder: RunFolder, config: LanguageConfig) -> Text:
        """The one tokeniser."""
        vocabulary = vocabulary_of(folder, config.symbols)
        if vocabulary.size != config.symbols:
            raise Refused(f"{folder.config}: its vocabulary is not that of tokenizer.json")
        return vocabulary

    def worker(
        self, model: nn.Module, tokens: Text, config: LanguageConfig, device: torch.device
    ) -> Writer:
        """A writer."""
        return Writer(model, tokens, device, places=config.places, context=config.context)

    def validator(self, worker: Writer, prepared: Prepared, folder: RunFolder) -> Validator:
        """By the surprise at text it does not learn from."""
        return Validator(worker, prepared.valid, folder)

    def score(
        self, recipe: LanguageRecipe, worker: Writer, folder: RunFolder, part: str
    ) -> Work[language_model.Scores]:
        """Loss, perplexity, bits."""
        found = yield from evaluated(worker, kept(folder, part), stage=f"scoring {part}")
        return found.scores

    def parts(self, folder: RunFolder) -> list[str]:
        """The test, or else what it was validated by."""
        return [_part(folder)]

    def evaluate(
        self, run: Run, data: str | Sequence[Path], options: Mapping[str, Any]
    ) -> Work[Evaluated]:
        """On a kept part or on files; options: overlap, symbols that windows read again."""
        self.only(options, "overlap")
        if not isinstance(data, str):
            texts = ["".join(read_text(path)) for path in data]
        else:
            if data == "test" and (part := _part(run.folder)) != "test":
                yield Note("this run keeps no test text: judged by what it was validated by")
                data = part
            texts = kept(run.folder, data)
        return (yield from evaluated(run.worker, texts, overlap=options.get("overlap", 0)))

    def predict(
        self,
        run: Run,
        lines: Iterator[str],
        options: Mapping[str, Any],
        *,
        look: bool,
        at_once: int,
    ) -> Iterator[Answer]:
        r"""Continuations of each line, in which \n stands for a line break.

        options  samples (how many of each; best is the same for a beam), and those of decoding
        """
        self.only(options, "samples", "best", *Decoding.model_fields)
        changes = dict(options)
        best, samples = changes.pop("best", 1), changes.pop("samples", 1)
        if best > 1 and changes.setdefault("method", "beam") != "beam":
            raise Refused(f"--best {best} is for a beam; for {changes['method']}: --samples {best}")
        choice, writer = run.config.chosen(changes), run.worker
        while chunk := list(islice(lines, at_once)):
            prompts = [unescaped(line) for line in chunk]
            for found in writer.write(prompts, choice, max(best, samples)):
                yield Answer(found, writer if look else None)

    def show(self, run: Run, texts: Sequence[str], *, every: bool) -> list[Shown]:
        """What it looks at while it reads texts, or the openings of what it was judged by."""
        texts = [unescaped(text) for text in texts] or self._openings(run)
        return [shown(run.worker, text, every=every) for text in texts]

    def _openings(self, run: Run) -> list[str]:
        texts = kept(run.folder, _part(run.folder))
        ids = run.worker.vocabulary.encode([text[: 8 * OPENING * FEW] for text in texts[:FEW]])
        cuts = [row[i : i + OPENING] for row in ids for i in range(0, OPENING * FEW, OPENING)]
        return [run.worker.vocabulary.decode(cut) for cut in cuts if cut][:FEW]

    def row(self, mechanism: str, trained: Any, memory: float | None) -> list[Value]:
        """As in columns."""
        (scores,) = trained.scores.values()
        return [
            mechanism,
            scores.loss,
            scores.perplexity,
            scores.bits_per_character,
            trained.tokens_per_second,
            memory,
            trained.parameters,
            trained.seconds,
        ]


def _part(folder: RunFolder) -> str:
    """What a run is judged by in the end."""
    kept = {part for part in ("test", "valid") if (folder.examples / f"{part}.jsonl").is_file()}
    return "valid" if kept == {"valid"} else "test"


STORY = Writing()
