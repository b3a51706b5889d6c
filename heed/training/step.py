"""One step: the gradients of a few batches, summed, clipped, and applied if they are finite.

Nothing here waits for a GPU: whether a step was skipped is decided, and counted, on the device.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from heed.errors import Refused
from heed.training import distributed as processes
from heed.training import optimise
from heed.training.capture import Backward, Captured
from heed.training.distributed import Distributed
from heed.training.objective import Objective, Several
from heed.training.settings import Training
from heed.training.surprise import compiled


class Batch(Protocol):
    """A batch as the loop knows it; the rest is between data and objective."""

    @property
    def rows(self) -> Tensor:
        """The numbers of the samples; negative for padding rows.    B"""

    def to(self, device: torch.device) -> Self:
        """This batch on another device, from pinned memory without waiting."""

    def pin_memory(self) -> Self:
        """A copy in page-locked memory, which a GPU reads by itself."""


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a step; `figures` are means per symbol over all processes, with "loss"."""

    figures: dict[str, Tensor]
    tokens: int
    norm: Tensor
    skipped: Tensor


class Stepper:
    """Moves the weights of a model once per call.

    rehearsal  a batch to find parameters that get no gradient, where there are several processes
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimiser: Optimizer,
        settings: Training,
        device: torch.device,
        crew: Distributed,
        rehearsal: Batch | None,
    ) -> None:
        self.objective, self.optimiser, self.settings = objective, optimiser, settings
        self.device, self.crew = device, crew
        self.captured = settings.capture and device.type == "cuda"
        if self.captured and crew.world > 1:
            raise Refused("capture=true works with one process; set capture=false under torchrun")
        fused = settings.compile and device.type == "cuda"
        backward = partial(_backward, bf16=settings.precision == "bf16", fused=fused)
        self.model = model
        if crew.world > 1 and rehearsal is not None:
            self.model = crew.wrap(model, idle=bool(self._idle(model, rehearsal, backward)))
        if settings.compile:
            model.compile()
        self.backward: Backward = partial(backward, self.model, objective)
        if self.captured:
            self.backward = Captured(self.backward, model)

    def _idle(self, model: nn.Module, batch: Batch, backward: Callable[..., object]) -> list[str]:
        objective, one = copy.deepcopy(self.objective), torch.ones((), device=self.device)
        batch = _moved(batch, self.device)
        return processes.idle(model, lambda copied: backward(copied, objective, batch, one))

    def __call__(self, batches: Sequence[Batch], rate: float) -> Done:
        """Take one step, on the batches of this process and of the others."""
        self.model.train()
        if isinstance(self.objective, nn.Module):
            self.objective.train()
        # A captured graph writes gradients to where they were when it was recorded.
        self.optimiser.zero_grad(set_to_none=not self.captured)
        tokens, figures = self._gradients(batches)
        weights = list(optimise.parameters(self.optimiser))
        norm = get_total_norm([w.grad for w in weights if w.grad is not None])
        skipped = ~(norm.isfinite() & figures["loss"].isfinite())
        if self.settings.clip:
            clip_grads_with_norm_(weights, self.settings.clip, norm)
        optimise.step(self.optimiser, rate, skipped)
        return Done(figures, tokens, norm, skipped)

    def _gradients(self, batches: Sequence[Batch]) -> tuple[int, dict[str, Tensor]]:
        """Compute the gradients of the mean over all symbols of the step, on all processes."""
        world = self.crew.world
        if isinstance(self.objective, Several):
            self.objective.balance(batches, self.crew.sum)
        (tokens,) = self.crew.sum(sum(self.objective.count(batch) for batch in batches))
        # Wrapped models average over the processes, and the sum is wanted.
        factor = torch.full((), world / max(tokens, 1), device=self.device)
        *before, last = batches
        with processes.quiet(self.model):
            told = [self.backward(_moved(batch, self.device), factor) for batch in before]
        told.append(self.backward(_moved(last, self.device), factor))
        sums = torch.stack([torch.stack(list(figures.values())) for figures in told]).sum(0)
        means = self.crew.add_(sums * (factor / world))
        return tokens, dict(zip(told[0], means.unbind(), strict=True))


def _backward(
    model: nn.Module, objective: Objective, batch: Batch, factor: Tensor, *, bf16: bool, fused: bool
) -> dict[str, Tensor]:
    """Add the gradients of a batch, times the factor; returns its sums."""
    with torch.autocast(factor.device.type, torch.bfloat16, enabled=bf16), compiled(fused):
        loss = objective(model, batch)
    (loss.total * factor).backward()
    return {"loss": loss.total.detach(), **loss.parts}


def _moved(batch: Batch, device: torch.device) -> Batch:
    """The batch on the device, from pinned memory, so that the host does not wait for the copy."""
    return (batch.pin_memory() if device.type == "cuda" else batch).to(device)
