"""A text that goes on: how that is learnt, written, read and seen, symbol by symbol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from heed.answers.continuation_scores import UNREAD, LanguageScores, PredictedText
from heed.answers.documents import OfDocuments
from heed.answers.form import Example, Words
from heed.answers.memories import Remembering
from heed.answers.worker import Worker
from heed.data.batches import Batch
from heed.data.borrowed import Marks
from heed.data.kinds.text import escaped
from heed.data.tokenise import PAD
from heed.decoding.beam import beam
from heed.decoding.greedy import greedy
from heed.decoding.sampling import sample, seed_of
from heed.decoding.sliding import Sliding, padded
from heed.decoding.stepper import Hypothesis
from heed.errors import Refused
from heed.models.replaying import replayed
from heed.models.transformer import Decoder
from heed.models.written import Unformed
from heed.models.xlnet_answers import LanguageModel
from heed.models.xlnet_sights import Memories
from heed.records import Attended, Need
from heed.settings import Settings
from heed.training.objective import Loss, SequenceObjective
from heed.training.settings import Training
from heed.viewing.blocks import Column, Value
from heed.viewing.pieces import sign

FORMED = 256  # positions whose logits are formed at a time while a text is looked at
NONE = -1  # the label where nothing follows
NAMED = "predicted next symbol at each position"
BRIEF = 60  # characters of a sample in the line that reports a validation


class Decoding(Settings):
    """Settings of how a continuation is chosen."""

    method: Literal["sample", "greedy", "beam"] = "sample"
    longest: int = Field(200, ge=1, le=1_000_000, description="Symbols at most.")
    temperature: float = Field(1.0, gt=0, le=100)
    top_k: int | None = Field(None, ge=1)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int = Field(0, ge=0, le=2**31 - 1, description="For method: sample.")
    width: int = Field(5, ge=1, le=1000, description="For method: beam.")
    length_penalty: float = Field(0.0, ge=0, le=10, description="For method: beam.")
    replay: bool = Field(True, description="On a GPU, steps as CUDA graphs where they can be.")


SAMPLED = Decoding(method="sample", longest=200, temperature=0.8, top_k=200, seed=1)
"""How the samples of a validation are written."""


class Memory(NamedTuple):
    """The number of symbols before a row that a network remembers."""

    symbols: int
    layers: int
    width: int


class NextSymbol(SequenceObjective):
    """Each symbol given those before it, and what attention adds."""

    def __init__(self, settings: Training, remembering: Remembering | None = None) -> None:
        super().__init__(settings)
        self.remembering = remembering

    def count(self, batch: Batch) -> int:
        """The number of symbols that are predicted."""
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
class Continued:
    """A text, and what was written after it.

    written   None where the text was only read
    ended     whether the model ended the text itself, before it was cut off
    slid      whether the text outgrew the model's positions, so that its beginning was forgotten
    likeliest  the likeliest symbol after each one that was read, if they were asked for
    pieces    a label for each of those that were read
    unread    a warning that not all was read
    """

    prompt: str
    written: str | None = None
    log_prob: float = 0.0
    symbols: int = 0
    ended: bool = False
    slid: bool = False
    likeliest: str = ""
    pieces: Sequence[str] = ()
    unread: str = ""

    @property
    def source(self) -> str:
        """The prompt in a line."""
        return escaped(self.prompt)

    @property
    def answer(self) -> str:
        """The continuation, in a line."""
        return escaped(self.written or "")

    @property
    def text(self) -> str:
        """The likeliest next symbols of a text that was read, or else what was written."""
        return self.likeliest or self.answer

    @property
    def remark(self) -> str:
        """A warning if the model no longer read the beginning of the text."""
        slid = "the text exceeds the model's positions: it continues from the last half"
        return self.unread or (slid if self.slid else "")

    def line(self) -> str:
        """The continuation, in a line."""
        return self.answer

    def as_data(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        found = {"text": self.written, "log_prob": self.log_prob}
        return {**found, "ended": self.ended, "slid": self.slid}

    def facts(self, gold: Any = None) -> tuple[list[tuple[str, str]], int | None]:
        """The text; or the prompt and what was written, which is the answer."""
        if self.written is None:
            found = [("Text", _signed(self.prompt))]
        else:
            found = [("Prompt", _signed(self.prompt))] if self.prompt else []
            found += [("Written", _signed(self.written))]
        answer = None if self.written is None else len(found) - 1
        return [*found, (NAMED.capitalize(), self.likeliest)], answer


def _signed(text: str) -> str:
    """A text with signs for line breaks and tabs, as its symbols are drawn."""
    return text.replace("\n", "↵").replace("\t", "⇥")


class _Choice(NamedTuple):
    """Settings of decoding, and the network as all batches use it."""

    decoding: Decoding
    model: Any


class Continuation(OfDocuments[Continued]):
    """A text that goes on.

    context   how many symbols the model was trained on at once: given texts are read so many at a
              time
    places    how many symbols the model can see at once; None: any number
    memory    what is remembered of what stands before a row; None: nothing
    """

    name = "continuation"
    decoding = Decoding
    options = ("best", "samples")
    tokens = 16384
    named = NAMED
    pictured = 12
    figures = (
        Column("loss", ".4f", "low"),
        Column("perplexity", ".3f", "low"),
        Column("bits per character", ".4f", "low"),
    )

    def __init__(
        self, marks: Marks, *, context: int, places: int | None = None, memory: Memory | None = None
    ) -> None:
        self.marks, self.context, self.places, self.memory = marks, context, places, memory

    def objective(self, parts: Sequence[str], settings: Training) -> NextSymbol:
        """Each symbol given those before it."""
        if self.memory is None:
            return NextSymbol(settings)
        symbols, layers, width = self.memory
        lanes = self.lanes(settings)
        return NextSymbol(settings, Remembering(lanes, layers=layers, places=symbols, width=width))

    def lanes(self, settings: Training) -> int:
        """The number of rows in a batch."""
        return max(1, settings.batch_tokens // self.context)

    # Writing

    def settled(self, worker: Worker, choice: Any) -> _Choice:
        """With the network, whose steps are replayed where that pays."""
        decoding = SAMPLED if choice is None else choice
        model = replayed(worker.model, decoding.longest) if decoding.replay else worker.model
        return _Choice(decoding, model)

    def batches(
        self, worker: Worker, rows: Mapping[int, Sequence[Any]], choice: Any = None, best: int = 1
    ) -> Iterator[list[int]]:
        """Prompts of like length together, of equal length where the model needs that; texts that
        are read, one by one."""
        if choice is None:
            yield from ([i] for i in rows)
            return
        decoding, several = choice.decoding, {"sample": best, "greedy": 1}
        each = several.get(decoding.method, max(decoding.width, best))
        mixed, batch, longest = _pads(worker.model), list[int](), 0
        lengths = {i: len(self._opened(row)) for i, (row, *_) in rows.items()}
        for i in sorted(lengths, key=lambda i: -lengths[i]):
            full = (len(batch) + 1) * each * (longest + decoding.longest) > worker.tokens
            if batch and (full or not (mixed or lengths[i] == longest)):
                yield batch
                batch = []
            longest = longest if batch else lengths[i]
            batch.append(i)
        if batch:
            yield batch

    def _opened(self, row: list[int]) -> list[int]:
        """A prompt; an empty one becomes what opens a text in the vocabulary."""
        return row or list(self.marks.opening)

    def answers(
        self,
        worker: Worker,
        items: Sequence[Any],
        rows: Sequence[Any],
        choice: Any,
        best: int,
        numbers: Sequence[int],
    ) -> list[list[Continued]]:
        """Continuations of each prompt: so many samples, or the best few of a beam.

        The same prompt, seed and number of a sample give the same text, whatever is beside them.
        """
        decoding, ids = choice.decoding, [self._opened(row) for row, *_ in rows]
        found = self._decode(worker, choice.model, ids, decoding, best)
        return [
            [self._finished(worker, prompt, row, each, decoding) for each in some]
            for (prompt, *_), row, some in zip(items, ids, found, strict=True)
        ]

    def as_json(self, answers: Sequence[Continued]) -> dict[str, Any]:
        """All continuations of a prompt."""
        return {"prompt": answers[0].prompt, "answers": [each.as_data() for each in answers]}

    def _decode(
        self, worker: Worker, model: Any, ids: list[list[int]], decoding: Decoding, best: int
    ) -> list[list[Hypothesis]]:
        """Continue prompts, whose last symbols are the first that are read step by step."""
        sampled, device = decoding.method == "sample", worker.device
        each = best if sampled else 1
        ids = [row for row in ids for _ in range(each)]
        before = [row[:-1] for row in ids]
        # The last symbol that is written is never read.
        if self.places is not None and max(map(len, ids)) + decoding.longest - 1 > self.places:
            model = Sliding(model, self.places, device)
            carry = model.begin(before)
        else:
            inputs, first = padded(before, device)
            carry = model.begin(inputs, first=first)
        rules: dict[str, Any] = {
            "begin": torch.tensor([row[-1] for row in ids], device=device),
            "end": self.marks.end,
            "longest": decoding.longest,
            "forbid": [*self.marks.never, *range(worker.kind.size, _table(worker.model))],
            "device": device,
            "cut": True,
        }
        if decoding.method == "beam":
            rules |= {"width": max(decoding.width, best), "best": best}
            return beam(model, carry, len(ids), length_penalty=decoding.length_penalty, **rules)
        if not sampled:
            return [[one] for one in greedy(model, carry, len(ids), **rules)]
        rules |= decoding.model_dump(include={"temperature", "top_k", "top_p"})
        rules["seeds"] = [seed_of(decoding.seed, i % each, row) for i, row in enumerate(ids)]
        found = sample(model, carry, len(ids), **rules)
        return [found[i : i + each] for i in range(0, len(found), each)]

    def _finished(
        self, worker: Worker, prompt: str, ids: list[int], found: Hypothesis, decoding: Decoding
    ) -> Continued:
        kind: Any = worker.kind
        count = len(found.symbols)
        read = len(ids) + count - (count == decoding.longest)
        return Continued(
            prompt,
            kind.continued(ids, found.symbols),
            found.log_prob,
            count,
            ended=count < decoding.longest,
            slid=self.places is not None and read > self.places,
        )

    # Reading

    def readings(
        self,
        worker: Worker,
        examples: Sequence[Example],
        rows: Sequence[Any],
        *,
        overlap: int = 0,
    ) -> list[PredictedText]:
        """The surprise of the model at texts, symbol by symbol.

        overlap  of windows; see `reading`
        """
        return [
            self.reading(worker, np.array(row, np.int64), each.inputs[0], overlap)
            for each, (row, *_) in zip(examples, rows, strict=True)
        ]

    def reading(
        self, worker: Worker, ids: NDArray[Any], text: str, overlap: int = 0
    ) -> PredictedText:
        """The surprise of the model at symbols, of which all but the first are predicted.

        Windows of `context` symbols follow each other, and none knows what came before it except
        what is remembered, or an `overlap`, which is read again and not counted again.
        """
        if not 0 <= overlap < self.context:
            raise Refused(f"an overlap must be between 0 and the context of {self.context} symbols")
        if len(ids) < 2:
            return UNREAD
        pieces = worker.kind.pieces  # type: ignore[attr-defined]
        nats, memories = 0.0, None
        for starts in self._windows(worker, len(ids), overlap):
            more, memories = self._nats(worker, ids, starts, overlap, memories)
            nats += more
        # The first symbol is not predicted, and what it writes is not counted.
        text = text[len(pieces.decode(ids[:1].tolist())) :]
        strange = self.marks.unknown
        unknown = 0 if strange is None else int((ids[1:] == strange).sum())
        return PredictedText(nats, len(ids) - 1, len(text), len(text.encode()), unknown)

    def _windows(self, worker: Worker, count: int, overlap: int) -> Iterator[list[int]]:
        """The first positions of windows, batch by batch."""
        last = count - 1  # this symbol is only predicted
        starts = list(range(0, max(1, last - overlap), self.context - overlap))
        size = 1 if self.memory else max(1, worker.tokens // self.context)
        yield from (starts[i : i + size] for i in range(0, len(starts), size))

    def _nats(
        self,
        worker: Worker,
        ids: NDArray[Any],
        starts: list[int],
        overlap: int,
        memories: Memories | None,
    ) -> tuple[float, Memories | None]:
        """The surprise of some windows, and what the next one remembers."""
        place = np.array(starts)[:, None] + np.arange(self.context + 1)
        inside = place < len(ids)
        rows = np.where(inside, ids.take(np.minimum(place, len(ids) - 1)), PAD)
        counted = inside[:, 1:] & (
            (np.arange(self.context) >= overlap) | (np.array(starts)[:, None] == 0)
        )
        table, real = (torch.from_numpy(x).to(worker.device) for x in (rows, counted))
        said = worker.model(table[:, :-1], **({"memories": memories} if self.memory else {}))
        nats = cross_entropy(said.logits.float().mT, table[:, 1:], reduction="none")
        left = said.memories if self.memory and not overlap else None
        return float((nats.double() * real).sum()), left

    @classmethod
    def figured(cls, scores: Mapping[str, Any], perplexity: float | None) -> list[Value]:
        """The values of `figures`."""
        (found,) = scores.values()
        return [found.loss, found.perplexity, found.bits_per_character]

    def validated(
        self, worker: Worker, examples: Sequence[Example]
    ) -> tuple[float, dict[str, float], str]:
        """Loss, perplexity, and bits per character."""
        found = LanguageScores.of(worker.read(examples), context=self.context)
        bits = {"bits_per_character": found.bits_per_character}
        return found.loss, {"perplexity": found.perplexity, **bits}, f"loss {found.loss:.4f}"

    def brief(self, answer: Continued) -> str:
        """The beginning of a sample."""
        return f"sample: {answer.answer[:BRIEF]}"

    def sample(self, example: Example, answer: Continued) -> str:
        """A text with its continuation."""
        return f"{answer.prompt}{answer.written}\n"

    # Looking inside

    @torch.inference_mode()
    def once(
        self, worker: Worker, item: tuple[Any, ...], answers: Sequence[Continued] = ()
    ) -> list[Continued]:
        """Read a text, with what was written after it; nothing is written.

        If the text is longer than the model's positions, only its end is read.
        """
        worker.model.eval()
        found = answers[0] if answers else Continued(*item)
        (row,) = worker.kind.whole([found.prompt + (found.written or "")])
        whole = self._opened(row)
        ids = self._seen(whole)
        said = self._said(worker, [ids], "context")
        likeliest = _likeliest(said.output, worker.kind.size)
        unread = f"only the last {self.places} symbols are read: the model has no more positions"
        return [
            replace(
                found,
                likeliest="".join(map(sign, worker.kind.spelt(likeliest, ""))),
                pieces=worker.labels(worker.kind, ids, None),
                unread=unread if len(ids) < len(whole) else "",
            )
        ]

    def _seen(self, row: list[int]) -> list[int]:
        """The end of a row, as far as the model can see it at once."""
        return row if self.places is None else row[-self.places :]

    def _said(self, worker: Worker, rows: Sequence[list[int]], need: Need) -> Any:
        """A pass over rows, padded at their ends."""
        table, _ = worker.kind.padded(rows, worker.device)
        return worker.model(table, need=need)

    def seen(
        self, worker: Worker, examples: Sequence[Example], rows: Sequence[Any]
    ) -> Mapping[str, tuple[Attended, Tensor]]:
        """Every attention while texts are read; of two streams, the one that predicts."""
        ids = [self._seen(self._opened(row)) for row, *_ in rows]
        counts = torch.tensor(list(map(len, ids)), device=worker.device)
        said = self._said(worker, ids, "weight")
        return {
            path: (record, counts)
            for path, record in said.seen.items()
            if not path.endswith(".content")
        }

    def first(self, worker: Worker, answer: Continued) -> int:
        """The last symbol."""
        return -1

    def words(
        self, worker: Worker, item: tuple[Any, ...], answer: Continued
    ) -> Callable[[str], Words]:
        """The symbols that were read."""
        return lambda path: (answer.pieces, None)


def _pads(model: Any) -> bool:
    """Whether padding in front of a prompt changes nothing."""
    if not isinstance(model, Decoder):
        return True
    return all(layer.attention.ignores_shifts for layer in model.stack.layers)


def _table(model: Any) -> int:
    """The number of rows of the symbol embedding; some may be padding."""
    if isinstance(model, Decoder):
        return len(model.words.table.weight)
    return model.streams.words.num_embeddings if isinstance(model, LanguageModel) else 0


def _likeliest(output: Tensor | Unformed, size: int) -> list[int]:
    """The likeliest symbol after each one of a text, with few of its logits at a time."""
    if isinstance(output, Tensor):
        found: list[int] = output[0, :, :size].argmax(-1).tolist()
        return found
    parts = (output._replace(known=known) for known in output.known[0].split(FORMED))
    some = (part.form()[:, :size].argmax(-1).tolist() for part in parts)
    return [symbol for each in some for symbol in each]
