"""Beam search: the best few hypotheses of each sentence, side by side.

Each sentence has `width` live hypotheses, best first. A step takes the 2·width best continuations
of them all: no more than `width` of these can be endings, so `width` are left to go on. An ending
among the first `width` is finished: it leaves the beam, is ranked by its score, and waits.

    score(Y) = log p(Y) / n^α + β Σ_s log min(Σ_t a_ts, 1)

with n symbols, the end counted; α is `length_penalty` and β `coverage_penalty` (Wu 2016 eq. 14,
whose ((5 + n) / 6)^α is replaced by the plain n^α that most systems use; at α = 1 the score is the
mean log-probability of a symbol).

When is a sentence done? log p only falls, the coverage term is never positive and n is at most
longest + 1, so no future of a live hypothesis scores above log p / (longest + 1)^α. Once the worst
of the `best` finished ones reaches that, nothing can change. With α > 0 this comes late, and what
is found late is seldom better: so a sentence is also done when `patience`·width hypotheses have
finished (Kasai 2022; 1 is what most systems do). patience=None waits for the proof.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from heed.decoding import ranking
from heed.decoding.ranking import NEVER, Ranking
from heed.decoding.stepper import (
    Carry,
    Ending,
    Hypothesis,
    Rules,
    Stepper,
    Trail,
    no_distribution,
)


@torch.no_grad()
def beam(
    stepper: Stepper[Carry],
    carry: Carry,
    count: int,
    *,
    begin: int | Tensor,
    end: int,
    longest: int | Tensor,
    width: int = 5,
    best: int = 1,
    length_penalty: float = 1.0,
    coverage_penalty: float = 0.0,
    patience: float | None = 1.0,
    forbid: Iterable[int] = (),
    lengths: Tensor | None = None,
    device: torch.device | str | None = None,
    cut: bool = False,
) -> list[list[Hypothesis]]:
    """The `best` hypotheses of each sentence by score, best first; fewer where there are fewer.

    carry    of `count` sentences, one row each, as the model's `begin` gives it
    begin    the symbol that comes first: one for all, or one per sentence (B)
    longest  how many symbols may be written, the end not counted: a number, or one per sentence
             (B). Then the end is written, whatever its probability
    cut      then write no end instead, and count none: the text could go on
    width, best, length_penalty, coverage_penalty, patience    see the head of this module
    forbid   symbols that are never written
    lengths  of the sources (B): the weights returned are cut to them, and the coverage penalty
             leaves out what lies beyond
    device   of the model; by default that of `lengths`, or else torch's default

    Of equal continuations the better-ranked hypothesis goes first, then the lowest id; of equal
    scores, what finished first. Width 1 is greedy search.
    """
    rules = Rules.of(count, begin, end, longest, forbid, lengths, device, cut)
    plan = Ranking.of(width, best, length_penalty, coverage_penalty, patience)
    if not count:
        return []
    found: list[list[Ending]] = [[] for _ in rules.limits]
    alive = list(range(count))
    beams = ranking.begin(rules, plan)
    symbols = rules.first()
    trail = Trail(symbols)
    for t in range(max(rules.limits) + 1):
        stop, R = [rules.limits[b] <= t for b in alive], beams.live.shape[1]
        if rules.cut and all(stop) and not coverage_penalty:  # the last symbol is never read
            best_few = ranking.as_they_are(beams.live, 2 * width, rules.end)
        else:
            step = trail.step(stepper, carry, symbols)
            carry = step.carry
            choices = rules.choices(step, R, stop, 2 * width + 1)
            beams = ranking.look(beams, plan, step.weight)
            # The host waits once a step; again where two continuations are exactly equal.
            best_few = ranking.candidates(beams.live, choices, 2 * width, careful=False)
            if best_few.tied and not best_few.broken:
                if choices.symbols is not None:
                    choices = rules.choices(step, R, stop, None)
                best_few = ranking.candidates(beams.live, choices, 2 * width, careful=True)
        if best_few.broken:
            raise no_distribution(t)
        move = ranking.advance(beams, plan, best_few, rules.end, t)
        for i, row, log_prob, score in move.ended:
            found[alive[i]].append(Ending(t, i * R + row, log_prob, score, alive[i]))
        keep = [i for i, over in enumerate(move.done) if not over and not stop[i]]
        for i in set(range(len(alive))).difference(keep):
            if not found[alive[i]]:  # nothing may be written, and the end may not either
                found[alive[i]].append(Ending(t, i * R, NEVER, NEVER, alive[i]))
        same, alive = width == R and len(keep) == len(alive), [alive[i] for i in keep]
        if not alive:
            break
        beams, rows, written = ranking.follow(move, keep, R)
        trail.write(written, rows)
        symbols = written.to(rules.device)
        carry = stepper.select(carry, rows.to(rules.device), same=same)
    ranked = [sorted(each, key=lambda ending: -ending.score)[:best] for each in found]
    every = iter(trail.read([ending for each in ranked for ending in each], rules.lengths))
    return [[next(every) for _ in each] for each in ranked]
