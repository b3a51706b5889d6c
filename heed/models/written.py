"""Outputs of a network that writes: a whole text at once, or one step of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.functional import linear

from heed.attention.hooks import plain
from heed.records import Attended


class Unformed(NamedTuple):
    """The factors of logits, so that a loss can form only some of them at a time."""

    known: Tensor  # B T M
    weight: Tensor  # V M
    bias: Tensor | None  # V

    @staticmethod
    def of(known: Tensor, out: nn.Linear) -> Tensor | Unformed:
        """`out(known)`, not yet computed; computed where `out` is more than a linear map.

        Weights enter as views, because DistributedDataParallel finds the parameters behind an
        output by its graph alone.
        """
        if type(out) is not nn.Linear or not plain([out]):
            logits: Tensor = out(known)
            return logits
        bias = None if out.bias is None else out.bias.view_as(out.bias)
        return Unformed(known, out.weight.view_as(out.weight), bias)

    def form(self) -> Tensor:
        """B T V"""
        return linear(*self)


def formed(output: Tensor | Unformed) -> Tensor:
    """The logits.    B T V"""
    return output if isinstance(output, Tensor) else output.form()


@dataclass(init=False, eq=False, slots=True)
class Written:
    """A teacher-forced pass.

    output  the logits of the next symbol after each input, B T V, or what they are formed from
    seen    every attention of the pass, joined along T, by a readable path such as
            "decoder.attention" or "decoder.0.cross"
    """

    output: Tensor | Unformed
    seen: dict[str, Attended]

    def __init__(self, logits: Tensor | Unformed, seen: dict[str, Attended] | None = None) -> None:
        self.output = logits
        self.seen = {} if seen is None else seen

    @property
    def logits(self) -> Tensor:
        """The logits of the next symbol after each input, computed now if need be.    B T V"""
        return formed(self.output)


class WrittenStep(NamedTuple):
    """One more symbol for each of N hypotheses.

    logits  of the next symbol                        N V
    carry   for the next step; `select` follows the hypotheses of a beam
    weight  of the alignment, over the source         N S, or None where none was asked for
    """

    logits: Tensor
    carry: Any
    weight: Tensor | None
