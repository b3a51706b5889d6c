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
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator
from torch import nn

from heed.data.documents import (
    Documents,
    DocumentSources,
    Sentence,
    SentenceReport,
    read_file,
    read_sentences,
    refuse_nothing,
)
from heed.data.held_out import shares
from heed.data.masked_words import Flags, Masking, Symbols
from heed.data.permutation import Permuting
from heed.data.plan import Ints
from heed.data.pretraining_batches import Maker, MaskedPairs, MaskedStretches, PermutedStretches
from heed.data.sources import each_file
from heed.data.tokenise import Kind
from heed.errors import Refused
from heed.models import text_settings, xlnet_settings
from heed.models.text_settings import BertSettings
from heed.models.xlnet_settings import XLNetSettings
from heed.settings import Settings
from heed.tasks.pretrainer import Reading

HEAD = 8  # first sentences, which decide whether a document is held out
Part = Literal["train", "valid", "test"]
Model = Annotated[BertSettings | XLNetSettings, Field(discriminator="kind")]
"""The settings of any model that is trained on plain text before it is given a task."""


class Tokens(Settings):
    """How text is cut into symbols; one more is the mask."""

    kind: Kind = "wordpiece"
    size: int = Field(8000, ge=16, le=1_000_000, description="Symbols in the vocabulary, at most.")
    lowercase: bool = False


class HeldOut(Settings):
    """What is held out of the training text if no files for validation are given.

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
    tokens: Tokens = Tokens()
    longest: int = Field(128, ge=5, le=65536, description="Symbols of a row.")

    @model_validator(mode="after")
    def _judged_by_something(self) -> Data:
        if self.valid is None and not self.held_out.share:
            raise ValueError(
                "data.valid is missing: text to validate the model while it trains; or hold some "
                "out: data.held_out.share=0.05"
            )
        return self


class Hidden(Masking):
    """Predict hidden words, and whether one text follows another: BERT."""

    kind: Literal["masked"] = "masked"
    next_sentence: bool = Field(True, description="Two texts in a row, and does the second follow?")


class Ordered(Permuting):
    """Predict words in a random order: XLNet."""

    kind: Literal["permutation"] = "permutation"


Objective = Annotated[Hidden | Ordered, Field(discriminator="kind")]


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


def maker(documents: Documents, symbols: Symbols, objective: Objective, longest: int) -> Maker:
    """The maker of the objective's rows from documents."""
    if isinstance(objective, Ordered):
        return PermutedStretches(documents, symbols, objective, longest)
    if objective.next_sentence:
        return MaskedPairs(documents, symbols, objective, longest)
    return MaskedStretches(documents, symbols, objective, longest)


def sentences(data: Data, part: Part, root: Path, report: SentenceReport) -> Iterator[Sentence]:
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


@dataclass(frozen=True, slots=True)
class Scores:
    """How well hidden words and next sentences are predicted."""

    words: int  # that were to be predicted
    loss: float  # nats per word
    perplexity: float
    accuracy: float  # per cent
    unigram_loss: float | None  # nats per word, by frequencies in the training text
    words_entropy: float  # nats per word, of the frequencies among these words themselves
    pairs: int
    follows_loss: float | None  # nats per pair
    follows_accuracy: float | None  # per cent

    @property
    def total(self) -> float:
        """The loss that training minimises."""
        return self.loss + (self.follows_loss or 0.0)

    def line(self) -> str:
        """The scores in one line."""
        if self.unigram_loss is None:
            beside = f"entropy of these words {self.words_entropy:.4f}"
        else:
            beside = f"unigram {self.unigram_loss:.4f}"
        words = f"{self.loss:.4f} ({beside})"
        found = f"perplexity {self.perplexity:.2f} · accuracy {self.accuracy:.1f} %"
        if self.follows_accuracy is None:
            return f"loss {words} · {found}"
        return (
            f"loss {self.total:.4f} = words {words} + next sentence {self.follows_loss:.4f} · "
            f"{found} · next sentence {self.follows_accuracy:.1f} %"
        )


def judged(readings: Sequence[Reading], shares: NDArray[np.float64] | None = None) -> Scores:
    """The scores of all rows together.

    shares  the probability of each symbol without context (`unigram`); None if unknown    V
    """
    targets = np.sum([each.targets for each in readings], axis=0)
    words, pairs = int(targets.sum()), sum(each.pairs for each in readings)
    loss = sum(each.surprise for each in readings) / max(1, words)
    right = sum(each.right for each in readings)
    guessed = sum(each.follows_right for each in readings)
    follows = sum(each.follows_surprise for each in readings)
    return Scores(
        words,
        loss,
        math.exp(min(loss, 700)),
        100 * right / max(1, words),
        None if shares is None else cross_entropy(targets, shares),
        cross_entropy(targets, targets / max(1, words)),
        pairs,
        follows / pairs if pairs else None,
        100 * guessed / pairs if pairs else None,
    )


def unigram(counts: Ints, plain: Flags) -> NDArray[np.float64]:
    """The probability of each symbol by its frequency in the training text.    V, V -> V

    Symbols that never occur there share the probability of new ones by Witten and Bell 1991
    (method C): n / (n + N), with n different symbols in a text of N.

    plain  which symbols can be predicted at all
    """
    counts = np.where(plain, counts, 0)
    seen = counts > 0
    new = plain & ~seen
    aside = max(1, int(seen.sum())) if new.any() else 0
    each = np.where(new, aside / max(1, int(new.sum())), counts)
    shares: NDArray[np.float64] = each / max(1, int(counts.sum()) + aside)
    return shares


def cross_entropy(counts: Ints, shares: NDArray[np.float64]) -> float:
    """-Σ n log p / Σ n in nats, n the counts and p the shares: the loss of a model that ignores the
    context. With the symbols' own frequencies it is their entropy.    V, V -> a number"""
    there = counts > 0
    return abs(float(counts[there] @ np.log(shares[there]))) / max(1, int(counts.sum()))
