"""One label for a whole input: its objective, how it is told, and what a person sees of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from heed.answers.form import Example, Form, Lead, Movable, Reading, loss_of
from heed.answers.worker import Worker
from heed.data.batches import Batch
from heed.records import Attended
from heed.training.adversarial import nudge, twice
from heed.training.objective import Loss
from heed.training.reinforce import MovingAverage, reinforce
from heed.training.settings import Training, Weight
from heed.viewing.blocks import Block, Charts, Column, Table, Value
from heed.viewing.chart import BarChart, Bars
from heed.viewing.terminal import shown
from heed.viewing.words import Weighed

POOL = "pool"
"""The path of the attention that makes one vector of an input."""


class LabelTraining(Training):
    """Settings of how a classifier learns."""

    adversarial: Weight = Field(
        0.0, description="size of adversarial changes to word vectors; training/adversarial.py"
    )


class LabelObjective(nn.Module):
    """The label of each input, and the reward of an attention that samples."""

    def __init__(self, part: str, settings: LabelTraining) -> None:
        super().__init__()
        self.part, self.settings, self.baseline = part, settings, MovingAverage()

    def count(self, batch: Batch) -> int:
        """The number of inputs in a batch."""
        return int((batch.tokens[Label.column] != 0).sum())

    def forward(self, model: nn.Module, batch: Batch) -> Loss:
        values, lengths = batch.tokens[self.part], batch.lengths[self.part]
        labels = batch.tokens[Label.column][:, 0] - 1  # -1: a filler
        size = self.settings.adversarial if torch.is_grad_enabled() else 0.0
        with twice() if size else nullcontext():
            said = model(values, lengths)
        total, nll = self._surprise(said, labels)
        earned = self._chance(said, lengths, nll)
        if _drew(said):
            self._expect(batch, -nll.detach())
        parts = {"nll": nll.detach().sum()}
        if size:
            far = nudge(total, said.vectors, lengths, size)  # B S E
            worse, _ = self._surprise(model(values, lengths, nudge=far), labels)
            total, parts["moved"] = total + worse, worse.detach().sum()
        return Loss(total.sum() + earned, parts)

    def _surprise(self, said: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss on each input, and its -log p.    B, B"""
        logits, smoothing = said.logits.float(), self.settings.smoothing
        rules: dict[str, Any] = {"ignore_index": -1, "reduction": "none"}
        nll = cross_entropy(logits, labels, **rules)
        if not smoothing:
            return nll, nll
        return cross_entropy(logits, labels, label_smoothing=smoothing, **rules), nll

    def _chance(self, said: Any, lengths: Tensor, nll: Tensor) -> Tensor | float:
        """REINFORCE as a sum: the reward of a sample is the log-probability of the label."""
        drew = _drew(said)
        if not drew or not torch.is_grad_enabled():
            return 0.0
        reward = -nll.detach()
        level, bonus, rows = self.baseline.value, self.settings.entropy_bonus, len(reward)
        total = reward.new_zeros(())
        for record in drew:
            T = record.log_prob.shape[2]
            asked = 1 if T == 1 else lengths[:, None]
            real = torch.arange(T, device=reward.device) < asked  # a filler has one visible key
            real = real[:, None]
            entropy = None if record.entropy is None else record.entropy * real
            total = total + rows * reinforce(
                record.log_prob * real, reward, level, entropy=entropy, bonus=bonus
            )
        return self.settings.reinforce * total

    def _expect(self, batch: Batch, reward: Tensor) -> None:
        """Update the baseline of later rewards by the mean reward.    B"""
        if not torch.is_grad_enabled() or not self.baseline.training:
            return
        real, level = batch.rows >= 0, self.baseline.value
        mean = (reward * real).sum() / real.sum().clamp(min=1)
        self.baseline.update(torch.where(mean.isfinite() & real.any(), mean, level))


