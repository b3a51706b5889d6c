"""The story of translation: from pairs of sentences to a model that translates."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from heed.data.batches import Batches
from heed.data.naming import format_of
from heed.data.pairs import Files, Report
from heed.data.text import is_json_lines
from heed.data.tokenise import SPECIALS, Tokeniser
from heed.errors import Refused
from heed.events import Note, Work
from heed.models import building
from heed.running.devices import version
from heed.running.stories.alignments import Answer, Shown, by_length, few, heads, lengths, look
from heed.running.stories.pairs import LINKS, Prepared, headed, kept, prepare, vocabulary_of
from heed.running.stories.story import (
    Run,
    Start,
    Story,
    check_vocabulary,
    headline,
    judged_part,
    scored_part,
    shown_part,
)
from heed.running.stories.translate_settings import TranslateConfig, TranslateRecipe
from heed.running.stories.translating import Evaluated, TeacherForcing, Validator, evaluated
from heed.storage.run_folder import RunFolder
from heed.tasks import translate
from heed.tasks.measuring import check_tokeniser
from heed.tasks.translator import WIDEST, Decoding, Example, Translator, Vocabulary
from heed.tasks.walking import Heard, translated
from heed.viewing.blocks import Block, Charts, Column, Heading, Paragraph, Value
from heed.viewing.looking import Look

if TYPE_CHECKING:
    from heed.running.learner import Trained

JUDGED = ("test", "long")  # parts that are scored when training ends
FEW = 5  # examples that are shown if no input is given
BEST = 5  # hypotheses of a beam that can be explored

TranslateRun = Run[TranslateConfig, Translator]


class Translating(Story[TranslateRecipe, TranslateConfig, Prepared, Vocabulary, Translator]):
    """What running needs to know of translation."""

    name = "translate"
    about = headline(translate)
    recipe = TranslateRecipe
    config = TranslateConfig
    whole = True
    looks = "One sentence: the alignment of each mechanism"
    figures = (
        Column("BLEU", ".1f", "high"),
        Column("long BLEU", ".1f", "high"),
        Column("AER", ".3f", "low"),
        Column("perplexity", ".2f", "low"),
        Column("entropy", ".2f"),
    )

    def check(self, recipe: TranslateRecipe) -> None:
        """Refuse a recipe that cannot be built, or whose scores cannot be computed."""
        super().check(recipe)
        if recipe.scores.bleu_tokenize is not None:
            check_tokeniser(recipe.scores.bleu_tokenize)
        if recipe.training.guided:
            _check_guided(recipe)

    def draft(self, recipe: TranslateRecipe) -> None:
        """Build the network; the vocabularies do not matter."""
        longest = recipe.data.longest
        _network(recipe)
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

    def prepare(
        self, recipe: TranslateRecipe, folder: RunFolder, start: Start | None = None
    ) -> Work[Prepared]:
        """Tokenisers, a cache, and the pairs to validate on."""
        return prepare(recipe.data, folder, start, linked=recipe.training.guided > 0)

    def describe(self, recipe: TranslateRecipe, prepared: Prepared) -> TranslateConfig:
        """config.json."""
        vocabulary = prepared.vocabulary
        return TranslateConfig(
            heed=version(),
            task=recipe.task,
            model=recipe.model,
            source=vocabulary.source.size,
            target=vocabulary.target.size,
            shared=vocabulary.shared,
            longest=recipe.data.longest,
            lowercase=recipe.data.tokens.lowercase,
            decoding=recipe.decoding,
            scores=recipe.scores,
        )

    def objective(self, recipe: TranslateRecipe, prepared: Prepared) -> TeacherForcing:
        """Each symbol of the target given those before it."""
        return TeacherForcing(recipe.training)

    def batches(
        self, recipe: TranslateRecipe, prepared: Prepared, *, shard: tuple[int, int], fixed: bool
    ) -> Batches:
        """Pairs of similar length together."""
        tokens = recipe.training.batch_tokens
        return Batches(
            prepared.train,
            aside=(LINKS,),
            tokens=tokens,
            seed=recipe.seed,
            shard=shard,
            fixed=fixed,
        )

    def tokens(self, folder: RunFolder, config: TranslateConfig) -> Vocabulary:
        """Both tokenisers."""
        vocabulary = vocabulary_of(folder)
        sizes = (vocabulary.source.size, vocabulary.target.size, vocabulary.shared)
        check_vocabulary(folder, sizes, (config.source, config.target, config.shared))
        return vocabulary

    def tokeniser(self, tokens: Vocabulary) -> Tokeniser:
        """The tokeniser of the source."""
        return tokens.source

    def worker(
        self, model: nn.Module, tokens: Vocabulary, config: TranslateConfig, device: torch.device
    ) -> Translator:
        """A translator."""
        return Translator(model, tokens, device, longest=config.reads, writes=config.writes)

    def validator(self, worker: Translator, prepared: Prepared, folder: RunFolder) -> Validator:
        """Validates by the loss on pairs that are not in the training set."""
        return Validator(worker, prepared.valid, folder)

    def parts(self, folder: RunFolder) -> list[str]:
        """The tests, or otherwise the validation."""
        found = [part for part in JUDGED if (folder.examples / f"{part}.jsonl").exists()]
        return found or [judged_part(folder)]

    def score(
        self, config: TranslateConfig, worker: Translator, folder: RunFolder, part: str
    ) -> Work[translate.Scores]:
        """BLEU, chrF, perplexity, alignment error."""
        found = yield from evaluated(
            worker,
            list(kept(folder, part)),
            config.decoding,
            config.lowercase,
            config.scores.bleu_tokenize,
            stage=f"scoring {part}",
        )
        return found.scores

    def evaluate(
        self, run: TranslateRun, data: str | Sequence[Path], options: Mapping[str, Any]
    ) -> Work[Evaluated]:
        """Score a run on a kept part or files; options: the files' alignments, and decoding's."""
        own = ("alignments", "out", "links", "bleu_tokenize")
        self.only(options, *own, *Decoding.model_fields)
        changes = {name: value for name, value in options.items() if name not in own}
        alignments, links = options.get("alignments"), options.get("links")
        tokenise = options.get("bleu_tokenize") or run.config.scores.bleu_tokenize
        if tokenise is not None:
            check_tokeniser(tokenise)
        if links is not None and run.worker.aligning is None:
            raise Refused("--links needs attention to the source, and this run has none")
        if isinstance(data, str):
            if alignments is not None:
                raise Refused("--alignments needs DATA, and none is given")
            pairs = list(kept(run.folder, (yield from scored_part(run.folder, data))))
            rows, lines = list(range(len(pairs))), len(pairs)
        else:
            report = Report()
            files = files_from(data, alignments)
            rows, pairs = [], []
            for pair in translate.from_files(files, report):
                rows.append(report.read - 1)
                pairs.append(pair)
            lines = report.read
            yield from headed(report, files)
            yield Note(str(report))
        choice = run.config.chosen(changes)
        found = yield from evaluated(run.worker, pairs, choice, run.config.lowercase, tokenise)
        found = found._replace(rows=rows, lines=lines)
        if links is not None:
            yield from _blank(found, links)
        return found

    def lines(self, file: str, options: Mapping[str, Any]) -> Iterator[str]:
        """The lines of a text; a table, whose lines are no sources, is refused."""
        if format_of(file, ("tsv", "csv", "jsonl")) and Path(file).exists():
            raise Refused(
                f"{file} has the ending of a table, but predict translates whole lines; give the "
                f"sources alone, such as: cut -f1 {shlex.quote(file)} | heed predict RUN -"
            )
        return super().lines(file, options)

    def predict(
        self,
        run: TranslateRun,
        lines: Iterator[str],
        options: Mapping[str, Any],
        *,
        look: bool,
        at_once: int,
    ) -> Iterator[Answer]:
        """The translations of each line; options: best (how many), and those of decoding."""
        self.only(options, "best", *Decoding.model_fields)
        changes = dict(options)
        best = changes.pop("best", 1)
        if best > WIDEST:
            raise Refused(f"--best is {WIDEST} at most, like the width of a beam; got {best}")
        if best > 1 and changes.setdefault("method", "beam") != "beam":
            raise Refused(f"--best {best} needs a beam; {changes['method']} gives one answer")
        choice, translator = run.config.chosen(changes), run.worker
        chance = translator.chance(choice)
        while chunk := list(islice(lines, at_once)):
            for found in translator.translate(chunk, choice, look=look, best=best, chance=chance):
                yield Answer(found, best)

    def show(self, run: TranslateRun, texts: Sequence[str], *, every: bool) -> list[Shown]:
        """Translations of sentences, or of a few pairs that the run keeps."""
        pairs = [Example(sentence, "") for sentence in texts] or examples_of(run.folder)
        sources = [pair.source for pair in pairs]
        found = run.worker.translate(sources, run.config.decoding, look=True)
        return [
            Shown(best[0], pair.target, heads(run.worker, best[0]) if every else ())
            for pair, best in zip(pairs, found, strict=True)
        ]

    def look(
        self, run: TranslateRun, texts: Sequence[str], given: Sequence[Look] = ()
    ) -> list[Look]:
        """The best translations of each sentence, or the given ones, with their attention."""
        pairs = [Example(sentence, "") for sentence in texts] or examples_of(run.folder)
        decoding = run.config.decoding
        best = min(decoding.width, BEST) if decoding.method == "beam" else 1
        sources = [pair.source for pair in pairs]
        found = run.worker.translate(sources, decoding, look=True, best=best)
        others = [each.readings for each in given] or [()] * len(pairs)
        return [
            look(run.worker, written, pair.target, other)
            for pair, written, other in zip(pairs, found, others, strict=True)
        ]

    def hear(self, run: TranslateRun, text: str) -> Heard:
        """The attention to the source while a sentence is translated."""
        return translated(run.worker, text, run.config.decoding)

    def figured(self, trained: Trained) -> list[Value]:
        """The values of `figures`."""
        scores = trained.scores
        test, far = scores.get("test", scores.get("valid")), scores.get("long")
        return [
            None if test is None else test.bleu,
            None if far is None else far.bleu,
            None if test is None else test.aer,
            trained.perplexity if test is None else test.perplexity,
            None if test is None else test.entropy,
        ]

    def compared(self, trained: Mapping[str, Trained]) -> list[Block]:
        """BLEU by sentence length."""
        curve = by_length({name: each.scores for name, each in trained.items()})
        signatures = {
            scores.bleu_signature: None
            for each in trained.values()
            for scores in each.scores.values()
        }
        told = [Paragraph(f"BLEU: {signature}") for signature in signatures]
        return [*told, Heading(curve.title), lengths(curve), Charts([few(curve)])]


def files_from(paths: Sequence[Path], alignments: Path | None = None) -> Files:
    """Pairs as the command line names them: one file, or source and target."""
    if len(paths) == 2:
        return Files(source=paths[0], target=paths[1], alignments=alignments)
    if len(paths) != 1:
        raise Refused(f"give one file of pairs, or source and target; got {len(paths)} files")
    if is_json_lines(paths[0]):
        return Files(jsonl=paths[0], alignments=alignments)
    return Files(tsv=paths[0], alignments=alignments)


def _network(recipe: TranslateRecipe) -> Any:
    """The recipe's network; the vocabularies do not matter."""
    return building.build(
        recipe.model,
        source=len(SPECIALS),
        target=len(SPECIALS),
        shared=recipe.data.tokens.shared,
        longest=recipe.data.longest,
    )


