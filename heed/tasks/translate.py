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

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from heed.data import grammar
from heed.data.held_out import Held, HeldOut, check, without_files
from heed.data.pairs import Files, Links, Report, read_linked, read_pairs
from heed.errors import Refused
from heed.settings import Settings
from heed.tasks import measuring
from heed.tasks.translator import Example, Reading, Tokens, Translation

Part = Literal["train", "valid", "test", "long"]


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
    """How translations are scored."""

    bleu_tokenize: measuring.Tokenise | None = Field(
        None, description="sacreBLEU's tokeniser; null: by the script of the references"
    )


class Data(Settings):
    """Where the pairs come from: files, or the grammar."""

    folder: str = Field(".", description="Paths start here; a name is looked up in $HEED_DATA.")
    train: Files | None = None
    valid: Files | None = None
    test: Files | None = None
    held_out: Held = HeldOut()
    grammar: Grammar | None = None
    tokens: Tokens = Tokens()
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

    def parts(self) -> list[Part]:
        """The parts that there are beside the training pairs."""
        if self.grammar is not None:
            return ["valid", "test", "long"] if self.grammar.beyond else ["valid", "test"]
        return ["valid", "test"] if self.test or self.held_out.test else ["valid"]


def examples(data: Data, part: Part, root: Path, report: Report) -> Iterator[Example]:
    """The pairs of one part; what is read, kept and dropped is counted in the report."""
    if data.grammar is not None:
        yield from _drawn(data.grammar, part, report)
        return
    own: Files | None = getattr(data, part, None)
    held = own is None and part in data.parts()
    files = data.train if held else own
    if files is None:
        raise Refused(f"data.{part} is not given")
    only = data.held_out.only(part) if held or part == "train" else None
    yield from from_files(files.under(root / data.folder), report, only)
    if not report.kept:
        data.held_out.lacks(part, report)


def from_files(
    files: Files, report: Report, only: Callable[[str], bool] | None = None
) -> Iterator[Example]:
    """The pairs of some files, with their alignments where those are given.

    only  whether a source is asked for; None: all are
    """
    if files.alignments is None:
        yield from (Example(*pair) for pair in read_pairs(files, only=only, report=report))
    else:
        for pair, links in read_linked(files, only=only, report=report):
            yield Example(*pair, links)


def _drawn(settings: Grammar, part: Part, report: Report) -> Iterator[Example]:
    shortest, longest = settings.shortest, settings.longest
    if part == "long":
        shortest, longest = longest + 1, settings.beyond
    for each in grammar.draw(
        settings.pairs if part == "train" else settings.held_out,
        shortest=shortest,
        longest=longest,
        seed=settings.seed,
        part="test" if part == "long" else part,
    ):
        report.read += 1
        report.kept += 1
        links = frozenset(each.links)
        yield Example(*each.pair, Links(links, links))


@dataclass(frozen=True, slots=True)
class Scores:
    """How good the translations are."""

    pairs: int
    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    perplexity: float
    entropy: float | None  # of the attention, in nats; None where there is none
    aer: float | None  # where the alignment is known, and there is attention
    by_length: list[tuple[str, int, float]]  # source words, pairs, BLEU

    def line(self) -> str:
        """The scores in one line."""
        aligned = "" if self.aer is None else f" · AER {self.aer:.3f}"
        return (
            f"{self.bleu_name} {self.bleu:.1f} · chrF {self.chrf:.1f} · "
            f"perplexity {self.perplexity:.2f}{aligned}"
        )

    @property
    def bleu_name(self) -> str:
        """BLEU, with its tokeniser unless that is the usual one: figures of two cannot be
        compared."""
        cut = re.search(r"tok:[^|]+", self.bleu_signature)
        return "BLEU" if cut is None or cut[0] == "tok:13a" else f"BLEU ({cut[0]})"


EDGES = (5, 10, 15, 20, 25, 30, 40, 50)
"""Where ranges of source lengths end, in words; BLEU is computed for each range."""


def judged(
    pairs: Sequence[Example],
    written: Sequence[Translation],
    readings: Sequence[Reading],
    *,
    lowercase: bool = False,
    tokenise: measuring.Tokenise | None = None,
) -> Scores:
    """The scores of what was written for the pairs, and of how the references were read.

    tokenise  sacreBLEU's tokeniser; None: by the script of the references
    """
    texts, references = [each.text for each in written], [pair.target for pair in pairs]
    tokenise = tokenise or measuring.tokeniser_for(references)
    bleu = measuring.bleu(texts, references, lowercase=lowercase, tokenise=tokenise)
    chrf = measuring.chrf(texts, references, lowercase=lowercase)
    symbols = sum(each.symbols for each in readings)
    lengths = measuring.lengths([pair.source for pair in pairs])
    return Scores(
        len(pairs),
        bleu.value,
        bleu.signature,
        chrf.value,
        chrf.signature,
        math.exp(min(sum(each.surprise for each in readings) / symbols, 700)),
        _entropy(readings),
        _aer(pairs, readings),
        measuring.by_length(
            texts, references, lengths, EDGES, lowercase=lowercase, tokenise=tokenise
        ),
    )


def _entropy(readings: Sequence[Reading]) -> float | None:
    if any(each.entropy is None for each in readings):
        return None
    symbols = sum(each.symbols for each in readings)
    return sum((each.entropy or 0.0) * each.symbols for each in readings) / symbols


def _aer(pairs: Sequence[Example], readings: Sequence[Reading]) -> float | None:
    known = [
        (reading.links, pair.links)
        for pair, reading in zip(pairs, readings, strict=True)
        if pair.links is not None and reading.links is not None
    ]
    if not known:
        return None
    found, gold = zip(*known, strict=True)
    return measuring.alignment_error(found, gold)