def _drew(said: Any) -> list[Any]:
    """The records of attentions that were sampled."""
    return [record for record in said.seen.values() if record.log_prob is not None]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A label and how likely it is; empty for a blank input.

    shares     of every label, the likeliest first
    positions  of the whole input
    read       how many of them the model has read
    part       the name of the input
    unit       what a position is
    """

    source: str
    label: str = ""
    probability: float = 0.0
    shares: dict[str, float] = field(default_factory=dict)
    positions: int = 0
    read: int = 0
    part: str = "text"
    unit: str = "symbols"

    @property
    def cut(self) -> bool:
        """Whether the input was too long to be read to its end."""
        return self.positions > self.read

    @property
    def remark(self) -> str:
        """A warning if the input was too long."""
        read = f"only {self.read:,} of {self.positions:,} {self.unit} were read"
        return f"{self.source[:30]}…: {read}" if self.cut else ""

    @property
    def text(self) -> str:
        """The label with its probability."""
        # A label is untrusted: it must not control the terminal.
        return f"{shown(self.label)} ({self.probability:.2f})" if self.label else ""

    @property
    def answer(self) -> str:
        """The label."""
        return self.label

    def line(self) -> str:
        """Label, tab, probability; blank for a blank line."""
        return f"{shown(self.label)}\t{self.probability:.4f}" if self.label else ""

    def as_data(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        found: dict[str, Any] = {self.part: self.source, "label": self.label or None}
        found |= {"probability": self.probability, "probabilities": self.shares, "cut": self.cut}
        return found

    def facts(self, gold: Any = None) -> tuple[list[tuple[str, str]], int | None]:
        """The input, the label, the probabilities, and the right label."""
        shares = " · ".join(f"{name} {p:.3f}" for name, p in self.shares.items())
        found = [(self.part.capitalize(), self.source), ("Predicted", shown(self.label))]
        found += [("Probabilities", shares)]
        return found + ([("Label", gold)] if gold else []), 1


class Label(Form[str, Judgement]):
    """One label of several.

    names  the labels, in the order of their numbers
    """

    name = "label"
    unit = "texts"
    column = "label"
    training = LabelTraining
    figures = (
        Column("accuracy", ".2f", "high"),
        Column("macro-F1", ".2f", "high"),
        Column("loss", ".4f", "low"),
    )

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._numbers = {label: c for c, label in enumerate(self.names)}

    @property
    def fingerprint(self) -> str:
        """A hash of the labels."""
        return hashlib.sha256(repr(self.names).encode()).hexdigest()

    @property
    def sizes(self) -> dict[str, int]:
        """Labels are numbered from 1: 0 is a filler."""
        return {self.column: len(self.names) + 1}

    def rows(self, examples: Sequence[Example]) -> dict[str, list[Any]]:
        """The number of each label."""
        return {self.column: [[self._numbers[each.answer] + 1] for each in examples]}

    def as_data(self, gold: str) -> str:
        """The label itself."""
        return gold

    def of_data(self, found: Any) -> str:
        """A label of the training data."""
        if found not in self._numbers:
            raise ValueError
        return str(found)

    def objective(self, parts: Sequence[str], settings: Any) -> Movable:
        """The label of each input."""
        return LabelObjective(parts[0], settings)

    def blank(self, worker: Worker, item: tuple[Any, ...]) -> list[Judgement]:
        """No label."""
        return [Judgement(worker.as_line(item), part=next(iter(worker.inputs)))]

    def answers(
        self,
        worker: Worker,
        items: Sequence[Any],
        rows: Sequence[Any],
        choice: Any,
        best: int,
        numbers: Sequence[int],
    ) -> list[list[Judgement]]:
        """The likeliest label of each input."""
        shares = self._said(worker, items, rows).logits.float().softmax(-1).cpu()
        whole = worker.kind.whole([item[0] for item in items])
        parts = zip(items, rows, shares, whole, strict=True)
        return [[self._judged(worker, *part)] for part in parts]

    def _judged(
        self, worker: Worker, item: tuple[Any, ...], row: Any, shares: Tensor, whole: Any
    ) -> Judgement:
        ranked = shares.argsort(descending=True, stable=True).tolist()
        named = {self.names[c]: float(shares[c]) for c in ranked}
        label, part = self.names[ranked[0]], next(iter(worker.inputs))
        source, sizes = worker.as_line(item), (len(whole), len(row[0]))
        return Judgement(source, label, named[label], named, *sizes, part, worker.kind.positions)

    def readings(
        self, worker: Worker, examples: Sequence[Example], rows: Sequence[Any]
    ) -> list[Reading]:
        """-log p of each right label."""
        said = self._said(worker, [each.inputs for each in examples], rows)
        right = torch.tensor([self._numbers[each.answer] for each in examples]).to(worker.device)
        nats = cross_entropy(said.logits.double(), right, reduction="none")
        return [Reading(x, 1) for x in nats.tolist()]

    def _said(
        self, worker: Worker, items: Sequence[Any], rows: Sequence[Any], need: str = "context"
    ) -> Any:
        return worker.model(*worker.given(rows), need=need, **self.more(worker, items, rows))

    def more(self, worker: Worker, items: Sequence[Any], rows: Sequence[Any]) -> dict[str, Any]:
        """Whatever else the network takes of a batch, such as the letters of unknown words."""
        return {}

    def seen(
        self, worker: Worker, examples: Sequence[Example], rows: Sequence[Any]
    ) -> Mapping[str, tuple[Attended, Tensor]]:
        """Every attention while inputs are read."""
        said = self._said(worker, [each.inputs for each in examples], rows, "weight")
        lengths = torch.tensor([len(row[0]) for row in rows], device=worker.device)
        once = torch.ones_like(lengths)  # a pool asks once of a whole input
        return {
            path: (record, once if path == POOL else lengths) for path, record in said.seen.items()
        }

    def lead(self, worker: Worker, answer: Judgement, layers: Mapping[str, Any]) -> Lead:
        """The positions of the input by the weight of each look of a pool."""
        found = [layer for path, layer in layers.items() if POOL in path.split(".")]
        if not found:
            return Lead()
        (pool,) = found
        weights = [head.levels[-1].values()[0] for head in pool.heads]  # the finest
        many = len(weights) > 1
        heads = [
            Weighed(f"attention weights · head {n}", pool.keys, each.tolist())
            for n, each in enumerate(weights)
        ]
        title = f"attention weights{f', mean of {len(weights)} heads' * many}"
        mean = Weighed(title, pool.keys, np.mean(weights, 0).tolist())
        return Lead([mean, *(heads if many else ())])

    def judged(
        self, worker: Worker, examples: Sequence[Example], said: Sequence[Judgement]
    ) -> LabelScores:
        """Accuracy, macro-F1, scores by label."""
        right, told = [each.answer for each in examples], [each.label for each in said]
        found = confusion_scores(right, told, self.names)
        return LabelScores(
            len(examples),
            found.accuracy,
            found.macro_f1,
            worker.loss(examples),
            found.by_label,
            list(self.names),
            found.table,
            sum(each.cut for each in said),
            100 * max(map(right.count, self.names), default=0) / max(1, len(right)),
            self._attended(worker, [each for each in examples if each.gold is not None]),
            self.unit,
        )

    @torch.inference_mode()
    def _attended(self, worker: Worker, examples: Sequence[Example]) -> tuple[float, float] | None:
        """The share of a pool's attention between the first and the last position of the gold."""
        shares, even = 0.0, 0.0
        for each in examples:
            rows = worker.rows([each.inputs])
            record, _ = self.seen(worker, [each], rows).get(POOL, (None, None))
            if record is None:
                return None
            start, stop = each.gold
            shares += float(record.weight[0].mean((0, 1))[start:stop].sum())
            even += (stop - start) / len(rows[0][0])
        return (shares / len(examples), even / len(examples)) if examples else None

    def gold_as_data(self, gold: tuple[int, int]) -> list[int]:
        """The first position that decides, and the one after the last."""
        return list(gold)

    def gold_of_data(self, found: Any) -> tuple[int, int]:
        """Two positions."""
        start, stop = found
        if not (type(start) is type(stop) is int and 0 <= start <= stop):
            raise ValueError
        return start, stop

    @classmethod
    def figured(cls, scores: Mapping[str, Any], perplexity: float | None) -> list[Value]:
        """The values of `figures`."""
        (found,) = scores.values()
        return [found.accuracy, found.macro_f1, found.loss]

    @classmethod
    def compared(cls, scores: Mapping[str, Mapping[str, Any]]) -> list[Block]:
        """F1 of each label, side by side."""
        tested = {name: next(iter(each.values())) for name, each in scores.items()}
        if not tested:
            return []
        labels = next(iter(tested.values())).labels
        bars = [Bars(n, [each.f1 for each in test.by_label]) for n, test in tested.items()]
        return [Charts([BarChart("F1 of each label", labels, bars)])]

    def validated(
        self, worker: Worker, examples: Sequence[Example]
    ) -> tuple[float, dict[str, float], str]:
        """Loss, accuracy and macro-F1."""
        said = [best[0] for best in worker.answers([each.inputs for each in examples])]
        loss = loss_of(worker.read(examples))
        labels = [each.label for each in said]
        found = confusion_scores([each.answer for each in examples], labels, self.names)
        figures = {"accuracy": found.accuracy, "macro_f1": found.macro_f1}
        return loss, figures, f"accuracy {found.accuracy:.2f} % · loss {loss:.4f}"

    def sample(self, example: Example, answer: Judgement) -> str:
        """The input, its right and its predicted label."""
        return (
            f"{answer.part:<10} {answer.source}\nlabel      {example.answer}\n"
            f"predicted  {answer.label} {answer.probability:.3f}\n\n"
        )


