"""The spelling of words: short runs of letters that several words of a vocabulary share.

    film    <fi fil ilm lm>  <fil film ilm>  <film film>        runs of 3 to 5 letters

What a run means is learnt from every word that has it, so that rare words, and even words that were
never seen, have something to go by. Bojanowski 2017 §3.2

Which runs count follows from the vocabulary alone: nothing has to be kept beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from unicodedata import normalize

import torch
from torch import Tensor

from heed.data.vocabulary import SPACE
from heed.errors import Refused

MOST = 24
"""The most runs of one word that count."""

LEAST = 2
"""The fewest words that a run must be in: a run of one word alone says no more than the word."""

LONGEST = 64
"""The letters of a word that are looked at."""

LARGEST = 1 << 22
"""The most runs of all words together: bounds the time and the memory."""

GRAMS = LARGEST // LEAST
"""The most different runs, therefore."""


class Letters:
    """The runs of `shortest` to `longest` letters that words share, numbered from 1.

    words  the vocabulary's words by their numbers; "" for a symbol that is no word
    known  the runs of each of them; 0 where there are no more  V K
    """

    def __init__(self, words: Sequence[str], shortest: int, longest: int) -> None:
        self._sizes = range(shortest, longest + 1)
        marked = [_marked(word) for word in words]
        runs = sum(max(0, len(word) - n + 1) for word in marked for n in self._sizes)
        if runs > LARGEST:
            raise Refused(
                f"{len(words):,} words have {runs:,} runs of {shortest} to {longest} letters, and "
                f"{LARGEST:,} can be counted: take fewer words or sizes"
            )
        counts = Counter(run for word in marked for run in self._runs(word))
        shared = sorted(run for run, count in counts.items() if count >= LEAST)
        self._numbers = {run: i for i, run in enumerate(shared, 1)}
        self._counts = [counts[run] for run in shared]
        self.known = self.rows(words).int()

    @property
    def size(self) -> int:
        """The number of runs."""
        return len(self._counts)

    def rows(self, words: Sequence[str]) -> Tensor:
        """The runs of any words, 0 where there are no more.    -> N K"""
        found = torch.zeros(len(words), MOST, dtype=torch.long, device="cpu")
        for row, word in zip(found, words, strict=True):
            numbers = self._of(word)
            row[: len(numbers)] = torch.tensor(numbers, dtype=torch.long, device="cpu")
        return found

    def _of(self, word: str) -> list[int]:
        """The runs of a word; of too many, evenly some from the rarest to the most frequent."""
        runs = self._runs(_marked(word))
        numbers = sorted(self._numbers[run] for run in runs if run in self._numbers)
        if len(numbers) <= MOST:
            return numbers
        ranked = sorted(numbers, key=lambda i: self._counts[i - 1])
        return [ranked[i * (len(ranked) - 1) // (MOST - 1)] for i in range(MOST)]

    def _runs(self, word: str) -> set[str]:
        return set(_cut(word, self._sizes))


def _cut(word: str, sizes: range) -> Iterator[str]:
    return (word[i : i + n] for n in sizes for i in range(len(word) - n + 1))


def _marked(word: str) -> str:
    """A word in one form, between marks for its beginning and end; "" if nothing is left of it."""
    # Composed last, as vocabularies have it: lower case takes some characters apart.
    form = normalize("NFC", word[:LONGEST].replace(SPACE, "").lower())[:LONGEST]
    return f"<{form}>" if form else ""
