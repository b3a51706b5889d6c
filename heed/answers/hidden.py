"""Hidden words and whether a text follows another: how both are learnt, predicted, and seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from heed.answers.documents import OfDocuments
from heed.answers.form import Example, Lead, Words
from heed.answers.hidden_scores import HiddenReading, HiddenWordScores, Shares
from heed.answers.worker import Worker
from heed.data.batches import Batch
from heed.data.borrowed import Hiding, Renumbered, symbols_of
from heed.data.documents import Documents
from heed.data.kinds.text import MASKED
from heed.data.masked_words import Masking
from heed.data.permutation import Permuting
from heed.data.plan import longest_first
from heed.data.pretraining_batches import (
    Maker,
    MaskedPairs,
    MaskedStretches,
    PermutedStretches,
    Remade,
)
from heed.data.tokenise import BOS, EOS, PAD
from heed.models.written import Unformed, formed
from heed.records import Attended, Need
from heed.training.objective import Loss, SequenceObjective
from heed.training.settings import Training
from heed.viewing.blocks import Column, Value
from heed.viewing.panels import Panel
from heed.viewing.pieces import label

TOKENS = 8000  # positions in a batch that is scored
NONE = -1  # the label where nothing is predicted
SEED = 0  # of the words that are hidden in validation: the same each time


class Hidden(Masking):
    """Predict hidden words, and whether one text follows another: BERT."""

    kind: Literal["masked"] = "masked"
    next_sentence: bool = Field(True, description="Two texts in a row, and does the second follow?")


class Ordered(Permuting):
    """Predict words in a random order: XLNet."""

    kind: Literal["permutation"] = "permutation"


Objective = Annotated[Hidden | Ordered, Field(discriminator="kind")]


class Said(NamedTuple):
    """A model's predictions for rows.

    words    the logits at each requested position, not yet formed if possible    B K V
    follows  the logits of whether the second text follows the first: yes, no    B 2
    """

    words: Tensor | Unformed
    follows: Tensor | None
    seen: dict[str, Attended]


def ask(
    model: Any,
    tokens: Mapping[str, Tensor],
    lengths: Tensor,
    need: Need = "context",
    numbers: Tensor | None = None,
) -> Said:
    """A model's predictions for a batch with the columns of `data/remaking.py`.

    numbers  from the batch's symbol numbers to those of the model and its logits; None: the same  V
    """
    text = tokens["text"] if numbers is None else numbers[tokens["text"]]
    if "order" not in tokens:
        segments = tokens.get("segments")
        said = model(text, lengths, segments, need, asked=tokens["places"])
        return Said(said.words, said.follows, said.seen)
    order, predicted = tokens["order"], tokens["predicted"]
    sees = (order + 1 - predicted)[:, :, None] > order[:, None, :]  # B T T
    written = model(text, need, targets=tokens["places"], visible=sees, lengths=lengths)
    return Said(written.output, None, written.seen)


class HiddenObjective(SequenceObjective):
    """Words that were hidden, and whether the second text follows the first.

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
        """The number of words to be predicted."""
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
        wrong = cross_entropy(said.follows.float(), labels, ignore_index=-1, reduction="sum")
        words, pairs = (tokens["labels"] != PAD).sum(), (labels >= 0).sum()
        alone = words / pairs.clamp(min=1)
        follows = wrong * torch.where(self.per_pair.isnan(), alone, self.per_pair)
        return Loss(loss.total + follows, {**loss.parts, "follows": follows.detach()})

    def _labels(self, labels: Tensor) -> Tensor:
        """The model's numbers, `NONE` where nothing is predicted: 0 may be a symbol.    B K"""
        known = labels if self.numbers is None else self.numbers[labels]
        return known.masked_fill(labels == PAD, NONE)


