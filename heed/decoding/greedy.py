"""Greedy search: always the likeliest symbol."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from heed.decoding.stepper import (
    Carry,
    Choosy,
    Ending,
    Hypothesis,
    Rules,
    Step,
    Stepper,
    Trail,
    no_distribution,
)

Choose = Callable[[Tensor, Tensor, int], Tensor]
"""Chooses the next symbols by their log-probabilities, given which sentences these are and how many
symbols they have.    N V, N, t -> N"""


@torch.no_grad()
def greedy(
    stepper: Stepper[Carry],
    carry: Carry,
    count: int,
    *,
    begin: int | Tensor,
    end: int,
    longest: int | Tensor,
    forbid: Iterable[int] = (),
    lengths: Tensor | None = None,
    device: torch.device | str | None = None,
    cut: bool = False,
) -> list[Hypothesis]:
    """The likeliest symbol at each step; of equals, the one with the lowest id.

    carry    of `count` sentences, one row each, as the model's `begin` gives it
    begin    the symbol that comes first: one for all, or one per sentence (B)
    longest  how many symbols may be written, the end not counted: a number, or one per sentence
             (B). Then the end is written, whatever its probability
    cut      then write no end instead, and count none: the text could go on
    forbid   symbols that are never written
    lengths  of the sources (B): the weights returned are cut to them
    device   of the model; by default that of `lengths`, or else torch's default
    """
    rules = Rules.of(count, begin, end, longest, forbid, lengths, device, cut)
    return follow(stepper, carry, rules, None)


def follow(
    stepper: Stepper[Carry], carry: Carry, rules: Rules, choose: Choose | None
) -> list[Hypothesis]:
    """One hypothesis per sentence, by any way of choosing (None: the likeliest symbol).

    A sentence that has ended leaves the batch.
    """
    alive, symbols = list(range(len(rules.limits))), rules.first()
    trail, endings = Trail(symbols), list[Ending]()
    total = torch.zeros(len(alive), device=rules.device)
    who = torch.arange(len(alive), device=rules.device)
    totals, t = [0.0] * len(alive), 0
    while alive:
        last = [rules.limits[b] <= t for b in alive]
        if rules.cut and all(last):
            ends = zip(alive, totals, strict=True)
            endings += [Ending(t, row, x, x, b) for row, (b, x) in enumerate(ends)]
            break
        step = trail.step(stepper, carry, symbols)
        carry = step.carry
        symbols, gain = _next(rules, step, choose, last, who, t)
        del step  # or its logits would be held beside those of the next step
        total = total + gain
        # The one synchronisation of the step. Where nothing may be written, a sentence ends.
        over = (symbols == rules.end) | (gain == -torch.inf)
        ended, totals = torch.stack([over.to(total.dtype), total]).tolist()
        if any(x != x for x in totals):
            raise no_distribution(t)
        for row, b in enumerate(alive):
            if ended[row]:
                endings.append(Ending(t, row, totals[row], totals[row], b))
        if any(ended):
            keep = [row for row, x in enumerate(ended) if not x]
            rows = torch.tensor(keep, dtype=torch.long, device=rules.device)
            alive = [alive[row] for row in keep]
            symbols, total, who = symbols[rows], total[rows], who[rows]
            totals = [totals[row] for row in keep]
            carry = stepper.select(carry, rows) if keep else carry
        else:
            rows = torch.arange(len(alive), device=rules.device)
        trail.write(symbols, rows)
        t += 1
    endings.sort(key=lambda ending: ending.sentence)
    return trail.read(endings, rules.lengths)


def _next(
    rules: Rules, step: Step[Any], choose: Choose | None, last: list[bool], who: Tensor, t: int
) -> tuple[Tensor, Tensor]:
    """The next symbol of each row and its log-probability; the end, where it is due.    N, N"""
    due = torch.tensor(last, device=rules.device) if any(last) else None
    if choose is None and isinstance(step, Choosy):
        gain, symbols, ending = step.likeliest(1, rules.end, rules.forbid)
        gain, symbols = gain[:, 0], symbols[:, 0]
        if due is not None:
            gain, symbols = rules.last(ending).where(due, gain), symbols.masked_fill(due, rules.end)
        return symbols, gain
    log_prob = rules.log_prob(step.logits)
    symbols = log_prob.argmax(-1) if choose is None else choose(log_prob, who, t)
    if due is not None:
        symbols = symbols.masked_fill(due, rules.end)
    ending = log_prob[:, rules.end]  # never forbidden: NaN if the row is
    gain = log_prob.gather(-1, symbols[:, None])[:, 0]
    if due is not None:
        gain = rules.last(ending).where(due, gain)
    return symbols, gain.where(~ending.isnan(), ending)
