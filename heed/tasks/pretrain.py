"""Pretrain: from plain text to a model of the language, from which other tasks start.

    it was [MASK] . she went home .   ->   late

Data     Documents of sentences (`data/documents.py`); validation has files of its own, or some of
         the documents. Tokens are learnt from the text; one more is the mask.
Model    BERT (`models/text_settings.py`) predicts hidden words, and whether one text follows
         another: Devlin 2019 §3.1. XLNet (`models/xlnet_settings.py`) predicts words in a random
         order, with two streams: Yang 2019 §2.
Judged   The loss at hidden words (nats), perplexity and accuracy, beside the loss of the same words
         by their frequencies in the training text: below it the model has learnt from context.
         The accuracy of next sentences.
A good run  `bert-mini` comes far below that loss; docs/results.md has the rest.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from os.path import lexists
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator
from torch import nn

import heed
from heed.answers.documents import gathered
from heed.answers.form import Example
from heed.answers.hidden import SEED, Hidden, HiddenWords, Objective, Ordered
from heed.answers.hidden_scores import HiddenReading, HiddenWordScores, Shares, unigram
from heed.answers.worker import Worker
from heed.data.borrowed import Hiding, Renumbered, load_hiding
from heed.data.chance import below
from heed.data.documents import (
    DocumentFiles,
    Documents,
    DocumentSources,
    Sentence,
    SentenceReport,
    read_file,
    read_sentences,
    refuse_nothing,
)
from heed.data.held_out import shares
from heed.data.kinds.text import MaskedText
from heed.data.masked_words import Symbols, mask_of, with_mask
from heed.data.pretraining_batches import Remade
from heed.data.sources import each_file, told
from heed.data.tokenise import SPECIALS, Kind, Tokeniser
from heed.data.vocabularies import Vocabulary
from heed.errors import Refused
from heed.events import Note, Progress, Work
from heed.models import text_settings, xlnet_settings
from heed.models.text_settings import BertSettings
from heed.models.xlnet_settings import XLNetSettings
from heed.settings import Settings
from heed.storage.run_folder import RunFolder
from heed.tasks.task import (
    BERT_FRAME,
    READ,
    Codec,
    Config,
    Evaluated,
    Exported,
    Frame,
    Prepared,
    Recipe,
    Start,
    Task,
    check_vocabulary,
    headline,
)

COUNTED = 1 << 24  # symbols that are counted at a time
DIGITS = 24  # bytes of a frequency in its file, at most
WORDS = 40  # of an excerpt
FRAMES = {
    "bert": BERT_FRAME,
    "xlnet": Frame("$A:0 {eos}:0 {bos}:0", "$A:0 {eos}:0 $B:0 {eos}:0 {bos}:0"),
}
"""The templates in which texts are passed to each model."""
HEAD = 8  # first sentences, which decide whether a document is held out
Model = Annotated[BertSettings | XLNetSettings, Field(discriminator="kind")]
"""The settings of any model that is trained on plain text before it is given a task."""


class DocumentTokens(Settings):
    """Settings of how text is cut into symbols; one more is the mask."""

    kind: Kind = "wordpiece"
    size: int = Field(8000, ge=16, le=1_000_000, description="Symbols in the vocabulary, at most.")
    lowercase: bool = False


class HeldOut(Settings):
    """The part of the training text held out if no files for validation are given.

    A document's first sentences decide, so a document is always on the same side.
    """

    share: float = Field(0.05, ge=0, le=0.5, description="Of the documents.")
    most: int = Field(2000, ge=1, le=100_000, description="Documents.")


Held = Annotated[HeldOut, BeforeValidator(lambda given: shares(given, "share"))]
"""What is held out, as a recipe says it: by key, or the share alone."""


class Data(Settings):
    """The text. Files are settings, or simply paths: text, or *.jsonl; or a list of either, which
    is read as one corpus."""

    folder: str = Field(".", description="Paths start here; a name is looked up in $HEED_DATA.")
    train: DocumentSources
    valid: DocumentSources | None = None
    test: DocumentSources | None = None
    held_out: Held = HeldOut()
    tokens: DocumentTokens = DocumentTokens()
    longest: int = Field(128, ge=5, le=65536, description="Symbols of a row.")

    @model_validator(mode="after")
    def _judged_by_something(self) -> Data:
        if self.valid is None and not self.held_out.share:
            raise ValueError(
                "data.valid is missing: text to validate the model while it trains; or hold some "
                "out: data.held_out.share=0.05"
            )
        return self


def fitted(model: Model, objective: Objective, *, symbols: int, longest: int) -> Model:
    """Settings with the size of the vocabulary, and the head of the objective."""
    wants = "bert" if isinstance(objective, Hidden) else "xlnet"
    if model.kind != wants:
        raise Refused(
            f"the objective '{objective.kind}' is for {wants}, not for {model.kind}; set "
            f"objective.kind={'permutation' if wants == 'bert' else 'masked'}"
        )
    head = "language"
    if isinstance(objective, Hidden):
        head = "pretraining" if objective.next_sentence else "masked"
    if model.head not in ("none", head):
        raise Refused(f"model.head follows from the objective, here '{head}'; leave it out")
    if model.symbols not in (None, symbols):
        raise Refused(
            f"model.symbols={model.symbols}, but the vocabulary has {symbols}; leave it out"
        )
    if longest > model.longest:
        raise Refused(
            f"data.longest={longest} symbols are more than the model's positions: "
            f"set model.longest={longest}"
        )
    return model.model_copy(update={"symbols": symbols, "head": head})


def build(model: Model, objective: Objective, *, symbols: int, longest: int) -> nn.Module:
    """The network, for a vocabulary and rows of `longest` symbols."""
    settings = fitted(model, objective, symbols=symbols, longest=longest)
    if isinstance(settings, BertSettings):
        return text_settings.build(settings)
    return xlnet_settings.build(settings)


def sentences(data: Data, part: str, root: Path, report: SentenceReport) -> Iterator[Sentence]:
    """The sentences of one part; the report counts those read, kept and dropped."""
    sources, folder = getattr(data, part) or data.train, root / data.folder
    if part == "test" or data.valid is not None:
        yield from read_sentences(sources, folder=folder, report=report)
        return
    whole, held = SentenceReport(), 0
    for name, file in each_file(sources, folder):
        counted, own = SentenceReport(), SentenceReport()
        for document in _documents(read_file(file, counted)):
            head = list(islice(document, HEAD))
            aside = held < data.held_out.most and _held_out(head, data.held_out.share)
            held += aside
            if aside == (part == "valid"):
                own.documents += 1
                for sentence in chain(head, document):
                    own.read += 1
                    own.kept += 1
                    yield sentence
        if part == "train":
            own.read += sum(counted.dropped.values())
            own.dropped = counted.dropped
        whole.add(name, counted)
        report.add(name, own)
    refuse_nothing(whole)
    if not report.kept:
        names = " and ".join(name for name, _ in report.files)
        cure = "separate them by blank lines, raise data.held_out.share, or name data.valid"
        raise Refused(f"{names} has too few documents to hold some out: {cure}")


def _documents(sentences: Iterable[Sentence]) -> Iterator[Iterator[Sentence]]:
    """The sentences of each document, one document after the other."""
    count = 0

    def number(sentence: Sentence) -> int:
        nonlocal count
        count += sentence.opens
        return count

    return (document for _, document in groupby(sentences, number))


def _held_out(head: Sequence[Sentence], share: float) -> bool:
    """Whether a document is held out: its beginning decides, alike on every machine."""
    text = " ".join(" ".join(sentence.text.split()) for sentence in head)
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


class PretrainRecipe(Recipe):
    """One training run: task, data, objective, model, training."""

    task: Literal["pretrain"]
    data: Data
    objective: Objective = Hidden()
    model: Model


class PretrainConfig(Config):
    """config.json of a run that was trained on plain text."""

    task: Literal["pretrain"]
    model: Model
    objective: Objective
    symbols: int = Field(ge=4, le=2_000_000)
    longest: int = Field(ge=5, le=65536, description="Symbols of a row.")

    def build(self) -> nn.Module:
        """The network, its weights drawn at random."""
        return build(self.model, self.objective, symbols=self.symbols, longest=self.longest)


class Pretraining(Task[PretrainRecipe, PretrainConfig]):
    """The task of pre-training, for running."""

    name = "pretrain"
    about = headline(sys.modules[__name__])
    recipe, config, form = PretrainRecipe, PretrainConfig, HiddenWords
    examples_are = "text"
    onward = (*Task.onward, "train RECIPE --from {run}")
    few, sampled, watched = 3, 3, 3
    scoring = ()
    adopts = (("bert", "masked"), ("bert", "pretraining"), ("xlnet", "language"))

    def draft(self, recipe: PretrainRecipe) -> None:
        """Build the network; the vocabulary does not matter."""
        model, longest = recipe.model, recipe.data.longest
        symbols = model.symbols or len(SPECIALS) + 1
        build(model, recipe.objective, symbols=symbols, longest=longest)

    def exchanged(self, model: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The model with another mechanism in every layer."""
        return {**model, "attention": name}

    # Documents

    def report(self) -> SentenceReport:
        """A count of sentences and documents."""
        return SentenceReport()

    def examples(
        self, data: Data, part: str, root: Path, report: Any, codec: Codec | None = None
    ) -> Iterator[Example]:
        """The sentences of a part; the answer says whether a document opens with one."""
        for text, opens in sentences(data, part, root, report):
            yield Example((text,), opens)

    def rows(self, codec: Codec, examples: Sequence[Example]) -> dict[str, list[Any]]:
        """Sentences without an end: what is made of them adds its own."""
        coded = codec.inputs["text"].pieces.encode([each.inputs[0] for each in examples])
        return {"text": [ids[:-1] for ids in coded], **codec.form.rows(examples)}

    def joined(self, examples: Iterator[Example]) -> Iterator[Example]:
        """Documents as their sentences."""
        return (Example((tuple(document),), True) for document in gathered(examples))

    def excerpts(self, codec: Codec, examples: Iterable[Example], count: int) -> list[Example]:
        """The first sentences of documents, one word of each masked."""
        found = []
        for number, ((document, *_), *_) in enumerate(islice(examples, count)):
            words = document[0].split()[:WORDS]
            words[int(below(len(words), SEED, number))] = "[MASK]"
            found.append(Example((" ".join(words),), None))
        return found

    def fit(
        self, recipe: PretrainRecipe, folder: RunFolder, root: Path, start: Start | None
    ) -> Work[Codec]:
        """A tokeniser with a mask, learnt from the training text."""
        data, tokens, rows = recipe.data, recipe.data.tokens, recipe.model.symbols
        pieces: Hiding
        if start is None:
            yield Progress(f"learning {tokens.kind} tokens", 0)
            every = (each.text for each in sentences(data, "train", root, SentenceReport()))
            pieces = Tokeniser.train(tokens.kind, every, tokens.size - 1, tokens.lowercase)
            pieces = with_mask(pieces)
        elif isinstance(start.tokeniser, Vocabulary):
            pieces = Renumbered(start.tokeniser, rows or start.tokeniser.size, str(start.path))
        elif isinstance(start.tokeniser, Tokeniser) and mask_of(start.tokeniser) is not None:
            pieces = start.tokeniser
        else:
            raise Refused(
                f"{start.path} has no tokeniser with a mask, so it cannot be trained further"
            )
        pieces.save(folder.tokenizer)
        return _codec(_loaded(folder, rows), recipe.objective, data.longest, recipe.model.longest)

    def beside(self, folder: RunFolder, prepared: Prepared) -> None:
        """The frequency of each symbol in the training text, a baseline for any model."""
        stream, size = prepared.train.tokens["text"], prepared.codec.inputs["text"].size
        counts = np.zeros(size, np.int64)
        for start in range(0, len(stream), COUNTED):
            counts += np.bincount(stream[start : start + COUNTED], minlength=size)
        folder.write_text(folder.frequencies, json.dumps(counts.tolist()))

    def describe(self, recipe: PretrainRecipe, prepared: Prepared) -> PretrainConfig:
        """config.json."""
        return PretrainConfig(
            heed=heed.__version__,
            task=recipe.task,
            model=recipe.model,
            objective=recipe.objective,
            symbols=prepared.codec.inputs["text"].size,
            longest=recipe.data.longest,
        )

    def codec(self, folder: RunFolder, config: PretrainConfig) -> Codec:
        """The tokeniser, and the frequencies of its symbols."""
        pieces = _loaded(folder, config.symbols)
        check_vocabulary(folder, pieces.size, config.symbols)
        found = _codec(pieces, config.objective, config.longest, config.model.longest)
        found.form.shares = _likely(folder, found.form.symbols)
        return found

    def tokeniser(self, codec: Codec) -> Any:
        """The tokeniser; that of a pretrained model in the form that other tasks use."""
        pieces = codec.inputs["text"].pieces
        return pieces.vocabulary if isinstance(pieces, Renumbered) else pieces

    def batches(
        self, recipe: PretrainRecipe, prepared: Prepared, *, shard: tuple[int, int], fixed: bool
    ) -> Remade:
        """Rows that are built again in every epoch."""
        make = prepared.codec.form.maker(Documents(prepared.train))
        tokens = recipe.training.batch_tokens
        return Remade(make, tokens=tokens, seed=recipe.seed, shard=shard, fixed=fixed)

    def suits(self, settings: Any) -> bool:
        """An XLNet that reads from left to right was made to continue texts."""
        return getattr(settings, "direction", "both") == "both"

    def adopt(self, found: Any, words: Vocabulary, path: Path) -> tuple[Config, Codec]:
        """The config and the codec of a BERT or an XLNet."""
        model, ordered = found.settings, found.kind == "xlnet"
        pieces = Renumbered(words, model.rows, str(path))
        objective = Ordered() if ordered else Hidden(next_sentence=found.head == "pretraining")
        config = PretrainConfig(
            heed=heed.__version__,
            task="pretrain",
            model=model,
            objective=objective,
            symbols=pieces.size,
            longest=min(model.longest, READ),
        )
        return config, _codec(pieces, objective, config.longest, None if ordered else model.longest)

    def exported(self, config: PretrainConfig) -> Exported:
        """A BERT or an XLNet."""
        sizes = {"symbols": config.symbols, "longest": config.longest}
        settings = fitted(config.model, config.objective, **sizes)
        return Exported(settings, FRAMES[settings.kind])

    # Judging and answering

    def evaluated(
        self,
        worker: Worker,
        examples: Sequence[Example | None],
        config: PretrainConfig,
        options: Mapping[str, Any],
        stage: str,
    ) -> Work[Evaluated]:
        """Hide words in documents, and score their predictions."""
        there = [each for each in examples if each is not None]
        rows = worker.form.coded(worker, there)
        found: list[HiddenReading] = []
        for reading in worker.form.read(worker, there, rows):
            found.append(reading)
            yield Progress(stage, len(found), rows.count(0))
        return Evaluated(HiddenWordScores.of(found, worker.form.shares))

    def given(
        self,
        config: PretrainConfig,
        codec: Codec,
        paths: Sequence[Path],
        options: Mapping[str, Any],
    ) -> Work[list[Any]]:
        """The documents of files."""
        report, files = SentenceReport(), told(DocumentFiles)(list(paths))
        every = (Example((text,), opens) for text, opens in read_sentences(files, report=report))
        found = list(self.joined(every))
        yield from map(Note, report.told("text"))
        return found

    def predict_options(self) -> Sequence[str]:
        """The number of words that are listed for each mask."""
        return self.form.options

    def refuse_unknown(
        self, options: Mapping[str, Any], known: Sequence[str], run: Any = None
    ) -> None:
        """Refuse other options; where an XLNet is asked to continue texts, with what does."""
        from heed.answers.continuation import Continuation, Decoding  # rarely needed

        writing = {*Continuation.options, *Decoding.model_fields} - {*known}
        asked = [name for name in options if name in writing]
        if asked and run is not None and run.config.model.kind == "xlnet":
            raise Refused(
                f"--{asked[0].replace('_', '-')} is for continuing texts, and runs of the task "
                f"{self.name} fill masks; an XLNet continues texts from the folder that this "
                f"writes: heed convert {shlex.quote(str(run.folder.path))} FOLDER"
            )
        super().refuse_unknown(options, known, run)


