"""Classifiers that learn side by side and vote. Lakshminarayanan 2017

    p(label | text) = the mean of what the members give it

They differ in their initial weights alone, and each learns as if it were alone: the loss is taken
of each member's answer, not of the vote. (Gradients, though, are clipped by the norm of all of
them.)

    committee = build(ClassifierSettings(members=3), symbols=8000, labels=2)
    said = committee(symbols, lengths)                      # B S, B
    said.logits                                             # B C, of the vote
    [each.logits for each in said.members]                  # B C each
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from heed.models.classifier import Classified, ClassifierSettings
from heed.models.classifier import build as build_one
from heed.records import Attended, Need


class Voted(NamedTuple):
    """What a committee says of texts.

    logits   of the vote: logarithms of its shares          B C
    seen     every attention, the members' weights side by side as heads; empty unless asked for
    members  the answers of each
    """

    logits: Tensor
    seen: dict[str, Attended]
    members: list[Classified]


class Committee(nn.Module):
    """Several networks for the same texts."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(
        self,
        symbols: Tensor,
        lengths: Tensor,
        need: Need = "context",
        nudge: Tensor | None = None,
        letters: Tensor | None = None,
    ) -> Voted:
        """Texts B S of some lengths B -> logits B C

        nudge    what is added to the words' vectors of each member  K B S E
        letters  as for one, and for all alike  B S N
        """
        nudges = [None] * len(self.members) if nudge is None else nudge
        given = zip(self.members, nudges, strict=True)
        said: list[Classified] = [x(symbols, lengths, need, far, letters) for x, far in given]
        return Voted(_vote(said), _side_by_side(said) if need != "context" else {}, said)

    if TYPE_CHECKING:
        __call__ = forward


def build(
    settings: ClassifierSettings, *, symbols: int, labels: int, letters: tuple[int, int] = (0, 1)
) -> nn.Module:
    """A committee of as many networks as the settings say; or the one network, if it is one."""
    sizes: dict[str, Any] = {"symbols": symbols, "labels": labels, "letters": letters}
    members = [build_one(settings, **sizes) for _ in range(settings.members)]
    return Committee(members) if len(members) > 1 else members[0]


def count(names: Iterable[str]) -> int:
    """How many networks these names of weights belong to; those of a single one have no number."""
    return len({name.split(".")[1] for name in names if name.startswith("members.")}) or 1


def _vote(said: list[Classified]) -> Tensor:
    each = [x.logits.float().log_softmax(-1) for x in said if x.logits is not None]
    return torch.stack(each).logsumexp(0) - math.log(len(each))


def _side_by_side(said: list[Classified]) -> dict[str, Attended]:
    """The weights of every attention, the heads of one member after those of another."""
    found = {}
    for path in said[0].seen:
        weights = [x.seen[path].weight for x in said]
        found[path] = Attended(weight=torch.cat([x for x in weights if x is not None], 1))
    return found
