"""Input layers of readers: words, their letters, and real numbers, as vectors."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from heed.attention.initial_weights import Drawn, initialise
from heed.models.cells import Dropout


class Vectors(nn.Module):
    """Words as vectors. In training whole words are left out, as well as parts of each.

    words    how many of the words are left out. Iyyer 2015 §2.3
    dropout  how much of each vector
    """

    def __init__(self, symbols: int, width: int, *, words: float = 0.0, dropout: float = 0.0):
        super().__init__()
        self.table = nn.Embedding(symbols, width)
        initialise(self.table, weight=partial(nn.init.uniform_, a=-0.1, b=0.1))
        self.words, self.dropout = words, Dropout(dropout)

    def forward(self, symbols: Tensor) -> Tensor:
        """B S -> B S M"""
        x: Tensor = self.table(symbols)
        if self.training and self.words:
            kept = torch.rand(symbols.shape, device=symbols.device) >= self.words
            x = x * kept[..., None]
        return self.dropout(x)  # type: ignore[no-any-return]


def _but_nothing(table: Tensor) -> None:
    """Draw vectors; the first stands for nothing, and is zero.    N M"""
    nn.init.uniform_(table, -0.1, 0.1)
    table[0] = 0


class Spelled(Drawn):
    """Words as the mean of their letters' vectors, zero where nothing of them is known; to be added
    to the words' own. Bojanowski 2017 §3.2

    letters  how many runs of letters there are, numbered from 1
    most     how many of them a word has at most
    known    the runs of each symbol, filled in from the vocabulary; 0 is none  V K
    """

    known: Tensor

    def __init__(
        self, symbols: int, width: int, *, letters: int, most: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(letters + 1, width, padding_idx=0)
        initialise(self.table, weight=_but_nothing)
        self.register_buffer("known", torch.zeros(symbols, most, dtype=torch.int32))
        initialise(self, known=nn.init.zeros_)
        self.dropout = Dropout(dropout)

    def forward(self, symbols: Tensor, letters: Tensor | None = None) -> Tensor:
        """B S -> B S M

        letters  used in place of `known`, as for words outside the vocabulary  B S K
        """
        letters = self.known[symbols] if letters is None else letters
        table = self.table.weight
        x = embedding_bag(letters.flatten(0, 1), table, mode="mean", padding_idx=0)
        return self.dropout(x.unflatten(0, symbols.shape))  # type: ignore[no-any-return]


class Numbers(nn.Module):
    """Real numbers as vectors, by a linear map.

    dropout  how much of each vector
    """

    def __init__(self, features: int, width: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(features, width), Dropout(dropout)

    def forward(self, numbers: Tensor) -> Tensor:
        """B S F -> B S M"""
        return self.dropout(self.linear(numbers))  # type: ignore[no-any-return]
