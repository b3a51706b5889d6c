"""A text that is written symbol by symbol, for an input of any kind.

The network reads an input and what was written so far, `network(*inputs, symbols, need=)`, or goes
step by step, `begin(*inputs)`, `step`, `select`. Where it attends to the input, that attention is
`network.aligning`, and `network.alignment(seen)` has its weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from heed.answers import measures
from heed.answers.form import WIDEST, Example, Form, Lead, Movable, Words, network_of
from heed.answers.text_scores import TextReading, TextScores, compared, text_scores
from heed.answers.worker import Worker
from heed.attention.statistics import entropy
from heed.data.batches import Batch
from heed.data.kinds.text import Text as TextKind
from heed.data.pairs import Links
from heed.data.tokenise import BOS, EOS, PAD, UNK
from heed.decoding.beam import beam
from heed.decoding.greedy import greedy
from heed.decoding.sampling import sample, seed_of
from heed.decoding.stepper import Hypothesis
from heed.records import Attended
from heed.settings import Settings
from heed.training.objective import Loss, SequenceObjective
from heed.training.settings import Training, Weight
from heed.viewing.blocks import Block, Column, Value
from heed.viewing.panels import Panel

BRIEF = 80  # letters of a text in the line of a validation
EXPLORED = 5  # hypotheses of a beam that a page shows
LINKS = "links"
"""The column of linked symbols: the positions of a source symbol and a target symbol, and so on."""


class TextTraining(Training):
    """Settings of how a network learns to write texts."""

    guided: Weight = Field(
        0.0, description="weight of the cross entropy of its attention against given alignments"
    )


class Decoding(Settings):
    """Settings of how a text is chosen."""

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
        description="Symbols at most; of a translation 20 and twice the source at most, too.",
    )


GREEDY = Decoding(method="greedy")


class TeacherForcing(SequenceObjective):
    """Each symbol of the right text given those before it, and what attention adds."""

    settings: TextTraining

    def __init__(self, parts: Sequence[str], settings: TextTraining) -> None:
        super().__init__(settings)
        self.parts = tuple(parts)

    def count(self, batch: Batch) -> int:
        """The number of symbols in the texts."""
        return int((batch.tokens[Text.column] != PAD).sum())

    def forward(self, model: nn.Module, batch: Batch) -> Loss:
        labels, guided = batch.tokens[Text.column], self.settings.guided > 0
        given = [x for name in self.parts for x in (batch.tokens[name], batch.lengths[name])]
        written = model(*given, shifted(labels), aligned=guided)
        more: dict[str, Any] = {}
        if guided:
            asked = network_of(model).alignment(written.seen), linked(batch, self.parts[0])
            more = {"aligned": asked, "guided": self.settings.guided}
        inside = {path for path in written.seen if _of_input(path)}
        S = given[0].shape[1]
        real = torch.arange(S, device=labels.device) < given[1][:, None]
        real &= (batch.rows >= 0)[:, None]  # a filler has a length, too
        return self.loss(
            written.output,
            labels,
            {path: seen for path, seen in written.seen.items() if path not in inside},
            elsewhere={path: (written.seen[path], real) for path in inside},
            **more,
        )


def shifted(labels: Tensor) -> Tensor:
    """The inputs of teacher forcing: <s>, then all labels but the last.    B T -> B T"""
    return torch.cat([torch.full_like(labels[:, :1], BOS), labels[:, :-1]], 1)


def linked(batch: Batch, part: str) -> Tensor:
    """One where a symbol of the text is linked to one of the input, else zero.    B T S"""
    (B, T), S = batch.tokens[Text.column].shape, batch.tokens[part].shape[1]
    listed, count = batch.tokens[LINKS], batch.lengths[LINKS] // 2
    source, target = listed[:, : listed.shape[1] // 2 * 2].unflatten(1, (-1, 2)).unbind(2)
    real = torch.arange(source.shape[1], device=count.device) < count[:, None]
    real &= (source < S) & (target < T)  # of a cache that is not trusted
    table = torch.zeros(B, T * S, device=count.device)
    places = torch.where(real, target * S + source, 0)
    return table.scatter_add_(1, places, real.float()).clamp(max=1).view(B, T, S)


@dataclass(frozen=True, slots=True)
class WrittenText:
    """A text that a model has written; empty for a blank input.

    symbols  without those of beginning and end
    part     the name of the input
    called   the name of the text
    """

    source: str
    text: str = ""
    log_prob: float = 0.0
    symbols: tuple[int, ...] = ()
    part: str = "source"
    called: str = "Text"

    @property
    def remark(self) -> str:
        """There is none."""
        return ""

    @property
    def answer(self) -> str:
        """The text."""
        return self.text

    def line(self) -> str:
        """The text."""
        return self.text

    def as_data(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {"text": self.text, "log_prob": self.log_prob}

    def facts(self, gold: Any = None) -> tuple[list[tuple[str, str]], int | None]:
        """The input, the text, and the reference."""
        found = [(self.part.capitalize(), self.source), (self.called, self.text)]
        return found + ([("Reference", gold)] if gold else []), 1


class Text(Form[str, WrittenText]):
    """A text.

    kind     how texts are cut into symbols
    writes   symbols that the network can write, the end included, where there is a limit
    bounded  whether a text is at most twice as long as its input, and 20 symbols
    called   the name of a text on a page
    guide    how inputs are cut into words, where links between words guide the attention
    longest  symbols of a training example; its links are below that
    lowercase, tokenise  how BLEU and chrF compare texts; None: by the script of the right ones
    """

    name = "text"
    column = "target"
    optional = (LINKS,)
    training = TextTraining
    decoding = Decoding
    options = ("best", "samples")
    figures: ClassVar[Sequence[Column]] = (
        Column("BLEU", ".1f", "high"),
        Column("long BLEU", ".1f", "high"),
        Column("AER", ".3f", "low"),
        Column("perplexity", ".2f", "low"),
        Column("entropy", ".2f"),
    )
    tokens = 4000
    rereads = True

    def __init__(
        self,
        kind: TextKind,
        *,
        writes: int | None = None,
        bounded: bool = True,
        called: str = "Text",
        guide: TextKind | None = None,
        longest: int = 0,
        lowercase: bool = False,
        tokenise: measures.Tokenise | None = None,
    ) -> None:
        self.target, self.writes, self.bounded = kind, writes, bounded
        self.lowercase, self.tokenise = lowercase, tokenise
        self.called, self.guide, self.longest = called, guide, longest

    # What the cache has

    @property
    def fingerprint(self) -> str:
        """A hash of vocabulary and rules."""
        return self.target.fingerprint

    @property
    def sizes(self) -> dict[str, int]:
        """The symbols, and the positions that links join."""
        links = {} if self.guide is None else {LINKS: self.longest}
        return {self.column: self.target.size, **links}

    def rows(self, examples: Sequence[Example]) -> dict[str, list[Any]]:
        """The symbols of each text, its end included, and its links."""
        found = {self.column: self.target.whole([each.answer for each in examples])}
        return found if self.guide is None else {**found, LINKS: list(map(self.links, examples))}

    def links(self, example: Example) -> list[int]:
        """The links of words as those of their symbols: source, target, source, target ...

        Every symbol of a word is linked to every symbol of each word that it is linked to; a
        possible link counts like a sure one.
        """
        wanted = frozenset() if example.gold is None else example.gold.possible
        if self.guide is None or not wanted:
            return []
        sides = self.guide.words(example.inputs[0]), self.target.words(example.answer)
        first, second = map(_symbols, sides)
        return [
            place
            for i, j in sorted(wanted)
            for both in product(first.get(i, ()), second.get(j, ()))
            for place in both
        ]

    def as_data(self, gold: str) -> str:
        """The text itself."""
        return gold

    def of_data(self, found: Any) -> str:
        """A kept text, checked."""
        return self.target.of_data(found)

    def gold_as_data(self, gold: Links) -> list[Any]:
        """The sure links and the possible ones."""
        return [sorted(some) for some in gold]

    def gold_of_data(self, found: Any) -> Links:
        """The inverse."""
        return Links(*(frozenset((int(i), int(j)) for i, j in some) for some in found))

    # Learning

    def objective(self, parts: Sequence[str], settings: Any) -> Movable:
        """Each symbol given those before it."""
        return TeacherForcing(parts, settings)

    # Answering

    def explored(self, choice: Any) -> int:
        """The best of a beam."""
        return min(choice.width, EXPLORED) if choice and choice.method == "beam" else 1

    def blank(self, worker: Worker, item: tuple[Any, ...]) -> list[WrittenText]:
        """No text."""
        return [self._text(worker, item)]

    def answers(
        self,
        worker: Worker,
        items: Sequence[Any],
        rows: Sequence[Any],
        choice: Any,
        best: int,
        numbers: Sequence[int],
    ) -> list[list[WrittenText]]:
        """The best texts, or so many samples; without a choice, those of greedy search."""
        decoding = choice or GREEDY
        several = best if decoding.method == "sample" else 1
        given = worker.given(rows)
        lengths = given[1]
        rules: dict[str, Any] = {
            "begin": BOS,
            "end": EOS,
            "longest": self._limits(lengths, decoding).repeat_interleave(several),
            "forbid": (PAD, UNK, BOS),
            "lengths": lengths.repeat_interleave(several),
        }
        weighed = decoding.method == "beam" and decoding.coverage_penalty > 0
        carry = worker.model.begin(*given, need="weight" if weighed else "context")
        found: list[list[Hypothesis]]
        if decoding.method == "beam":
            rules |= {"width": max(decoding.width, best), "best": best}
            rules |= decoding.model_dump(include={"length_penalty", "coverage_penalty"})
            found = beam(worker.model, carry, len(rows), **rules)
        elif decoding.method == "greedy":
            found = [[each] for each in greedy(worker.model, carry, len(rows), **rules)]
        else:
            every = [(n, k) for n in numbers for k in range(several)]
            rules |= decoding.model_dump(include={"temperature", "top_k", "top_p"})
            rules["seeds"] = [seed_of(decoding.seed, n, k) for n, k in every]
            if several > 1:
                again = torch.arange(len(rows), device=worker.device).repeat_interleave(several)
                carry = worker.model.select(carry, again)
            drawn = sample(worker.model, carry, len(every), **rules)
            found = [drawn[i : i + several] for i in range(0, len(drawn), several)]
        both = zip(items, found, strict=True)
        return [[self._text(worker, item, each) for each in some] for item, some in both]

    def _limits(self, lengths: Tensor, decoding: Decoding) -> Tensor:
        """Symbols that may be written for each input, the end not counted.    B"""
        most = decoding.longest if self.writes is None else min(decoding.longest, self.writes - 1)
        return (
            (2 * lengths + 20).clamp(max=most) if self.bounded else torch.full_like(lengths, most)
        )

    def _text(
        self, worker: Worker, item: tuple[Any, ...], found: Hypothesis | None = None
    ) -> WrittenText:
        names: dict[str, Any] = {"part": next(iter(worker.inputs)), "called": self.called}
        source = worker.as_line(item)
        if found is None:
            return WrittenText(source, **names)
        text = self.target.pieces.decode(found.symbols)
        return WrittenText(source, text, found.log_prob, tuple(found.symbols), **names)

    def as_json(self, answers: Sequence[WrittenText]) -> dict[str, Any]:
        """The input, and every text."""
        first = answers[0]
        return {first.part: first.source, "answers": [each.as_data() for each in answers]}

    # Reading right texts

    def readings(
        self,
        worker: Worker,
        examples: Sequence[Example],
        rows: Sequence[Any],
        look: bool = False,
    ) -> list[TextReading]:
        """-log p of each text; with `look`, how the attention aligns it."""
        ids = [self._cut(row) for row in self.rows(examples)[self.column]]
        written, labels = self._read(worker, rows, ids, "weight" if look else "context")
        surprises = cross_entropy(
            written.logits.float().mT, labels, ignore_index=PAD, reduction="none"
        ).sum(1)
        seen = worker.model.alignment(written.seen).float().cpu() if look and written.seen else None
        found = []
        for i, nats in enumerate(surprises.tolist()):
            one = TextReading(nats, len(ids[i]))
            if look:
                one = replace(one, whole=_is_whole(worker, examples[i], rows[i]) and _ends(ids[i]))
            if seen is not None:
                weight = seen[i, : len(ids[i]), : len(rows[i][0])]
                share = weight / weight.sum(-1, keepdim=True).clamp(min=1e-30)
                links = self.aligned(worker, examples[i], weight.numpy())
                one = replace(one, links=links, entropy=float(entropy(share).mean()))
            found.append(one)
        return found

    def _cut(self, ids: Sequence[int]) -> list[int]:
        """The symbols of a text that the network can write."""
        return list(ids[: self.writes])

    def _read(
        self, worker: Worker, rows: Sequence[Any], ids: Sequence[list[int]], need: str
    ) -> tuple[Any, Tensor]:
        """The network's scores for each position of some texts, and their symbols.    B T"""
        labels, _ = self.target.padded(ids, worker.device)
        return worker.model(*worker.given(rows), shifted(labels), need=need), labels

    def aligned(
        self, worker: Worker, example: Example, weight: NDArray[Any]
    ) -> list[tuple[int, int]] | None:
        """Links between words, by the attention between their symbols.    weight: T S"""
        if not isinstance(worker.kind, TextKind):
            return None
        source = [*worker.kind.words(example.inputs[0])[: weight.shape[1] - 1], -1]
        target = self.target.words(example.answer)[: weight.shape[0]]
        return measures.links(measures.of_words(weight, target, source))

    # Looking inside

    def seen(
        self, worker: Worker, examples: Sequence[Example], rows: Sequence[Any]
    ) -> Mapping[str, tuple[Attended, Tensor]]:
        """Every attention while right texts are read."""
        ids = [self._cut(row) for row in self.rows(examples)[self.column]]
        written, _ = self._read(worker, rows, ids, "weight")
        count = [
            torch.tensor([len(each) for each in some], device=worker.device)
            for some in ([row[0] for row in rows], ids)
        ]
        return {path: (one, count[not _of_input(path)]) for path, one in written.seen.items()}

    def reread(self, worker: Worker, item: tuple[Any, ...], answer: WrittenText) -> None:
        """Read a text, its end included."""
        self._read(worker, worker.rows([item]), [self._cut([*answer.symbols, EOS])], "context")

    def borrowed(self, worker: Worker, answer: WrittenText) -> WrittenText:
        """The same text in this model's symbols; how likely it is, is not known."""
        ((*symbols, _),) = self.target.whole([answer.text])
        return replace(answer, symbols=tuple(symbols), log_prob=math.nan)

    def words(
        self, worker: Worker, item: tuple[Any, ...], answer: WrittenText
    ) -> Callable[[str], Words]:
        """The words of an attention: of the input, of the text, or of both.

        A row of the decoder is the step that chooses a word: it cannot attend to that word, only to
        those before it.
        """
        across, ids = worker.words(item), self._cut([*answer.symbols, EOS])
        down, before = (worker.labels(self.target, x, None) for x in (ids, [BOS, *ids[:-1]]))

        def words(path: str) -> Words:
            if _of_input(path):
                return across, across
            return down, before if self.kind(path) == "self" else across

        return words

    def kind(self, path: str) -> str:
        """Whether an attention is to its own sequence, by its path."""
        inside = path.endswith("self") or (".layers." in path and not path.endswith("cross"))
        return "self" if inside or _of_input(path) else "cross"

    def lead(self, worker: Worker, answer: WrittenText, layers: Mapping[str, Any]) -> Lead:
        """The alignment of the symbols that were written."""
        path = _aligning(worker, list(layers))
        if path is None:
            return Lead()
        panels = layers[path].panels()
        columns, rows = panels[0].columns, panels[0].rows
        weight = np.mean([panel.weight for panel in panels], 0)
        if len(rows) == len(layers[path].queries):  # otherwise the map of a long text is pooled
            rows, weight = rows[: len(answer.symbols)], weight[: len(answer.symbols)]
        panel = Panel("alignment", weight, rows, columns)
        return Lead(panels=[panel] if answer.symbols else [], opens=path)

    def walked(self, worker: Worker, paths: Sequence[str]) -> tuple[Sequence[str], int]:
        """The attentions to the input, and which of them is the alignment."""
        crossing = [path for path in paths if self.kind(path) == "cross"]
        path = _aligning(worker, crossing)
        return crossing, -1 if path is None else crossing.index(path)

    # Judging

    def judged(
        self,
        worker: Worker,
        examples: Sequence[Example],
        said: Sequence[WrittenText],
        readings: Sequence[TextReading] | None = None,
        tokenise: measures.Tokenise | None = None,
    ) -> TextScores:
        """BLEU, chrF, perplexity, alignment error; `readings` and `tokenise` where they are given
        for these examples."""
        readings = worker.read(examples, look=True) if readings is None else readings
        sources = [worker.as_line(each.inputs) for each in examples]
        return text_scores(
            [each.text for each in said],
            examples,
            readings,
            lengths=measures.lengths(sources),
            lowercase=self.lowercase,
            tokenise=tokenise or self.tokenise,
        )

    @classmethod
    def figured(cls, scores: Mapping[str, Any], perplexity: float | None) -> list[Value]:
        """The values of `figures`."""
        test, far = scores.get("test", scores.get("valid")), scores.get("long")
        return [
            None if test is None else test.bleu,
            None if far is None else far.bleu,
            None if test is None else test.aer,
            perplexity if test is None else test.perplexity,
            None if test is None else test.entropy,
        ]

    @classmethod
    def compared(cls, scores: Mapping[str, Mapping[str, Any]]) -> list[Block]:
        """BLEU by sentence length."""
        return compared(scores)

    def validated(
        self, worker: Worker, examples: Sequence[Example]
    ) -> tuple[float, dict[str, float], str]:
        """Loss and perplexity."""
        loss = worker.loss(examples)
        perplexity = math.exp(min(loss, 700))
        return loss, {"perplexity": perplexity}, f"perplexity {perplexity:.2f}"

    def brief(self, answer: WrittenText) -> str:
        """The input and the beginning of the text."""
        return f"{answer.source} -> {answer.text[:BRIEF]}"


def _of_input(path: str) -> bool:
    """Whether an attention reads the input alone, by its path."""
    return path.startswith("encoder")


def _aligning(worker: Worker, paths: Sequence[str]) -> str | None:
    """The path of the attention whose weights stand for the alignment."""
    found = getattr(worker.model, "aligning", None)
    inside = (path for path in paths if worker.model.get_submodule(path) is found)
    return next(inside, None)


def _is_whole(worker: Worker, example: Example, row: Sequence[Any]) -> bool:
    """Whether all of an input was read."""
    kind, item = worker.kind, example.inputs[0]
    return len(row[0]) != kind.longest or len(kind.whole([item])[0]) == len(row[0])


def _ends(ids: Sequence[int]) -> bool:
    return ids[-1] == EOS


def _symbols(words: Sequence[int]) -> dict[int, list[int]]:
    """The symbols of each word, from the word of each symbol."""
    found: dict[int, list[int]] = {}
    for place, word in enumerate(words):
        found.setdefault(word, []).append(place)
    return found
