"""A task, as running asks it: everything that follows from its kinds and its form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from heed.answers.form import Example, Form
from heed.answers.worker import Worker
from heed.errors import Refused
from heed.events import Work
from heed.running import preparing
from heed.running.passes import Pass, one_pass, walkable
from heed.running.stories.story import Run, Story, scored_part, shown_part
from heed.storage.run_folder import RunFolder
from heed.tasks.task import Codec, Evaluated, Prepared, Start, Task
from heed.viewing.blocks import Block, Value
from heed.viewing.image import svg
from heed.viewing.looking import Look
from heed.viewing.panels import Panel

if TYPE_CHECKING:
    from heed.running.learner import Trained


@dataclass(frozen=True, slots=True)
class Validated:
    """The result of a validation."""

    loss: float
    figures: dict[str, Any]
    summary: str

    def line(self) -> str:
        """A summary in one line."""
        return f"validation {self.summary}"


class Validator:
    """Validates a model on the same examples each time."""

    def __init__(
        self, task: Task[Any, Any], worker: Worker, examples: Sequence[Example], folder: RunFolder
    ) -> None:
        self.task, self.worker, self.examples, self.folder = task, worker, examples, folder

    def loss(self) -> float:
        """Nats per unit."""
        return self.worker.loss(self.examples)

    def judge(self, step: int) -> Validated:
        """Loss and scores, a few answers with a picture, and the attentions' statistics."""
        loss, figures, line = self.worker.form.validated(self.worker, self.examples)
        attention = self.worker.sharpness(self._some(self.task.watched))
        brief = self._samples(step)
        told = {"loss": loss, **figures, "attention": attention}
        return Validated(loss, told, f"{line} · {brief}" if brief else line)

    def _some(self, count: int) -> list[Example]:
        codec = Codec(self.worker.inputs, self.worker.form)
        return self.task.excerpts(codec, self.examples, count)

    def _samples(self, step: int) -> str:
        """Write a few answers and their attention; returns the first in brief."""
        worker, form = self.worker, self.worker.form
        examples = self._some(self.task.sampled)
        answers = worker.answers([each.inputs for each in examples])
        both = list(zip(examples, answers, strict=True))
        text = "".join(form.sample(example, best[0]) for example, best in both)
        panels = [panel for each, some in both for panel in self._pictured(each, some)]
        columns = 1 if form.pictured == 1 else None
        self.folder.write_sample(step, text, svg(panels, columns=columns) if panels else "")
        return str(form.brief(answers[0][0]))

    def _pictured(self, example: Example, answers: Sequence[Any]) -> list[Panel]:
        """The most telling maps of an example; none where weights are not finite."""
        form = self.worker.form
        told = {"gold": example.answer, "answers": answers if form.rereads else ()}
        try:
            look = one_pass(self.worker, example.inputs, **told).look
            return look.panels[: form.pictured]
        except Refused:
            return []


