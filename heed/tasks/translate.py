"""Translate: from pairs of sentences to a model that turns one language into the other.

    我 爱 中国  ->  i love china

Data     Pairs of sentences from files (`data/pairs.py`), or drawn from the built-in grammar, which
         knows the alignment of every word. Where there is one file only, a share of it is held out,
         chosen by the sources alone. Tokenisers are trained on the training pairs.
Model    Any that reads a sequence and writes another: `models/recurrent.py`, `transformer.py`.
Judged   BLEU and chrF of its translations; the perplexity of the references; where the alignment is
         known, how much of it the attention misses (alignment error rate).
A good run  The recipe `demo` passes BLEU 95 within a minute or two; docs/results.md has the rest.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import nn

import heed
from heed.answers import measures
from heed.answers.form import Example
from heed.answers.text import LINKS, Decoding, Text, TextTraining
from heed.answers.worker import Worker
from heed.data import grammar
from heed.data.file_format import format_of
from heed.data.held_out import Held, HeldOut, check, without_files
from heed.data.kinds.text import Text as TextKind
from heed.data.pairs import Files, Links, Report, read_linked, read_pairs
from heed.data.text import is_json_lines
from heed.data.tokenise import SPECIALS, UNK, Kind, Tokeniser
from heed.errors import Refused
from heed.events import Note, Progress, Work
from heed.models import building
from heed.settings import Settings
from heed.storage.run_folder import RunFolder
from heed.tasks.task import (
    Codec,
    Config,
    Evaluated,
    Prepared,
    Recipe,
    Start,
    Task,
    Tokens,
    check_vocabulary,
    headline,
)

COUNTED = 1 << 24  # symbols that are counted at a time
TOLD = 0.001  # from which share of unknown symbols on it is said


class PairTokens(Tokens):
    """Settings of how the text of both languages is cut into symbols."""

    kind: Kind = "bpe"
    size: int = Field(8000, ge=16, le=1_000_000, description="Symbols in a vocabulary, at most.")
    shared: bool = Field(False, description="One vocabulary for both languages.")
    lowercase: bool = False


class Grammar(Settings):
    """Sentences drawn from the built-in grammar."""

    pairs: int = Field(20_000, ge=1, le=2_000_000, description="Training pairs.")
    shortest: int = Field(3, ge=3, le=100, description="Source words, at least.")
    longest: int = Field(12, ge=3, le=100, description="Source words, at most.")
    beyond: int = Field(0, ge=0, le=100, description="A further test: longer, up to this; 0: none.")
    held_out: int = Field(500, ge=1, le=100_000, description="Pairs in each of valid and test.")
    seed: int = Field(0, ge=0, le=2**31 - 1)

    @model_validator(mode="after")
    def _lengths(self) -> Grammar:
        if self.shortest > self.longest:
            raise ValueError(f"shortest={self.shortest} is more than longest={self.longest}")
        if self.beyond and self.beyond <= self.longest:
            raise ValueError(
                f"beyond={self.beyond} is a length in words, more than longest={self.longest}; "
                "or 0 for no longer test"
            )
        return self


class Scoring(Settings):
    """Settings of how translations are scored."""

    bleu_tokenize: measures.Tokenise | None = Field(
        None, description="sacreBLEU's tokeniser; null: by the script of the references"
    )


class Data(Settings):
    """The source of the pairs: files, or the grammar."""

    folder: str = Field(".", description="Paths start here; a name is looked up in $HEED_DATA.")
    train: Files | None = None
    valid: Files | None = None
    test: Files | None = None
    held_out: Held = HeldOut()
    grammar: Grammar | None = None
    tokens: PairTokens = PairTokens()
    longest: int = Field(100, ge=2, le=100_000, description="Longer pairs (in symbols) are dropped")

    @model_validator(mode="before")
    @classmethod
    def _shares(cls, given: Any) -> Any:
        return without_files(given)

    @model_validator(mode="after")
    def _one_source(self) -> Data:
        if (self.grammar is None) == (self.train is None):
            raise ValueError("give the training pairs as data.train, or draw them by data.grammar")
        if self.grammar is None:
            check(self.held_out, valid=self.valid, test=self.test, what="pairs", share=0.05)
        elif self.held_out:
            raise ValueError(
                "data.held_out is for files; for the grammar, set data.grammar.held_out"
            )
        return self


class TranslateRecipe(Recipe):
    """One training run: task, data, model, training, decoding."""

    task: Literal["translate"]
    data: Data
    model: building.Model
    training: TextTraining
    decoding: Decoding = Decoding()
    scores: Scoring = Scoring()

    def build(self) -> Any:
        """The network; the vocabularies do not matter."""
        sizes = {"source": len(SPECIALS), "target": len(SPECIALS), "longest": self.data.longest}
        return building.build(self.model, shared=self.data.tokens.shared, **sizes)


class TranslateConfig(Config):
    """config.json of a run that translates."""

    task: Literal["translate"]
    model: building.Model
    source: int = Field(ge=4, le=2_000_000, description="Symbols of the source.")
    target: int = Field(ge=4, le=2_000_000)
    shared: bool
    longest: int = Field(ge=1, le=1_000_000, description="The longest source it is built for.")
    guided: bool = Field(False, description="Whether the training pairs are kept with their links.")
    lowercase: bool
    decoding: Decoding
    scores: Scoring = Scoring()

    def build(self) -> nn.Module:
        """The network, its weights drawn at random."""
        sizes = {"source": self.source, "target": self.target, "longest": self.longest}
        return building.build(self.model, shared=self.shared, **sizes)


@dataclass
class PairReport(Report):
    """Counts of the pairs of some files, read and dropped."""

    files: str = ""

    def remarks(self) -> Iterator[str]:
        """A remark on a first line that is read as a pair and looks like names of columns."""
        if self.header:
            yield (
                f"{self.files}:1: the first line, '{self.header}', is read as a pair; if it is a "
                "header, delete it"
            )


class Translate(Task[TranslateRecipe, TranslateConfig]):
    """The task of translation, for running."""

    name = "translate"
    about = headline(sys.modules[__name__])
    recipe, config, form = TranslateRecipe, TranslateConfig, Text
    examples_are = "pairs"
    whole = True
    looks = "One sentence: the alignment of each mechanism"
    sampled = 3
    watched = 32
    scoring = ("out", "links", "alignments", "bleu_tokenize")

    # Before a run

    def check(self, recipe: TranslateRecipe) -> None:
        """Refuse a recipe that cannot be built, or whose scores cannot be computed."""
        super().check(recipe)
        if recipe.scores.bleu_tokenize is not None:
            measures.check_tokeniser(recipe.scores.bleu_tokenize)
        if recipe.training.guided:
            _check_guided(recipe)

    def draft(self, recipe: TranslateRecipe) -> None:
        """Build the network; the vocabularies do not matter."""
        longest = recipe.data.longest
        recipe.build()
        limits = building.reads(recipe.model, longest), building.writes(recipe.model, longest)
        places = min((n for n in limits if n is not None), default=longest)
        if places < longest:
            raise Refused(
                f"the model has {places} positions, but pairs have up to data.longest={longest} "
                f"symbols: set data.longest={max(places, 2)}, or give the model more positions"
            )

    def exchanged(self, model: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The model with another mechanism between source and target; "none" leaves it out."""
        if model.get("kind") == "transformer":
            return {**model, "cross_attention": name}
        gone = "options" if name == "none" else None
        return {**{key: said for key, said in model.items() if key != gone}, "attention": name}

    # Pairs and their numbers

    def parts(self, data: Data) -> list[str]:
        """The parts that there are beside the training pairs."""
        if data.grammar is None:
            return super().parts(data)
        return ["valid", "test", "long"] if data.grammar.beyond else ["valid", "test"]

    def report(self) -> PairReport:
        """A count of pairs."""
        return PairReport()

    def examples(
        self, data: Data, part: str, root: Path, report: PairReport, codec: Codec | None = None
    ) -> Iterator[Example]:
        """The pairs of one part, of files or of the grammar."""
        if data.grammar is not None:
            yield from _drawn(data.grammar, part, report)
            return
        own: Files | None = getattr(data, part, None)
        held = own is None and part in self.parts(data)
        files = data.train if held else own
        if files is None:
            raise Refused(f"data.{part} is not given")
        report.files = str(files)
        only = data.held_out.only(part) if held or part == "train" else None
        yield from from_files(files.under(root / data.folder), report, only)
        if not report.kept:
            data.held_out.lacks(part, report)

    def fit(
        self, recipe: TranslateRecipe, folder: RunFolder, root: Path, start: Start | None
    ) -> Work[Codec]:
        """The tokenisers of both languages, one and the same where they share it."""
        if start is None:
            tokens = recipe.data.tokens
            yield Progress(f"learning {tokens.kind} tokens", 0)
            pairs = lambda: self.examples(recipe.data, "train", root, PairReport())  # noqa: E731
            source, target = _learnt(tokens, pairs)
        else:
            source, target = _loaded(RunFolder.open(start.path))
        source.save(folder.tokenizer)
        if target is not source:
            target.save(folder.target_tokenizer)
        return self.codec(folder, _config(recipe, source, target))

    def longest(self, recipe: TranslateRecipe) -> int:
        """Symbols of either side."""
        return recipe.data.longest

    def report_lines(self, part: str, report: PairReport, codec: Codec, cut: int) -> Iterator[str]:
        """A remark on a header, and what became of the pairs."""
        yield from report.remarks()
        yield from super().report_lines(part, report, codec, cut)

    def noted(self, recipe: TranslateRecipe, prepared: Prepared) -> Iterator[str]:
        """For each side of which much is unknown, how much."""
        train = prepared.train
        if recipe.training.guided and not train.lengths[LINKS].any():
            raise Refused("training.guided needs alignments, and no training pair has a link")
        for name in ("source", "target"):
            stream = train.tokens[name]
            parts = (stream[start : start + COUNTED] for start in range(0, len(stream), COUNTED))
            share = sum(int((part == UNK).sum()) for part in parts) / len(stream)
            if share >= TOLD:
                more = "a larger data.tokens.size keeps more of them"
                yield f"{share:.1%} of the {name} symbols are unknown; {more}"

    def describe(self, recipe: TranslateRecipe, prepared: Prepared) -> TranslateConfig:
        """config.json."""
        codec = prepared.codec
        return _config(recipe, codec.inputs["source"].pieces, codec.form.target.pieces)

    def codec(self, folder: RunFolder, config: TranslateConfig) -> Codec:
        """Both tokenisers."""
        source, target = _loaded(folder)
        sizes = (source.size, target.size, source is target)
        check_vocabulary(folder, sizes, (config.source, config.target, config.shared))
        read = TextKind(source, longest=building.reads(config.model, config.longest))
        form = Text(
            TextKind(target),
            writes=building.writes(config.model, config.longest),
            called="Translation",
            guide=read if config.guided else None,
            longest=config.longest,
            lowercase=config.lowercase,
            tokenise=config.scores.bleu_tokenize,
        )
        return Codec({"source": read}, form)

    # Judging

    def scored_parts(self, there: Sequence[str]) -> Sequence[str]:
        """The tests, or otherwise the validation."""
        return [part for part in ("test", "long") if part in there] or super().scored_parts(there)

    def evaluated(
        self,
        worker: Worker,
        examples: Sequence[Example | None],
        config: TranslateConfig,
        options: Mapping[str, Any],
        stage: str,
    ) -> Work[Evaluated]:
        """Translate the sources and score the translations; options: links, bleu_tokenize."""
        if (tokenise := options.get("bleu_tokenize")) is not None:
            measures.check_tokeniser(tokenise)
        if "links" in options and worker.model.aligning is None:
            raise Refused("--links needs attention to the source, and this run has none")
        there = [each for each in examples if each is not None]
        said = yield from self.answered(worker, there, config, options, stage)
        readings = worker.read(there, look=True)
        if "links" in options:
            dropped, cut = len(examples) - len(there), sum(not each.whole for each in readings)
            reasons = {"dropped": dropped, "longer than the model reads": cut}
            if told := [f"{n:,} {reason}" for reason, n in reasons.items() if n]:
                some = f"the lines of some pairs are empty ({', '.join(told)})"
                yield Note(f"{options['links']}: {some}")
        scores = worker.form.judged(worker, there, said, readings, tokenise)
        links = [measures.to_pharaoh(each.links or []) * each.whole for each in readings]
        return Evaluated(scores, [each.text for each in said], links).placed(examples)

    def given(
        self,
        config: TranslateConfig,
        codec: Codec,
        paths: Sequence[Path],
        options: Mapping[str, Any],
    ) -> Work[list[Any]]:
        """The pairs of one file, or of two; options: alignments, a file of their links."""
        report = PairReport()
        files = files_of(paths, options.get("alignments"))
        report.files = str(files)
        found: list[Example | None] = []
        for pair in from_files(files, report):
            found += [None] * (report.read - 1 - len(found))
            found.append(pair)
        found += [None] * (report.read - len(found))
        yield from map(Note, [*report.remarks(), str(report)])
        return found

    def of_kept(self, options: Mapping[str, Any]) -> None:
        """Alignments are those of files."""
        super().of_kept({key: said for key, said in options.items() if key == "alignments"})

    # Answering

    def lines(self, file: str, options: Mapping[str, Any]) -> Iterator[str]:
        """The lines of a text; a table, whose lines are no sources, is refused."""
        if format_of(file, ("tsv", "csv", "jsonl")) and Path(file).exists():
            raise Refused(
                f"{file} has the ending of a table, but predict translates whole lines; give the "
                f"sources alone, such as: cut -f1 {shlex.quote(file)} | heed predict RUN -"
            )
        return super().lines(file, options)


