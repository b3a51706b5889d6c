"""Training and scoring pre-training: the objective, the validations, the scores.

Each validation writes a few sentences with hidden and predicted words, and a picture, to
`samples/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heed.data.batches import Batch
from heed.data.chance import below
from heed.data.pretraining_batches import Remade
from heed.data.tokenise import PAD
from heed.errors import Refused
from heed.events import Progress, Work
from heed.running.stories.documents import Document
from heed.running.stories.filling import layers
from heed.storage.run_folder import RunFolder
from heed.tasks.pretrain import Objective, Scores, judged, maker
from heed.tasks.pretrainer import Filled, Pretrainer, ask
from heed.training.objective import Loss, SequenceObjective
from heed.training.settings import Training
from heed.viewing.blocks import Table
from heed.viewing.image import svg

SAMPLES = 3
TOKENS = 8000  # positions in a batch that is scored
NONE = -1  # the label where nothing is predicted
SEED = 0  # of the words that are hidden in validation: the same each time
Shares = NDArray[np.float64] | None


class HiddenWords(SequenceObjective):
    """The objective: words that were hidden, and whether the second text follows the first.

    The loss is the mean over words plus the mean over pairs (Devlin 2019 A.2); the loop divides by
    the number of words, so the pairs' mean is multiplied by it. Both means are over a whole step,
    on all processes; a single batch counts as a whole step.
    """

    per_pair: Tensor  # words per pair in a whole step; NaN: count those of the batch
    numbers: Tensor | None  # from a batch's symbol numbers to the model's, if they differ    V

    def __init__(self, settings: Training, numbers: Tensor | None = None) -> None:
        super().__init__(settings)
        self.register_buffer("per_pair", torch.tensor(torch.nan), persistent=False)
        self.register_buffer("numbers", numbers, persistent=False)

    def balance(self, batches: Sequence[Batch], add: Callable[..., list[int]]) -> None:
        """Set how many words a step has for each pair."""
        follows = [batch.tokens["follows"] for batch in batches if "follows" in batch.tokens]
        pairs = sum(int((each > 0).sum()) for each in follows)
        words, pairs = add(sum(map(self.count, batches)), pairs)
        self.per_pair.fill_(words / max(pairs, 1))

    def count(self, batch: Batch) -> int:
        """How many words are to be predicted."""
        return int((batch.tokens["labels"] != PAD).sum())

    def forward(self, model: nn.Module, batch: Batch) -> Loss:
        tokens = batch.tokens
        said = ask(model, tokens, batch.lengths["text"], numbers=self.numbers)
        asked = {path: record for path, record in said.seen.items() if path.endswith(".query")}
        real = tokens["text"] != PAD
        loss = self.loss(
            said.words,
            self._labels(tokens["labels"]),
            asked,
            none=NONE,
            elsewhere={p: (record, real) for p, record in said.seen.items() if p not in asked},
        )
        if said.follows is None:
            return loss
        labels = tokens["follows"][:, 0] - 1  # below 0 where there is none
        wrong = nn.functional.cross_entropy(
            said.follows.float(), labels, ignore_index=-1, reduction="sum"
        )
        words, pairs = (tokens["labels"] != PAD).sum(), (labels >= 0).sum()
        alone = words / pairs.clamp(min=1)
        follows = wrong * torch.where(self.per_pair.isnan(), alone, self.per_pair)
        return Loss(loss.total + follows, {**loss.parts, "follows": follows.detach()})

    def _labels(self, labels: Tensor) -> Tensor:
        """The model's numbers, `NONE` where nothing is predicted: 0 may be a symbol.    B K"""
        known = labels if self.numbers is None else self.numbers[labels]
        return known.masked_fill(labels == PAD, NONE)


@dataclass(frozen=True, slots=True)
class Validated:
    """The result of a validation."""

    loss: float
    figures: dict[str, Any]
    scores: Scores
    sample: Filled

    def line(self) -> str:
        """A summary in one line."""
        return f"validation {self.scores.line()}"


