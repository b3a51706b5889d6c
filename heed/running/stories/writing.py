"""Training, scoring and showing language models: objective, validations, scores, answers.

Each validation writes a text of the model, and a picture of its attention, to `samples/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heed.data.batches import Batch
from heed.errors import Refused
from heed.events import Progress, Work
from heed.records import Attended
from heed.running.stories.remembering import Remembering
from heed.storage.run_folder import RunFolder
from heed.tasks.language_model import Scores, judged
from heed.tasks.looking import looked
from heed.tasks.writer import Continuation, Decoding, Reading, Writer, sharpness
from heed.training.objective import Loss, SequenceObjective
from heed.training.settings import Training
from heed.viewing.atlas import Take
from heed.viewing.blocks import Table
from heed.viewing.image import svg
from heed.viewing.looking import Look
from heed.viewing.panels import Panel, of_heads
from heed.viewing.small import SmallMaps
from heed.viewing.taking import layers
from heed.viewing.terminal import WITHIN, HeatMap
from heed.viewing.words import Said

SAMPLED = Decoding(method="sample", longest=200, temperature=0.8, top_k=200, seed=1)
NONE = -1  # the label where nothing follows
WATCHED = 24  # symbols of the validation text whose attention is drawn
PICTURED = 12  # heads of it in the picture
UNREAD = Reading(nats=0.0, symbols=0, characters=0, bytes=0, unknown=0)
MARKS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}  # what would separate lines and columns


class NextSymbol(SequenceObjective):
    """The objective: each symbol given those before it, and what attention adds."""

    def __init__(self, settings: Training, remembering: Remembering | None = None) -> None:
        super().__init__(settings)
        self.remembering = remembering

    def count(self, batch: Batch) -> int:
        """How many symbols are predicted."""
        return int((self._labels(batch) != NONE).sum())

    def forward(self, model: nn.Module, batch: Batch) -> Loss:
        written = self._written(model, batch)
        return self.loss(written.output, self._labels(batch), written.seen, none=NONE)

    def _written(self, model: nn.Module, batch: Batch) -> Any:
        if self.remembering is None:
            return model(batch.tokens["text"])
        said = model(batch.tokens["text"], memories=self.remembering.recall(batch))
        self.remembering.keep(batch, said.memories)
        return said

    def _labels(self, batch: Batch) -> Tensor:
        """The next symbols, `NONE` where a row is filled up: 0 may be a symbol.    B T"""
        labels, lengths = batch.tokens["labels"], batch.lengths["labels"]
        lengths = lengths * (batch.rows >= 0)
        places = torch.arange(labels.shape[1], device=labels.device)
        return labels.masked_fill(places >= lengths[:, None], NONE)


@dataclass(frozen=True, slots=True)
class Validated:
    """The result of a validation."""

    loss: float  # nats per symbol
    figures: dict[str, Any]
    sample: str

    def line(self) -> str:
        """A summary in one line."""
        return f"validation loss {self.loss:.4f} · sample: {escaped(self.sample)[:60]}"


class Validator:
    """Validates a model on the same whole texts each time."""

    def __init__(
        self, writer: Writer, documents: Sequence[NDArray[np.int64]], folder: RunFolder
    ) -> None:
        self.writer, self.folder = writer, folder
        self.documents = [document for document in documents if len(document) > 1]
        if not self.documents:
            raise Refused(
                "the validation text has fewer than two symbols, so there is nothing to predict: "
                "hold more out, by data.held_out, or name a longer data.valid"
            )

    def loss(self) -> float:
        """Nats per symbol."""
        readings = [self.writer.read_symbols(document) for document in self.documents]
        return sum(each.nats for each in readings) / sum(each.symbols for each in readings)

    def judge(self, step: int) -> Validated:
        """Loss, a generated text, and the attentions' statistics."""
        scores = judged([self.writer.read_symbols(each) for each in self.documents], context=0)
        opening = self.writer.vocabulary.decode(self.documents[0][:WATCHED].tolist())
        pieces, _, seen = self.writer.look(opening)
        sample = self.writer.write([""], SAMPLED)[0][0].text
        panels = heads(pieces, seen)[:PICTURED]
        self.folder.write_sample(step, f"{sample}\n", svg(panels) if panels else "")
        figures = {
            "loss": scores.loss,
            "perplexity": scores.perplexity,
            "bits_per_character": scores.bits_per_character,
            "attention": sharpness(seen),
        }
        return Validated(scores.loss, figures, sample)


class Evaluated(NamedTuple):
    """The scores, with the readings."""

    scores: Scores
    readings: list[Reading]

    def facts(self) -> list[tuple[str, str, str]]:
        """The scores, each with what makes it comparable."""
        scores = self.scores
        window = f"windows of {scores.context} symbols"
        window += f", with an overlap of {scores.overlap}" if scores.overlap else ""
        strange = f"{scores.unknown:,} unknown" if scores.unknown else ""
        return [
            ("symbols", f"{scores.symbols:,}", strange),
            ("loss", f"{scores.loss:.4f}", f"nats per symbol, in {window}"),
            ("perplexity", f"{scores.perplexity:.3f}", "per symbol"),
            ("bits per character", f"{scores.bits_per_character:.4f}", ""),
            ("bits per byte", f"{scores.bits_per_byte:.4f}", ""),
        ]

    def tables(self) -> list[Table]:
        """There are none."""
        return []

    def answers(self) -> list[str]:
        """The loss of each text, in nats per symbol; blank where nothing was predicted."""
        return [f"{each.loss:.6f}" if each.symbols else "" for each in self.readings]


