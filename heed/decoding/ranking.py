"""One step of a beam: which continuations are best, who goes on, who has ended.

B sentences, R live hypotheses of each (1 at first, then W, the width), V symbols, S places.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from heed.decoding.stepping import Choices, Rules
from heed.errors import Refused

NEVER = -math.inf
UNSEEN = 1e-6  # what a place that was never looked at counts as in the coverage penalty


class Plan(NamedTuple):
    """How hypotheses are ranked, and when it is enough."""

    width: int
    best: int
    length_penalty: float
    coverage_penalty: float
    enough: float

    @staticmethod
    def of(width: int, best: int, length: float, coverage: float, patience: float | None) -> Plan:
        if not 1 <= best <= width:
            raise Refused(f"best lies between 1 and the width of the beam, {width}; got {best}")
        if not 0 <= length < math.inf:
            raise Refused(f"length_penalty is 0 or more; got {length}")
        if not 0 <= coverage < math.inf:
            raise Refused(f"coverage_penalty is 0 or more; got {coverage}")
        if patience is not None and not patience > 0:
            raise Refused(f"patience is above 0, or None to wait for the proof; got {patience}")
        enough = math.inf if patience is None else max(best, patience * width)
        return Plan(width, best, length, coverage, enough)


class Beams(NamedTuple):
    """The live hypotheses of each sentence, best first, and what is known of the finished."""

    live: Tensor  # B R   log_prob; -inf where there are fewer than R
    kept: Tensor  # B K   the best scores among the finished
    finished: Tensor  # B    how many there are
    most: Tensor  # B     (longest + 1)^α
    lengths: Tensor | None  # B   of the sources
    coverage: Tensor | None  # B R S   how much was looked at, where that counts

    def only(self, who: Tensor) -> Beams:
        """Those of some sentences."""
        lengths = None if self.lengths is None else self.lengths[who]
        coverage = None if self.coverage is None else self.coverage[who]
        live, kept, finished, most = (x[who] for x in self[:4])
        return Beams(live, kept, finished, most, lengths, coverage)


class Move(NamedTuple):
    """One step: who goes on from where, and who has ended."""

    beams: Beams
    row: Tensor  # B W   the place in the beam that each goes on from
    symbol: Tensor  # B W
    ended: Tensor  # 3 B W   score (-inf: has not ended), log_prob, row
    told: Tensor  # B + 2   done?; then: are any two equal? is anything NaN?


def begin(rules: Rules, plan: Plan) -> Beams:
    """One hypothesis per sentence, of which nothing is written."""
    B, device = len(rules.limits), rules.device
    most = [(longest + 1) ** plan.length_penalty for longest in rules.limits]
    lengths = None if rules.lengths is None else torch.tensor(rules.lengths, device=device)
    return Beams(
        live=torch.zeros(B, 1, device=device),
        kept=torch.full((B, plan.best), NEVER, device=device),
        finished=torch.zeros(B, device=device),
        most=torch.tensor(most, dtype=torch.float32, device=device),
        lengths=lengths,
        coverage=None,
    )


def look(beams: Beams, plan: Plan, weight: Tensor | None) -> Beams:
    """Add up where each hypothesis has looked, if that will count."""
    if not plan.coverage_penalty:
        return beams
    if weight is None:
        raise Refused("the coverage penalty needs weights, and this model's steps give none")
    seen = weight.unflatten(0, beams.live.shape)
    return beams._replace(coverage=seen if beams.coverage is None else beams.coverage + seen)


def advance(beams: Beams, plan: Plan, choices: Choices, end: int, t: int, careful: bool) -> Move:
    """Rank the continuations; `careful` also where some are equal."""
    W = plan.width
    value, row, symbol, tied = candidates(beams.live, choices, 2 * W, careful)
    ends = symbol == end
    ended = _endings(beams, plan, value[:, :W], row[:, :W], ends[:, :W], t)
    on = ends.sort(stable=True).indices[:, :W]  # those that go on, in their order
    live, row, symbol = (x.gather(1, on) for x in (value, row, symbol))
    live = live.masked_fill(ends.gather(1, on), NEVER)
    # Where there are fewer than W, the best is written once more and counts for nothing.
    missing = live == NEVER
    row, symbol = (x.where(~missing, x[:, :1]) for x in (row, symbol))
    kept = torch.cat([beams.kept, ended[0]], 1).topk(plan.best).values
    finished = beams.finished + (ended[0] > NEVER).sum(1)
    done = (finished >= plan.enough) | reached(beams, live, kept)
    told = torch.cat([done, tied[None], value[:, :1].isnan().any()[None]])
    moved = beams._replace(live=live, kept=kept, finished=finished)
    return Move(moved, row, symbol, ended, told)


def reached(beams: Beams, live: Tensor, kept: Tensor) -> Tensor:
    """Whether no future of the best live hypothesis can still enter.    B W, B K -> B"""
    return kept[:, -1] >= live[:, 0] / beams.most


def candidates(
    live: Tensor, choices: Choices, many: int, careful: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The best continuations of each sentence: value, row and symbol, and whether any are equal.

    B R -> B many, B many, B many, ()

    `topk` may choose any of several equal values, in any order. Those it chose are put in order
    here; one more than needed shows whether another might have been chosen, and if so the caller
    comes again, `careful`, and everything is sorted. It is enough that `many` + 1 of each row can
    be chosen: what else there is cannot be among the best, unless it is equal to one more.
    """
    log_prob = choices.log_prob
    V, K = log_prob.shape[-1], min(many + 1, log_prob[0].numel())
    if careful:
        total = (log_prob + live[..., None]).flatten(1)
        value, place = (x[:, :K] for x in total.sort(descending=True, stable=True))
    else:
        value, place = top(live, log_prob, K)
        place, order = place.sort()
        value, order = value.gather(1, order).sort(descending=True, stable=True)
        place = place.gather(1, order)
    row, symbol = place // V, place % V
    if choices.symbols is not None:
        symbol = choices.symbols.flatten(1).gather(1, place)
    last, next_best = value[:, many - 1 : many], value[:, many : many + 1]  # empty where few
    tied = ((last == next_best) & (last > NEVER)).any() & (not careful)
    if (short := many - value.shape[1]) > 0:
        value = pad(value, (0, short), value=NEVER)
        row, symbol = pad(row, (0, short)), pad(symbol, (0, short))
    return value[:, :many], row[:, :many], symbol[:, :many], tied


