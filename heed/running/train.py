"""Train: a recipe, a folder, and a model comes out of it; stopped at any moment, it goes on.

    trained = finish(train(resolve(load("demo")), Path("runs/demo")))

Logging, validating, saving and stopping are ordinary code around `for moment in fit(...)`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heed.data.batches import Batch, Batches
from heed.data.tokenise import PAD
from heed.errors import Refused
from heed.running.devices import chosen, version
from heed.running.evaluate import evaluated
from heed.running.events import Event, Note, Progress, Result, Stopped, Work, relayed
from heed.running.opening import Config, fits, open_run, read_config
from heed.running.preparing import Prepared, kept, prepare
from heed.running.recipe import Recipe, as_yaml, check, parse, resolve
from heed.running.validating import Validator
from heed.tasks.translate import Scores
from heed.tasks.translator import Translator, shifted
from heed.training import checkpoint, distributed, optimise, signals
from heed.training.distributed import Distributed
from heed.training.fit import Moment, due, fit, planned
from heed.training.folder import RunFolder, header
from heed.training.journal import Journal
from heed.training.objective import Loss, sequence_loss
from heed.training.progress import Progress as Standing
from heed.training.progress import gather, load_weights, restore
from heed.training.reinforce import MovingAverage
from heed.training.settings import Training


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of a training."""

    folder: Path
    parameters: int
    steps: int
    seconds: float
    tokens_per_second: float  # symbols of the target
    perplexity: float  # of the validation pairs
    scores: dict[str, Scores]  # of the parts that the run keeps: test, long

    def as_data(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "folder": str(self.folder)}


class TeacherForcing(nn.Module):
    """The objective: each symbol of the target given those before it, and what attention asks."""

    def __init__(self, settings: Training) -> None:
        super().__init__()
        self.settings, self.baseline = settings, MovingAverage()

    def count(self, batch: Batch) -> int:
        """Symbols of the target."""
        return int((batch.tokens["target"] != PAD).sum())

    def forward(self, model: nn.Module, batch: Batch) -> Loss:
        source, labels = batch.tokens["source"], batch.tokens["target"]
        written = model(source, batch.lengths["source"], shifted(labels))
        encoder = {path for path in written.seen if path.startswith("encoder")}
        return sequence_loss(
            written.output,
            labels,
            {path: seen for path, seen in written.seen.items() if path not in encoder},
            elsewhere={path: (written.seen[path], source != PAD) for path in encoder},
            smoothing=self.settings.smoothing,
            coverage=self.settings.coverage,
            reinforced=self.settings.reinforce,
            entropy_bonus=self.settings.entropy_bonus,
            baseline=self.baseline,
        )


def train(
    recipe: Recipe | None,
    path: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    start: Path | None = None,
    device: str = "auto",
) -> Work[Trained]:
    """Train as the recipe says, into a folder; or go on with the run that the folder holds.

    resume  go on where the folder holds a run: its own recipe counts then
    start   a run whose weights are the beginning, instead of random ones, and whose tokens count
    """
    with ExitStack() as stack:
        crew = stack.enter_context(distributed.join(chosen(device)))
        stop = stack.enter_context(signals.listening())
        folder, recipe = _opened(recipe, path, resume, overwrite, crew)
        if crew.main:
            stack.enter_context(folder.lock())
        prepared = yield from _until(stop, _prepared(recipe, folder, crew, start))
        learner = Learner(recipe, folder, prepared, crew, stop, start)
        stack.enter_context(learner.journal)
        yield from learner.catch_up()
        yield from learner.learn()
        return (yield from _until(stop, learner.finish(), learner))


def _until(stop: signals.Stop, work: Work[Result], learner: Learner | None = None) -> Work[Result]:
    """Work around the learning, given up where somebody asks to stop: it is done again."""

    def heard(event: Event) -> Event:
        if stop.asked:
            place = None if learner is None else learner.folder.path
            raise Stopped(place, 0 if learner is None else learner.standing.step, stop.code)
        return event

    return relayed(work, heard)


