"""Past: what earlier steps add to the energy.

A past turns what it remembers into a hint for the score, and remembers each step's weights.
"""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import conv1d, pad

from heed.attention.part import Part
from heed.attention.score import constant, parameter
from heed.errors import Refused
from heed.records import Claims
from heed.shapes import whole


def fitted(x: Tensor, S: int) -> Tensor:
    """Pad or cut a slot to a memory that has become S places long.    ... -> ... S"""
    return pad(x, (0, S - x.shape[-1]))


class Past(Part):
    """A memory of earlier weights. Its slot in the state is B H S."""

    slot = "past"
    claims = Claims(is_row_wise=False, needs_line=True)
    remembers: ClassVar[str] = "last weight"
    """The name of the number that its slot has for each place."""

    def __init__(self, *, heads: int = 1, hint_width: int = 1) -> None:
        super().__init__()
        self.hint_width = hint_width

    def begin(self, like: Tensor, S: int) -> Tensor:
        """The slot before the first step: nothing has been looked at.    B H 1 -> B H S"""
        return torch.zeros_like(like).expand(*like.shape[:2], S)

    def start(self, like: Tensor, S: int, before: Tensor | None) -> Tensor:
        """The slot that the first step starts from.    B H 1 -> B H S"""
        return self.begin(like, S) if before is None else fitted(before, S)

    def hint(self, before: Tensor) -> Tensor:
        """The hint for the score.    B H S -> B H 1 S hint"""
        raise NotImplementedError

    def after(self, before: Tensor, weight: Tensor) -> Tensor:
        """The past to remember after a step.    B H S, B H S -> B H S"""
        raise NotImplementedError

    def penalty(self, before: Tensor, weight: Tensor) -> Tensor:
        """A loss on this step's weights, where it charges one.    B H S, B H S -> B H"""
        raise NotImplementedError


class Coverage(Past):
    """cov_t = Σ_{τ<t} a_τ enters the energy; loss Σ_s min(a_ts, cov_ts). See 2017 §2.3."""

    formula = "cov_t = Σ_{τ<t} a_τ enters e_t"
    claims = Claims(is_row_wise=False, needs_line=True, charges=True)
    remembers = "looked at"

    def __init__(self, *, heads: int = 1, hint_width: int = 1) -> None:
        super().__init__(heads=heads, hint_width=hint_width)
        # Added to the energy: from a positive start, learning goes the wrong way.
        added = hint_width == 1
        self.weight = constant(-1, heads, 1) if added else parameter(heads, hint_width)

    def hint(self, before: Tensor) -> Tensor:
        return before[:, :, None, :, None] * self.weight[:, None, None].to(before.dtype)

    def after(self, before: Tensor, weight: Tensor) -> Tensor:
        return before + weight

    def penalty(self, before: Tensor, weight: Tensor) -> Tensor:
        return torch.minimum(before, weight).sum(-1)


class LocationAware(Past):
    """a_{t-1}, convolved, enters the energy. Chorowski 2015 §2.2."""

    formula = "U (F ∗ a_{t−1}) enters e_t"

    def __init__(
        self, *, heads: int = 1, hint_width: int = 1, channels: int = 10, kernel: int = 11
    ) -> None:
        super().__init__(heads=heads, hint_width=hint_width)
        whole("channels", channels, 1)
        if whole("kernel", kernel, 1) % 2 == 0:
            raise Refused(f"location-aware is symmetric: kernel must be odd, not {kernel}")
        self.filters = parameter(heads * channels, 1, kernel)
        self.weight = parameter(heads, hint_width, channels)

    def hint(self, before: Tensor) -> Tensor:
        B, H, S = before.shape
        filters = self.filters.to(before.dtype)
        found = conv1d(before, filters, padding=filters.shape[-1] // 2, groups=H)  # B H·F S
        found = found.view(B, H, len(filters) // H, S).mT  # B H S F
        return (found @ self.weight.to(before.dtype).mT)[:, :, None]

    def after(self, before: Tensor, weight: Tensor) -> Tensor:
        return weight
