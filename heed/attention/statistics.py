"""Statistics of weights: their definition, which faster ways must agree with.

Rows need not sum to one (`local-p`, `monotonic`, `mixture-window`): all but the mass, what a key
receives and the map are taken of the normalised row. A row that looks at nothing has entropy 0 and
place 0.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from heed.errors import Refused
from heed.records import Statistics, Summary

__all__ = ["Statistics", "averages", "entropy", "pooled", "received", "statistics", "summarise"]

Weights = Callable[[int, int], tuple[Tensor, Tensor | None, Tensor | None]]
"""Takes `start` and `stop`: the weights of these queries, B H n S, log Σ exp(e) and the largest e,
B H n."""

BLOCK = 2**22
"""How many weights are formed together, where queries may be treated block by block."""


def statistics(weight: Tensor, asked: Summary = Summary()) -> Statistics:  # noqa: B008
    """B H T S -> Statistics"""

    def some(start: int, stop: int) -> tuple[Tensor, None, None]:
        return weight[:, :, start:stop], None, None

    return summarise(some, weight.shape, asked)


def check_rows(asked: Summary, T: int) -> None:
    """Refuse rows that are not there."""
    if max(asked.rows, default=0) >= max(T, 1):
        raise Refused(f"there is no row {max(asked.rows)} to give the weights of: T={T}")


def summarise(
    weights: Weights,
    shape: torch.Size | tuple[int, ...],
    asked: Summary,
    apart: bool = False,
    width: int = 1,
) -> Statistics:
    """Statistics of weights of a shape B H T S.

    apart  whether queries may be treated block by block, each by itself
    width  how many numbers it takes to form one weight
    """
    B, H, T, S = shape
    if S == 0:
        raise Refused("there are no keys (S=0), so there are no statistics")
    check_rows(asked, T)
    rows = max(1, min(T, BLOCK // max(1, B * H * S * width))) if apart else max(T, 1)
    cuts = [(start, min(start + rows, T)) for start in range(0, max(T, 1), rows)]
    parts, pooled = [], None
    for cut in cuts:  # one map at a time: each is as large as the whole
        part = _block(*weights(*cut), asked, cut, T)
        if part.map is not None:
            pooled = part.map if pooled is None else pooled + part.map
        parts.append(part._replace(map=None))
    seen = Statistics.join(parts)
    if seen.rows is not None:  # the blocks gave them in the order of the queries
        order = sorted(asked.rows)
        seen = seen._replace(rows=seen.rows[:, :, [order.index(t) for t in asked.rows]])
    return seen._replace(map=pooled)


def _block(
    weight: Tensor,
    log_sum: Tensor | None,
    largest: Tensor | None,
    asked: Summary,
    cut: tuple[int, int],
    T: int,
) -> Statistics:
    """The statistics of some of T queries; their map is their share of the whole one."""
    mass = weight.sum(-1)
    share = weight / mass[..., None].clamp(min=torch.finfo(weight.dtype).tiny)
    places = torch.arange(weight.shape[-1], device=weight.device, dtype=weight.dtype)
    peak, place = share.max(-1)
    expected = share @ places
    away = places - expected[..., None]
    top = share.topk(min(asked.top, share.shape[-1]), -1) if asked.top else None
    chosen = [t - cut[0] for t in sorted(asked.rows) if cut[0] <= t < cut[1]]
    return Statistics(
        mass,
        entropy(share),
        peak,
        place,
        expected,
        (share * away * away).sum(-1).sqrt(),
        received(weight) if asked.received else None,
        log_sum,
        largest,
        None if top is None else top.indices,
        None if top is None else top.values,
        None if asked.map is None else _pool(weight, *asked.map, cut[0], T),
        weight[:, :, chosen] if asked.rows else None,
    )


def entropy(share: Tensor) -> Tensor:
    """-Σ a log a of rows that sum to one (or to nothing), in nats.    ... S -> ..."""
    return -(share * share.clamp(min=torch.finfo(share.dtype).tiny).log()).sum(-1)


def averages(seen: Statistics, counts: Tensor | None = None) -> dict[str, float]:
    """Averages over heads and queries: the entropy, in nats, and the sharpness, the mean peak.

    Queries that look at nothing do not count, nor those of a row b from `counts[b]` on, which are
    padding. Without any query both are 0.    B
    """
    real = seen.mass > 0  # B H T
    if counts is not None:
        real &= torch.arange(real.shape[2], device=real.device) < counts[:, None, None]
    entropy, peak = (float(x.where(real, 0).sum()) for x in (seen.entropy, seen.peak))
    count = max(int(real.sum()), 1)
    return {"entropy": entropy / count, "sharpness": peak / count}


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
    return _pool(weight, rows, columns, 0, T)


def _pool(weight: Tensor, rows: int, columns: int, start: int, T: int) -> Tensor:
    """The share that queries from `start` on, of T, add to a map of at most so many cells."""
    n, S = weight.shape[-2:]
    rows, columns = min(rows, T), min(columns, S)
    first = torch.arange(rows + 1, device=weight.device) * T
    first = (first + rows - 1) // max(rows, 1)  # of each cell; t belongs to cell t · rows // T
    down = _cells(start, n, rows, T, weight) / first.diff()[:, None]
    return down @ (weight @ _cells(0, S, columns, S, weight).mT)


def _cells(start: int, n: int, cells: int, of: int, like: Tensor) -> Tensor:
    """1 where one of n places from `start` on, out of `of`, falls into a cell.    -> cells n"""
    cell = torch.arange(start, start + n, device=like.device) * cells // max(of, 1)
    return (cell == torch.arange(cells, device=like.device)[:, None]).to(like.dtype)