def top(live: Tensor, log_prob: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """The K best continuations of each sentence, and where.    B R, B R V -> B K, B K

    The symbols stand in columns, C deep. Only the K columns with the largest maxima can hold one
    of the K best, and a maximum costs a tenth of a `topk`.
    """
    B, R, V = log_prob.shape
    C = 16
    M = V // (8 * C) * 8  # columns of a row, a multiple of 8 for the processor's vectors
    if log_prob.numel() < 100_000 or M * R < 4 * K:
        return (log_prob + live[..., None]).flatten(1).topk(K)
    best = log_prob[..., : C * M].unflatten(2, (C, M)).amax(2)  # B R M
    column = (best + live[..., None]).flatten(1).topk(K, sorted=False).indices  # B K
    deep = torch.arange(0, C * M, M, device=live.device)
    place = (column // M * V + column % M)[..., None] + deep  # B K C
    # What is left of each row beyond its columns joins them.
    rest = torch.arange(C * M, V, device=live.device)
    rest = rest + torch.arange(0, R * V, V, device=live.device)[:, None]  # R V-CM
    place = torch.cat([place.flatten(1), rest.flatten().expand(B, -1)], 1)
    value = log_prob.flatten(1).gather(1, place) + live.gather(1, place // V)
    value, found = value.topk(K)
    return value, place.gather(1, found)


def _endings(beams: Beams, plan: Plan, value: Tensor, row: Tensor, ends: Tensor, t: int) -> Tensor:
    """Score, log_prob and row of the hypotheses that end now.    B W -> 3 B W"""
    score = value / (t + 1) ** plan.length_penalty
    if beams.coverage is not None:
        seen = beams.coverage.clamp(UNSEEN, 1.0).log()
        if beams.lengths is not None:
            places = torch.arange(seen.shape[-1], device=seen.device)
            seen = seen.masked_fill(places >= beams.lengths[:, None, None], 0.0)
        score = score + plan.coverage_penalty * seen.sum(-1).gather(1, row)
    return torch.stack([score.masked_fill(~ends, NEVER), value, row.to(value.dtype)])


def follow(
    move: Move, keep: list[int], R: int, device: torch.device
) -> tuple[Beams, Tensor, Tensor]:
    """The beams of the sentences that go on, the rows they come from, what they wrote.    B W"""
    beams, row, symbol = move.beams, move.row, move.symbol
    who = torch.arange(len(row), device=device)
    if len(keep) < len(row):
        who = torch.tensor(keep, device=device)
        beams = beams.only(who)
        row, symbol = row[who], symbol[who]
    if beams.coverage is not None:
        places = row[..., None].expand(*row.shape, beams.coverage.shape[-1])
        beams = beams._replace(coverage=beams.coverage.gather(1, places))
    return beams, (who[:, None] * R + row).flatten(), symbol.flatten()