def _check_guided(recipe: TranslateRecipe) -> None:
    """Refuse to guide an attention by alignments that are not given, or that cannot be guided."""
    if recipe.data.train is not None and recipe.data.train.alignments is None:
        raise Refused(
            "training.guided needs the alignment of each training pair; name a Pharaoh file: "
            "data.train.alignments=FILE"
        )
    with torch.device("meta"):
        aligning = _network(recipe).aligning
    if aligning is None:
        raise Refused("training.guided needs attention to the source, and this model has none")
    if not aligning.mechanism.claims.differentiable:
        raise Refused(
            "training.guided needs weights with a gradient, and this attention chooses single "
            "words; take another, or training.guided=0"
        )


def _blank(found: Evaluated, links: Path) -> Iterator[Note]:
    """A note on the lines without links, if there are any, and why."""
    cut = sum(not each.whole for each in found.readings)
    reasons = {"dropped": found.lines - len(found.pairs), "longer than the model reads": cut}
    if told := [f"{n:,} {reason}" for reason, n in reasons.items() if n]:
        yield Note(f"{links}: the lines of some pairs are empty ({', '.join(told)})")


def examples_of(folder: RunFolder) -> list[Example]:
    """The first few pairs that the run keeps for tests, or otherwise for validation."""
    return list(islice(kept(folder, shown_part(folder, "sentence")), FEW))


STORY = Translating()
