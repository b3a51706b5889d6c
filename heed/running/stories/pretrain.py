"""The story of pre-training: from plain text to a model that other tasks start from."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field
from torch import nn

from heed.answers.continuation import Decoding
from heed.data.borrowed import Hiding, Renumbered
from heed.data.documents import DocumentFiles, SentenceReport, read_sentences
from heed.data.pretraining_batches import Remade
from heed.data.sources import told
from heed.data.tokenise import SPECIALS
from heed.errors import Refused
from heed.events import Note, Work
from heed.running.devices import version
from heed.running.stories.documents import (
    Prepared,
    gathered,
    kept,
    likely,
    prepare,
    tokeniser_of,
)
from heed.running.stories.filling import Answer, Shown, layers, look
from heed.running.stories.pretraining import (
    Evaluated,
    HiddenWords,
    Validator,
    evaluated,
    hidden,
    rows,
)
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
from heed.storage.run_folder import RunFolder
from heed.tasks import pretrain
from heed.tasks.pretrainer import Pretrainer, numbers_of
from heed.tasks.walking import Heard, filled
from heed.viewing.blocks import Column, Value
from heed.viewing.looking import Look
from heed.viewing.panels import of_heads

if TYPE_CHECKING:
    from heed.running.learner import Trained

WRITING = {*Decoding.model_fields, "samples"}
"""Options of models that continue texts."""
FEW = 3  # examples that are shown if no text is given


class PretrainRecipe(Recipe):
    """One training run: task, data, objective, model, training."""

    task: Literal["pretrain"]
    data: pretrain.Data
    objective: pretrain.Objective = pretrain.Hidden()
    model: pretrain.Model


class PretrainConfig(Config):
    """config.json of a run that was trained on plain text."""

    task: Literal["pretrain"]
    model: pretrain.Model
    objective: pretrain.Objective
    symbols: int = Field(ge=4, le=2_000_000)
    longest: int = Field(ge=5, le=65536, description="Symbols of a row.")

    def build(self) -> nn.Module:
        """The network, its weights drawn at random."""
        sizes = {"symbols": self.symbols, "longest": self.longest}
        return pretrain.build(self.model, self.objective, **sizes)


PretrainRun = Run[PretrainConfig, Pretrainer]


class Pretraining(Story[PretrainRecipe, PretrainConfig, Prepared, Hiding, Pretrainer]):
    """What running needs to know of pre-training."""

    name = "pretrain"
    about = headline(pretrain)
    onward = (*Story.onward, "train RECIPE --from {run}")
    unit = "predicted words"
    recipe = PretrainRecipe
    config = PretrainConfig
    figures = (
        Column("loss", ".4f", "low"),
        Column("unigram", ".4f"),
        Column("perplexity", ".2f", "low"),
        Column("accuracy, %", ".1f", "high"),
        Column("next sentence, %", ".1f", "high"),
    )

    def draft(self, recipe: PretrainRecipe) -> None:
        """Build the network; the vocabulary does not matter."""
        model, longest = recipe.model, recipe.data.longest
        symbols = model.symbols or len(SPECIALS) + 1
        pretrain.build(model, recipe.objective, symbols=symbols, longest=longest)

    def exchanged(self, model: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The model with another mechanism in every layer."""
        return {**model, "attention": name}

    def prepare(
        self, recipe: PretrainRecipe, folder: RunFolder, start: Start | None = None
    ) -> Work[Prepared]:
        """A tokeniser, a cache, and the documents to validate on."""
        return prepare(recipe.data, recipe.objective, folder, start, recipe.model.symbols)

    def describe(self, recipe: PretrainRecipe, prepared: Prepared) -> PretrainConfig:
        """config.json."""
        return PretrainConfig(
            heed=version(),
            task=recipe.task,
            model=recipe.model,
            objective=recipe.objective,
            symbols=prepared.tokeniser.size,
            longest=recipe.data.longest,
        )

    def objective(self, recipe: PretrainRecipe, prepared: Prepared) -> HiddenWords:
        """Predict hidden words, and whether one text follows another."""
        return HiddenWords(recipe.training, numbers_of(prepared.tokeniser))

    def batches(
        self, recipe: PretrainRecipe, prepared: Prepared, *, shard: tuple[int, int], fixed: bool
    ) -> Remade:
        """Rows that are built again in every epoch."""
        longest = recipe.data.longest
        make = pretrain.maker(prepared.train, prepared.symbols, recipe.objective, longest)
        tokens = recipe.training.batch_tokens
        return Remade(make, tokens=tokens, seed=recipe.seed, shard=shard, fixed=fixed)

    def tokens(self, folder: RunFolder, config: PretrainConfig) -> Hiding:
        """The tokeniser."""
        tokeniser = tokeniser_of(folder, config.symbols)
        check_vocabulary(folder, tokeniser.size, config.symbols)
        return tokeniser

    def tokeniser(self, tokens: Hiding) -> Any:
        """The tokeniser; that of a pretrained model in the form that other tasks use."""
        return tokens.vocabulary if isinstance(tokens, Renumbered) else tokens

    def worker(
        self, model: nn.Module, tokens: Hiding, config: PretrainConfig, device: torch.device
    ) -> Pretrainer:
        """The trained model, which fills in hidden words."""
        objective = config.objective
        return Pretrainer(
            model,
            tokens,
            device,
            ordered=isinstance(objective, pretrain.Ordered),
            pairs=isinstance(objective, pretrain.Hidden) and objective.next_sentence,
            places=config.model.longest,
        )

    def validator(self, worker: Pretrainer, prepared: Prepared, folder: RunFolder) -> Validator:
        """Validates on words hidden in documents that are not in the training set."""
        batches = rows(worker, prepared.valid, prepared.objective, prepared.longest)
        shares = likely(folder, worker.symbols)
        return Validator(worker, batches, hidden(prepared.valid), folder, shares)

    def score(
        self, config: PretrainConfig, worker: Pretrainer, folder: RunFolder, part: str
    ) -> Work[pretrain.Scores]:
        """Loss, perplexity, accuracy, next sentences."""
        documents, longest = list(kept(folder, part)), config.longest
        stage, shares = f"scoring {part}", likely(folder, worker.symbols)
        found = yield from evaluated(worker, documents, config.objective, longest, shares, stage)
        return found.scores

    def evaluate(
        self, run: PretrainRun, data: str | Sequence[Path], options: Mapping[str, Any]
    ) -> Work[Evaluated]:
        """Score a run on a kept part, or on files of text or JSON lines."""
        self.only(options)
        if isinstance(data, str):
            documents = list(kept(run.folder, (yield from scored_part(run.folder, data))))
        else:
            report, files = SentenceReport(), told(DocumentFiles)(list(data))
            documents = list(gathered(read_sentences(files, report=report)))
            yield from map(Note, report.told("text"))
        objective, longest = run.config.objective, run.config.longest
        shares = likely(run.folder, run.worker.symbols)
        return (yield from evaluated(run.worker, documents, objective, longest, shares))

    def predict(
        self,
        run: PretrainRun,
        lines: Iterator[str],
        options: Mapping[str, Any],
        *,
        look: bool,
        at_once: int,
    ) -> Iterator[Answer]:
        """Each line with words in place of [MASK]; options: best, words listed for each mask."""
        writing = [name for name in options if name in WRITING]
        if writing and run.config.model.kind == "xlnet":
            raise Refused(
                f"--{writing[0].replace('_', '-')} is for continuing texts, and runs of the task "
                f"{self.name} fill masks; an XLNet continues texts from the folder that this "
                f"writes: heed convert {shlex.quote(str(run.folder.path))} FOLDER"
            )
        self.only(options, "best")
        best = options.get("best", 1)
        while chunk := list(islice(lines, at_once)):
            for found in run.worker.fill(chunk, best=best, look=look):
                yield Answer(found, best)

    def show(self, run: PretrainRun, texts: Sequence[str], *, every: bool) -> list[Shown]:
        """The attention while texts are read, or a few sentences that the run keeps."""
        texts = list(texts) or hidden(list(islice(kept(run.folder, shown_part(run.folder)), FEW)))
        found = run.worker.fill(texts, look=True)
        return [
            Shown(each, of_heads(each.heads, each.pieces) if every else layers(each))
            for each in found
        ]

    def look(
        self, run: PretrainRun, texts: Sequence[str], given: Sequence[Look] = ()
    ) -> list[Look]:
        """The attention while texts are read, or a few sentences that the run keeps."""
        texts = list(texts) or hidden(list(islice(kept(run.folder, shown_part(run.folder)), FEW)))
        return [look(run.worker, text) for text in texts]

    def hear(self, run: PretrainRun, text: str) -> Heard:
        """The self-attention while hidden words are predicted."""
        return filled(run.worker, text)

    def figured(self, trained: Trained) -> list[Value]:
        """The values of `figures`."""
        (scores,) = trained.scores.values()
        return [
            scores.loss,
            scores.unigram_loss,
            scores.perplexity,
            scores.accuracy,
            scores.follows_accuracy,
        ]


STORY = Pretraining()