def _opened(
    recipe: Recipe | None, path: Path, resume: bool, overwrite: bool, crew: Distributed
) -> tuple[RunFolder, Recipe]:
    """The folder and the recipe that counts. Only the main process makes folders."""
    if crew.share(resume and (path / "config.json").exists()):
        folder = RunFolder.open(path)
        read_config(folder)  # of this task, or refused
        where = str(folder.recipe)
        return folder, resolve(parse(folder.read_text(folder.recipe), where), where=where)
    if recipe is None:
        raise Refused(f"{path} holds no run to go on with")
    check(recipe)
    if crew.main:
        folder = RunFolder.create(path, overwrite=overwrite)
        folder.write_text(folder.recipe, as_yaml(recipe))
    return RunFolder(path), recipe


def _prepared(
    recipe: Recipe, folder: RunFolder, crew: Distributed, start: Path | None
) -> Work[Prepared]:
    """The main process prepares; the others wait, and open what it wrote."""
    if crew.main:
        prepared = yield from prepare(recipe, folder, start)
    crew.share(None)
    if not crew.main:
        prepared = yield from prepare(recipe, folder)
    return prepared


class Learner:
    """One run: model, optimiser and data in their places, and where it stands."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        prepared: Prepared,
        crew: Distributed,
        stop: signals.Stop,
        start: Path | None,
    ) -> None:
        self.recipe, self.settings, self.folder = recipe, recipe.training, folder
        self.crew, self.stop = crew, stop
        self.notes: list[Note] = []
        self.config = _config(recipe, prepared)
        self.found = crew.share(self._newest())
        self._check_sizes()
        torch.manual_seed(recipe.seed)
        self.model = self.config.build()
        if start is not None:
            load_weights(
                self.model, open_run(start, torch.device("cpu")).translator.model.state_dict()
            )
        self.model.to(crew.device)
        self.objective = TeacherForcing(self.settings).to(crew.device)
        self.optimiser = optimise.build(self.model, self.settings)
        self.batches = Batches(
            prepared.train,
            tokens=self.settings.batch_tokens,
            seed=recipe.seed,
            shard=(crew.rank, crew.world),
            fixed=self.settings.capture and crew.device.type == "cuda",
        )
        self.total = planned(self.settings, self.batches)
        if self.settings.warmup > self.total:
            self._say(f"warmup={self.settings.warmup} is longer than the {self.total} steps in all")
        self.schedule = optimise.schedule(self.settings, self.total)
        self.standing = Standing()
        self.translator = Translator(
            self.model,
            prepared.vocabulary,
            crew.device,
            longest=self.config.reads,
            writes=self.config.writes,
        )
        self.validator = Validator(self.translator, prepared.valid, folder)
        self.journal = Journal(folder.metrics, say=self._say)
        torch.manual_seed(recipe.seed + crew.rank)  # each process drops out for itself

    def _say(self, text: str) -> None:
        self.notes.append(Note(text))

    def _told(self) -> Work[None]:
        while self.notes:
            yield self.notes.pop(0)

    def catch_up(self) -> Work[None]:
        """From the newest good checkpoint, if there is one."""
        if self.found is None:
            if self.crew.main:
                self.folder.write_json(self.folder.config, self.config.model_dump(mode="json"))
                self.journal.rewind(-1)
            yield Note(f"{parameters(self.model):,} parameters on {self.crew.device}")
            yield from self._told()
            return
        saved = checkpoint.load(self.folder.checkpoints / self.found)
        restore(saved.tensors, saved.facts, *self._state(), self.crew)
        if self.crew.main:
            checkpoint.rewind(self.folder.checkpoints, self.standing.step)
            if not saved.facts.get("passing"):
                self._tidy()
            self.journal.rewind(self.standing.step)
        yield from self._told()
        yield Note(f"going on from step {self.standing.step}")

    def _newest(self) -> str | None:
        found = self.folder.newest(self._say) if self.crew.main else None
        return None if found is None else found.name

    def _check_sizes(self) -> None:
        """Before anything is allocated: the recipe, config.json and the checkpoint agree."""
        if self.folder.config.exists():
            told = read_config(self.folder).model_copy(update={"heed": self.config.heed})
            if told != self.config:
                raise Refused(
                    f"{self.folder.recipe} is not the recipe that {self.folder.config} is of"
                )
        if self.found is not None:
            path = self.folder.checkpoints / self.found / "model.safetensors"
            fits(self.config, header(path), path)

    def _state(
        self,
    ) -> tuple[Standing, nn.Module, torch.optim.Optimizer, optimise.Schedule, TeacherForcing]:
        return self.standing, self.model, self.optimiser, self.schedule, self.objective

    def learn(self) -> Work[None]:
        """The loop: log, validate, save, stop."""
        note = ""
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
            if due(self.settings.log_every, moment):
                note = self._log(moment)
            yield Progress("training", moment.step, self.total, note)
            last = moment.final
            if due(self.settings.validate_every, moment) or last:
                with self._aside():
                    yield from self._validate()
            asked = self.crew.greatest(self.stop.code)
            expected = due(self.settings.save_every, moment) or last
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
        """What happens here is not training, and does not count as its time."""
        if self.crew.device.type == "cuda":
            torch.cuda.synchronize()  # what is still on its way is training
        begun = time.perf_counter()
        yield
        self.standing.paused += time.perf_counter() - begun

    def _log(self, moment: Moment) -> str:
        loss = float(moment.loss)
        speed = self.standing.tokens / max(self.standing.seconds, 1e-9)
        if self.crew.main:
            parts = {name: float(part) for name, part in moment.parts.items()}
            figures = {"loss": loss, **parts, "rate": moment.rate, "norm": float(moment.norm)}
            figures |= {"epoch": moment.epoch, "tokens_per_second": speed}
            self.journal.write(moment.step, {"train": figures})
        return f"loss {loss:.3f} · {speed:,.0f} symbols/s"

    def _validate(self) -> Work[None]:
        """Judge; keep the weights if they are the best so far. All hear what the main one found."""
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
        """passing: only because of a stop, where an undisturbed run would not have saved."""
        tensors, facts = gather(*self._state(), self.crew)
        if self.crew.main:
            place = checkpoint.at(self.folder.checkpoints, self.standing.step)
            checkpoint.save(place, tensors, {**facts, "passing": passing})
            if not passing:
                self._tidy()

    def _tidy(self) -> None:
        """Keep the last few of those that an undisturbed run has: they may be averaged."""
        checkpoint.forget(self.folder.checkpoints, lambda facts: facts.get("passing") is True)
        checkpoint.prune(self.folder.checkpoints, self.settings.keep)

    def finish(self) -> Work[Trained]:
        """The weights to keep: the best, or the mean of the last where that is better. Judged."""
        scores: dict[str, Scores] = {}
        if self.crew.main:
            load_weights(self.model, self.folder.load_model())
            if self.settings.average > 1:
                yield from self._average()
            for part in ("test", "long"):
                if (self.folder.examples / f"{part}.jsonl").exists():
                    scores[part] = yield from self._score(part)
                    yield Note(f"{part}: {scores[part].line()}")
        trained = self._trained(scores)
        if self.crew.main:
            self.folder.write_json(self.folder.scores, trained.as_data())
        return trained

    def _average(self) -> Work[None]:
        """Averaging the last few checkpoints: Vaswani 2017 §6.1."""
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
        verdict = "taken" if better else f"the best single one has {best:.4f} and is taken"
        yield Note(
            f"mean of the last {len(last)} checkpoints: validation loss {loss:.4f}; {verdict}"
        )

    def _score(self, part: str) -> Work[Scores]:
        pairs = list(kept(self.folder, part))
        lowercase = self.recipe.data.tokens.lowercase
        found = yield from evaluated(
            self.translator, pairs, self.recipe.decoding, lowercase, stage=f"scoring {part}"
        )
        return found.scores

    def _trained(self, scores: dict[str, Scores]) -> Trained:
        standing = self.standing
        return Trained(
            self.folder.path,
            parameters(self.model),
            standing.step,
            standing.seconds,
            standing.tokens / max(standing.seconds, 1e-9),
            math.exp(min(standing.best or 0.0, 700)),
            scores,
        )


def parameters(model: nn.Module) -> int:
    """Numbers that are learnt, shared ones counted once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _config(recipe: Recipe, prepared: Prepared) -> Config:
    vocabulary = prepared.vocabulary
    return Config(
        heed=version(),
        task=recipe.task,
        model=recipe.model,
        source=vocabulary.source.size,
        target=vocabulary.target.size,
        shared=vocabulary.shared,
        longest=recipe.data.longest,
        lowercase=recipe.data.tokens.lowercase,
        decoding=recipe.decoding,
    )
