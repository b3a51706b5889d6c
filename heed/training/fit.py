"""The training loop, a generator: it moves the weights; the caller logs, saves, validates, stops.

    for moment in fit(model, batches, objective, optimiser, schedule, ...):
        if due(settings.log_every, moment):
            print(moment.step, float(moment.loss))       # only reading waits for the GPU

Whatever the caller does between two moments, `progress` stands exactly after the last one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from heed.errors import HeedError, Refused
from heed.training.distributed import Distributed
from heed.training.objective import Objective
from heed.training.optimise import Schedule
from heed.training.progress import Progress
from heed.training.settings import Training
from heed.training.step import Batch, Stepper

SPOILT = 20
"""After so many steps in a row without a finite gradient, training gives up."""

SPACED = 20
"""The fewest steps between two validations where a recipe does not say how many: what a few steps
change is noise, and a very small corpus has epochs of one or two."""


class Source(Protocol):
    """The batches of an epoch, the same at every call; each process has its own part of them."""

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from place `start` on."""

    def count(self, number: int) -> int:
        """The number of batches in that epoch, the same at every process."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The outcome of a step. The tensors are still on the device: reading one waits for it."""

    step: int  # from 1
    epoch: int  # from 0
    place: int  # batches of the epoch that are done
    loss: Tensor  # mean per symbol, over all processes
    parts: dict[str, Tensor]  # what the loss is made of, means likewise
    tokens: int  # symbols that counted, over all processes
    rate: float
    norm: Tensor  # of the gradient, before clipping
    skipped: Tensor  # whether loss or gradient was not finite, and so nothing moved
    rows: Tensor  # of the samples that this process saw
    at_epoch_end: bool
    final: bool  # no step follows


def due(every: int | None, moment: Moment, epochs: int = 1) -> bool:
    """Whether something that happens every so many steps, or else (None) epochs, happens now."""
    if every is not None:
        return moment.step % every == 0
    return moment.at_epoch_end and (moment.epoch + 1) % epochs == 0


def apart(settings: Training, batches: Source) -> int:
    """The epochs that make `SPACED` steps, if every one has as many batches as the first."""
    return -(-SPACED // max(1, _steps(settings, batches)))


def planned(settings: Training, batches: Source) -> int:
    """The number of steps in all, if every epoch has as many batches as the first."""
    whole = None if settings.epochs is None else settings.epochs * _steps(settings, batches)
    least = None if whole is None else max(whole, settings.least_steps or 0)
    return min(n for n in (least, settings.steps) if n is not None)


def _steps(settings: Training, batches: Source) -> int:
    """The number of steps in the first epoch."""
    return -(-batches.count(0) // settings.accumulate)


def fit(
    model: nn.Module,
    batches: Source,
    objective: Objective,
    optimiser: Optimizer,
    schedule: Schedule,
    *,
    settings: Training,
    progress: Progress,
    device: torch.device | str,
    distributed: Distributed | None = None,
) -> Iterator[Moment]:
    """Train from where `progress` stands until the settings' epochs or steps are over; beyond the
    epochs if they have fewer than the fewest steps.

    The model is the bare one, on the device already; it is wrapped for several processes here.
    """
    crew = distributed or Distributed()
    device = torch.device(device)
    begun, progress.paused = time.perf_counter() - progress.seconds, 0.0
    with reproducible(settings.deterministic):
        rehearsal = next(batches.epoch(0, 0), None)
        step = Stepper(model, objective, optimiser, settings, device, crew, rehearsal)
        for share in _shares(batches, settings, progress, crew):
            rate = schedule(progress.step + 1)
            done = step(share.batches, rate)
            progress.note(done.skipped)
            _advance(progress, share, done.tokens)
            progress.seconds = time.perf_counter() - begun - progress.paused
            # Reading the count waits for a GPU, so there it is read now and then; on a CPU always.
            if device.type == "cpu" or progress.step % SPOILT == 0:
                _give_up(progress)
            yield Moment(
                step=progress.step,
                epoch=share.epoch,
                place=share.place,
                loss=done.figures.pop("loss"),
                parts=done.figures,
                tokens=done.tokens,
                rate=rate,
                norm=done.norm,
                skipped=done.skipped,
                rows=share.rows,
                at_epoch_end=share.last,
                final=_over(settings, progress),
            )


@dataclass(frozen=True, slots=True)
class _Share:
    """The batches of this process for one step, and where the epoch stands after it."""

    batches: list[Batch]
    epoch: int
    place: int
    last: bool

    @property
    def rows(self) -> Tensor:
        rows = torch.cat([batch.rows for batch in self.batches])
        return rows[rows >= 0]  # fillers have no number


def _shares(
    batches: Source, settings: Training, progress: Progress, crew: Distributed
) -> Iterator[_Share]:
    """The batches of each step, from where `progress` stands."""
    while not _over(settings, progress):
        epoch, count = progress.epoch, batches.count(progress.epoch)
        if crew.greatest(count) != -crew.greatest(-count) or count < 1:
            raise Refused(
                f"epoch {epoch + 1} has no batches, or not the same number in every process"
            )
        ahead = batches.epoch(epoch, progress.place)
        while progress.epoch == epoch and not _over(settings, progress):
            place = min(progress.place + settings.accumulate, count)
            yield _Share(list(islice(ahead, settings.accumulate)), epoch, place, place == count)


def _over(settings: Training, progress: Progress) -> bool:
    """Whether all steps are done, or otherwise all epochs and the fewest steps."""
    if settings.steps is not None and progress.step >= settings.steps:
        return True
    read = settings.epochs is not None and progress.epoch >= settings.epochs
    return read and progress.step >= (settings.least_steps or 0)


def _advance(progress: Progress, share: _Share, tokens: int) -> None:
    progress.step += 1
    progress.tokens += tokens
    progress.epoch, progress.place = share.epoch, share.place
    if share.last:
        progress.epoch, progress.place = share.epoch + 1, 0


def _give_up(progress: Progress) -> None:
    if progress.spoilt >= SPOILT:
        raise HeedError(
            f"loss or gradient was not finite at the last {progress.spoilt} steps, up to step "
            f"{progress.step}; the weights are those from before. Lower rate, or raise warmup"
        )


@contextmanager
def reproducible(asked: bool) -> Iterator[None]:
    """Allow only deterministic algorithms within it, if that is asked."""
    if not asked:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS chooses as it likes
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
