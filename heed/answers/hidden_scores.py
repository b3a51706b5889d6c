"""Scores of predicted hidden words and next sentences, beside what frequencies alone tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heed.answers.form import Reading
from heed.data.masked_words import Flags
from heed.data.plan import Ints
from heed.viewing.blocks import Table

Shares = NDArray[np.float64]
"""The probability of each symbol without context.    V"""


@dataclass(frozen=True, slots=True)
class HiddenReading(Reading):
    """The quality of predictions: sums over rows.

    right    how many words it found
    targets  how often each symbol was a target    V
    """

    right: int
    targets: NDArray[np.int64]
    follows_nats: float = 0.0
    follows_right: int = 0
    pairs: int = 0


@dataclass(frozen=True, slots=True)
class HiddenWordScores:
    """Scores of predicted hidden words and next sentences."""

    words: int  # that were to be predicted
    loss: float  # nats per word
    perplexity: float
    accuracy: float  # per cent
    unigram_loss: float | None  # nats per word, by frequencies in the training text
    words_entropy: float  # nats per word, of the frequencies among these words themselves
    pairs: int
    follows_loss: float | None  # nats per pair
    follows_accuracy: float | None  # per cent

    @classmethod
    def of(
        cls, readings: Sequence[HiddenReading], shares: Shares | None = None
    ) -> HiddenWordScores:
        """The scores of all rows together.

        shares  the probability of each symbol without context (`unigram`); None if unknown    V
        """
        targets = np.sum([each.targets for each in readings], axis=0)
        words, pairs = sum(each.count for each in readings), sum(each.pairs for each in readings)
        loss = sum(each.nats for each in readings) / max(1, words)
        right = sum(each.right for each in readings)
        guessed = sum(each.follows_right for each in readings)
        follows = sum(each.follows_nats for each in readings)
        return cls(
            words,
            loss,
            math.exp(min(loss, 700)),
            100 * right / max(1, words),
            None if shares is None else surprise_by(targets, shares),
            surprise_by(targets, targets / max(1, words)),
            pairs,
            follows / pairs if pairs else None,
            100 * guessed / pairs if pairs else None,
        )

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

    def facts(self) -> list[tuple[str, str, str]]:
        """The scores, each with what makes it comparable."""
        if self.unigram_loss is None:
            remark = "nats per word; the word frequencies of the training text are unknown"
            alone = ("entropy of these words", f"{self.words_entropy:.4f}", remark)
        else:
            remark = "nats per word, from word frequencies in the training text alone"
            alone = ("unigram loss", f"{self.unigram_loss:.4f}", remark)
        found = [
            ("predicted words", f"{self.words:,}", ""),
            ("loss", f"{self.loss:.4f}", "nats per word"),
            alone,
            ("perplexity", f"{self.perplexity:.3f}", ""),
            ("accuracy", f"{self.accuracy:.2f} %", ""),
        ]
        if self.follows_accuracy is not None:
            remark = f"{self.pairs:,} pairs, loss {self.follows_loss:.4f}"
            found.append(("next sentence", f"{self.follows_accuracy:.2f} %", remark))
        return found

    def tables(self) -> list[Table]:
        """There are none."""
        return []


def unigram(counts: Ints, plain: Flags) -> Shares:
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
    shares: Shares = each / max(1, int(counts.sum()) + aside)
    return shares


def surprise_by(counts: Ints, shares: Shares) -> float:
    """-Σ n log p / Σ n in nats, n the counts and p the shares: the loss of a model that ignores the
    context. With the symbols' own frequencies it is their entropy.    V, V -> a number"""
    there = counts > 0
    return abs(float(counts[there] @ np.log(shares[there]))) / max(1, int(counts.sum()))
