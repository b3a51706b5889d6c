"""What a network that writes hands back: a whole text at once, or one step of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from heed.records import Attended


@dataclass(frozen=True)
class Written:
    """A teacher-forced pass.

    logits  of the next symbol after each input    B T V
    seen    every attention of the pass, joined along T, by a readable path such as
            "decoder.attention" or "decoder.0.cross"
    """

    logits: Tensor
    seen: dict[str, Attended] = field(default_factory=dict)


class Step(NamedTuple):
    """One more symbol for each of N hypotheses.

    logits  of the next symbol                        N V
    carry   for the next step; `select` follows the hypotheses of a beam
    weight  who was looked at, the alignment's view   N S, or None where none was asked for
    """

    logits: Tensor
    carry: Any
    weight: Tensor | None
