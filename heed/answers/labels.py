"""A label for every word or step of an input: its objective, how it is told, what a person sees."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from heed.answers.form import Example, Form, Movable, Reading, loss_of
from heed.answers.worker import Worker
from heed.data.batches import Batch
from heed.records import Attended
from heed.training.objective import Loss, SequenceObjective
from heed.viewing.terminal import shown

NONE = -1
"""The label where none is asked for: padding, and the later pieces of a word."""


class LabelsObjective(SequenceObjective):
    """The label at every place that has one."""

    def __init__(self, part: str, settings: Any) -> None:
        super().__init__(settings)
        self.part = part

    def count(self, batch: Batch) -> int:
        """How many labels a batch has."""
        return int((batch.tokens[Labels.column] != 0).sum())

    def forward(self, model: nn.Module, batch: Batch) -> Loss:
        values, lengths = batch.tokens[self.part], batch.lengths[self.part]
        labels = batch.tokens[Labels.column] - 1
        said = model(values, lengths)
        T = said.logits.shape[1]
        real = torch.arange(T, device=lengths.device) < lengths[:, None]
        looks = {path: (record, real) for path, record in said.seen.items()}
        return self.loss(said.logits, labels[:, :T], {}, none=NONE, elsewhere=looks)


@dataclass(frozen=True, slots=True)
class Labelling:
    """A label for each place of an input.

    names      the places: the words, or the numbers of the steps
    shares     how likely each label is
    positions  how many places the input has; those beyond `labels` were not read
    """

    source: str
    names: Sequence[str] = ()
    labels: Sequence[str] = ()
    shares: Sequence[float] = ()
    positions: int = 0

    @property
    def remark(self) -> str:
        """A warning if the input was too long."""
        read = f"only {len(self.labels):,} of {self.positions:,} words were read"
        return f"{self.source[:30]}…: {read}" if self.positions > len(self.labels) else ""

    @property
    def answer(self) -> str:
        """The labels with spaces between them."""
        return " ".join(map(shown, self.labels))

    text = answer

    def line(self) -> str:
        """The labels with spaces between them; blank for a blank line."""
        return self.answer

    def as_data(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        found: dict[str, Any] = {"words": list(self.names), "labels": list(self.labels)}
        return {**found, "probabilities": list(self.shares), "cut": bool(self.remark)}

    def facts(self, gold: Any = None) -> tuple[list[tuple[str, str]], int | None]:
        """The words with their labels, and the right ones where they differ."""
        pairs = zip(self.names, map(shown, self.labels), strict=False)
        found = [("Text", self.source), ("Labels", " ".join(f"{w}/{c}" for w, c in pairs))]
        if gold:
            both = zip(self.names, self.labels, gold, strict=False)
            wrong = [f"{word}: {said}, not {right}" for word, said, right in both if said != right]
            found.append(("Wrong", "; ".join(wrong) or "none"))
        return found, 1


class Labels(Form[Sequence[str], Labelling]):
    """A label for every place of the first part of an input.

    names  the labels, in the order of their numbers
    kind   the kind of the input; one that has `places` says where its words begin
    """

    name = "labels"
    unit = "labels"
    column = "labels"

    def __init__(self, names: Sequence[str], kind: Any) -> None:
        self.names, self.kind = tuple(names), kind
        self._numbers = {label: c for c, label in enumerate(self.names)}

    @property
    def fingerprint(self) -> str:
        """A hash of the labels."""
        return hashlib.sha256(repr(self.names).encode()).hexdigest()

    @property
    def sizes(self) -> dict[str, int]:
        """Labels are numbered from 1: 0 is a place without one."""
        return {self.column: len(self.names) + 1}

    def places(self, items: Sequence[Any]) -> list[list[int]]:
        """The places in each row that have a label."""
        if hasattr(self.kind, "places"):
            found: list[list[int]] = self.kind.places(items)
            return found
        return [list(range(len(row))) for row in self.kind.rows(items)]

    def rows(self, examples: Sequence[Example]) -> dict[str, list[Any]]:
        """The number of the label at each place that has one, 0 elsewhere."""
        items = [each.inputs[0] for each in examples]
        found = []
        lengths = map(len, self.kind.rows(items))
        for each, places, length in zip(examples, self.places(items), lengths, strict=True):
            row = [0] * length
            for place, label in zip(places, each.answer, strict=False):
                row[place] = self._numbers[label] + 1
            found.append(row)
        return {self.column: found}

    def as_data(self, gold: Sequence[str]) -> list[str]:
        """The labels."""
        return list(gold)

    def of_data(self, found: Any) -> tuple[str, ...]:
        """Labels of the training data."""
        if not isinstance(found, list) or not all(label in self._numbers for label in found):
            raise ValueError
        return tuple(found)

    def objective(self, parts: Sequence[str], settings: Any) -> Movable:
        """The label at every place."""
        return LabelsObjective(parts[0], settings)

    def blank(self, worker: Worker, item: tuple[Any, ...]) -> list[Labelling]:
        """No labels."""
        return [Labelling(worker.as_line(item))]

    def answers(
        self, worker: Worker, items: Sequence[Any], rows: Sequence[Any], choice: Any, best: int
    ) -> list[list[Labelling]]:
        """The likeliest label at each place."""
        shares, numbers = worker.model(*worker.given(rows)).logits.float().softmax(-1).max(-1)
        found, places = [], self.places([item[0] for item in items])
        for n, (item, at) in enumerate(zip(items, places, strict=True)):
            labels = [self.names[c] for c in numbers[n, at].tolist()]
            names = item[0] if hasattr(self.kind, "places") else list(map(str, at))
            told = worker.as_line(item), names, labels, shares[n, at].tolist(), len(item[0])
            found.append([Labelling(*told)])
        return found

    def readings(
        self, worker: Worker, examples: Sequence[Example], rows: Sequence[Any]
    ) -> list[Reading]:
        """-log p of the right labels, and how many there are."""
        logits = worker.model(*worker.given(rows)).logits.double()
        labels = torch.full(logits.shape[:2], NONE)
        for n, row in enumerate(self.rows(examples)[self.column]):
            labels[n, : len(row)] = torch.tensor(row) - 1
        labels = labels.to(logits.device)
        nats = cross_entropy(logits.mT, labels, ignore_index=NONE, reduction="none").sum(1)
        counts = (labels != NONE).sum(1)
        return [Reading(*both) for both in zip(nats.tolist(), counts.tolist(), strict=True)]

    def seen(
        self, worker: Worker, examples: Sequence[Example], rows: Sequence[Any]
    ) -> Mapping[str, tuple[Attended, Tensor]]:
        """Every attention while inputs are read."""
        values, lengths = worker.given(rows)
        said = worker.model(values, lengths, need="weight")
        return {path: (record, lengths) for path, record in said.seen.items()}

    def validated(
        self, worker: Worker, examples: Sequence[Example]
    ) -> tuple[float, dict[str, float], str]:
        """Loss and accuracy."""
        said = [best[0] for best in worker.answers([each.inputs for each in examples])]
        right = [
            gold == label
            for each, found in zip(examples, said, strict=True)
            for gold, label in zip(each.answer, found.labels, strict=False)
        ]
        loss, accuracy = loss_of(worker.read(examples)), 100 * sum(right) / max(1, len(right))
        return loss, {"accuracy": accuracy}, f"accuracy {accuracy:.2f} % · loss {loss:.4f}"

    def sample(self, example: Example, answer: Labelling) -> str:
        """Each word with its right and its predicted label."""
        rows = zip(answer.names, example.answer, answer.labels, strict=False)
        return "".join("\t".join(row) + "\n" for row in rows) + "\n"
