"""The validations of a training: loss, scores, a few answers, a picture of their attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heed.answers.form import Example
from heed.answers.worker import Worker
from heed.errors import Refused
from heed.running.passes import one_pass
from heed.storage.run_folder import RunFolder
from heed.tasks.task import Codec, Task
from heed.viewing.image import svg
from heed.viewing.panels import Panel


@dataclass(frozen=True, slots=True)
class Validated:
    """The result of a validation.

    loss     lower is better: it decides which weights are kept as the best
    figures  the values for metrics.jsonl
    """

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
            if look.weighed:  # a row, named by the answer
                words, weights = look.weighed[0].words, look.weighed[0].weights
                return [Panel.of(look.source, [list(weights)], [answers[0].answer], words)]
            return look.panels[: form.pictured]
        except Refused:
            return []