def evaluated(
    writer: Writer, texts: Sequence[str], *, overlap: int = 0, stage: str = "reading"
) -> Work[Evaluated]:
    """Read texts and score how well they are predicted; a single symbol is not predicted."""
    coded = [np.array(ids, np.int64) for ids in writer.vocabulary.encode(texts)]
    if all(len(ids) < 2 for ids in coded):
        raise Refused("no text has two or more symbols: there is nothing to predict")
    readings = []
    for number, (ids, text) in enumerate(zip(coded, texts, strict=True), 1):
        long = len(ids) > 1
        readings.append(writer.read_symbols(ids, text, overlap=overlap) if long else UNREAD)
        yield Progress(stage, number, len(texts))
    return Evaluated(judged(readings, context=writer.context, overlap=overlap), readings)


def escaped(text: str) -> str:
    r"""A text in one line, and one column: a line break is \n, a tab \t, and a backslash \\."""
    text = text.replace("\\", "\\\\")
    for plain, told in MARKS.items():
        text = text.replace(plain, told)
    return text


def unescaped(line: str) -> str:
    r"""The inverse of `escaped`; other backslashes stay as they are."""
    parts = line.split("\\\\")
    for plain, told in MARKS.items():
        parts = [part.replace(told, plain) for part in parts]
    return "\\".join(parts)


def _signed(line: str) -> str:
    """An escaped text with signs for line breaks and tabs, as its symbols are drawn."""
    return unescaped(line).replace("\n", "↵").replace("\t", "⇥")


@dataclass(frozen=True, slots=True)
class Answer:
    """The continuations of a line. With a writer, the attention can be shown."""

    found: list[Continuation]
    writer: Writer | None = None

    def line(self) -> str:
        """The continuations in one line, with tabs between them."""
        return "\t".join(escaped(each.text) for each in self.found)

    def as_data(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        answers = [
            {
                "text": each.text,
                "log_prob": each.log_prob,
                "ended": each.ended,
                "slid": each.slid,
            }
            for each in self.found
        ]
        return {"prompt": self.found[0].prompt, "answers": answers}

    @property
    def remark(self) -> str:
        """A warning if the model no longer read the beginning of the text."""
        slid = any(each.slid for each in self.found)
        return (
            "the text exceeds the model's positions: it continues from the last half"
            if slid
            else ""
        )

    def shown(self) -> Shown:
        """The first continuation, with the attention while it is read after the prompt."""
        assert self.writer is not None
        first = self.found[0]
        read = shown(self.writer, first.prompt + first.text)
        return replace(read, source=escaped(first.prompt), written=escaped(first.text))


@dataclass(frozen=True, slots=True)
class Shown:
    """A text, the most likely symbol after each of its own, and the attention.

    written  the continuation, if the text is a prompt; both were read
    every    whether a terminal draws every head by itself, or all of them small
    """

    source: str
    text: str
    panels: Sequence[Panel]
    remark: str = ""
    every: bool = False
    named: str = "predicted next symbol at each position"
    written: str | None = None

    def drawn(self) -> list[Any]:
        """What a terminal shows."""
        if not self.panels or self.every:
            return [HeatMap(panel, WITHIN) for panel in self.panels]
        return [SmallMaps(self.panels)]

    def block(self, note: str = "") -> Said:
        """What a page shows."""
        told = [("Text", self.source)]
        if self.written is not None:
            told = [("Prompt", self.source)] if self.source else []
            told += [("Written", self.written)]
        facts = [(name, _signed(value)) for name, value in told]
        # A continuation is an answer; the predictions for a given text are not.
        answer = None if self.written is None else len(facts) - 1
        facts += [(self.named.capitalize(), self.text)]
        return Said(facts, None, self.panels, note or self.remark, answer)


def shown(writer: Writer, text: str, *, every: bool = False) -> Shown:
    """Every head of every layer while a text is read."""
    pieces, likeliest, seen = writer.look(text)
    panels = heads(pieces, seen)
    remark = _remark(writer, text, bool(panels))
    return Shown(escaped(text), "".join(likeliest), panels, remark, every)


def heads(pieces: Sequence[str], seen: Mapping[str, Attended]) -> list[Panel]:
    """Every head of every layer: queries down, keys across."""
    weights = {path: record.weight[0].float().cpu().numpy() for path, record in seen.items()}
    return of_heads(weights, pieces)


def look(writer: Writer, text: str) -> Look:
    """A text, the most likely next symbols, and the maps of every attention: of two streams, the
    one that predicts."""
    (pieces, likeliest, _), seen = looked(writer.model, lambda: writer.look(text, "context"), 1)
    found = list(layers(seen, lambda path: (pieces, None)).values())
    read = Shown(escaped(text), "".join(likeliest), (), _remark(writer, text, bool(found)))
    takes = [Take("", found)] if found else []
    said = read.block()
    more: dict[str, Any] = {"facts": said.facts, "answer": said.answer}
    return Look(read.source, read.text, takes, remark=read.remark, named=read.named, **more)


def _remark(writer: Writer, text: str, attends: bool) -> str:
    places = writer.places
    if places is not None and len(writer.symbols(text)) > places:
        return f"only the last {places} symbols are read: the model has no more positions"
    return "" if attends else "this recurrent network has no attention"
