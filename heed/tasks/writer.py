"""A trained language model at work: it continues prompts, reads given texts, can be watched."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from heed.data.tokenise import PAD
from heed.decoding.beam import beam
from heed.decoding.greedy import greedy
from heed.decoding.sampling import sample
from heed.decoding.sliding import Sliding, padded
from heed.decoding.stepping import Hypothesis
from heed.errors import Refused
from heed.models.replaying import replayed
from heed.models.transformer import Decoder
from heed.models.written import Unformed
from heed.models.xlnet_answers import LanguageModel
from heed.models.xlnet_sights import Memories
from heed.records import Attended, Need
from heed.settings import Settings
from heed.tasks.borrowing import Borrowed, Text, marks_of
from heed.tasks.cutting import labels
from heed.viewing.pieces import sign

FORMED = 256  # places whose logits are formed at a time while a text is looked at


class Decoding(Settings):
    """How a continuation is chosen."""

    method: Literal["sample", "greedy", "beam"] = "sample"
    longest: int = Field(200, ge=1, le=1_000_000, description="Symbols at most.")
    temperature: float = Field(1.0, gt=0, le=100)
    top_k: int | None = Field(None, ge=1)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int = Field(0, ge=0, le=2**31 - 1, description="For method: sample.")
    width: int = Field(5, ge=1, le=1000, description="For method: beam.")
    length_penalty: float = Field(0.0, ge=0, le=10, description="For method: beam.")
    replay: bool = Field(True, description="On a GPU, steps as CUDA graphs where they can be.")


@dataclass(frozen=True, slots=True)
class Continuation:
    """What was written after a prompt.

    ended  whether the model ended the text itself, before it was cut off
    slid   whether the text outgrew the model's places, so that its beginning was lost from sight
    """

    prompt: str
    text: str
    log_prob: float
    symbols: int
    ended: bool
    slid: bool


class Writer:
    """A trained language model at work.

    places   how many symbols the model can see at once; None: any number
    context  how many it was trained on at once: given texts are read so many at a time
    tokens   places in a batch, padding included
    remembers  whether what stands before the window of a given text is remembered, as in training
    """

    def __init__(
        self,
        model: nn.Module,
        vocabulary: Text,
        device: torch.device,
        *,
        places: int | None,
        context: int,
        tokens: int = 16384,
        remembers: bool = False,
    ) -> None:
        self.model: Any = model
        self.vocabulary, self.device, self.marks = vocabulary, device, marks_of(vocabulary)
        self.places, self.context, self.tokens = places, context, tokens
        self.remembers = remembers

    def write(
        self, prompts: Sequence[str], decoding: Decoding, samples: int = 1
    ) -> list[list[Continuation]]:
        """Continuations of each prompt: so many samples, or the best few of a beam.

        The same prompt, seed and number of a sample give the same text, whatever is beside them.
        """
        found: dict[int, list[Continuation]] = {}
        for done in self.stream(prompts, decoding, samples):
            found |= done
        return [found[i] for i in range(len(prompts))]

    @torch.inference_mode()
    def stream(
        self, prompts: Sequence[str], decoding: Decoding, samples: int = 1
    ) -> Iterator[dict[int, list[Continuation]]]:
        """The continuations batch by batch, prompts of like length together, the longest first."""
        if samples > 1 and decoding.method == "greedy":
            raise Refused(f"greedy search has one answer, not {samples}: use sampling or a beam")
        self.model.eval()
        ids = [self.symbols(prompt) for prompt in prompts]
        model = replayed(self.model, decoding.longest) if decoding.replay else self.model
        for rows in self._batches([len(each) for each in ids], decoding, samples):
            written = self._decode(model, [ids[i] for i in rows], decoding, samples)
            yield {
                i: [self._finished(prompts[i], ids[i], each, decoding) for each in some]
                for i, some in zip(rows, written, strict=True)
            }

    def symbols(self, prompt: str) -> list[int]:
        """A prompt as numbers; an empty one becomes what opens a text in the vocabulary."""
        (ids,) = self.vocabulary.encode([prompt])
        return ids or list(self.marks.opening)

    def _decode(
        self, model: Any, ids: list[list[int]], decoding: Decoding, samples: int
    ) -> list[list[Hypothesis]]:
        """Continue prompts, whose last symbols are the first that are read step by step."""
        sampled = decoding.method == "sample"
        each = samples if sampled else 1
        ids = [row for row in ids for _ in range(each)]
        before = [row[:-1] for row in ids]
        if self._slides(max(map(len, ids)), decoding):
            assert self.places is not None
            model = Sliding(model, self.places, self.device)
            carry = model.begin(before)
        else:
            inputs, first = padded(before, self.device)
            carry = model.begin(inputs, first=first)
        rules: dict[str, Any] = {
            "begin": torch.tensor([row[-1] for row in ids], device=self.device),
            "end": self.marks.end,
            "longest": decoding.longest,
            "forbid": self._forbidden,
            "device": self.device,
            "cut": True,
        }
        if decoding.method == "beam":
            rules |= {"width": max(decoding.width, samples), "best": samples}
            return beam(model, carry, len(ids), length_penalty=decoding.length_penalty, **rules)
        if not sampled:
            return [[one] for one in greedy(model, carry, len(ids), **rules)]
        rules |= decoding.model_dump(include={"temperature", "top_k", "top_p"})
        rules["seeds"] = [seed_of(decoding.seed, i % each, row) for i, row in enumerate(ids)]
        found = sample(model, carry, len(ids), **rules)
        return [found[i : i + each] for i in range(0, len(found), each)]

    @property
    def _forbidden(self) -> list[int]:
        """Symbols that are no text, and rows that only fill up the table."""
        model, rows = self.model, 0
        if isinstance(model, Decoder):
            rows = len(model.words.table.weight)
        elif isinstance(model, LanguageModel):
            rows = model.streams.words.num_embeddings
        return [*self.marks.never, *range(self.vocabulary.size, rows)]

    def _slides(self, prompt: int, decoding: Decoding) -> bool:
        """Whether the text may outgrow the places. The last symbol written is never read."""
        return self.places is not None and prompt + decoding.longest - 1 > self.places

    def _finished(
        self, prompt: str, ids: list[int], found: Hypothesis, decoding: Decoding
    ) -> Continuation:
        count = len(found.symbols)
        read = len(ids) + count - (count == decoding.longest)
        return Continuation(
            prompt,
            self._text(ids, found.symbols),
            found.log_prob,
            count,
            ended=count < decoding.longest,
            slid=self.places is not None and read > self.places,
        )

    def _text(self, prompt: list[int], symbols: list[int]) -> str:
        if isinstance(self.vocabulary, Borrowed):
            return self.vocabulary.continued(prompt, symbols)
        return self.vocabulary.decode(symbols)

    def _batches(self, lengths: list[int], decoding: Decoding, samples: int) -> Iterator[list[int]]:
        """Batches of rows of like length; of equal length, where the model needs that."""
        each = samples if decoding.method == "sample" else 1
        each = max(decoding.width, samples) if decoding.method == "beam" else each
        mixed = self._pads
        rows: list[int] = []
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            longest = lengths[rows[0]] if rows else 0
            full = (len(rows) + 1) * each * (longest + decoding.longest) > self.tokens
            if rows and (full or not (mixed or lengths[i] == longest)):
                yield rows
                rows = []
            rows.append(i)
        if rows:
            yield rows

    @property
    def _pads(self) -> bool:
        """Whether padding in front of a prompt changes nothing."""
        if not isinstance(self.model, Decoder):
            return True
        layers = self.model.stack.layers
        return all(layer.attention.ignores_shifts for layer in layers)

    def read(self, text: str, *, overlap: int = 0) -> Reading:
        """How surprised the model is by a text, symbol by symbol."""
        (ids,) = self.vocabulary.encode([text])
        return self.read_symbols(np.array(ids, np.int64), text, overlap=overlap)

    def read_symbols(
        self, ids: NDArray[Any], text: str | None = None, *, overlap: int = 0
    ) -> Reading:
        """How surprised the model is by symbols, of which all but the first are predicted.

        Windows of `context` symbols follow each other, and none knows what came before it except
        what is remembered, or an `overlap`, which is read again and not counted again.
        """
        if not 0 <= overlap < self.context:
            raise Refused(f"an overlap must be between 0 and the context of {self.context} symbols")
        if len(ids) < 2:
            raise Refused("a text of fewer than two symbols: there is nothing to predict")
        nats, memories = 0.0, None
        for starts in self._windows(ids, overlap):
            more, memories = self._nats(ids, starts, overlap, memories)
            nats += more
        # The first symbol is not predicted, and what it writes is not counted.
        text = self.vocabulary.decode(ids.tolist()) if text is None else text
        text = text[len(self.vocabulary.decode(ids[:1].tolist())) :]
        strange = self.marks.unknown
        unknown = 0 if strange is None else int((ids[1:] == strange).sum())
        return Reading(nats, len(ids) - 1, len(text), len(text.encode()), unknown)

    def _windows(self, ids: NDArray[Any], overlap: int) -> Iterator[list[int]]:
        """Where windows begin, batch by batch."""
        stride = self.context - overlap
        last = len(ids) - 1  # this symbol is only predicted
        starts = list(range(0, max(1, last - overlap), stride))
        size = 1 if self.remembers else max(1, self.tokens // self.context)
        yield from (starts[i : i + size] for i in range(0, len(starts), size))

    @torch.inference_mode()
    def _nats(
        self, ids: NDArray[Any], starts: list[int], overlap: int, memories: Memories | None
    ) -> tuple[float, Memories | None]:
        """The surprise of some windows, and what the next one remembers."""
        self.model.eval()
        place = np.array(starts)[:, None] + np.arange(self.context + 1)
        inside = place < len(ids)
        rows = np.where(inside, ids.take(np.minimum(place, len(ids) - 1)), PAD)
        counted = inside[:, 1:] & (
            (np.arange(self.context) >= overlap) | (np.array(starts)[:, None] == 0)
        )
        table, real = torch.from_numpy(rows).to(self.device), torch.from_numpy(counted)
        said = self.model(table[:, :-1], **({"memories": memories} if self.remembers else {}))
        nats = cross_entropy(said.logits.float().mT, table[:, 1:], reduction="none")
        left = said.memories if self.remembers and not overlap else None
        return float((nats.double() * real.to(self.device)).sum()), left

    @torch.inference_mode()
    def look(
        self, text: str, need: Need = "weight"
    ) -> tuple[list[str], list[str], dict[str, Attended]]:
        """Every attention while a text is read: its pieces, the likeliest next ones, the records.

        If a text is longer than the model's places, only its end is read.
        """
        self.model.eval()
        ids = self.symbols(text)
        ids = ids if self.places is None else ids[-self.places :]
        written = self.model(torch.tensor([ids], device=self.device), need=need)
        likeliest = self._likeliest(written.output)
        # Of two streams, the one that predicts: the other only reads.
        asks = {p: record for p, record in written.seen.items() if not p.endswith(".content")}
        said = [sign(piece) for piece in self.vocabulary.spelt(likeliest)]
        return labels(self.vocabulary, ids), said, asks

    def _likeliest(self, output: Tensor | Unformed) -> list[int]:
        """The likeliest symbol after each one of a text, with few of its logits at a time."""
        if isinstance(output, Tensor):
            return output[0, :, : self.vocabulary.size].argmax(-1).tolist()
        parts = (output._replace(known=known) for known in output.known[0].split(FORMED))
        found = (part.form()[:, : self.vocabulary.size].argmax(-1).tolist() for part in parts)
        return [symbol for some in found for symbol in some]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a model made of a text: its surprise in nats, and how much there was."""

    nats: float
    symbols: int  # that were predicted
    characters: int
    bytes: int
    unknown: int

    @property
    def loss(self) -> float:
        """Nats per symbol."""
        return self.nats / self.symbols

    @property
    def perplexity(self) -> float:
        """The perplexity per symbol."""
        return math.exp(min(self.loss, 700))

    def bits(self, of: int) -> float:
        """Bits per character or byte, by how many of them there are."""
        return self.nats / math.log(2) / max(of, 1)


def seed_of(seed: int, sample: int, prompt: Sequence[int]) -> int:
    """The seed of a sample's draws, which depends on nothing else."""
    told = f"{seed} {sample} {list(prompt)}".encode()
    return int.from_bytes(hashlib.blake2b(told, digest_size=8).digest())


def sharpness(seen: Mapping[str, Attended]) -> dict[str, float]:
    """The mean entropy of each attention, in nats, over heads and places."""
    found = {}
    for path, record in seen.items():
        weight = record.weight.float()
        found[path] = float(-(weight * weight.clamp(min=1e-30).log()).sum(-1).mean())
    return found
