"""Texts longer than a model's places: when they are full, the model begins anew with the last half.

A text of n symbols is seen from place s(n) on: s(n) = 0 up to the P places that there are, and then
the least multiple of h = ⌈P / 2⌉ that leaves no more than P. What a text is continued by thus
depends on the text alone: not on where its prompt ended, nor on the texts beside it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from heed.decoding.stepper import Choosy, Step, during


class Model(Protocol):
    """A model that begins with prompts at the end of their rows, from the column `first` on."""

    def begin(self, inputs: Tensor, *, first: Tensor | None = None) -> Any:
        """N T, N -> carry"""

    def step(self, carry: Any, symbols: Tensor) -> Step[Any]:
        """Read one symbol per row.    N"""

    def select(self, carry: Any, rows: Tensor, same: bool = False) -> Any:
        """The carry of the chosen rows."""


class SlidingCarry(NamedTuple):
    """The model's own carry, and the texts that it would begin anew with."""

    inner: Any
    text: Tensor  # N L, each at the end of its row
    lengths: Tensor  # N, of the whole texts
    room: int  # places that are left


class Slid(NamedTuple):
    """A step of the model, with the carry of the whole text."""

    step: Step[Any]
    carry: SlidingCarry

    @property
    def logits(self) -> Tensor:
        """The logits of the next symbol, formed when they are asked for.    N V"""
        return self.step.logits

    @property
    def weight(self) -> Tensor | None:
        """The attention weights of the step.    N S"""
        return self.step.weight


class ChoosySlid(Slid):
    """Such a step of a model that can choose the best few symbols."""

    def likeliest(self, many: int, end: int, forbid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The model's own choice."""
        assert isinstance(self.step, Choosy)
        return self.step.likeliest(many, end, forbid)


def first_seen(n: int, places: int) -> int:
    """The first symbol that is seen of a text of n symbols."""
    half = places - places // 2
    return -(-max(0, n - places) // half) * half


def padded(texts: list[list[int]], device: torch.device | str) -> tuple[Tensor, Tensor | None]:
    """Texts at the end of their rows, and the columns where they begin; None: all 0.    N T, N"""
    T = max(map(len, texts), default=0)
    rows = [[0] * (T - len(text)) + text for text in texts]
    table = torch.tensor(rows, dtype=torch.long, device=device).view(len(texts), T)
    first = None
    if any(len(text) < T for text in texts):
        first = torch.tensor([T - len(text) for text in texts], device=device)
    return table, first


class Sliding:
    """A model with P places as one without a limit, over the protocol of `stepper.py`."""

    def __init__(self, model: Model, places: int, device: torch.device | str) -> None:
        self.model, self.places, self.device = model, places, device

    def begin(self, texts: list[list[int]]) -> SlidingCarry:
        """Begin after these texts, which may be empty and of any length."""
        text, first = padded([t[first_seen(len(t) + 1, self.places) :] for t in texts], "cpu")
        whole = torch.tensor([len(t) for t in texts], dtype=torch.long)
        return self._begun(text, first, whole)

    def _begun(self, text: Tensor, first: Tensor | None, whole: Tensor) -> SlidingCarry:
        text, whole = text.to(self.device), whole.to(self.device)
        first = None if first is None else first.to(self.device)
        with during(None):  # what is read again is no step
            inner = self.model.begin(text, first=first)
        return SlidingCarry(inner, text, whole, self.places - text.shape[1])

    def step(self, carry: SlidingCarry, symbols: Tensor) -> Slid:
        """Read one symbol per row.    N"""
        if not carry.room:
            carry = self._anew(carry)
        step = self.model.step(carry.inner, symbols)
        text = torch.cat([carry.text, symbols[:, None]], 1)
        after = SlidingCarry(step.carry, text, carry.lengths + 1, carry.room - 1)
        return ChoosySlid(step, after) if isinstance(step, Choosy) else Slid(step, after)

    def _anew(self, carry: SlidingCarry) -> SlidingCarry:
        """Begin anew with what is still seen of each text, once one of them fills all places."""
        sizes = carry.lengths.tolist()
        seen = [n - first_seen(n + 1, self.places) for n in sizes]
        T = max(seen)
        first = torch.tensor([T - n for n in seen]) if min(seen) < T else None
        return self._begun(carry.text[:, carry.text.shape[1] - T :], first, carry.lengths)

    def select(self, carry: SlidingCarry, rows: Tensor, same: bool = False) -> SlidingCarry:
        """The carry of the chosen rows."""
        inner = self.model.select(carry.inner, rows, same)
        text, lengths = carry.text.index_select(0, rows), carry.lengths.index_select(0, rows)
        return SlidingCarry(inner, text, lengths, carry.room)