class Validator:
    """Validates a model on the same documents each time, with the same words hidden."""

    def __init__(
        self,
        worker: Pretrainer,
        batches: Remade,
        lines: Sequence[str],
        folder: RunFolder,
        shares: Shares,
    ):
        self.worker, self.batches, self.lines, self.folder = worker, batches, lines, folder
        self.shares = shares

    def loss(self) -> float:
        """The loss that training minimises."""
        return self._scores().total

    def _scores(self) -> Scores:
        return judged(list(self.worker.read(self.batches.epoch(0))), self.shares)

    def judge(self, step: int) -> Validated:
        """Loss and scores, a few sentences with a picture, and the attentions' statistics."""
        scores = self._scores()
        found = self.worker.fill(self.lines, look=True)
        text = "".join(f"given   {each.source}\nfilled  {each.text}\n\n" for each in found)
        panels = layers(found[0])
        self.folder.write_sample(step, text, svg(panels) if panels else "")
        figures = {
            "loss": scores.total,
            "words_loss": scores.loss,
            "perplexity": scores.perplexity,
            "accuracy": scores.accuracy,
        }
        if scores.unigram_loss is not None:
            figures["unigram_loss"] = scores.unigram_loss
        if scores.follows_accuracy is not None:
            figures |= {
                "follows_loss": scores.follows_loss or 0.0,
                "follows_accuracy": scores.follows_accuracy,
            }
        attention = self.worker.sharpness(self.lines)
        return Validated(scores.total, {**figures, "attention": attention}, scores, found[0])


def rows(
    worker: Pretrainer, documents: Sequence[Document], objective: Objective, longest: int
) -> Remade:
    """Validation documents as rows, the same each time."""
    held = worker.documents(documents)
    make = maker(held, worker.symbols, objective, longest)
    return Remade(make, tokens=max(TOKENS, longest), seed=SEED, shuffle=False)


def hidden(documents: Sequence[Document], count: int = SAMPLES) -> list[str]:
    """A few sentences with one word of each masked."""
    lines = []
    for number, document in enumerate(documents[:count]):
        words = document[0].split()[:40]
        words[int(below(len(words), SEED, number))] = "[MASK]"
        lines.append(" ".join(words))
    return lines


class Evaluated(NamedTuple):
    """The scores; there are no answers for single documents."""

    scores: Scores

    def facts(self) -> list[tuple[str, str, str]]:
        """The scores, each with what makes it comparable."""
        scores = self.scores
        found = [
            ("predicted words", f"{scores.words:,}", ""),
            ("loss", f"{scores.loss:.4f}", "nats per word"),
            self._alone(),
            ("perplexity", f"{scores.perplexity:.3f}", ""),
            ("accuracy", f"{scores.accuracy:.2f} %", ""),
        ]
        if scores.follows_accuracy is not None:
            remark = f"{scores.pairs:,} pairs, loss {scores.follows_loss:.4f}"
            found.append(("next sentence", f"{scores.follows_accuracy:.2f} %", remark))
        return found

    def _alone(self) -> tuple[str, str, str]:
        """The loss of the same words without their context."""
        if self.scores.unigram_loss is None:
            remark = "nats per word; the word frequencies of the training text are unknown"
            return "entropy of these words", f"{self.scores.words_entropy:.4f}", remark
        remark = "nats per word, from word frequencies in the training text alone"
        return "unigram loss", f"{self.scores.unigram_loss:.4f}", remark

    def tables(self) -> list[Table]:
        """There are none."""
        return []

    def answers(self) -> list[str]:
        """Refused: words are hidden in rows, which are not examples."""
        raise Refused("a run of pretrain has no answer for each example; leave out --out")


def evaluated(
    worker: Pretrainer,
    documents: Sequence[Document],
    objective: Objective,
    longest: int,
    shares: Shares = None,
    stage: str = "reading",
) -> Work[Evaluated]:
    """Hide words in documents, and score their predictions.

    shares  the probability of each symbol without context; None if unknown    V
    """
    batches = rows(worker, documents, objective, longest)
    total, readings = batches.count(0), []
    for reading in worker.read(batches.epoch(0)):
        readings.append(reading)
        yield Progress(stage, len(readings), total)
    return Evaluated(judged(readings, shares))