TASK = Translate()


def files_of(paths: Sequence[Path], alignments: Path | None = None) -> Files:
    """Pairs as the command line names them: one file, or source and target."""
    if len(paths) == 2:
        return Files(source=paths[0], target=paths[1], alignments=alignments)
    if len(paths) != 1:
        raise Refused(f"give one file of pairs, or source and target; got {len(paths)} files")
    if is_json_lines(paths[0]):
        return Files(jsonl=paths[0], alignments=alignments)
    return Files(tsv=paths[0], alignments=alignments)


def from_files(
    files: Files, report: Report, only: Callable[[str], bool] | None = None
) -> Iterator[Example]:
    """The pairs of some files, with their alignments where those are given.

    only  whether a source is asked for; None: all are
    """
    if files.alignments is None:
        for source, target in read_pairs(files, only=only, report=report):
            yield Example((source,), target)
    else:
        for (source, target), links in read_linked(files, only=only, report=report):
            yield Example((source,), target, links)


def _drawn(settings: Grammar, part: str, report: Report) -> Iterator[Example]:
    """The pairs of the grammar, with their alignments."""
    shortest, longest = settings.shortest, settings.longest
    if part == "long":
        shortest, longest = longest + 1, settings.beyond
    for each in grammar.draw(
        settings.pairs if part == "train" else settings.held_out,
        shortest=shortest,
        longest=longest,
        seed=settings.seed,
        part="test" if part == "long" else part,  # type: ignore[arg-type]
    ):
        report.read += 1
        report.kept += 1
        links = frozenset(each.links)
        source, target = each.pair
        yield Example((source,), target, Links(links, links))


