"""Pools: from the states of a whole input, B S M, to one vector, B M; padding does not count.

Static                attention with a query of its own, or several
Mean, Greatest, Last  without attention
First, Gathered       as in BERT and in XLNet
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from heed.attention.attention import Attending
from heed.attention.multi_head import join
from heed.attention.names import build
from heed.models.answers import Pooler
from heed.models.reader import Encoded
from heed.models.xlnet_answers import TextSummary
from heed.records import EMPTY, Attended, Need


class Looks(Attending):
    """Several looks at the same states, each with a question of its own, side by side. Lin 2017 §2

    All looks share one projection of the keys; values are not projected, so H looks read H M
    numbers.
    """

    def __init__(
        self, mechanism: str, options: Mapping[str, Any], *, width: int, heads: int, dropout: float
    ) -> None:
        super().__init__()
        self.position, self.widths = None, (width, width, None)
        self.mechanism = build(
            mechanism, query=width, key=width, heads=heads, groups=1, dropout=dropout, **options
        )

    def shape_query(self, query: Tensor) -> Tensor:
        """B T M -> B 1 T M"""
        return query.unsqueeze(1)

    def shape_keys(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """B S M -> B 1 S M"""
        return keys.unsqueeze(1), values.unsqueeze(1)

    def shape_context(self, context: Tensor) -> Tensor:
        """B H 1 M -> B 1 (H M)"""
        return join(context)


class StaticPool(nn.Module):
    """One look at the whole text, or several, by any mechanism that has `static` in it.

    Yang 2016 §2.2; several: Lin 2017 §2.
    """

    def __init__(
        self,
        mechanism: str,
        options: Mapping[str, Any] = EMPTY,  # of the mechanism: its own width, too
        *,
        width: int,
        heads: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = Looks(mechanism, options, width=width, heads=heads, dropout=dropout)

    def forward(self, read: Encoded, need: Need = "context") -> tuple[Tensor, dict[str, Attended]]:
        """B S M -> B (H M), and what was looked at"""
        memory = self.attention.remember(read.states, visible=read.exists)
        seen = self.attention(None, memory, need=need)
        return seen.context[:, 0], {"pool": seen}


class MeanPool(nn.Module):
    """The mean of all states."""

    def forward(self, read: Encoded, need: Need = "context") -> tuple[Tensor, dict[str, Attended]]:
        """B S M -> B M"""
        return read.summary("mean"), {}


class MaxPool(nn.Module):
    """The greatest value of each unit over all states."""

    def forward(self, read: Encoded, need: Need = "context") -> tuple[Tensor, dict[str, Attended]]:
        """B S M -> B M"""
        least = torch.finfo(read.states.dtype).min
        return read.states.where(read.there[..., None], least).amax(1), {}


class LastPool(nn.Module):
    """The state where the text ends."""

    def forward(self, read: Encoded, need: Need = "context") -> tuple[Tensor, dict[str, Attended]]:
        """B S M -> B M"""
        return read.last, {}


class FirstPool(Pooler):
    """BERT's pooler, with the same names of weights: the first state stands for the text."""

    def forward(  # type: ignore[override]
        self, read: Encoded, need: Need = "context"
    ) -> tuple[Tensor, dict[str, Attended]]:
        """B S M -> B M"""
        return super().forward(read.states), {}


class SummaryPool(TextSummary):
    """The vector of a text in XLNet, under the same names."""

    def forward(  # type: ignore[override]
        self, read: Encoded, need: Need = "context"
    ) -> tuple[Tensor, dict[str, Attended]]:
        """B S M -> B M"""
        return super().forward(read.states, read.there), {}