@dataclass(frozen=True, slots=True)
class Answered:
    """The answers of `heed predict` to a line; with a look, the attention can be shown."""

    form: Form[Any, Any]
    found: Sequence[Any]
    best: int = 1
    look: Look | None = None

    @property
    def remark(self) -> str:
        """A warning, such as that the input was cut."""
        return next((each.remark for each in self.found if each.remark), "")

    def line(self) -> str:
        """The answers in a line, with tabs between them; missing ones are blank."""
        return self.form.as_line(self.found, self.best)

    def as_data(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return self.form.as_json(self.found)

    def shown(self) -> Look:
        """The answer with its attention."""
        assert self.look is not None
        return self.look


class Composed(Story[Any, Any, Prepared, Codec, Worker]):
    """What running asks of a task, from its kinds and its form."""

    def __init__(self, task: Task[Any, Any]) -> None:
        self.task = task
        self.name = task.name  # type: ignore[misc]
        self.about = task.about  # type: ignore[misc]
        self.unit = task.form.unit  # type: ignore[misc]
        self.recipe, self.config = task.recipe, task.config  # type: ignore[misc]
        self.whole, self.continues = task.whole, task.continues  # type: ignore[misc]
        self.figures, self.onward, self.looks = (  # type: ignore[misc]
            task.figures,
            task.onward,
            task.looks,
        )

    def check(self, recipe: Any) -> None:
        self.task.check(recipe)

    def draft(self, recipe: Any) -> None:
        self.task.draft(recipe)

    def exchanged(self, model: Mapping[str, Any], name: str) -> dict[str, Any]:
        return self.task.exchanged(model, name)

    def prepare(self, recipe: Any, folder: RunFolder, start: Start | None = None) -> Work[Prepared]:
        return preparing.prepare(self.task, recipe, folder, start)

    def describe(self, recipe: Any, prepared: Prepared) -> Any:
        return self.task.describe(recipe, prepared)

    def objective(self, recipe: Any, prepared: Prepared) -> Any:
        codec = prepared.codec
        return codec.form.objective(list(codec.inputs), recipe.training)

    def batches(
        self, recipe: Any, prepared: Prepared, *, shard: tuple[int, int], fixed: bool
    ) -> Any:
        return self.task.batches(recipe, prepared, shard=shard, fixed=fixed)

    def tokens(self, folder: RunFolder, config: Any) -> Codec:
        return self.task.codec(folder, config)

    def tokeniser(self, tokens: Codec) -> Any:
        return self.task.tokeniser(tokens)

    def ready(self, model: nn.Module, tokens: Codec) -> None:
        self.task.ready(model, tokens)

    def adopted(self, model: nn.Module, start: Start) -> Any:
        return self.task.adopted(model, start)

    def worker(self, model: nn.Module, tokens: Codec, config: Any, device: torch.device) -> Worker:
        return self.task.worker(model, tokens, config, device)

    def validator(self, worker: Worker, prepared: Prepared, folder: RunFolder) -> Validator:
        return Validator(self.task, worker, prepared.valid, folder)

    def parts(self, folder: RunFolder) -> list[str]:
        there = [part for part in preparing.PARTS if (folder.examples / f"{part}.jsonl").exists()]
        return list(self.task.scored_parts(there))

    def score(self, config: Any, worker: Worker, folder: RunFolder, part: str) -> Work[Any]:
        codec = Codec(worker.inputs, worker.form)
        examples = list(preparing.examples(self.task, codec, folder, part))
        stage = f"scoring {part}"
        return (yield from self.task.evaluated(worker, examples, config, {}, stage)).scores

    def evaluate(
        self, run: Run[Any, Worker], data: str | Sequence[Path], options: Mapping[str, Any]
    ) -> Work[Evaluated]:
        task, worker = self.task, run.worker
        decoding = task.form.decoding
        task.only(options, (*task.scoring, *(decoding.model_fields if decoding else ())))
        codec = Codec(worker.inputs, worker.form)
        if isinstance(data, str):
            task.of_kept(options)
            part = yield from scored_part(run.folder, data)
            examples = list(preparing.examples(task, codec, run.folder, part))
        else:
            examples = yield from task.given(run.config, codec, data, options)
        return (yield from task.evaluated(worker, examples, run.config, options, "answering"))

    def lines(self, file: str, options: Mapping[str, Any]) -> Iterator[str]:
        return self.task.lines(file, options)

    def predict(
        self,
        run: Run[Any, Worker],
        lines: Iterator[str],
        options: Mapping[str, Any],
        *,
        look: bool,
        at_once: int,
    ) -> Iterator[Answered]:
        task, worker = self.task, run.worker
        task.only(options, task.known(), run)
        choice, best = task.chosen(run.config, options)
        codec = Codec(worker.inputs, worker.form)
        count = 0
        while chunk := list(islice(lines, at_once)):
            items = [task.of_line(codec, line) for line in chunk]
            found = worker.answers(items, choice, best, count)
            count += len(items)
            for item, some in zip(items, found, strict=True):
                seen = one_pass(worker, item, answers=some[:1]).look if look else None
                yield Answered(worker.form, some, best, seen)

    def passes(
        self,
        run: Run[Any, Worker],
        texts: Sequence[str],
        given: Sequence[Look] = (),
        *,
        several: bool = False,
    ) -> list[Pass]:
        """A pass over each text, or over a few examples that the run keeps.

        given    another model's looks at the same texts
        several  read as many answers to each as can be explored
        """
        task, worker = self.task, run.worker
        codec = Codec(worker.inputs, worker.form)
        examples = [Example(task.of_line(codec, text), None) for text in texts]
        if not texts:
            part = shown_part(run.folder, "text")
            examples = task.excerpts(
                codec, preparing.examples(task, codec, run.folder, part), task.few
            )
        choice = getattr(run.config, "decoding", None)
        best = worker.form.explored(choice) if several else 1
        others = [each.readings for each in given] or [()] * len(examples)
        more: dict[str, Any] = {"choice": choice, "best": best}
        return [
            one_pass(worker, each.inputs, gold=each.answer, given=other, **more)
            for each, other in zip(examples, others, strict=True)
        ]

    def show(self, run: Run[Any, Worker], texts: Sequence[str], *, every: bool) -> list[Look]:
        from dataclasses import replace

        return [replace(each.look, every=every) for each in self.passes(run, texts)]

    def look(
        self, run: Run[Any, Worker], texts: Sequence[str], given: Sequence[Look] = ()
    ) -> list[Look]:
        return [each.look for each in self.passes(run, texts, given, several=True)]

    def hear(self, run: Run[Any, Worker], text: str) -> Pass:
        (found,) = self.passes(run, [text])
        return walkable(found)

    def figured(self, trained: Trained) -> list[Value]:
        return self.task.figured(trained.scores, trained.perplexity)

    def compared(self, trained: Mapping[str, Trained]) -> list[Block]:
        return self.task.compared({name: each.scores for name, each in trained.items()})