def _learnt(
    tokens: PairTokens, pairs: Callable[[], Iterator[Example]]
) -> tuple[Tokeniser, Tokeniser]:
    """Tokenisers of the training pairs, which are read once (shared) or twice."""
    choices = tokens.model_dump(include={"size", "lowercase", "least"})
    if tokens.shared:
        both = (text for each in pairs() for text in (*each.inputs, each.answer))
        joint = Tokeniser.train(tokens.kind, both, **choices)
        return joint, joint
    source = Tokeniser.train(tokens.kind, (each.inputs[0] for each in pairs()), **choices)
    target = Tokeniser.train(tokens.kind, (each.answer for each in pairs()), **choices)
    return source, target


def _loaded(folder: RunFolder) -> tuple[Tokeniser, Tokeniser]:
    """The tokenisers of a run; without a file of its own, the target shares the source's."""
    source, own = Tokeniser.load(folder.plain(folder.tokenizer)), folder.target_tokenizer
    return source, Tokeniser.load(folder.plain(own)) if own.exists() else source


def _config(recipe: TranslateRecipe, source: Tokeniser, target: Tokeniser) -> TranslateConfig:
    """config.json."""
    return TranslateConfig(
        heed=heed.__version__,
        task=recipe.task,
        model=recipe.model,
        source=source.size,
        target=target.size,
        shared=source is target,
        longest=recipe.data.longest,
        guided=recipe.training.guided > 0,
        lowercase=recipe.data.tokens.lowercase,
        decoding=recipe.decoding,
        scores=recipe.scores,
    )


def _check_guided(recipe: TranslateRecipe) -> None:
    """Refuse to guide an attention by alignments that are not given, or that cannot be guided."""
    if recipe.data.train is not None and recipe.data.train.alignments is None:
        raise Refused(
            "training.guided needs the alignment of each training pair; name a Pharaoh file: "
            "data.train.alignments=FILE"
        )
    with torch.device("meta"):
        aligning = recipe.build().aligning
    if aligning is None:
        raise Refused("training.guided needs attention to the source, and this model has none")
    if not aligning.mechanism.claims.is_differentiable:
        raise Refused(
            "training.guided needs weights with a gradient, and this attention chooses single "
            "words; take another, or training.guided=0"
        )
