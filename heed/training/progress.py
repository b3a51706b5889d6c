"""All that is needed to resume a run exactly: JSON and named tensors, nothing else.

    tensors, facts = gather(progress, model, optimiser, schedule, objective)
    restore(tensors, facts, progress, model, optimiser, schedule, objective)

Groups of tensors: "model", "optimiser" (by parameter name), "random" (the generators of each
process), "objective" (its buffers, of each process). Loading is strict: what is missing, misshapen
or too much is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn
from torch.optim import Optimizer

from heed.errors import HeedError
from heed.training.distributed import Distributed
from heed.training.facts import Count, Facts, checked
from heed.training.objective import Objective
from heed.training.optimise import Schedule

Tensors = dict[str, dict[str, Tensor]]


Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]


class Progress(Facts):
    """The progress of a run. The loop writes it; `judge` takes the scores of validations."""

    step: Count = 0
    epoch: Count = 0
    place: Count = 0  # batches of the epoch that each process has done
    tokens: Count = 0
    seconds: float = Field(0.0, ge=0)
    best: float | None = None  # score; the lower, the better
    bad: Count = 0  # validations since the best

    _paused: float = PrivateAttr(default=0.0)
    _skips: Tensor = PrivateAttr(default_factory=lambda: torch.zeros(2, dtype=torch.int64))

    @property
    def paused(self) -> float:
        """Seconds since the loop began that did not go into training: validating, saving."""
        return self._paused

    @paused.setter
    def paused(self, seconds: float) -> None:
        self._paused = seconds

    @property
    def skipped(self) -> int:
        """The number of steps that moved nothing, in all. Reading it waits for the GPU."""
        return int(self._skips[0])

    @property
    def spoilt(self) -> int:
        """The number of last steps, in a row, that moved nothing."""
        return int(self._skips[1])

    def note(self, skipped: Tensor) -> None:
        """Count a step as skipped or not, without waiting for the GPU to say which."""
        total, row = self._skips.to(skipped.device, non_blocking=True).unbind()
        self._skips = torch.stack([total + skipped, (row + 1) * skipped])

    def judge(self, score: float) -> bool:
        """Take in the score of a validation, the lower the better. Returns whether it is best."""
        if math.isfinite(score) and (self.best is None or score < self.best):
            self.best, self.bad = score, 0
            return True
        self.bad += 1
        return False

    def tired(self, patience: int | None) -> bool:
        """Whether `patience` validations in a row brought nothing better."""
        return patience is not None and self.bad >= patience


def gather(
    progress: Progress,
    model: nn.Module,
    optimiser: Optimizer,
    schedule: Schedule,
    objective: Objective,
    distributed: Distributed | None = None,
) -> tuple[Tensors, dict[str, Any]]:
    """Gather what to save: tensors by group and name, and facts. Every process must call it.

    The tensors are no copies: save them before the next step.
    """
    crew = distributed or Distributed()
    moments = _moments(model, optimiser)
    tensors = {
        "model": model.state_dict(),
        "optimiser": {f"{name}.{kind}": x for name, s in moments.items() for kind, x in s.items()},
        "random": _by_rank(crew, _generators(_device(model))),
        "objective": _by_rank(crew, _buffers(objective)),
    }
    facts = {
        "progress": progress.model_dump(),
        "skips": [progress.skipped, progress.spoilt],
        "schedule": schedule.facts(),
        "optimiser": {"kind": type(optimiser).__name__, "moved": sorted(moments)},
        "world": crew.world,
    }
    return tensors, facts


def restore(
    tensors: Mapping[str, Mapping[str, Tensor]],
    facts: Mapping[str, Any],
    progress: Progress,
    model: nn.Module,
    optimiser: Optimizer,
    schedule: Schedule,
    objective: Objective,
    distributed: Distributed | None = None,
) -> None:
    """Put everything back as `gather` found it, or raise and say what does not fit."""
    crew = distributed or Distributed()
    world = checked(Count, _get(facts, "world"), "world")
    if world != crew.world:
        raise HeedError(
            f"the checkpoint was saved by {world} processes, but there are {crew.world}; "
            f"resume with torchrun --nproc-per-node {world}"
        )
    load_weights(model, _get(tensors, "model"))
    _load_moments(model, optimiser, _get(tensors, "optimiser"), _get(facts, "optimiser"))
    schedule.restore(_get(facts, "schedule"))
    _load_buffers(objective, _of_rank(crew, _get(tensors, "objective")))
    _load_progress(progress, facts)
    _load_generators(_device(model), _of_rank(crew, _get(tensors, "random")))


@torch.no_grad()
def load_weights(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Copy saved parameters and buffers into the model; names, shapes and types must agree."""
    mine = model.state_dict()
    _fits("weights", mine, saved)
    for name, tensor in mine.items():
        tensor.copy_(saved[name])


