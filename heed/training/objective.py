"""The loss: cross entropy over symbols, and what an attention adds to it.

Everything is a SUM over the real symbols of a batch; the loop divides by the count of a whole
step, so that accumulation and several processes change nothing. Nothing here waits for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from heed.records import Attended
from heed.shapes import check
from heed.training.reinforce import MovingAverage, reinforce
from heed.training.settings import Training
from heed.training.surprise import PAD, Unformed, surprise, surprise_of


@dataclass(frozen=True, slots=True)
class Loss:
    """Sums over the real symbols of a batch: the total, and what it is made of (detached)."""

    total: Tensor
    parts: dict[str, Tensor]


class Objective(Protocol):
    """The loss that a task gives the loop. One with buffers is an nn.Module, so they are saved."""

    def count(self, batch: Any) -> int:
        """The number of symbols that the sum runs over, on the batch as it comes from the data."""

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        """The sum over the symbols of the batch."""


@runtime_checkable
class Several(Protocol):
    """An objective of several means, each over all that a step learns from."""

    def balance(self, batches: Sequence[Any], add: Callable[..., list[int]]) -> None:
        """Look at all batches of a step before it begins; `add` sums numbers over all processes."""


def sequence_loss(
    logits: Tensor | Unformed,
    labels: Tensor,
    seen: Mapping[str, Attended],
    *,
    smoothing: float = 0.0,
    coverage: float = 1.0,
    reinforced: float = 1.0,
    entropy_bonus: float = 0.0,
    baseline: MovingAverage | None = None,
    elsewhere: Mapping[str, tuple[Attended, Tensor]] | None = None,
    aligned: tuple[Tensor, Tensor] | None = None,
    guided: float = 1.0,
    none: int = PAD,
) -> Loss:
    """The loss of symbols under teacher forcing.    B T V, B T

    logits     of every symbol; or what they would be formed from (`Written.output`), which is
               faster and takes less memory
    labels     the right symbols, `none` where there is none: 0, or a number below 0 where 0 is a
               symbol like any other
    seen       the attentions that were asked once per symbol, their fields B H T
    elsewhere  attentions that other places asked (an encoder's, B H S), each with its real
               places, B S
    aligned    the weights that stand for the alignment, and the links they are guided by, B T S
    baseline   of the rewards, where attention draws; updated by them while it is in training
    """
    total, nll = _surprise(logits, labels, smoothing, none)
    there, reward = labels != none, -nll.detach()
    count = there.sum(1)
    asked = [_Asked(record, there, reward) for record in seen.values()]
    for record, real in (elsewhere or {}).values():
        mean = reward.sum(1) / count.clamp(min=1)  # of the row, which such a look serves as a whole
        asked.append(_Asked(record, real, mean[:, None].expand(real.shape)))
    parts = {"nll": nll.detach().sum()}
    if penalties := [each.penalty() for each in asked if each.record.penalty is not None]:
        penalty = torch.stack(penalties).sum()
        total, parts["penalty"] = total + coverage * penalty, penalty.detach()
    if aligned is not None:
        wrong = misaligned(*aligned)
        total, parts["guided"] = total + guided * wrong, wrong.detach()
    drew = [each for each in asked if each.record.log_prob is not None]
    if drew and torch.is_grad_enabled():
        level = 0.0 if baseline is None else baseline.value
        chance = torch.stack([each.reinforce(level, entropy_bonus) for each in drew]).sum()
        total = total + reinforced * chance
        if baseline is not None and baseline.training:
            _learn(baseline, reward.sum(), count.sum())
    return Loss(total, parts)


LEAST = 1e-30
"""A smaller weight counts as this: its logarithm stays finite."""


def misaligned(weight: Tensor, links: Tensor) -> Tensor:
    """Cross entropy of weights against given links, summed over the linked rows.

    B T S, B T S of 0 and 1 -> ()

    Every key that a row is linked to is an equal part of its target: -Σ_s g_s/Σg · log a_s. A row
    without a link adds nothing. Chen 2016 (Guided alignment training) §3.1, Garg 2019 §3.3
    """
    check(weight=(weight, "B T S"), links=(links, "B T S"))
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    share = links / links.sum(-1, keepdim=True).clamp(min=1)
    return -(share * wide.clamp(min=LEAST).log()).sum()


class SequenceObjective(nn.Module):
    """The base of objectives over symbols: a recipe's weights of each part, and a baseline."""

    def __init__(self, settings: Training) -> None:
        super().__init__()
        self.settings, self.baseline = settings, MovingAverage()

    def loss(
        self, logits: Tensor | Unformed, labels: Tensor, seen: Mapping[str, Attended], **more: Any
    ) -> Loss:
        """`sequence_loss` by the recipe; more: elsewhere, aligned, guided, none."""
        return sequence_loss(
            logits,
            labels,
            seen,
            smoothing=self.settings.smoothing,
            coverage=self.settings.coverage,
            reinforced=self.settings.reinforce,
            entropy_bonus=self.settings.entropy_bonus,
            baseline=self.baseline,
            **more,
        )


def _surprise(
    logits: Tensor | Unformed, labels: Tensor, smoothing: float, none: int
) -> tuple[Tensor, Tensor]:
    """The smoothed sum, and each symbol's -log p.    -> (), B T"""
    if isinstance(logits, Tensor):
        check(logits=(logits, "B T V"), labels=(labels, "B T"))
        smooth, nll = surprise(logits, labels, smoothing, none)
        return smooth.sum(), nll
    check(known=(logits.known, "B T M"), weight=(logits.weight, "V M"), labels=(labels, "B T"))
    return surprise_of(logits, labels, smoothing, none)


@dataclass(frozen=True, slots=True)
class _Asked:
    """An attention, which of the places that asked it are real, and what each of them earned."""

    record: Attended  # its fields B H T
    real: Tensor  # B T
    reward: Tensor  # B T

    def penalty(self) -> Tensor:
        """The penalty at real places, the mean over heads."""
        assert self.record.penalty is not None
        check(penalty=(self.record.penalty, "B H T"), labels=(self.real, "B T"))
        return (self.record.penalty.mean(1) * self.real).sum()

    def reinforce(self, level: Tensor | float, bonus: float) -> Tensor:
        """REINFORCE as a sum: a look earns the log-probability of its word."""
        record, real = self.record, self.real[:, None]
        assert record.log_prob is not None
        check(log_prob=(record.log_prob, "B H T"), labels=(self.real, "B T"))
        entropy = None if record.entropy is None else record.entropy * real
        mean = reinforce(record.log_prob * real, self.reward, level, entropy=entropy, bonus=bonus)
        return mean * len(real)  # `reinforce` is the mean over rows


def _learn(baseline: MovingAverage, reward: Tensor, count: Tensor) -> None:
    """Update the baseline with the mean reward of `count` symbols, if there are any and it is
    finite.

    A batch of fillers has no symbols, and a step that is not finite is skipped. An `if` would wait
    for the GPU, so the buffers are put back on the device.
    """
    known = reward.isfinite() & (count > 0)
    buffers = list(baseline.buffers())
    before = [buffer.clone() for buffer in buffers]
    baseline.update(reward / count.clamp(min=1))
    for buffer, was in zip(buffers, before, strict=True):
        buffer.copy_(torch.where(known, buffer, was))
