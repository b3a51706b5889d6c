"""Compose: from labelled texts to a model that writes a text for a label.

    jig  ->  ^F E E A3 | ^F ^G A A3 | ^F E E A3 | ^F ^G A A3 | e2 ^f e2 ^f | e2 ^f e3 | ...

Data     Labelled texts from files (`data/labelled.py`); or the built-in tunes by style, in letters,
         each of which obeys all rules of its style and of no other (`data/tunes.py`).
Model    `models/generator.py`: an RNN that is given the label once or at every step, or the decoder
         of a Transformer, which also looks back at what it has written.
Judged   Perplexity of right texts; of tunes, how many obey every rule of the style that was asked
         for, and how many each of them. Beside it: tunes of a style chosen at random, and of a
         chain in which each symbol follows from the two before it.
A good run  The recipe `tunes` in two minutes: most keep to scale and metre; the form, which wants
         whole bars repeated, is not learnt at this size. docs/results.md has the shares.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import nn

import heed
from heed.answers.form import Example
from heed.answers.text import Decoding, Text, TextTraining, WrittenText
from heed.answers.worker import Worker
from heed.data import tunes
from heed.data.kinds.label import Label
from heed.data.kinds.text import Text as TextKind
from heed.data.labelled import LabelledFiles, TextReport, ordered, read_labelled
from heed.data.tokenise import SPECIALS, Tokeniser
from heed.events import Note, Work
from heed.models import building, generator
from heed.models.generator import GeneratorSettings
from heed.models.transformer_settings import TransformerSettings
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
from heed.viewing.blocks import Column, Table, Value

Model = Annotated[GeneratorSettings | TransformerSettings, Field(discriminator="kind")]


class Tunes(Settings):
    """Tunes of the built-in corpus, as many of each style."""

    tunes: int = Field(10_000, ge=1, le=1_000_000, description="Of the training part.")
    held_out: int = Field(300, ge=1, le=100_000, description="Tunes in each of valid and test.")
    seed: int = Field(0, ge=0, le=2**31 - 1)


class Data(FileData):
    """Where the texts come from: files, or the built-in tunes."""

    train: LabelledFiles | None = None
    valid: LabelledFiles | None = None
    test: LabelledFiles | None = None
    built_in: Tunes | None = None
    tokens: Tokens = Tokens(lowercase=False)
    longest: int = Field(256, ge=2, le=100_000, description="Longer texts (in symbols) are dropped")


class ComposeRecipe(Recipe):
    """One training run: task, data, model, training, decoding."""

    task: Literal["compose"]
    data: Data
    model: Model
    training: TextTraining
    decoding: Decoding = Decoding(method="sample")


class ComposeConfig(Config):
    """config.json of a run that writes a text for a label."""

    task: Literal["compose"]
    model: Model
    labels: list[Name] = Field(min_length=2, max_length=10_000)
    symbols: int = Field(ge=4, le=2_000_000)
    longest: int = Field(ge=2, le=1_000_000, description="Symbols of a text that were learnt.")
    decoding: Decoding

    def build(self) -> nn.Module:
        """The network, its weights drawn at random."""
        return generator.build(self.model, classes=len(self.labels), symbols=self.symbols)


@dataclass(frozen=True, slots=True)
class TuneScores:
    """How good written texts are; the shares, in per cent, are known of the built-in styles."""

    texts: int
    perplexity: float  # per symbol of the right texts
    different: float  # of all that was written, in per cent
    obeying: float | None = None  # every rule of the style that was asked for
    by_chance: float | None = None  # the right texts, of a style chosen at random
    by_chain: float | None = None
    by_rule: list[tuple[str, float, float]] = ()  # type: ignore[assignment]  # texts, and a chain's
    by_style: list[tuple[str, int, float]] = ()  # type: ignore[assignment]

    def line(self) -> str:
        """The scores in one line."""
        rules = "" if self.obeying is None else f"obeying {self.obeying:.1f} % · "
        return f"{rules}perplexity {self.perplexity:.2f} · different {self.different:.1f} %"

    def facts(self) -> list[tuple[str, str, str]]:
        """The figures of all texts together."""
        found = [
            ("texts", f"{self.texts:,}", ""),
            ("perplexity", f"{self.perplexity:.3f}", "per symbol of the right texts"),
            ("different", f"{self.different:.1f} %", "texts that were written once"),
        ]
        if self.obeying is None:
            return found
        floors = f"at random {self.by_chance:.1f} %, a chain of three symbols {self.by_chain:.1f} %"
        rules = ("obeying", f"{self.obeying:.1f} %", f"every rule of the style asked for; {floors}")
        return [found[0], rules, *found[1:]]

    def tables(self) -> list[Table]:
        """The shares of each rule and of each style."""
        rules = Column("rule"), Column("obeyed, %", ".1f"), Column("by a chain, %", ".1f")
        styles = Column("style"), Column("texts", ",d"), Column("obeying, %", ".1f")
        found = (Table(rules, self.by_rule), Table(styles, self.by_style))
        return [] if self.obeying is None else list(found)


class LabelledText(Text):
    """A text for a label."""

    figures = (
        Column("obeying, %", ".1f", "high"),
        Column("perplexity", ".2f", "low"),
        Column("different, %", ".1f", "high"),
    )

    def judged(  # type: ignore[override]
        self, worker: Worker, examples: Sequence[Example], said: Sequence[WrittenText]
    ) -> TuneScores:
        """Perplexity; the rules that tunes obey."""
        texts, styles = [each.text for each in said], [each.inputs[0] for each in examples]
        perplexity = math.exp(min(worker.loss(examples), 700))
        different = _share([texts.count(text) == 1 for text in texts])
        if not set(styles) <= set(tunes.STYLES):
            return TuneScores(len(texts), perplexity, different)
        broken = [tunes.check(text, style) for text, style in zip(texts, styles, strict=True)]
        chain = [
            tunes.check(text, style)
            for text, style in zip(tunes.chained(styles), styles, strict=True)
        ]
        every: Any = worker.kind
        right = [not tunes.check(e.answer, s) for e in examples for s in every.labels]
        obeying = {
            name: [not each for each, style in zip(broken, styles, strict=True) if style == name]
            for name in dict.fromkeys(styles)
        }
        return TuneScores(
            len(texts),
            perplexity,
            different,
            _share([not each for each in broken]),
            _share(right),
            _share([not each for each in chain]),
            [(rule, _kept(rule, broken), _kept(rule, chain)) for rule in tunes.RULES],
            [(name, len(each), _share(each)) for name, each in obeying.items()],
        )

    @classmethod
    def figured(cls, scores: Mapping[str, Any], perplexity: float | None) -> list[Value]:
        """The values of `figures`."""
        (found,) = scores.values()
        return [found.obeying, found.perplexity, found.different]

    @classmethod
    def compared(cls, scores: Mapping[str, Mapping[str, Any]]) -> list[Any]:
        """The table says all."""
        return []


def _share(right: Sequence[bool]) -> float:
    return 100 * sum(right) / max(1, len(right))


def _kept(rule: str, broken: Sequence[Sequence[str]]) -> float:
    """The texts that keep a rule, in per cent; of what is no tune, no rule can be told."""
    odd = (rule, tunes.RULES[0])
    return _share([not any(one.startswith(odd) for one in each) for each in broken])


class Compose(Task[ComposeRecipe, ComposeConfig]):
    """What running needs to know of composing."""

    name = "compose"
    about = headline(sys.modules[__name__])
    recipe, config, form = ComposeRecipe, ComposeConfig, LabelledText
    examples_are = "texts"
    looks = "One text: the attention of each mechanism"
    sampled = 3

    def draft(self, recipe: ComposeRecipe) -> None:
        """Build the network; neither the vocabulary nor the labels matter."""
        generator.build(recipe.model, classes=2, symbols=len(SPECIALS))

    def report(self) -> TextReport:
        """A count of texts."""
        return TextReport()

    def examples(
        self, data: Data, part: str, root: Path, report: Any, codec: Codec | None = None
    ) -> Iterator[Example]:
        """The texts of one part."""
        if data.built_in is not None:
            told = data.built_in
            count = told.tunes if part == "train" else told.held_out
            more: Any = {"seed": told.seed, "part": part}
            for each in tunes.draw(count, **more):
                report.read, report.kept = report.read + 1, report.kept + 1
                yield Example((each.style,), each.text)
            return
        files, only = self.files(data, part, root)
        labels = None if codec is None else {name: name for name in codec.inputs["label"].labels}
        for row in read_labelled(files, labels=labels, only=only, report=report):
            yield Example((row.label,), row.text)
        if not report.kept:
            data.held_out.lacks(part, report)

    def longest(self, recipe: ComposeRecipe) -> int:
        """Symbols of a text."""
        return recipe.data.longest

    def fit(
        self, recipe: ComposeRecipe, folder: RunFolder, root: Path, start: Start | None
    ) -> Work[Codec]:
        """The labels of the training texts, and a tokeniser."""
        labels: set[str] = set()

        def texts() -> Iterator[str]:
            for each in self.examples(recipe.data, "train", root, TextReport()):
                labels.add(each.inputs[0])
                yield each.answer

        every = texts()
        pieces = yield from fitted_pieces(recipe.data.tokens, every, folder.tokenizer, start)
        deque(every, 0)  # with the tokeniser of a start, no text has been read
        return self.codec(folder, _config(recipe, ordered(labels), pieces.size))

    def describe(self, recipe: ComposeRecipe, prepared: Prepared) -> ComposeConfig:
        """config.json."""
        codec = prepared.codec
        return _config(recipe, codec.inputs["label"].labels, codec.form.target.size)

    def codec(self, folder: RunFolder, config: ComposeConfig) -> Codec:
        """The labels and the tokeniser."""
        pieces = Tokeniser.load(folder.plain(folder.tokenizer))
        check_vocabulary(folder, pieces.size, config.symbols)
        writes = building.writes(config.model, config.longest)
        form = LabelledText(TextKind(pieces), writes=writes, bounded=False, called="Written")
        return Codec({"label": Label(config.labels)}, form)

    def given(
        self, config: Any, codec: Codec, paths: Sequence[Path], options: Mapping[str, Any]
    ) -> Work[list[Any]]:
        """The labelled texts of a file."""
        report, labels = TextReport(), {name: name for name in config.labels}
        files = LabelledFiles.model_validate(str(paths[0]))
        rows = list(read_labelled(files, labels=labels, report=report))
        yield Note(str(report))
        return [Example((row.label,), row.text) for row in rows]


TASK = Compose()


def _config(recipe: ComposeRecipe, labels: Sequence[str], symbols: int) -> ComposeConfig:
    return ComposeConfig(
        heed=heed.__version__,
        task=recipe.task,
        model=recipe.model,
        labels=list(labels),
        symbols=symbols,
        longest=recipe.data.longest,
        decoding=recipe.decoding,
    )