@dataclass(frozen=True, slots=True)
class OneLabel:
    """Scores of one label: precision over inputs that got it, recall over those that have it."""

    label: str
    texts: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, slots=True)
class LabelScores:
    """Scores of one label for each input.

    attended  the share of the attention that the steps that decide get, where these are known, and
              their share of all steps
    """

    texts: int
    accuracy: float  # per cent
    macro_f1: float  # per cent; the mean over labels that occur or were given
    loss: float  # nats per text
    by_label: list[OneLabel]
    labels: list[str]
    confusion: list[list[int]]  # how many texts of each label (rows) got which (columns)
    cut: int  # texts that were too long to be read to their end
    floor: float = 0.0  # accuracy of the commonest label, per cent
    attended: tuple[float, float] | None = None
    unit: str = "texts"  # what was labelled

    def line(self) -> str:
        """The scores in one line."""
        return (
            f"accuracy {self.accuracy:.2f} % · macro-F1 {self.macro_f1:.2f} · loss {self.loss:.4f}"
        )

    def facts(self) -> list[tuple[str, str, str]]:
        """The figures of all texts together."""
        found = [
            (self.unit, f"{self.texts:,}", ""),
            ("accuracy", f"{self.accuracy:.2f} %", f"{self.floor:.2f} % by the commonest label"),
            ("macro-F1", f"{self.macro_f1:.2f}", "mean over labels"),
            ("loss", f"{self.loss:.4f}", "nats each"),
        ]
        if self.attended is not None:
            share, even = (f"{x:.3f}" for x in self.attended)
            found.append(("attended", share, f"of the attention, where it decides; evenly {even}"))
        cut = ("truncated", f"{self.cut:,}", f"{self.unit} longer than the model reads")
        return [*found, cut] if self.cut else found

    def tables(self) -> list[Table]:
        """The scores of each label, and the confusion matrix."""
        columns = [Column("label"), Column(self.unit, ",d")]
        columns += [Column(name, ".3f") for name in ("precision", "recall", "F1")]
        each: list[list[Value]] = [
            [one.label, one.texts, one.precision, one.recall, one.f1] for one in self.by_label
        ]
        wide = [Column("true ↓ predicted →"), *(Column(label, ",d") for label in self.labels)]
        rows = zip(self.labels, self.confusion, strict=True)
        confusion = Table(wide, [[label, *row] for label, row in rows], "Confusion matrix")
        return [Table(columns, each), confusion]


