"""One step of a beam: which continuations are best, who goes on, who has ended.

B sentences, R live hypotheses of each (1 at first, then W, the width), V symbols, S places. The few
numbers that a beam is made of live on the host, in numpy: a step costs tens of operations on them,
each many times cheaper there. What is as long as V or S stays on the model's device.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.decoding.stepper import Choices, Rules
from heed.errors import Refused

Numbers = NDArray[Any]

NEVER = -math.inf
UNSEEN = 1e-6  # what a place that was never looked at counts as in the coverage penalty


class Ranking(NamedTuple):
    """Rules by which hypotheses are ranked, and sentences are done."""

    width: int
    best: int
    length_penalty: float
    coverage_penalty: float
    enough: float

    @staticmethod
    def of(
        width: int, best: int, length: float, coverage: float, patience: float | None
    ) -> Ranking:
        if not 1 <= best <= width:
            raise Refused(f"best must be between 1 and the width of the beam, {width}; got {best}")
        if not 0 <= length < math.inf:
            raise Refused(f"length_penalty must be 0 or more; got {length}")
        if not 0 <= coverage < math.inf:
            raise Refused(f"coverage_penalty must be 0 or more; got {coverage}")
        if patience is not None and not patience > 0:
            raise Refused(
                f"patience must be above 0, or None to search until proved best; got {patience}"
            )
        enough = math.inf if patience is None else max(best, patience * width)
        return Ranking(width, best, length, coverage, enough)


class Beams(NamedTuple):
    """The live hypotheses of each sentence, best first, and what is known of the finished."""

    live: Numbers  # B R   log_prob; -inf where there are fewer than R
    kept: Numbers  # B K   the best scores among the finished
    finished: Numbers  # B    how many have finished
    most: Numbers  # B     (longest + 1)^α
    lengths: Tensor | None  # B   of the sources
    coverage: Tensor | None  # B R S   how much was looked at, where that counts

    def only(self, who: Numbers) -> Beams:
        """The beams of some sentences."""
        live, kept, finished, most = (x[who] for x in self[:4])
        lengths = None if self.lengths is None else self.lengths[who]
        coverage = None if self.coverage is None else self.coverage[who]
        return Beams(live, kept, finished, most, lengths, coverage)


class Candidates(NamedTuple):
    """The best continuations of each sentence, best first."""

    value: Numbers  # B K   log_prob; -inf where there are fewer
    row: Numbers  # B K   the place in the beam that each goes on from
    symbol: Numbers  # B K
    tied: bool  # whether another, equal to the last, might have been chosen in its place
    broken: bool  # whether anything is NaN


class Ended(NamedTuple):
    """A hypothesis that has ended."""

    sentence: int
    row: int
    log_prob: float
    score: float


class Move(NamedTuple):
    """One step: who goes on from where, and who has ended."""

    beams: Beams
    row: Numbers  # B W   the place in the beam that each goes on from
    symbol: Numbers  # B W
    ended: list[Ended]
    done: list[bool]  # B


def begin(rules: Rules, plan: Ranking) -> Beams:
    """One hypothesis per sentence, of which nothing is written."""
    B = len(rules.limits)
    most = [(longest + 1) ** plan.length_penalty for longest in rules.limits]
    lengths = None
    if plan.coverage_penalty and rules.lengths is not None:
        lengths = torch.tensor(rules.lengths, device=rules.device)
    return Beams(
        live=np.zeros((B, 1), np.float32),
        kept=np.full((B, plan.best), NEVER, np.float32),
        finished=np.zeros(B, np.int64),
        most=np.array(most, np.float32),
        lengths=lengths,
        coverage=None,
    )


def look(beams: Beams, plan: Ranking, weight: Tensor | None) -> Beams:
    """Add up where each hypothesis has looked, if that will count."""
    if not plan.coverage_penalty:
        return beams
    if weight is None:
        raise Refused("the coverage penalty needs weights, and this model's steps give none")
    seen = weight.unflatten(0, beams.live.shape)
    return beams._replace(coverage=seen if beams.coverage is None else beams.coverage + seen)


def advance(beams: Beams, plan: Ranking, found: Candidates, end: int, t: int) -> Move:
    """Rank the 2W best continuations."""
    W, every = plan.width, np.arange(len(beams.live))[:, None]
    value, row, symbol = found[:3]
    ends = symbol == end
    score = value[:, :W] / (t + 1) ** plan.length_penalty
    if beams.coverage is not None:
        score = score + plan.coverage_penalty * _covered(beams)[every, row[:, :W]]
    score = np.where(ends[:, :W], score, NEVER)
    on = ends.argsort(1, kind="stable")[:, :W]  # those that go on, in their order
    live = np.where(ends[every, on], NEVER, value[every, on])
    # Where there are fewer than W, the best is written once more and counts for nothing.
    on = np.where(live == NEVER, on[:, :1], on)
    kept, finished = beams.kept, beams.finished
    who, which = (score > NEVER).nonzero()
    if len(who):
        kept = np.sort(np.concatenate([kept, score], 1))[:, : -plan.best - 1 : -1]
        finished = finished + np.bincount(who, minlength=len(finished))
    done = (finished >= plan.enough) | reached(beams, live, kept)
    told = (who, row[who, which], value[who, which], score[who, which])
    ended = [Ended(*each) for each in zip(*(x.tolist() for x in told), strict=True)]
    moved = beams._replace(live=live, kept=kept, finished=finished)
    return Move(moved, row[every, on], symbol[every, on], ended, done.tolist())


def reached(beams: Beams, live: Numbers, kept: Numbers) -> Numbers:
    """Whether no future of the best live hypothesis can still enter.    B W, B K -> B"""
    return kept[:, -1] >= live[:, 0] / beams.most


def candidates(live: Numbers, choices: Choices, many: int, careful: bool) -> Candidates:
    """The best `many` continuations of each sentence; `careful`: right even among equals.    B R

    `topk` may choose any of several equal values, in any order. Those it chose are put in order
    here; one more than needed shows whether another might have been chosen, and if so the caller
    calls again, `careful`, and everything is sorted. It is enough that `many` + 1 of each row can
    be chosen: no other can be among the best, unless it is equal to one of these.
    """
    log_prob, symbols = choices
    V, K = log_prob.shape[-1], min(many + 1, log_prob[0].numel())
    if symbols is not None:
        total = (log_prob.cpu().numpy() + live[..., None]).reshape(len(live), -1)
        broken = bool(np.isnan(total).any())
        place = (-total).argsort(1, kind="stable")[:, :K]
        every = np.arange(len(live))[:, None]
        value, symbol = total[every, place], symbols.cpu().numpy().reshape(total.shape)
        symbol = symbol[every, place]
    else:
        value, place = _ordered(torch.from_numpy(live).to(log_prob.device), log_prob, K, careful)
        broken, symbol = bool(np.isnan(value).any()), place % V
    row = place // V
    last, next_best = value[:, many - 1 : many], value[:, many : many + 1]  # empty where few
    tied = not careful and bool(((last == next_best) & (last > NEVER)).any())
    if (short := many - K) > 0:
        value = np.pad(value, ((0, 0), (0, short)), constant_values=NEVER)
        row, symbol = (np.pad(x, ((0, 0), (0, short))) for x in (row, symbol))
    return Candidates(value[:, :many], row[:, :many], symbol[:, :many], tied, broken)


def as_they_are(live: Numbers, many: int, end: int) -> Candidates:
    """Every hypothesis ends where it stands, at no cost.    B R"""
    B, R = live.shape
    value = np.pad(live, ((0, 0), (0, many - R)), constant_values=NEVER)
    row = np.broadcast_to(np.arange(many) % R, (B, many))
    return Candidates(value, row, np.full((B, many), end), tied=False, broken=False)


def _ordered(live: Tensor, log_prob: Tensor, K: int, careful: bool) -> tuple[Numbers, Numbers]:
    """The K best of all, and their places; of equals the first.    B R, B R V -> B K, B K"""
    if careful:
        total = (log_prob + live[..., None]).flatten(1)
        value, place = (x[:, :K] for x in total.sort(descending=True, stable=True))
        return value.cpu().numpy(), place.cpu().numpy()
    few, where = (x.cpu().numpy() for x in top(live, log_prob, K))
    order, every = np.lexsort((where, -few)), np.arange(len(few))[:, None]
    return few[every, order], where[every, order]


def top(live: Tensor, log_prob: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """The K best continuations of each sentence, and their places.    B R, B R V -> B K, B K

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


