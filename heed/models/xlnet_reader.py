"""XLNet as a reader: the states of its content stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import heed
from heed.models.reader import Encoded, each_length
from heed.models.xlnet import TwoStreams
from heed.records import Need

GATHERS = 2
"""The type of the symbol that gathers a text, which ends it; those of the text are 0. Yang 2019's
code counts two texts as 0 and 1."""


class ContentReader(nn.Module):
    """XLNet's content stream, under the names that it has in XLNet."""

    def __init__(self, streams: TwoStreams) -> None:
        super().__init__()
        self.streams = streams

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        need: Need = "context",
        nudge: Tensor | None = None,
    ) -> Encoded:
        """B S, B -> B S M"""
        lengths = each_length(inputs, lengths)
        places = torch.arange(inputs.shape[1], device=inputs.device)
        types = GATHERS * (places == lengths[:, None] - 1)
        found = self.streams(inputs, lengths, types, need, nudge=nudge)
        return Encoded.of(found.states, heed.lengths(lengths), found.seen, found.vectors)

    if TYPE_CHECKING:
        __call__ = forward

    @property
    def width(self) -> int:
        """The width of a state."""
        return self.streams.words.embedding_dim
