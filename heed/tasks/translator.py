"""A trained translator at work: it translates, reads given translations, and can be watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from heed.attention.statistics import entropy
from heed.data.pairs import Links
from heed.data.plan import longest_first
from heed.data.tokenise import BOS, EOS, PAD, UNK, Kind, Tokeniser
from heed.decoding.beam import beam
from heed.decoding.greedy import greedy
from heed.decoding.sampling import sample
from heed.decoding.stepping import Hypothesis
from heed.records import Attended
from heed.settings import Settings
from heed.tasks import measuring
from heed.tasks.cutting import labels
from heed.tasks.looking import sharpness

WIDEST = 1000
"""Hypotheses that a beam keeps at most."""


class Tokens(Settings):
    """How text is cut into symbols."""

    kind: Kind = "bpe"
    size: int = Field(8000, ge=16, le=1_000_000, description="Symbols in a vocabulary, at most.")
    shared: bool = Field(False, description="One vocabulary for both languages.")
    lowercase: bool = False


class Decoding(Settings):
    """How a translation is chosen."""

    method: Literal["beam", "greedy", "sample"] = "beam"
    width: int = Field(5, ge=1, le=WIDEST)
    length_penalty: float = Field(1.0, ge=0, le=10)
    coverage_penalty: float = Field(0.0, ge=0, le=10)
    temperature: float = Field(1.0, gt=0, le=100)
    top_k: int | None = Field(None, ge=1)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int = Field(0, ge=0, le=2**31 - 1, description="For method: sample.")
    longest: int = Field(
        200,
        ge=1,
        le=100_000,
        description="Symbols at most; 20 and twice the source at most, too.",
    )


class Example(NamedTuple):
    """A sentence, its translation, and which words correspond, where that is known."""

    source: str
    target: str
    links: Links | None = None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokenisers of both languages; one and the same where they share it."""

    source: Tokeniser
    target: Tokeniser

    @property
    def shared(self) -> bool:
        """Whether both sides have one vocabulary."""
        return self.source is self.target

    @property
    def fingerprint(self) -> str:
        """A hash of pieces and rules for either side, the same for the same ones alone."""
        return f"{self.source.fingerprint} {self.target.fingerprint}"

    @classmethod
    def train(cls, settings: Tokens, pairs: Callable[[], Iterator[Example]]) -> Vocabulary:
        """Train on the training pairs, which are read once (shared) or twice."""
        choices: dict[str, Any] = {"size": settings.size, "lowercase": settings.lowercase}
        if settings.shared:
            both = (text for pair in pairs() for text in (pair.source, pair.target))
            joint = Tokeniser.train(settings.kind, both, **choices)
            return cls(joint, joint)
        source = Tokeniser.train(settings.kind, (pair.source for pair in pairs()), **choices)
        target = Tokeniser.train(settings.kind, (pair.target for pair in pairs()), **choices)
        return cls(source, target)

    def links(self, pair: Example) -> list[int]:
        """The links of a pair as those of its pieces: source, target, source, target ...

        Every piece of a word is linked to every piece of each word that it is linked to; a possible
        link counts like a sure one.
        """
        linked = frozenset() if pair.links is None else pair.links.possible
        if not linked:
            return []
        sides = self.source.words(pair.source), self.target.words(pair.target)
        first, second = (_pieces(words) for words in sides)
        return [
            place
            for i, j in sorted(linked)
            for both in product(first.get(i, ()), second.get(j, ()))
            for place in both
        ]

    def save(self, source: Path, target: Path) -> None:
        """Write one file, or two where the target has a vocabulary of its own."""
        self.source.save(source)
        if not self.shared:
            self.target.save(target)

    @classmethod
    def load(cls, source: Path, target: Path) -> Vocabulary:
        """Load what `save` wrote; without a file of its own, the target shares the source's."""
        first = Tokeniser.load(source)
        return cls(first, Tokeniser.load(target) if target.exists() else first)


def _pieces(words: Sequence[int]) -> dict[int, list[int]]:
    """The pieces of each word, from the word of each piece."""
    found: dict[int, list[int]] = {}
    for piece, word in enumerate(words):
        found.setdefault(word, []).append(piece)
    return found


@dataclass(frozen=True, slots=True)
class Translation:
    """What was written for a sentence, and where the model looked while it wrote."""

    source: str
    text: str
    log_prob: float
    columns: list[str]  # the pieces of the source, its end included
    rows: list[str]  # the pieces that were written
    weight: NDArray[np.float32] | None  # rows × columns