@dataclass(frozen=True, slots=True)
class Confusion:
    """The confusion matrix of labels, and scores from it.

    accuracy  per cent
    macro_f1  per cent; the mean over labels that occur or were given
    table     how many of each label (rows) got which (columns)
    """

    accuracy: float
    macro_f1: float
    by_label: list[OneLabel]
    table: list[list[int]]


def confusion_scores(right: Sequence[str], said: Sequence[str], labels: Sequence[str]) -> Confusion:
    """The scores of some labels."""
    numbers = {label: c for c, label in enumerate(labels)}
    table = [[0] * len(labels) for _ in labels]
    for gold, label in zip(right, said, strict=True):
        table[numbers[gold]][numbers[label]] += 1
    by_label = [_label_scores(label, c, table) for label, c in numbers.items()]
    given = [sum(row[c] for row in table) for c in range(len(labels))]
    present = [each for each, n in zip(by_label, given, strict=True) if each.texts or n]
    hits = sum(table[c][c] for c in range(len(labels)))
    f1 = 100 * sum(each.f1 for each in present) / max(1, len(present))
    return Confusion(100 * hits / max(1, len(right)), f1, by_label, table)


def _label_scores(label: str, c: int, table: list[list[int]]) -> OneLabel:
    right, texts, given = table[c][c], sum(table[c]), sum(row[c] for row in table)
    precision, recall = right / max(1, given), right / max(1, texts)
    return OneLabel(label, texts, precision, recall, 2 * right / max(1, texts + given))