@dataclass(frozen=True, slots=True)
class Filled:
    """A line with its hidden words filled in.

    words    for each of them the most likely pieces, with their probabilities
    follows  the probability that the second text follows the first; None without a second
    unread   symbols beyond the model's positions
    joined   whether two texts were read as one, since the model does not take pairs
    listed   how many words a line lists for each mask; 1: only the text
    """

    source: str
    filled: str = ""
    words: list[list[tuple[str, float]]] = field(default_factory=list)
    follows: float | None = None
    unread: int = 0
    pieces: Sequence[str] = ()
    joined: bool = False
    listed: int = 1

    @property
    def answer(self) -> str:
        """The line with its masks replaced."""
        return self.filled

    @property
    def text(self) -> str:
        """The line with its masks replaced, and whether the second text follows."""
        return self.line()

    def line(self) -> str:
        """The text; whether the second text follows; words with their probabilities."""
        cells = [self.filled]
        if self.follows is not None:
            cells.append(f"follows {self.follows:.3f}")
        if self.listed > 1:
            cells += [", ".join(f"{w} {p:.3f}" for w, p in named) for named in self.words]
        return "\t".join(cells)

    @property
    def remark(self) -> str:
        """A warning if the answer is the line itself, or the line was not read as intended."""
        said = []
        if self.joined:
            said.append("both texts are read as one: this model was not trained on pairs of texts")
        if self.unread:
            limit = "the model's limit is reached"
            said.append(f"the last {self.unread} symbols were not read: {limit}")
        if self.follows is None and self.source.strip() and not MASKED.search(self.source):
            said.append("the line has no [MASK], so nothing is filled in")
        return "; ".join(said)

    def as_data(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        words = [[{"word": w, "probability": p} for w, p in named] for named in self.words]
        found = {"source": self.source, "text": self.filled, "words": words}
        return {**found, "follows": self.follows, "unread": self.unread}

    def facts(self, gold: Any = None) -> tuple[list[tuple[str, str]], int | None]:
        """The line before and after."""
        return [("Text", self.source), ("Answer", self.text)], 1


class _Row(NamedTuple):
    ids: list[int]
    segments: list[int]
    unread: int


class HiddenWords(OfDocuments[Filled]):
    """Hidden words, and whether a text follows another.

    objective  what is hidden while it learns
    longest    symbols of a row while it learns
    places     symbols that it can read at once; None: any number
    shares     the probability of each symbol without context; None if unknown    V
    """

    name = "hidden-words"
    unit = "predicted words"
    stream = 0
    pictured = 6
    figures = (
        Column("loss", ".4f", "low"),
        Column("unigram", ".4f"),
        Column("perplexity", ".2f", "low"),
        Column("accuracy, %", ".1f", "high"),
        Column("next sentence, %", ".1f", "high"),
    )

    def __init__(
        self,
        pieces: Hiding,
        objective: Hidden | Ordered,
        *,
        longest: int,
        places: int | None = None,
        shares: Shares | None = None,
    ) -> None:
        self.learns, self.longest, self.places, self.shares = objective, longest, places, shares
        self.symbols = symbols_of(pieces)
        self.numbers = torch.from_numpy(pieces.order) if isinstance(pieces, Renumbered) else None
        self._plain = torch.from_numpy(self.symbols.plain)

    @property
    def is_ordered(self) -> bool:
        """Whether words are predicted in a random order, as XLNet does, or masked ones."""
        return isinstance(self.learns, Ordered)

    @property
    def is_paired(self) -> bool:
        """Whether it learns if one text follows another."""
        return isinstance(self.learns, Hidden) and self.learns.next_sentence

    def objective(self, parts: Sequence[str], settings: Training) -> HiddenObjective:
        """Words that were hidden, and whether the second text follows the first."""
        return HiddenObjective(settings, self.numbers)

    def maker(self, documents: Documents) -> Maker:
        """The maker of rows from documents, as the objective wants them."""
        given = (documents, self.symbols)
        if isinstance(self.learns, Ordered):
            return PermutedStretches(*given, self.learns, self.longest)
        kind = MaskedPairs if self.learns.next_sentence else MaskedStretches
        return kind(*given, self.learns, self.longest)

    # Filling in

    @classmethod
    def asked(cls, changes: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """The number of words that are listed for each mask."""
        return {}, changes.pop("best", 1)

    def check(self, choice: Any, best: int) -> None:
        """Any number of words can be listed."""

    def blank(self, worker: Worker, item: tuple[Any, ...]) -> list[Filled]:
        """A blank line stays blank."""
        return [Filled(*item)]

    def batches(
        self, worker: Worker, rows: Mapping[int, Sequence[Any]], choice: Any = None, best: int = 1
    ) -> Iterator[list[int]]:
        """Lines of like length together."""
        costs = {i: len(self.framed(sides).ids) for i, (sides, *_) in rows.items()}
        return longest_first(costs, worker.tokens)

    def answers(
        self,
        worker: Worker,
        items: Sequence[Any],
        rows: Sequence[Any],
        choice: Any,
        best: int,
        numbers: Sequence[int],
    ) -> list[list[Filled]]:
        """Each line with its masks replaced.

        Two texts with a tab between them are a pair, if the model was trained on pairs; any other
        reads them as one text, and marks the answer as `joined`.
        """
        framed = [self.framed(sides) for sides, *_ in rows]
        said = self._said(worker, framed)
        plain = self._plain.to(worker.device)
        logits = self._known(formed(said.words)).masked_fill(~plain, -torch.inf)
        shares, ids = logits.softmax(-1).topk(min(best, int(plain.sum())))  # B K n
        follows = None if said.follows is None else said.follows.float().softmax(-1)[:, 0].tolist()
        found = []
        for n, ((line, *_), row) in enumerate(zip(items, framed, strict=True)):
            words = self._named(worker, row, ids[n].tolist(), shares[n].tolist())
            likeliest = worker.kind.spelt(ids[n, : len(words), 0].tolist(), None)
            one = Filled(
                line,
                _replaced(line, [piece.strip() for piece in likeliest]),
                words,
                follows[n] if follows is not None and any(row.segments) else None,
                row.unread,
                worker.labels(worker.kind, row.ids, None),
                not self.is_paired and "\t" in line.strip(),
                best,
            )
            found.append([one])
        return found

    def as_line(self, answers: Sequence[Filled], best: int) -> str:
        """The one answer, which lists the best words by itself."""
        return answers[0].line()

    def _said(self, worker: Worker, rows: Sequence[_Row], need: Need = "context") -> Said:
        tokens, lengths = self._tokens(rows, worker.device)
        numbers = None if self.numbers is None else self.numbers.to(worker.device)
        return ask(worker.model, tokens, lengths, need, numbers)

    def _known(self, logits: Tensor) -> Tensor:
        """The logits in the order of the tokeniser's numbers.    ... V -> ... V"""
        if self.numbers is None:
            return logits.float()
        return logits[..., self.numbers.to(logits.device)].float()

    def _named(
        self, worker: Worker, row: _Row, ids: list[list[int]], shares: list[list[float]]
    ) -> list[list[tuple[str, float]]]:
        """The labels of the most likely pieces for each mask of a row."""
        kind = worker.kind
        names = (
            [label(piece, within=kind.marked) for piece in kind.spelt(ids[k], None)]
            for k in range(row.ids.count(self.symbols.mask))
        )
        return [list(zip(some, shares[k], strict=True)) for k, some in enumerate(names)]

    def _tokens(
        self, rows: Sequence[_Row], device: torch.device
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The columns of a batch that predicts all masks of a row at once.    -> B T, B"""

        def padded(columns: Iterable[Sequence[int]], filler: int) -> Tensor:
            return pad_sequence([torch.tensor(c) for c in columns], True, filler).to(device)

        text = padded((row.ids for row in rows), PAD)
        hidden = text == self.symbols.mask
        most = max(1, int(hidden.sum(1).max()))
        # Masks in text order, then fillers, which are -1 for XLNet.
        places = (~hidden).to(torch.int8).argsort(dim=1, stable=True)[:, :most]
        if self.is_ordered:
            order = hidden.long()  # no mask sees another
            places = places.where(hidden.gather(1, places), -1)
            tokens = {"text": text, "order": order, "predicted": order, "places": places}
        else:
            segments = padded((row.segments for row in rows), 0)
            tokens = {"text": text, "segments": segments, "places": places}
        return tokens, torch.tensor([len(row.ids) for row in rows]).to(device)

    def framed(self, sides: Sequence[list[int]]) -> _Row:
        """One or two texts as the model reads them, cut to the model's positions."""
        if self.is_ordered:
            (text,) = sides
            most = len(text) if self.places is None else self.places - 2
            ids = [*text[:most], EOS, BOS]
            return _Row(ids, [0] * len(ids), max(0, len(text) - most))
        ids, segments = [BOS], [0]
        for number, side in enumerate(sides):
            ids += [*side, EOS]
            segments += [number] * (len(side) + 1)
        unread = 0 if self.places is None else max(0, len(ids) - self.places)
        if unread:
            keep = len(ids) - unread - 1
            ids, segments = [*ids[:keep], EOS], segments[: keep + 1]
        return _Row(ids, segments, unread)

    # Reading

    def coded(self, worker: Worker, examples: Sequence[Example]) -> Remade:
        """Documents as rows with words hidden, the same each time."""
        pieces = worker.kind.pieces  # type: ignore[attr-defined]
        texts = (pieces.encode(each.inputs[0]) for each in examples)
        held = Documents.of([ids[:-1] for ids in text] for text in texts)
        tokens = max(TOKENS, self.longest)
        return Remade(self.maker(held), tokens=tokens, seed=SEED, shuffle=False)

    def read(
        self, worker: Worker, examples: Sequence[Example], coded: Remade, **more: Any
    ) -> Iterator[HiddenReading]:
        """The quality of predicted hidden words, batch by batch."""
        return (self._reading(worker, batch.to(worker.device)) for batch in coded.epoch(0))

    @torch.inference_mode()
    def _reading(self, worker: Worker, batch: Batch) -> HiddenReading:
        worker.model.eval()
        numbers = None if self.numbers is None else self.numbers.to(worker.device)
        said = ask(worker.model, batch.tokens, batch.lengths["text"], numbers=numbers)
        labels = batch.tokens["labels"]
        there = labels != PAD
        logits, right = self._known(_at(said.words, there)), labels[there]  # N V, N
        nats = float(cross_entropy(logits, right, reduction="sum"))
        targets = torch.bincount(right, minlength=len(self._plain)).cpu().numpy()
        found = int((logits.argmax(-1) == right).sum())
        follows = () if said.follows is None else _followed(said.follows, batch)
        return HiddenReading(nats, len(right), found, targets, *follows)

    def readings(
        self, worker: Worker, examples: Sequence[Example], rows: Sequence[Any]
    ) -> list[HiddenReading]:
        """The quality of the predicted hidden words of documents."""
        return list(self.read(worker, examples, self.coded(worker, examples)))

    def loss(self, readings: Sequence[HiddenReading]) -> float:
        """The loss that training minimises."""
        return HiddenWordScores.of(readings).total

    def validated(
        self, worker: Worker, examples: Sequence[Example]
    ) -> tuple[float, dict[str, float], str]:
        """Loss, perplexity, accuracy; by frequencies alone; next sentences."""
        scores = HiddenWordScores.of(worker.read(examples), self.shares)
        told = {
            "words_loss": scores.loss,
            "perplexity": scores.perplexity,
            "accuracy": scores.accuracy,
            "unigram_loss": scores.unigram_loss,
            "follows_loss": scores.follows_loss,
            "follows_accuracy": scores.follows_accuracy,
        }
        figures = {name: x for name, x in told.items() if x is not None}
        return scores.total, figures, scores.line()

    @classmethod
    def figured(cls, scores: Mapping[str, Any], perplexity: float | None) -> list[Value]:
        """The values of `figures`."""
        (found,) = scores.values()
        words = [found.loss, found.unigram_loss, found.perplexity, found.accuracy]
        return [*words, found.follows_accuracy]

    def sample(self, example: Example, answer: Filled) -> str:
        """A line before and after."""
        return f"given   {answer.source}\nfilled  {answer.filled}\n\n"

    # Looking inside

    def seen(
        self, worker: Worker, examples: Sequence[Example], rows: Sequence[Any]
    ) -> Mapping[str, tuple[Attended, Tensor]]:
        """Every attention while lines are read; of two streams, the content's."""
        framed = [self.framed(sides) for sides, *_ in rows]
        counts = torch.tensor([len(row.ids) for row in framed], device=worker.device)
        said = self._said(worker, framed, "weight")
        return {
            path: (record, counts)
            for path, record in said.seen.items()
            if not path.endswith(".query")
        }

    def words(
        self, worker: Worker, item: tuple[Any, ...], answer: Filled
    ) -> Callable[[str], Words]:
        """The symbols of the line."""
        return lambda path: (answer.pieces, None)

    def lead(self, worker: Worker, answer: Filled, layers: Mapping[str, Any]) -> Lead:
        """Every layer, as the mean of its heads."""
        return Lead(panels=[_mean(layer.name, layer.panels()) for layer in layers.values()])

    def first(self, worker: Worker, answer: Filled) -> int:
        """The first hidden word."""
        (mask,) = worker.labels(worker.kind, [self.symbols.mask], None)
        return list(answer.pieces).index(mask) if mask in answer.pieces else 0


def _at(words: Tensor | Unformed, there: Tensor) -> Tensor:
    """The logits of only some positions.    B K V, B K -> N V"""
    if isinstance(words, Tensor):
        return words[there]
    return words._replace(known=words.known[there]).form()


def _followed(logits: Tensor, batch: Batch) -> tuple[float, int, int]:
    """The surprise over pairs of texts, how many were right, and how many there are."""
    labels = batch.tokens["follows"][:, 0] - 1  # below 0 where there is none
    real = labels >= 0
    logits, labels = logits[real].float(), labels[real]
    nats = float(cross_entropy(logits, labels, reduction="sum"))
    return nats, int((logits.argmax(-1) == labels).sum()), len(labels)


def _replaced(line: str, words: Sequence[str]) -> str:
    """The line with words in place of its masks; what was not read stays as it is."""
    given = iter(words)
    return MASKED.sub(lambda mask: next(given, mask.group()), line)


def _mean(name: str, heads: Sequence[Panel]) -> Panel:
    title = name if len(heads) == 1 else f"{name} · mean of {len(heads)} heads"
    weight = np.mean([panel.weight for panel in heads], 0)
    return Panel.of(title, weight, heads[0].rows, heads[0].columns)