@dataclass(frozen=True, slots=True)
class Reading:
    """What the model made of a given pair: how surprised it was, and how it aligned the words."""

    surprise: float  # nats, summed over the target's symbols
    symbols: int
    links: list[tuple[int, int]] | None  # of words; None without attention
    entropy: float | None  # of the attention, mean over the symbols, in nats
    whole: bool = True  # False: the model read or wrote a part of it only


class Translator:
    """A trained translator at work.

    longest  symbols of a source that the model can read, where there is a limit: what comes
             after is not read
    writes   symbols that it can write, its end included, where there is a limit
    tokens   places in a batch, padding included
    """

    def __init__(
        self,
        model: nn.Module,
        vocabulary: Vocabulary,
        device: torch.device,
        *,
        longest: int | None = None,
        writes: int | None = None,
        tokens: int = 4000,
    ) -> None:
        self.model: Any = model
        self.vocabulary, self.device = vocabulary, device
        self.longest, self.writes, self.tokens = longest, writes, tokens

    def translate(
        self,
        sentences: Sequence[str],
        decoding: Decoding,
        *,
        look: bool = False,
        best: int = 1,
        chance: torch.Generator | None = None,
    ) -> list[list[Translation]]:
        """The best translations of each sentence, best first; a blank one stays blank."""
        found = [[Translation(sentence, "", 0.0, [], [], None)] for sentence in sentences]
        for done in self.stream(sentences, decoding, look=look, best=best, chance=chance):
            for i, translations in done.items():
                found[i] = translations
        return found

    @torch.inference_mode()
    def stream(
        self,
        sentences: Sequence[str],
        decoding: Decoding,
        *,
        look: bool = False,
        best: int = 1,
        chance: torch.Generator | None = None,
    ) -> Iterator[dict[int, list[Translation]]]:
        """The translations batch by batch, the longest sentences first; blank ones are left out.

        look    keep where the model looked
        chance  the generator that sampling draws from; it may go on from call to call
        """
        self.model.eval()
        chance = self.chance(decoding) if chance is None else chance
        busy = [i for i, sentence in enumerate(sentences) if sentence.strip()]
        coded = self.vocabulary.source.encode([sentences[i] for i in busy])
        ids = {i: self._cut(each) for i, each in zip(busy, coded, strict=True)}
        for rows in longest_first({i: len(each) for i, each in ids.items()}, self.tokens):
            written = self._decode([ids[i] for i in rows], decoding, look, best, chance)
            yield {
                i: [self._finished(sentences[i], ids[i], each) for each in hypotheses]
                for i, hypotheses in zip(rows, written, strict=True)
            }

    def chance(self, decoding: Decoding) -> torch.Generator:
        """A new generator for sampling, with the seed of the settings."""
        return torch.Generator(self.device).manual_seed(decoding.seed)

    def _most(self, decoding: Decoding) -> int:
        """Symbols that may be written, the end not counted."""
        return decoding.longest if self.writes is None else min(decoding.longest, self.writes - 1)

    def _decode(
        self,
        ids: list[list[int]],
        decoding: Decoding,
        look: bool,
        best: int,
        chance: torch.Generator,
    ) -> list[list[Hypothesis]]:
        source, lengths = self._padded(ids)
        weigh = look or (decoding.method == "beam" and decoding.coverage_penalty > 0)
        carry = self.model.begin(source, lengths, need="weight" if weigh else "context")
        rules: dict[str, Any] = {
            "begin": BOS,
            "end": EOS,
            "longest": (2 * lengths + 20).clamp(max=self._most(decoding)),
            "forbid": (PAD, UNK, BOS),
            "lengths": lengths,
        }
        if decoding.method == "beam":
            rules |= {"width": max(decoding.width, best), "best": best}
            rules |= decoding.model_dump(include={"length_penalty", "coverage_penalty"})
            return beam(self.model, carry, len(ids), **rules)
        if decoding.method == "greedy":
            return [[each] for each in greedy(self.model, carry, len(ids), **rules)]
        rules |= decoding.model_dump(include={"temperature", "top_k", "top_p"})
        return [[each] for each in sample(self.model, carry, len(ids), generator=chance, **rules)]

    def _finished(self, sentence: str, ids: list[int], found: Hypothesis) -> Translation:
        weight = None if found.weight is None else found.weight.float().cpu().numpy()
        return Translation(
            sentence,
            self.vocabulary.target.decode(found.symbols),
            found.log_prob,
            labels(self.vocabulary.source, ids, sentence),
            labels(self.vocabulary.target, found.symbols),
            weight,
        )

    def read(self, pairs: Sequence[Example], *, look: bool = True) -> list[Reading]:
        """Read given pairs: the model's surprise at each target, and how it aligns the words."""
        found: dict[int, Reading] = {}
        for rows, ids in self._coded(pairs):
            given = [pairs[i] for i in rows]
            found |= zip(rows, self._read(given, ids, look), strict=True)
        return [found[i] for i in range(len(pairs))]

    def _coded(
        self, pairs: Sequence[Example]
    ) -> Iterator[tuple[list[int], list[tuple[list[int], list[int]]]]]:
        """Batches of pairs as numbers: which rows they are, and source and target of each."""
        ids = self._ids(pairs)
        lengths = {i: max(map(len, both)) for i, both in enumerate(ids)}
        for rows in longest_first(lengths, self.tokens):
            yield rows, [ids[i] for i in rows]

    def _ids(self, pairs: Sequence[Example]) -> list[tuple[list[int], list[int]]]:
        """Source and target of each pair, no longer than the model can read and write."""
        sources = self.vocabulary.source.encode([pair.source for pair in pairs])
        targets = self.vocabulary.target.encode([pair.target for pair in pairs])
        return list(zip(map(self._cut, sources), (t[: self.writes] for t in targets), strict=True))

    @torch.inference_mode()
    def _read(
        self, pairs: list[Example], ids: list[tuple[list[int], list[int]]], look: bool
    ) -> list[Reading]:
        self.model.eval()
        (source, lengths), (labels, _) = (self._padded([each[i] for each in ids]) for i in (0, 1))
        written = self.model(source, lengths, shifted(labels), need="weight" if look else "context")
        surprises = cross_entropy(
            written.logits.float().mT, labels, ignore_index=PAD, reduction="none"
        ).sum(1)
        looks = self.model.alignment(written.seen).float().cpu() if look and written.seen else None
        readings = []
        for i, surprise in enumerate(surprises.tolist()):
            S, T = map(len, ids[i])
            links, spread = None, None
            if looks is not None:
                weight = looks[i, :T, :S]
                links = self.links(pairs[i], weight.numpy())
                share = weight / weight.sum(-1, keepdim=True).clamp(min=1e-30)
                spread = float(entropy(share).mean())
            readings.append(Reading(surprise, T, links, spread, self._whole(pairs[i], *ids[i])))
        return readings

    def _whole(self, pair: Example, source: list[int], target: list[int]) -> bool:
        """Whether these numbers are those of the whole pair."""
        if target[-1] != EOS:
            return False
        return len(source) != self.longest or len(self.vocabulary.source.words(pair.source)) == len(
            source
        )

    @property
    def aligning(self) -> nn.Module | None:
        """The attention whose weights stand for the word alignment; None without any."""
        found: nn.Module | None = self.model.aligning
        return found

    def links(self, pair: Example, weight: NDArray[Any]) -> list[tuple[int, int]]:
        """Which words correspond, by the attention between their pieces.    weight: T S"""
        source = [*self.vocabulary.source.words(pair.source)[: weight.shape[1] - 1], -1]
        target = self.vocabulary.target.words(pair.target)[: weight.shape[0]]
        return measuring.links(measuring.of_words(weight, target, source))

    @torch.inference_mode()
    def look(self, pairs: Sequence[Example]) -> tuple[dict[str, Attended], Tensor, Tensor]:
        """Every attention while given pairs are read, and the lengths of sources and targets."""
        self.model.eval()
        ids = self._ids(pairs)
        (source, lengths), (labels, written) = (
            self._padded([each[i] for each in ids]) for i in (0, 1)
        )
        return self.model(source, lengths, shifted(labels), need="weight").seen, lengths, written

    def sharpness(self, pairs: Sequence[Example]) -> dict[str, dict[str, float]]:
        """Mean entropy (nats) and largest share of each attention while given pairs are read."""
        seen, sources, targets = self.look(pairs)
        return {
            path: sharpness(record.weight, sources if path.startswith("encoder") else targets)
            for path, record in seen.items()
        }

    def _cut(self, ids: list[int]) -> list[int]:
        """Cut a source to what the model can read; the end stays."""
        if self.longest is None or len(ids) <= self.longest:
            return ids
        return [*ids[: self.longest - 1], EOS]

    def _padded(self, ids: list[list[int]]) -> tuple[Tensor, Tensor]:
        """-> B S, B"""
        lengths = torch.tensor([len(each) for each in ids])
        table = pad_sequence([torch.tensor(each) for each in ids], True, PAD)
        return table.to(self.device), lengths.to(self.device)


def shifted(labels: Tensor) -> Tensor:
    """The inputs of teacher forcing: <s>, then all labels but the last.    B T -> B T"""
    return torch.cat([torch.full_like(labels[:, :1], BOS), labels[:, :-1]], 1)
