"""One run in training: logging, validation, checkpoints, stopping, resuming, the final scores."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heed.errors import HeedError, Refused
from heed.events import Note, Progress, Stopped, Work
from heed.running.devices import crowded
from heed.running.opening import fits, read_config
from heed.running.preparing import examples_of, parts_of
from heed.running.starting import begin
from heed.running.validating import Validator
from heed.storage import checkpoint
from heed.storage.journal import Journal
from heed.storage.run_folder import RunFolder
from heed.tasks import task_of
from heed.tasks.task import Start
from heed.training import optimise, signals
from heed.training.distributed import Distributed
from heed.training.fit import Moment, apart, due, fit, planned
from heed.training.objective import Objective
from heed.training.progress import Progress as Standing
from heed.training.progress import gather, load_weights, restore

SETTLED = 5
"""Steps at the start that are not timed: they load, allocate and compile."""

TIMED = 10
"""The fewest steps over which a speed is measured."""

LITTLE = 200
"""With fewer steps in all, a randomly initialised network has hardly begun to learn."""

MORE = {"moved": "adversarial", "guided": "guided"}
"""The parts of a loss that make it higher than that of a validation."""

MANY = 100
"""Over so many steps, those at the start hardly change the speed."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a training."""

    folder: Path
    parameters: int
    steps: int
    seconds: float
    tokens_per_second: float | None  # of what the objective counts; None after too few steps
    scores: dict[str, Any]  # of the parts that the run keeps: test, long
    perplexity: float | None = None  # of the validation examples, if symbols are counted

    def as_data(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        told = {**asdict(self), "folder": str(self.folder)}
        return {key: value for key, value in told.items() if value is not None}


class Learner:
    """One run: its model, optimiser, data and progress."""

    def __init__(
        self,
        recipe: Any,
        folder: RunFolder,
        prepared: Any,
        crew: Distributed,
        stop: signals.Stop,
        start: Start | None,
    ) -> None:
        self.task = task_of(recipe.task)
        self.recipe, self.settings, self.folder = recipe, recipe.training, folder
        self.crew, self.stop = crew, stop
        self.notes: list[Note] = []
        self.config = self.task.describe(recipe, prepared)
        self.found = crew.share(self._newest())
        self._check_sizes()
        torch.manual_seed(recipe.seed)
        self.model = self.config.build()
        self.codec = codec = self.task.codec(folder, self.config)
        self.task.ready(self.model, codec)
        if start is not None:
            self.notes.append(begin(self.model, start, self.task))
        self.model.to(crew.device)
        objective = codec.form.objective(list(codec.inputs), recipe.training)
        self.objective: Objective = objective.to(crew.device)
        self.optimiser = optimise.build(self.model, self.settings)
        self.batches = self.task.batches(
            recipe,
            prepared,
            shard=(crew.rank, crew.world),
            fixed=self.settings.capture and crew.device.type == "cuda",
        )
        self.total = planned(self.settings, self.batches)
        self.apart = apart(self.settings, self.batches)
        self._warn()
        self.schedule = optimise.schedule(self.settings, self.total)
        self.standing = Standing()
        self.settled: Standing | None = None  # the progress after the first few steps
        self.worker = self.task.worker(self.model, codec, self.config, crew.device)
        self.validator = Validator(self.task, self.worker, prepared.valid, folder)
        self.journal = Journal(folder.metrics, say=self._say)
        torch.manual_seed(recipe.seed + crew.rank)  # each process has its own dropout

    def _warn(self) -> None:
        """Warn of too few steps, too long a warm-up, or a busy device."""
        if self.total < LITTLE:
            self._say(f"only {self.total} training steps; for more, set {self._more()}")
        if self.settings.warmup > self.total:
            self._say(
                f"warmup={self.settings.warmup} is longer than the {self.total} steps in all: "
                "the full learning rate is never reached"
            )
        if busy := crowded(self.crew.device):
            self._say(busy)

    def _more(self) -> str:
        """The keys that make more steps."""
        settings, total = self.settings, self.total
        ends = [f"training.steps above {total}"] if settings.steps == total else []
        unlimited = settings.model_copy(update={"steps": None})
        if settings.epochs is None or planned(unlimited, self.batches) > total:
            return ends[0]
        keys = [f"training.least_steps above {total}"]
        if settings.least_steps != total:
            smaller = ["batch_tokens"] + (["accumulate"] if settings.accumulate > 1 else [])
            keys += [f"training.epochs above {settings.epochs}"]
            keys += [f"training.{key} below {getattr(settings, key)}" for key in smaller]
        return " with ".join([*ends, " or ".join(keys)])

    def _say(self, text: str) -> None:
        self.notes.append(Note(text))

    def _told(self) -> Work[None]:
        while self.notes:
            yield self.notes.pop(0)

    def catch_up(self) -> Work[None]:
        """Resume from the newest good checkpoint, if there is one."""
        if self.found is None:
            if self.crew.main:
                self.folder.write_json(self.folder.config, self.config.model_dump(mode="json"))
                self.journal.rewind(-1)
            yield Note(f"{parameters(self.model):,} parameters on {self.crew.device}")
            yield from self._told()
            return
        saved = checkpoint.load(self.folder.checkpoints / self.found)
        self._restore(saved)
        self.task.ready(self.model, self.codec)  # replaces what the file has
        if self.crew.main:
            checkpoint.rewind(self.folder.checkpoints, self.standing.step)
            if not saved.facts.get("passing"):
                self._tidy()
            self.journal.rewind(self.standing.step)
        yield from self._told()
        yield Note(f"resuming from step {self.standing.step}")

    def _restore(self, saved: checkpoint.Saved) -> None:
        """Go on from a checkpoint; one whose numbers cannot be those of this run is refused."""
        place, standing = self.folder.checkpoints / str(self.found), self.standing
        try:
            restore(saved.tensors, saved.facts, *self._state(), self.crew)
        except HeedError as error:
            raise Refused(f"{place}: {error}") from None
        if checkpoint.at(self.folder.checkpoints, standing.step) != place:
            raise Refused(f"{place}: the checkpoint is of step {standing.step:,}")
        if standing.place and standing.place >= self.batches.count(standing.epoch):
            raise Refused(f"{place}: the checkpoint is beyond the end of its epoch")

    def _newest(self) -> str | None:
        found = self.folder.newest(self._say) if self.crew.main else None
        return None if found is None else found.name

    def _check_sizes(self) -> None:
        """Check that recipe, config.json and checkpoint agree, before anything is allocated."""
        if self.folder.config.exists():
            told = read_config(self.folder).model_copy(update={"heed": self.config.heed})
            if told != self.config:
                raise Refused(f"{self.folder.recipe} and {self.folder.config} do not match")
        if self.found is not None:
            path = self.folder.checkpoints / self.found / "model.safetensors"
            fits(self.config.outline(), path)

    def _state(
        self,
    ) -> tuple[Standing, nn.Module, torch.optim.Optimizer, optimise.Schedule, Objective]:
        return self.standing, self.model, self.optimiser, self.schedule, self.objective

    def learn(self) -> Work[None]:
        """The loop: log, validate, save, stop."""
        note, begun = "", self.standing.step
        if self.standing.tired(self.settings.patience):
            return
        for moment in fit(
            self.model,
            self.batches,
            self.objective,
            self.optimiser,
            self.schedule,
            settings=self.settings,
            progress=self.standing,
            device=self.crew.device,
            distributed=self.crew,
        ):
            if moment.step == begun + SETTLED:
                self.settled = self.standing.model_copy()
            if due(self.settings.log_every, moment):
                note = self._log(moment)
            yield Progress("training", moment.step, self.total, note)
            last = moment.final
            if due(self.settings.validate_every, moment, self.apart) or last:
                with self._aside():
                    yield from self._validate()
            asked = self.crew.greatest(self.stop.code)
            expected = due(self.settings.save_every, moment, self.apart) or last
            if expected or asked:
                with self._aside():
                    self._save(passing=not expected)
            yield from self._told()
            if asked:
                raise Stopped(self.folder.path, moment.step, asked)
            if self.standing.tired(self.settings.patience):
                yield Note(f"no improvement for {self.settings.patience} validations: stopping")
                break

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Exclude the time inside from the training time."""
        if self.crew.device.type == "cuda":
            torch.cuda.synchronize()  # kernels that still run count as training
        begun = time.perf_counter()
        yield
        self.standing.paused += time.perf_counter() - begun

    def _log(self, moment: Moment) -> str:
        loss = float(moment.loss)
        speed = self._speed()
        if self.crew.main:
            parts = {name: float(part) for name, part in moment.parts.items()}
            figures = {"loss": loss, **parts, "rate": moment.rate, "norm": float(moment.norm)}
            figures |= {"epoch": moment.epoch}
            figures |= {} if speed is None else {"tokens_per_second": speed}
            self.journal.write(moment.step, {"train": figures})
        pace = "" if speed is None else f" · {speed:,.0f} {self.task.form.unit}/s"
        # Both make it higher than that of a validation; the sum with moved copies is twice as high.
        more = [kind for part, kind in MORE.items() if part in moment.parts]
        what = f"loss with {more[0]} part" if more else "loss"
        what = f"smoothed {what}" if self.settings.smoothing else what
        return f"{what} {loss:.3f}{pace}"

    def _speed(self) -> float | None:
        """Tokens per second since the first few steps; None if too few have followed."""
        now, since = self.standing, self.settled
        if since is None or now.step < since.step + TIMED:
            since = Standing() if now.step >= MANY else None
        if since is None:
            return None
        return (now.tokens - since.tokens) / max(now.seconds - since.seconds, 1e-9)

    def _validate(self) -> Work[None]:
        """Validate; keep the weights if they are the best so far. All processes use the main one's
        score."""
        found = None
        if self.crew.main:
            found = self.validator.judge(self.standing.step)
            self.journal.write(self.standing.step, {"valid": found.figures})
        score = self.crew.share(None if found is None else found.loss)
        self.schedule.judge(score)
        best = self.standing.judge(score)
        if found is not None:
            if best:
                self.folder.save_model(self.model.state_dict())
            yield Note(f"step {self.standing.step}: {found.line()}")

    def _save(self, *, passing: bool) -> None:
        """Save a checkpoint. passing: only because of a stop; an uninterrupted run would not."""
        tensors, facts = gather(*self._state(), self.crew)
        if self.crew.main:
            place = checkpoint.at(self.folder.checkpoints, self.standing.step)
            checkpoint.save(place, tensors, {**facts, "passing": passing})
            if not passing:
                self._tidy()

    def _tidy(self) -> None:
        """Keep the last few checkpoints of an uninterrupted run: they may be averaged."""
        checkpoint.forget(self.folder.checkpoints, lambda facts: facts.get("passing") is True)
        checkpoint.prune(self.folder.checkpoints, self.settings.keep)

    def finish(self) -> Work[Trained]:
        """Choose the weights to keep, the best or the mean of the last ones, and score them."""
        scores: dict[str, Any] = {}
        if self.crew.main:
            self.folder.verify()
            if not self.folder.model.exists():
                raise Refused(
                    f"{self.folder.path}: no validation had a finite loss, so there are no weights "
                    "to keep; lower training.rate, or raise training.warmup"
                )
            load_weights(self.model, self.folder.load_model())
            if self.settings.average > 1:
                yield from self._average()
            for part in self.task.scored_parts(parts_of(self.folder)):
                examples = list(examples_of(self.task, self.codec, self.folder, part))
                stage = f"scoring {part}"
                work = self.task.evaluated(self.worker, examples, self.config, {}, stage)
                scores[part] = (yield from work).scores
                yield Note(f"{part}: {scores[part].line()}")
        trained = self._trained(scores)
        if self.crew.main:
            self.folder.write_json(self.folder.scores, trained.as_data())
        return trained

    def _average(self) -> Work[None]:
        """Keep the mean of the last few checkpoints if it is better. Vaswani 2017 §6.1"""
        last = list(checkpoint.good(self.folder.checkpoints, self._say))[: self.settings.average]
        yield from self._told()
        best = self.standing.best
        load_weights(self.model, checkpoint.average(last))
        loss = self.validator.loss()
        better = best is None or loss <= best
        if better:
            self.standing.best = loss
            self.folder.save_model(self.model.state_dict())
        else:
            load_weights(self.model, self.folder.load_model())
        verdict = "kept" if better else f"the best single checkpoint has {best:.4f} and is kept"
        what = (
            f"mean of the last {len(last)} checkpoints" if len(last) > 1 else "the last checkpoint"
        )
        yield Note(f"{what}: validation loss {loss:.4f}; {verdict}")

    def _trained(self, scores: dict[str, Any]) -> Trained:
        standing = self.standing
        symbols = self.task.form.unit == "symbols"
        return Trained(
            self.folder.path,
            parameters(self.model),
            standing.step,
            standing.seconds,
            self._speed(),
            scores,
            math.exp(min(standing.best or 0.0, 700)) if symbols else None,
        )


def parameters(model: nn.Module) -> int:
    """The number of trainable parameters; shared ones count once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
