"""Statistics of weights, defined: whatever computes them faster must agree.

Rows need not sum to one (`local-p`, `monotonic`, `mixture-window`): all but the mass and what a key
receives are taken of the normalised row. A row that looks at nothing has entropy 0 and place 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from heed.errors import Refused


@dataclass(frozen=True, slots=True)
class Statistics:
    """What can be said of weights B H T S without keeping them."""

    mass: Tensor  # how much each query looked in all  B H T
    entropy: Tensor  # in nats  B H T
    peak: Tensor  # the largest share  B H T
    place: Tensor  # where it is  B H T
    expected: Tensor  # the mean place  B H T
    spread: Tensor  # the standard deviation around it  B H T
    received: Tensor  # how much each key was looked at in all  B H S


def statistics(weight: Tensor) -> Statistics:
    """B H T S -> Statistics"""
    if weight.shape[-1] == 0:
        raise Refused("there are no keys, S=0, and so nothing to say of the weights on them")
    mass = weight.sum(-1)
    share = weight / mass[..., None].clamp(min=torch.finfo(weight.dtype).tiny)
    places = torch.arange(weight.shape[-1], device=weight.device, dtype=weight.dtype)
    peak, place = share.max(-1)
    expected = share @ places
    away = places - expected[..., None]
    return Statistics(
        mass,
        entropy(share),
        peak,
        place,
        expected,
        (share * away * away).sum(-1).sqrt(),
        received(weight),
    )


def entropy(share: Tensor) -> Tensor:
    """-Σ a log a of rows that sum to one (or to nothing), in nats.    ... S -> ..."""
    return -(share * share.clamp(min=torch.finfo(share.dtype).tiny).log()).sum(-1)


def received(weight: Tensor) -> Tensor:
    """How much each key was looked at by all queries.    B H T S -> B H S"""
    return weight.sum(-2)


def pooled(weight: Tensor, rows: int, columns: int) -> Tensor:
    """A map of a chosen size: each cell is the mean over its queries of their mass on its keys.

    Rows of a whole map sum to what the rows of the weights do.    B H T S -> B H rows columns
    """
    T, S = weight.shape[-2:]
    if rows > T or columns > S:
        raise Refused(f"a map of {rows} x {columns} is larger than the weights, T={T} S={S}")
    down, across = _cells(T, rows, weight), _cells(S, columns, weight)
    return (down / down.sum(-1, keepdim=True)) @ weight @ across.mT


def _cells(n: int, cells: int, like: Tensor) -> Tensor:
    """Which of n places fall into which cell.    -> cells n"""
    cell = torch.arange(n, device=like.device) * cells // n
    return (cell == torch.arange(cells, device=like.device)[:, None]).to(like.dtype)
