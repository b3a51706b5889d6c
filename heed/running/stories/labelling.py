"""Training and scoring classification: the objective, the validations, the scores."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from heed.data.batches import Batch
from heed.data.labelled import Labelled
from heed.models.classifier import Classified
from heed.running.events import Progress, Work
from heed.storage.run_folder import RunFolder
from heed.tasks.classify import Scores, judged
from heed.tasks.labeller import Judgement, Labeller
from heed.training.adversarial import nudge, twice
from heed.training.objective import Loss
from heed.training.reinforce import MovingAverage, reinforce
from heed.training.settings import Training, Weight
from heed.viewing.blocks import Column, Table, Value
from heed.viewing.image import svg
from heed.viewing.panels import Panel

SAMPLES = 5
WATCHED = 64  # texts whose attentions are measured


class LabelTraining(Training):
    """How a classifier learns."""

    adversarial: Weight = Field(
        0.0, description="size of adversarial changes to word vectors; training/adversarial.py"
    )


class Labelling(nn.Module):
    """The objective: the label of each text, and the reward of an attention that samples."""

    def __init__(self, settings: LabelTraining) -> None:
        super().__init__()
        self.settings, self.baseline = settings, MovingAverage()

    def count(self, batch: Batch) -> int:
        """How many texts a batch has."""
        return int((batch.tokens["label"] != 0).sum())

    def forward(self, model: nn.Module, batch: Batch) -> Loss:
        text, lengths = batch.tokens["text"], batch.lengths["text"]
        labels = batch.tokens["label"][:, 0] - 1  # -1: a filler
        size = self.settings.adversarial if torch.is_grad_enabled() else 0.0
        with twice() if size else nullcontext():
            said = model(text, lengths)
        total, nll = self._surprise(said, labels)
        earned = self._chance(said, batch, nll)
        if _drew(said):
            self._expect(batch, -nll.detach())
        parts = {"nll": nll.detach().sum()}
        if size:
            far = nudge(total, said.vectors, lengths, size)  # B S E
            worse, _ = self._surprise(model(text, lengths, nudge=far), labels)
            total, parts["moved"] = total + worse, worse.detach().sum()
        return Loss(total.sum() + earned, parts)

    def _surprise(self, said: Classified, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss on each text, and its -log p.    B, B"""
        assert said.logits is not None
        logits, smoothing = said.logits.float(), self.settings.smoothing
        rules: dict[str, Any] = {"ignore_index": -1, "reduction": "none"}
        nll = cross_entropy(logits, labels, **rules)
        if not smoothing:
            return nll, nll
        return cross_entropy(logits, labels, label_smoothing=smoothing, **rules), nll

    def _chance(self, said: Classified, batch: Batch, nll: Tensor) -> Tensor | float:
        """REINFORCE as a sum: the reward of a sample is the log-probability of the text's label."""
        drew = _drew(said)
        if not drew or not torch.is_grad_enabled():
            return 0.0
        reward = -nll.detach()
        level, bonus, rows = self.baseline.value, self.settings.entropy_bonus, len(reward)
        total = reward.new_zeros(())
        for record in drew:
            T = record.log_prob.shape[2]
            asked = 1 if T == 1 else batch.lengths["text"][:, None]
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


def _drew(said: Classified) -> list[Any]:
    """The records of attentions that were sampled."""
    return [record for record in said.seen.values() if record.log_prob is not None]


class Validated(NamedTuple):
    """The result of a validation."""

    loss: float  # nats per text
    figures: dict[str, Any]

    def line(self) -> str:
        """A summary in one line."""
        return f"validation accuracy {self.figures['accuracy']:.2f} % · loss {self.loss:.4f}"


class Validator:
    """Validates a model on the same texts each time."""

    def __init__(self, labeller: Labeller, rows: list[Labelled], folder: RunFolder) -> None:
        self.labeller, self.rows, self.folder = labeller, rows, folder

    def loss(self) -> float:
        """Nats per text."""
        return self.labeller.surprise(self.rows)

    def judge(self, step: int) -> Validated:
        """Loss, accuracy, a few texts with their predicted labels, the attentions' statistics."""
        texts = [row.text for row in self.rows]
        found = judged(
            self.rows, self.labeller.label(texts), self.labeller.words.labels, self.loss()
        )
        figures = {
            "loss": found.loss,
            "accuracy": found.accuracy,
            "macro_f1": found.macro_f1,
            "attention": self.labeller.sharpness(texts[:WATCHED]),
        }
        self._samples(step)
        return Validated(found.loss, figures)

    def _samples(self, step: int) -> None:
        rows = self.rows[:SAMPLES]
        said = self.labeller.label([row.text for row in rows], look=True)
        text = "".join(
            f"text       {row.text}\nlabel      {row.label}\n"
            f"predicted  {each.label} {each.probability:.3f}\n\n"
            for row, each in zip(rows, said, strict=True)
        )
        # A row each, named by the label: the weights of a static attention over the text.
        weighed = [
            Panel.of(each.text, each.weight[None], [each.label], each.pieces)
            for each in said
            if each.weight is not None and np.isfinite(each.weight).all()
        ]
        self.folder.write_sample(step, text, svg(weighed, columns=1) if weighed else "")


class Evaluated(NamedTuple):
    """The scores, with the texts and their predicted labels."""

    scores: Scores
    rows: list[Labelled]
    said: list[Judgement]

    def answers(self) -> list[str]:
        """The predicted labels."""
        return [each.label for each in self.said]

    def facts(self) -> list[tuple[str, str, str]]:
        """The figures of all texts together."""
        scores = self.scores
        found = [
            ("texts", f"{scores.texts:,}", ""),
            ("accuracy", f"{scores.accuracy:.2f} %", ""),
            ("macro-F1", f"{scores.macro_f1:.2f}", "mean over labels"),
            ("loss", f"{scores.loss:.4f}", "nats per text"),
        ]
        return found + (
            [("truncated", f"{scores.cut:,}", "texts longer than the model reads")]
            if scores.cut
            else []
        )

    def tables(self) -> list[Table]:
        """The scores of each label, and the confusion matrix."""
        scores = self.scores
        columns = [Column("label"), Column("texts", ",d")]
        columns += [Column(name, ".3f") for name in ("precision", "recall", "F1")]
        each: list[list[Value]] = [
            [one.label, one.texts, one.precision, one.recall, one.f1] for one in scores.by_label
        ]
        wide = [Column("true ↓ predicted →"), *(Column(label, ",d") for label in scores.labels)]
        rows = zip(scores.labels, scores.confusion, strict=True)
        confusion = Table(wide, [[label, *row] for label, row in rows], "Confusion matrix")
        return [Table(columns, each), confusion]


def evaluated(
    labeller: Labeller, rows: list[Labelled], *, stage: str = "labelling"
) -> Work[Evaluated]:
    """Label the texts and score the labels."""
    found: dict[int, Judgement] = {}
    for done in labeller.stream([row.text for row in rows]):
        found |= done
        yield Progress(stage, len(found), len(rows))
    said = [found[i] for i in range(len(rows))]
    scores = judged(rows, said, labeller.words.labels, labeller.surprise(rows))
    return Evaluated(scores, rows, said)
