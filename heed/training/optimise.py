"""The optimiser, and the learning rate as a function of the step.

A schedule has no state (except `plateau`, whose state is saved), and the rate is assigned anew at
every step: a run that is resumed after step n asks for the rate of n + 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from heed.errors import HeedError, Refused
from heed.training.facts import Count, Facts, checked
from heed.training.settings import Training

KINDS: dict[str, type[Adam]] = {"adamw": AdamW, "adam": Adam}


def build(model: nn.Module, settings: Training) -> Optimizer:
    """Adam or AdamW over the parameters that learn, fused into one pass over them.

    Only matrices decay. Biases, gains and other vectors do not, since they have no size to keep
    small; nor do embeddings, whose rare rows would shrink at every step and grow only when they
    are met.
    """
    decayed, free = _split(model)
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise Refused("the model has no trainable parameters")
    capturable = settings.capture and (decayed or free)[0].is_cuda
    rate = torch.tensor(settings.rate, device=(decayed or free)[0].device)
    return KINDS[settings.optimiser](
        groups,
        lr=rate if capturable else settings.rate,  # a graph reads the rate from a fixed tensor
        betas=settings.betas,
        eps=settings.epsilon,
        fused=True,  # and so can skip a step without asking the GPU first: see `step`
        capturable=capturable,
    )


def _split(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    tables = {
        id(p)
        for module in model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        for p in module.parameters(recurse=False)
    }
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            matrix = parameter.ndim >= 2 and id(parameter) not in tables
            (decayed if matrix else free).append(parameter)
    return decayed, free


def parameters(optimiser: Optimizer) -> Iterator[Tensor]:
    """All parameters that the optimiser moves."""
    for group in optimiser.param_groups:
        yield from group["params"]


def step(optimiser: Optimizer, rate: float, skip: Tensor) -> None:
    """Move the weights at this rate, or, where `skip` is true, move nothing at all.

    Fused optimisers look at `found_inf` on the device itself, so the host does not wait; for any
    other optimiser `skip` is read here.
    """
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    if getattr(optimiser, "_step_supports_amp_scaling", False):
        optimiser.found_inf = skip.float()  # type: ignore[attr-defined]
    elif bool(skip):
        return
    optimiser.step()


class Schedule:
    """The learning rate of step 1, 2, 3, ...: linear warm-up, then what the kind says.

    inverse-sqrt  rate·min(n/w, √(w/n))               Vaswani 2017 §5.3, its peak at `rate`
    cosine        half a wave from rate down to floor  Loshchilov 2017, without restarts
    constant      rate
    """

    def __init__(self, settings: Training, total: int | None = None) -> None:
        self.settings = settings
        total = settings.steps if total is None else total
        if settings.schedule == "cosine" and total is None:
            raise Refused("cosine needs its last step: give steps=")
        self.total = total or 0

    def __call__(self, n: int) -> float:
        settings, w = self.settings, max(self.settings.warmup, 1)
        if n < w:
            return settings.rate * n / w
        return self.after(n, w)

    def after(self, n: int, w: int) -> float:
        """The rate of step n, past the w steps of warm-up."""
        rate, floor = self.settings.rate, self.settings.floor
        if self.settings.schedule == "inverse-sqrt":
            return rate * math.sqrt(w / n)
        if self.settings.schedule == "cosine":
            done = min(1.0, (n - w) / max(1, self.total - w))
            return floor + (rate - floor) * (1 + math.cos(math.pi * done)) / 2
        return rate

    def judge(self, score: float) -> None:
        """Take in the score of a validation; the lower, the better."""

    def facts(self) -> dict[str, Any]:
        """The state that must be saved."""
        return {}

    def restore(self, facts: dict[str, Any]) -> None:
        """Go on from what was saved."""
        if facts:
            raise HeedError(
                f"the checkpoint was saved under schedule=plateau, not {self.settings.schedule}"
            )


class Dropped(Facts):
    """The best score, the validations since, and the drops so far."""

    best: float | None
    bad: Count
    drops: Count


class Plateau(Schedule):
    """Drops the rate by a factor when `patience` validations in a row brought nothing better."""

    def __init__(self, settings: Training, total: int | None = None) -> None:
        super().__init__(settings, total)
        self.best: float | None = None
        self.bad = 0
        self.drops = 0

    def after(self, n: int, w: int) -> float:
        """The rate after the drops so far."""
        settings = self.settings
        return max(settings.floor, settings.rate * settings.plateau_factor**self.drops)

    def judge(self, score: float) -> None:
        """Count validations that brought nothing better."""
        if math.isfinite(score) and (self.best is None or score < self.best):
            self.best, self.bad = score, 0
            return
        self.bad += 1
        if self.bad >= self.settings.plateau_patience:
            self.drops, self.bad = self.drops + 1, 0

    def facts(self) -> dict[str, Any]:
        """The best score, the validations since, and the drops so far."""
        return Dropped(best=self.best, bad=self.bad, drops=self.drops).model_dump()

    def restore(self, facts: dict[str, Any]) -> None:
        """Go on from what was saved."""
        saved = checked(Dropped, facts, "schedule=plateau")
        self.best, self.bad, self.drops = saved.best, saved.bad, saved.drops


def schedule(settings: Training, total: int | None = None) -> Schedule:
    """The schedule that the settings name; `total` steps where epochs, not steps, were given."""
    return (Plateau if settings.schedule == "plateau" else Schedule)(settings, total)