def _covered(beams: Beams) -> Numbers:
    """Σ log min(what was looked at, 1) of each hypothesis.    B R"""
    assert beams.coverage is not None
    seen = beams.coverage.clamp(UNSEEN, 1.0).log()
    if beams.lengths is not None:
        places = torch.arange(seen.shape[-1], device=seen.device)
        seen = seen.masked_fill(places >= beams.lengths[:, None, None], 0.0)
    total: Numbers = seen.sum(-1).cpu().numpy()
    return total


def follow(move: Move, keep: list[int], R: int) -> tuple[Beams, Tensor, Tensor]:
    """The beams of the sentences that go on, the rows they come from, what they wrote.    N"""
    beams, row, symbol = move.beams, move.row, move.symbol
    who = np.arange(len(row))
    if len(keep) < len(row):
        who = np.array(keep)
        beams, row, symbol = beams.only(who), row[who], symbol[who]
    if beams.coverage is not None:
        places = torch.from_numpy(row).to(beams.coverage.device)[..., None]
        places = places.expand(-1, -1, beams.coverage.shape[-1])
        beams = beams._replace(coverage=beams.coverage.gather(1, places))
    rows = (who[:, None] * R + row).ravel()
    return beams, torch.from_numpy(rows), torch.from_numpy(symbol.ravel())
