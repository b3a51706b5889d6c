"""A label for every word or step of an input: its objective, how it is told, what a person sees."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from heed.answers.form import Example, Form, Movable, Reading, loss_of
from heed.answers.label import OneLabel, confusion_scores
from heed.answers.worker import Worker
from heed.data.batches import Batch
from heed.records import Attended
from heed.training.objective import Loss, SequenceObjective
from heed.viewing.blocks import Column, Table, Value
from heed.viewing.terminal import shown

NONE = -1
"""The label where none is asked for: padding, and the later pieces of a word."""


class LabelsObjective(SequenceObjective):
    """The label at every place that has one."""

    def __init__(self, part: str, settings: Any) -> None:
        super().__init__(settings)
        self.part = part

    def count(self, batch: Batch) -> int:
        """The number of labels in a batch."""
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


@dataclass(frozen=True, slots=True)
class TagScores:
    """Scores of a label for each position, in per cent."""

    sentences: int
    words: int  # that were read
    unread: int  # words of sentences that were cut
    accuracy: float
    span_f1: float | None  # None: labels mark no spans
    precision: float | None
    recall: float | None
    loss: float  # nats per word
    floor: float  # accuracy of the most frequent label
    by_label: list[OneLabel]

    def line(self) -> str:
        """The scores in one line."""
        spans = "" if self.span_f1 is None else f"span F1 {self.span_f1:.2f} · "
        return f"accuracy {self.accuracy:.2f} % · {spans}loss {self.loss:.4f}"

    def facts(self) -> list[tuple[str, str, str]]:
        """The figures of all words together."""
        found = [
            ("words", f"{self.words:,}", f"in {self.sentences:,} sentences"),
            ("accuracy", f"{self.accuracy:.2f} %", f"{self.floor:.2f} % by the commonest label"),
            ("loss", f"{self.loss:.4f}", "nats per word"),
        ]
        if self.span_f1 is not None:
            both = f"precision {self.precision:.2f}, recall {self.recall:.2f}; whole spans"
            found.insert(2, ("span F1", f"{self.span_f1:.2f}", both))
        unread = ("unread", f"{self.unread:,}", "words beyond what the model reads")
        return [*found, unread] if self.unread else found

    def tables(self) -> list[Table]:
        """The scores of each label."""
        columns = [Column("label"), Column("words", ",d")]
        columns += [Column(name, ".3f") for name in ("precision", "recall", "F1")]
        rows: list[list[Value]] = [
            [one.label, one.texts, one.precision, one.recall, one.f1] for one in self.by_label
        ]
        return [Table(columns, rows)]


class Labels(Form[Sequence[str], Labelling]):
    """A label for every place of the first part of an input.

    names  the labels, in the order of their numbers
    kind   the kind of the input; one that has `places` says where its words begin
    """

    name = "labels"
    unit = "labels"
    column = "labels"
    figures = (Column("accuracy", ".2f", "high"), Column("span F1", ".2f", "high"))

    def __init__(self, names: Sequence[str], kind: Any) -> None:
        self.names, self.input = tuple(names), kind
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
        if hasattr(self.input, "places"):
            found: list[list[int]] = self.input.places(items)
            return found
        return [list(range(len(row))) for row in self.input.rows(items)]

    def rows(self, examples: Sequence[Example]) -> dict[str, list[Any]]:
        """The number of the label at each place that has one, 0 elsewhere."""
        items = [each.inputs[0] for each in examples]
        found = []
        lengths = map(len, self.input.rows(items))
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
        self,
        worker: Worker,
        items: Sequence[Any],
        rows: Sequence[Any],
        choice: Any,
        best: int,
        numbers: Sequence[int],
    ) -> list[list[Labelling]]:
        """The likeliest label at each place."""
        shares, likely = worker.model(*worker.given(rows)).logits.float().softmax(-1).max(-1)
        found, places = [], self.places([item[0] for item in items])
        for n, (item, at) in enumerate(zip(items, places, strict=True)):
            labels = [self.names[c] for c in likely[n, at].tolist()]
            names = item[0] if hasattr(self.input, "places") else list(map(str, at))
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

    def judged(
        self, worker: Worker, examples: Sequence[Example], said: Sequence[Labelling]
    ) -> TagScores:
        """Accuracy, span F1, scores by label."""
        gold = [each.answer[: len(one.labels)] for each, one in zip(examples, said, strict=True)]
        right = [label for some in gold for label in some]
        told = [label for one in said for label in one.labels]
        found = confusion_scores(right, told, self.names)
        spans = span_scores(gold, [one.labels for one in said])
        most = max(Counter(right).values(), default=0)
        total = sum(len(each.answer) for each in examples)
        floor, loss = 100 * most / max(1, len(right)), worker.loss(examples)
        counts = len(examples), len(right), total - len(right)
        f1, precision, recall = spans
        return TagScores(
            *counts, found.accuracy, f1, precision, recall, loss, floor, found.by_label
        )

    @classmethod
    def figured(cls, scores: Mapping[str, Any], perplexity: float | None) -> list[Value]:
        """The values of `figures`."""
        (found,) = scores.values()
        return [found.accuracy, found.span_f1]

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


def spans(labels: Sequence[str]) -> set[tuple[int, int, str]]:
    """First word, end and name of every span that B-, I-, E- and S- mark, as conlleval counts them.

    A span goes on with I- or E- of the same name; after anything else these begin one.
    """
    found: set[tuple[int, int, str]] = set()
    begun, name = 0, ""
    for place, label in enumerate([*labels, "O"]):
        mark, _, this = label.partition("-") if label[:2] in MARKS else ("O", "", "")
        if name and (mark not in "IE" or this != name):
            found.add((begun, place, name))
            name = ""
        if this and not name:
            begun, name = place, this
        if mark in "ES" and name:
            found.add((begun, place + 1, name))
            name = ""
    return found


MARKS = ("B-", "I-", "E-", "S-")
"""What the labels of a span begin with; all others are of words outside."""


def span_scores(
    gold: Sequence[Sequence[str]], said: Sequence[Sequence[str]]
) -> tuple[float, float, float] | tuple[None, None, None]:
    """F1, precision and recall of whole spans, in per cent; None where labels mark none."""
    if not any(label[:2] in MARKS for labels in gold for label in labels):
        return None, None, None
    right = [spans(labels) for labels in gold]
    told = [spans(labels) for labels in said]
    hits = sum(len(one & other) for one, other in zip(right, told, strict=True))
    total, given = sum(map(len, right)), sum(map(len, told))
    f1 = 200 * hits / max(1, total + given)
    return f1, 100 * hits / max(1, given), 100 * hits / max(1, total)
