"""Tag: from sentences with a label for every word to a model that labels words.

    我 爱 中国  ->  PRON VERB PROPN

Data     Two columns with a blank line between sentences (CoNLL), or JSON lines (`data/tagged.py`);
         or sentences of the built-in grammar with their parts of speech, in Chinese or English.
Model    `models/tagger.py`: an LSTM in both directions, a Transformer's encoder, or BERT.
Judged   Accuracy of words; where labels have the marks B- and I-, precision, recall and F1 of whole
         spans; beside them the accuracy of the most frequent label.
A good run  The recipe `tags` gets 99.9 % of the words right in a minute; a word's most frequent
         label is right for 97 %. docs/results.md has the rest.
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
from heed.answers.labels import Labels
from heed.data import grammar
from heed.data.kinds import text
from heed.data.kinds.text import Text
from heed.data.kinds.words import Words
from heed.data.tagged import Tagged, TaggedFiles, TaggedReport, read_tagged, tag_set
from heed.data.tokenise import SPECIALS
from heed.errors import Refused
from heed.events import Note, Work
from heed.models import tagger
from heed.models.tagger import TaggerSettings
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
    Tokens,
    check_vocabulary,
    fitted_pieces,
    headline,
)


class Grammar(Settings):
    """Sentences of the built-in grammar, with parts of speech."""

    language: Literal["zh", "en"] = "zh"
    sentences: int = Field(5_000, ge=1, le=1_000_000, description="Of the training part.")
    shortest: int = Field(3, ge=3, le=100, description="Words of the Chinese sentence, at least.")
    longest: int = Field(12, ge=3, le=100)
    held_out: int = Field(500, ge=1, le=100_000, description="Sentences in each of valid and test.")
    seed: int = Field(0, ge=0, le=2**31 - 1)


class Data(FileData):
    """The source of the sentences: files, or the grammar."""

    things: ClassVar[str] = "sentences"

    train: TaggedFiles | None = None
    valid: TaggedFiles | None = None
    test: TaggedFiles | None = None
    built_in: Grammar | None = None
    tokens: Tokens = Tokens(lowercase=False)
    longest: int = Field(256, ge=4, le=100_000, description="Longer sentences are cut (in symbols)")


class TagRecipe(Recipe):
    """One training run: task, data, model, training."""

    task: Literal["tag"]
    data: Data
    model: TaggerSettings


class TagConfig(Config):
    """config.json of a run that labels words."""

    task: Literal["tag"]
    model: TaggerSettings
    symbols: int = Field(ge=4, le=2_000_000)
    labels: list[Name] = Field(min_length=2, max_length=10_000)
    longest: int = Field(ge=2, le=1_000_000, description="Symbols of a sentence that are read.")

    def build(self) -> nn.Module:
        """The network, its weights drawn at random."""
        return tagger.build(self.model, symbols=self.symbols, labels=len(self.labels))


class Tag(Task[TagRecipe, TagConfig]):
    """The task of tagging, for running."""

    name = "tag"
    about = headline(sys.modules[__name__])
    recipe, config, form = TagRecipe, TagConfig, Labels
    examples_are = "sentences"
    looks = "One sentence: the attention of each mechanism"

    def draft(self, recipe: TagRecipe) -> None:
        """Build the network; neither the vocabulary nor the labels matter."""
        tagger.build(recipe.model, symbols=len(SPECIALS), labels=2)

    def exchanged(self, model: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Another attention between the words of a Transformer, BERT or XLNet."""
        encoder = model.get("encoder")
        if not isinstance(encoder, Mapping) or encoder.get("kind") in (None, "lstm", "gru", "cnn"):
            raise Refused(
                "an RNN or filters have no attention to replace; a Transformer has: "
                "model.encoder={kind: transformer}"
            )
        return {**model, "encoder": {**encoder, "attention": name}}

    def report(self) -> TaggedReport:
        """A count of sentences and words."""
        return TaggedReport()

    def examples(
        self, data: Data, part: str, root: Path, report: Any, codec: Codec | None = None
    ) -> Iterator[Example]:
        """The sentences of one part."""
        for each in self._sentences(data, part, root, report, codec):
            yield Example((each.words,), each.tags)
        if not report.kept:
            data.held_out.lacks(part, report)

    def _sentences(
        self, data: Data, part: str, root: Path, report: Any, codec: Codec | None
    ) -> Iterator[Tagged]:
        if data.built_in is None:
            files, only = self.files(data, part, root)
            labels = None if codec is None else codec.form.names
            yield from read_tagged(files, labels=labels, only=only, report=report)
            return
        told = data.built_in
        count = told.sentences if part == "train" else told.held_out
        lengths = {"shortest": told.shortest, "longest": told.longest}
        more: dict[str, Any] = {**lengths, "seed": told.seed, "part": part}
        for each in grammar.draw_tagged(count, language=told.language, **more):
            report.read += 1
            report.kept += 1
            report.words += len(each.words)
            yield each

    def fit(
        self, recipe: TagRecipe, folder: RunFolder, root: Path, start: Start | None
    ) -> Work[Codec]:
        """The labels of the training words, and a tokeniser."""
        data = recipe.data
        sentences = self._sentences(data, "train", root, TaggedReport(), None)
        labels = tag_set(sentences)
        again = self._sentences(data, "train", root, TaggedReport(), None)
        words = (" ".join(each.words) for each in again)
        pieces = yield from fitted_pieces(data.tokens, words, folder.tokenizer, start)
        limits = [data.longest, *filter(None, [recipe.model.reads])]
        return _codec(pieces, labels, recipe.model, min(limits))

    def describe(self, recipe: TagRecipe, prepared: Prepared) -> TagConfig:
        """config.json."""
        kind, form = prepared.codec.inputs["words"], prepared.codec.form
        return TagConfig(
            heed=heed.__version__,
            task=recipe.task,
            model=recipe.model,
            symbols=kind.size,
            labels=list(form.names),
            longest=kind.longest,
        )

    def codec(self, folder: RunFolder, config: TagConfig) -> Codec:
        """The tokeniser and the labels."""
        pieces = text.load(folder.plain(folder.tokenizer), config.symbols)
        check_vocabulary(folder, pieces.size, config.symbols)
        return _codec(pieces, config.labels, config.model, config.longest)

    def given(
        self, config: TagConfig, codec: Codec, paths: Sequence[Path], options: Mapping[str, Any]
    ) -> Work[list[Example]]:
        """The sentences of a file."""
        if len(paths) != 1:
            raise Refused(f"give one file of tagged sentences; got {len(paths)} files")
        report, files = TaggedReport(), TaggedFiles.model_validate(str(paths[0]))
        found = read_tagged(files, labels=config.labels, report=report)
        rows = [Example((each.words,), each.tags) for each in found]
        yield Note(str(report))
        return rows


def _codec(pieces: Any, labels: Sequence[str], model: TaggerSettings, longest: int) -> Codec:
    kind = Words(Text(pieces, longest=longest, gathers=model.gathers))
    return Codec({"words": kind}, Labels(labels, kind))


TASK = Tag()