def _moments(model: nn.Module, optimiser: Optimizer) -> dict[str, dict[str, Tensor]]:
    """The optimiser's state of each parameter that has moved, by name."""
    state = {name: optimiser.state.get(p, {}) for name, p in model.named_parameters()}
    return {name: kept for name, kept in state.items() if kept}


@torch.no_grad()
def _load_moments(
    model: nn.Module, optimiser: Optimizer, saved: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    kind = checked(str, _get(facts, "kind"), "optimiser.kind")
    moved = checked(list[str], _get(facts, "moved"), "optimiser.moved")
    if kind != type(optimiser).__name__:
        raise HeedError(f"the checkpoint holds the state of {kind}, not {type(optimiser).__name__}")
    named = dict(model.named_parameters())
    if not all(name in named for name in moved):
        raise HeedError(f"the checkpoint has the state of other parameters: {moved}")
    expected: dict[str, Tensor] = {}
    for name, p in named.items():
        if name in moved:
            step = torch.zeros((), dtype=torch.float32, device=p.device)
            fresh = {
                "step": step,
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }
            expected |= {f"{name}.{kind}": x for kind, x in fresh.items()}
            optimiser.state[p] = fresh
    _fits("the optimiser's state", expected, saved)
    for name, tensor in expected.items():
        tensor.copy_(saved[name])


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _generators(device: torch.device) -> dict[str, Tensor]:
    """The states of the random generators of the CPU and of this process's GPU."""
    cuda = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **cuda}


def _load_generators(device: torch.device, saved: Mapping[str, Tensor]) -> None:
    _fits("random numbers", _generators(device), saved)
    try:
        torch.set_rng_state(saved["cpu"].cpu())
        if device.type == "cuda":
            torch.cuda.set_rng_state(saved["cuda"].cpu(), device)
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        raise HeedError(f"the checkpoint holds no valid random numbers: {said}") from None


def _buffers(objective: Objective) -> dict[str, Tensor]:
    return objective.state_dict() if isinstance(objective, nn.Module) else {}


def _load_buffers(objective: Objective, saved: Mapping[str, Tensor]) -> None:
    _fits("the objective's buffers", _buffers(objective), saved)
    if isinstance(objective, nn.Module):
        objective.load_state_dict(dict(saved))


def _load_progress(progress: Progress, facts: Mapping[str, Any]) -> None:
    told = _get(facts, "progress")
    for name in Progress.model_fields:
        _get(told, name)
    saved = checked(Progress, told, "progress")
    total, row = checked(Pair, _get(facts, "skips"), "skips")
    if max(saved.epoch, saved.bad, total) > saved.step or row > total:
        raise HeedError(
            f"the checkpoint holds no valid progress: {saved.step:,} steps cannot have "
            f"{saved.epoch:,} epochs, {saved.bad:,} validations and {total:,} steps without effect"
        )
    for name in Progress.model_fields:
        setattr(progress, name, getattr(saved, name))
    progress._skips = torch.tensor([total, row])


def _by_rank(crew: Distributed, mine: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of each process's own, as "rank.name"."""
    every = {name: crew.collect(tensor) for name, tensor in mine.items()}
    return {f"{rank}.{name}": x for name, them in every.items() for rank, x in enumerate(them)}


def _of_rank(crew: Distributed, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{crew.rank}."
    return {n.removeprefix(prefix): x for n, x in saved.items() if n.startswith(prefix)}


def _get(saved: Mapping[str, Any], name: str) -> Any:
    if not isinstance(saved, Mapping) or name not in saved:
        raise HeedError(f"the checkpoint lacks '{name}'; it cannot be resumed")
    return saved[name]


def _fits(what: str, mine: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Raise an error that names the first difference in names, shapes or types."""
    missing, extra = sorted(mine.keys() - saved.keys()), sorted(saved.keys() - mine.keys())
    if missing or extra:
        lacks = f" lack {missing[0]} ({len(missing)} missing)" if missing else ""
        holds = f" hold {extra[0]}, which is not wanted ({len(extra)} such)" if extra else ""
        raise HeedError(
            f"{what} in the checkpoint{lacks}{' and' if lacks and holds else ''}{holds}"
        )
    for name, tensor in mine.items():
        there = saved[name]
        if there.shape != tensor.shape or there.dtype != tensor.dtype:
            raise HeedError(
                f"{what} in the checkpoint do not fit at {name}: {tuple(there.shape)} "
                f"{there.dtype}, wanted {tuple(tensor.shape)} {tensor.dtype}"
            )
