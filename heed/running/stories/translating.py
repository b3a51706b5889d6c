"""Training and scoring translation: the objective, the validations, the scores.

Each validation writes a few translations, and the picture of one alignment, to `samples/`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heed.data.batches import Batch
from heed.data.tokenise import PAD
from heed.events import Progress, Work
from heed.running.stories.alignments import alignment
from heed.running.stories.pairs import LINKS
from heed.running.stories.translate_settings import TranslateTraining
from heed.storage.run_folder import RunFolder
from heed.tasks.measuring import Tokenise, to_pharaoh
from heed.tasks.translate import Scores, judged
from heed.tasks.translator import (
    Decoding,
    Example,
    Reading,
    Translation,
    Translator,
    shifted,
)
from heed.training.objective import Loss, SequenceObjective
from heed.viewing.blocks import Column, Table
from heed.viewing.image import svg

SAMPLES = 3
WATCHED = 32  # pairs whose attentions are measured
GREEDY = Decoding(method="greedy")


class TeacherForcing(SequenceObjective):
    """The objective: each symbol of the target given those before it, and what attention adds."""

    settings: TranslateTraining

    def count(self, batch: Batch) -> int:
        """How many symbols the targets have."""
        return int((batch.tokens["target"] != PAD).sum())

    def forward(self, model: nn.Module, batch: Batch) -> Loss:
        source, labels = batch.tokens["source"], batch.tokens["target"]
        guided = self.settings.guided > 0
        written = model(source, batch.lengths["source"], shifted(labels), aligned=guided)
        more: dict[str, Any] = {}
        if guided:
            network: Any = getattr(model, "module", model)  # inside DistributedDataParallel
            asked = network.alignment(written.seen), links(batch)
            more = {"aligned": asked, "guided": self.settings.guided}
        encoder = {path for path in written.seen if path.startswith("encoder")}
        return self.loss(
            written.output,
            labels,
            {path: seen for path, seen in written.seen.items() if path not in encoder},
            elsewhere={path: (written.seen[path], source != PAD) for path in encoder},
            **more,
        )


def links(batch: Batch) -> Tensor:
    """One where a target piece is linked to a source piece, else zero.    B T S"""
    (B, T), S = batch.tokens["target"].shape, batch.tokens["source"].shape[1]
    listed, count = batch.tokens[LINKS], batch.lengths[LINKS] // 2
    source, target = listed[:, : listed.shape[1] // 2 * 2].unflatten(1, (-1, 2)).unbind(2)
    real = torch.arange(source.shape[1], device=count.device) < count[:, None]
    real &= (source < S) & (target < T)  # of a cache that is not trusted
    table = torch.zeros(B, T * S, device=count.device)
    places = torch.where(real, target * S + source, 0)
    return table.scatter_add_(1, places, real.float()).clamp(max=1).view(B, T, S)


@dataclass(frozen=True, slots=True)
class Validated:
    """The result of a validation."""

    loss: float  # nats per symbol
    perplexity: float
    figures: dict[str, Any]
    sample: Translation

    def line(self) -> str:
        """A summary in one line."""
        return (
            f"validation perplexity {self.perplexity:.2f} · "
            f"{self.sample.source} -> {self.sample.text}"
        )


class Validator:
    """Validates a model on the same pairs each time."""

    def __init__(self, translator: Translator, pairs: list[Example], folder: RunFolder) -> None:
        self.translator, self.pairs, self.folder = translator, pairs, folder

    def loss(self) -> float:
        """Nats per symbol of the targets."""
        readings = self.translator.read(self.pairs, look=False)
        return sum(r.surprise for r in readings) / sum(r.symbols for r in readings)

    def judge(self, step: int) -> Validated:
        """Loss, a few translations with a picture, and the attentions' statistics."""
        loss = self.loss()
        perplexity = math.exp(min(loss, 700))
        samples = self._samples(step)
        figures = {
            "loss": loss,
            "perplexity": perplexity,
            "attention": self.translator.sharpness(self.pairs[:WATCHED]),
        }
        return Validated(loss, perplexity, figures, samples[0])

    def _samples(self, step: int) -> list[Translation]:
        pairs = self.pairs[:SAMPLES]
        written = self.translator.translate([pair.source for pair in pairs], GREEDY, look=True)
        samples = [best[0] for best in written]
        text = "".join(
            f"source     {pair.source}\nreference  {pair.target}\nwritten    {sample.text}\n\n"
            for pair, sample in zip(pairs, samples, strict=True)
        )
        pictured = next(filter(None, (alignment(each, each.source) for each in samples)), None)
        self.folder.write_sample(step, text, "" if pictured is None else svg(pictured))
        return samples


class Evaluated(NamedTuple):
    """The scores, with the pairs, translations and readings.

    rows   which line of its file each pair stands in, from 0; the others were dropped
    lines  how many there are
    """

    scores: Scores
    pairs: list[Example]
    written: list[Translation]
    readings: list[Reading]
    rows: Sequence[int]
    lines: int

    def pharaoh(self) -> list[str]:
        """For each line of the file, the word links of the model while it reads that very pair:
        "0-0 1-2"; blank if the pair was dropped, or not read as a whole."""
        return self._placed([to_pharaoh(each.links or []) * each.whole for each in self.readings])

    def answers(self) -> list[str]:
        """For each line of the file, the translation; blank if the pair was dropped."""
        return self._placed([each.text for each in self.written])

    def _placed(self, texts: Sequence[str]) -> list[str]:
        placed = [""] * self.lines
        for row, text in zip(self.rows, texts, strict=True):
            placed[row] = text
        return placed

    def facts(self) -> list[tuple[str, str, str]]:
        """The scores, each with what makes it comparable."""
        scores = self.scores
        found = [
            ("pairs", f"{scores.pairs:,}", ""),
            ("BLEU", f"{scores.bleu:.2f}", scores.bleu_signature),
            ("chrF", f"{scores.chrf:.2f}", scores.chrf_signature),
            ("perplexity", f"{scores.perplexity:.3f}", "per symbol of the reference"),
        ]
        if scores.entropy is not None:
            found.append(("entropy", f"{scores.entropy:.3f}", "of the attention, in nats"))
        if scores.aer is not None:
            found.append(("AER", f"{scores.aer:.4f}", "of the words that the references align"))
        return found

    def tables(self) -> list[Table]:
        """BLEU by length."""
        columns = (Column("source words"), Column("pairs", ",d"), Column("BLEU", ".1f"))
        return [Table(columns, self.scores.by_length)]


def evaluated(
    translator: Translator,
    pairs: Sequence[Example],
    decoding: Decoding,
    lowercase: bool,
    tokenise: Tokenise | None = None,
    *,
    stage: str = "translating",
) -> Work[Evaluated]:
    """Translate the sources and score the translations."""
    sources = [pair.source for pair in pairs]
    found: dict[int, Translation] = {}
    for done in translator.stream(sources, decoding):
        found |= {i: best[0] for i, best in done.items()}
        yield Progress(stage, len(found), len(pairs))
    written = [found[i] for i in range(len(pairs))]
    readings = translator.read(pairs)
    scores = judged(pairs, written, readings, lowercase=lowercase, tokenise=tokenise)
    return Evaluated(scores, list(pairs), written, readings, range(len(pairs)), len(pairs))
