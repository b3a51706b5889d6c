"""Visibility, gain and places as the flat arguments of the fused additive operators."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from heed.kernels.sight import peaks, sight
from heed.records import Call
from heed.visible import FAR


class Plan(NamedTuple):
    """The arguments of an operator that say who looks where. A key must pass every one that is set.

    Query t stands at place first + t. Tensors may be broadcast where an axis says so.
    """

    stop: Tensor | None = None  # one past the last key that exists  B|1 int32
    exists: Tensor | None = None  # which keys exist  B|1 S bool
    table: Tensor | None = None  # any other mask  B|1 H|1 T|1 S bool
    centre: Tensor | None = None  # |s - centre_t| <= radius  B|1 H|1 T float32
    gain_centre: Tensor | None = None  # of the Gaussian, which may want a gradient  B|1 H|1 T
    sigma: float = 1.0  # of the Gaussian exp(-(s - gain_centre)² / 2σ²)
    first: int = 0
    causal: bool = False  # s <= first + t
    half: int = -1  # |s - (first + t)| <= half; -1: no such window
    radius: int = 0


def plan(call: Call) -> Plan:
    """The visibility and the gain of a call, as an operator takes them."""
    seen, gain = sight(call), peaks(call)
    return Plan(
        seen.stop,
        seen.exists,
        seen.table,
        None if seen.centre is None else seen.centre.to(torch.float32),
        None if gain is None else gain.to(torch.float32),
        1.0 if call.gain is None else call.gain.sigma,
        seen.first,
        seen.causal,
        -1 if seen.half is None else min(seen.half, FAR),
        min(seen.radius, FAR),
    )
