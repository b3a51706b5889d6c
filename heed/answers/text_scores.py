"""Scores of texts by references: BLEU, chrF, perplexity, alignment error, BLEU by length."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heed.answers import measures
from heed.answers.form import Example, Reading, loss_of
from heed.viewing.blocks import Block, Charts, Column, Heading, Paragraph, Table
from heed.viewing.chart import Line, LineChart

EDGES = (5, 10, 15, 20, 25, 30, 40, 50)
"""Where ranges of source lengths end, in words; BLEU is computed for each range."""
CURVES = 6  # lines of a chart that can be told apart


@dataclass(frozen=True, slots=True)
class TextReading(Reading):
    """The surprise of a model at a text, and its alignment of the words.

    links    of words: the input's and the text's; None without attention, or without words
    entropy  of the attention, mean over the symbols, in nats
    whole    False: the model has read, or can write, only a part
    """

    links: list[tuple[int, int]] | None = None
    entropy: float | None = None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class TextScores:
    """Scores of written texts, compared with right ones."""

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

    def facts(self) -> list[tuple[str, str, str]]:
        """The scores, each with what makes it comparable."""
        found = [
            ("pairs", f"{self.pairs:,}", ""),
            ("BLEU", f"{self.bleu:.2f}", self.bleu_signature),
            ("chrF", f"{self.chrf:.2f}", self.chrf_signature),
            ("perplexity", f"{self.perplexity:.3f}", "per symbol of the reference"),
        ]
        if self.entropy is not None:
            found.append(("entropy", f"{self.entropy:.3f}", "of the attention, in nats"))
        if self.aer is not None:
            found.append(("AER", f"{self.aer:.4f}", "of the words that the references align"))
        return found

    def tables(self) -> list[Table]:
        """BLEU by length."""
        columns = (Column("source words"), Column("pairs", ",d"), Column("BLEU", ".1f"))
        return [Table(columns, self.by_length)]


def by_length(scores: Mapping[str, Mapping[str, Any]], title: str = "") -> LineChart:
    """BLEU by the length of the source, a line for each model.

    scores  by model and part; a longer part follows the test. If two parts share a range, the one
            with more pairs counts
    """
    curves: dict[str, dict[str, float]] = {}
    for name, parts in scores.items():
        ranges = [each for part in parts.values() for each in part.by_length]
        most = {label: max(n for other, n, _ in ranges if other == label) for label, *_ in ranges}
        curves[name] = {label: bleu for label, n, bleu in ranges if n == most[label]}
    labels = list(dict.fromkeys(label for curve in curves.values() for label in curve))
    return LineChart(
        title or "BLEU by sentence length",
        [
            Line(
                name,
                [float(i) for i, label in enumerate(labels) if label in curve],
                [curve[label] for label in labels if label in curve],
            )
            for name, curve in curves.items()
        ],
        x="source words",
        y="BLEU",
        ticks=[(float(i), label) for i, label in enumerate(labels)],
        low=0.0,
    )


def _lengths(curve: LineChart) -> Table:
    """Every line of the curve as a row."""
    columns = [Column(label, ".1f", "high") for _, label in curve.ticks]
    places = [x for x, _ in curve.ticks]
    rows = [
        [line.name, *map(dict(zip(line.x, line.y, strict=True)).get, places)]
        for line in curve.lines
    ]
    return Table([Column("mechanism"), *columns], rows)


def _few(curve: LineChart) -> LineChart:
    """As many lines as can be told apart: the best on the longest sentences, and "none"."""
    if len(curve.lines) <= CURVES or not curve.ticks:
        return curve
    plain = [line for line in curve.lines if line.name == "none"]
    best = sorted((line for line in curve.lines if line not in plain), key=lambda line: -line.y[-1])
    lines = [*best[: CURVES - len(plain)], *plain]
    return replace(curve, title="The best on the longest sentences", lines=lines)


def text_scores(
    texts: Sequence[str],
    examples: Sequence[Example],
    readings: Sequence[TextReading],
    *,
    lengths: Sequence[int],
    lowercase: bool = False,
    tokenise: measures.Tokenise | None = None,
) -> TextScores:
    """The scores of what was written, and of how the right texts were read.

    lengths   of the sources
    tokenise  sacreBLEU's tokeniser; None: by the script of the right texts
    """
    references = [each.answer for each in examples]
    tokenise = tokenise or measures.tokeniser_for(references)
    cut: dict[str, Any] = {"lowercase": lowercase, "tokenise": tokenise}
    bleu = measures.bleu(texts, references, **cut)
    chrf = measures.chrf(texts, references, lowercase=lowercase)
    return TextScores(
        len(examples),
        bleu.value,
        bleu.signature,
        chrf.value,
        chrf.signature,
        math.exp(min(loss_of(readings), 700)),
        _entropy(readings),
        _aer(examples, readings),
        measures.by_length(texts, references, lengths, EDGES, **cut),
    )


def _entropy(readings: Sequence[TextReading]) -> float | None:
    """The mean entropy of the attention, if it is known of every pair."""
    if any(each.entropy is None for each in readings):
        return None
    symbols = sum(each.count for each in readings)
    return sum((each.entropy or 0.0) * each.count for each in readings) / symbols


def _aer(examples: Sequence[Example], readings: Sequence[TextReading]) -> float | None:
    """The alignment error of the pairs whose alignment is known."""
    known = [
        (reading.links, example.gold)
        for example, reading in zip(examples, readings, strict=True)
        if example.gold is not None and reading.links is not None
    ]
    if not known:
        return None
    found, gold = zip(*known, strict=True)
    return measures.alignment_error(found, gold)


def compared(scores: Mapping[str, Mapping[str, TextScores]]) -> list[Block]:
    """BLEU by sentence length, the lines of several models; scores by model and part."""
    curve = by_length(scores)
    every = [each.bleu_signature for parts in scores.values() for each in parts.values()]
    told = [Paragraph(f"BLEU: {signature}") for signature in dict.fromkeys(every)]
    return [*told, Heading(curve.title), _lengths(curve), Charts([_few(curve)])]