TASK = Pretraining()


def _codec(pieces: Hiding, objective: Hidden | Ordered, longest: int, places: int | None) -> Codec:
    """The codec of a model that reads so many symbols at once."""
    form = HiddenWords(pieces, objective, longest=longest, places=places)
    return Codec({"text": MaskedText(pieces, form.symbols.mask, paired=form.is_paired)}, form)


def _loaded(folder: RunFolder, rows: int | None = None) -> Hiding:
    """The tokeniser of a run; it must have a mask."""
    pieces = load_hiding(folder.plain(folder.tokenizer), rows)
    if isinstance(pieces, Tokeniser) and mask_of(pieces) is None:
        raise Refused(f"{folder.tokenizer} has no mask: it was not made for pre-training")
    return pieces


def _likely(folder: RunFolder, symbols: Symbols) -> Shares | None:
    """The probability of each symbol by its frequency in the training text; None if it was not
    kept, as in a pretrained folder.    V"""
    if not lexists(folder.frequencies):
        return None
    size = len(symbols.plain)
    counts = folder.read_json(folder.frequencies, limit=DIGITS * size)
    sound = isinstance(counts, list) and len(counts) == size
    if not sound or not all(type(n) is int and 0 <= n < 2**40 for n in counts):
        raise Refused(
            f"{folder.frequencies} is not a list of {size} frequencies; train again: --overwrite"
        )
    return unigram(np.array(counts, np.int64), symbols.plain)
