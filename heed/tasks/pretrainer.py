"""Apply a pretrained model: predict hidden words, and whether one text follows another."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from heed.attention.statistics import statistics
from heed.data.batches import Batch
from heed.data.borrowed import Hiding, Renumbered, symbols_of
from heed.data.documents import Documents
from heed.data.plan import longest_first
from heed.data.tokenise import BOS, EOS, PAD
from heed.models.written import Unformed, formed
from heed.records import Attended, Need
from heed.tasks.cutting import alternatives, labels

MASKED = re.compile(r"\[MASK\]|<mask>")
"""How a hidden word is written in a line."""


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
    """A model's predictions for a batch with the columns of `data/pretraining_batches.py`.

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


@dataclass(frozen=True, slots=True)
class Reading:
    """How well the model predicted rows: sums over them.

    targets  how often each symbol was a target    V
    """

    surprise: float  # nats
    right: int
    targets: NDArray[np.int64]
    follows_surprise: float = 0.0  # nats
    follows_right: int = 0
    pairs: int = 0


@dataclass(frozen=True, slots=True)
class Filled:
    """A line with its hidden words filled in.

    words    for each of them the most likely pieces, with their probabilities
    follows  the probability that the second text follows the first; None without a second
    unread   symbols beyond the model's positions
    joined   whether two texts were read as one, since the model does not take pairs
    heads    every attention by its path, H T T, if they were requested
    """

    source: str
    text: str = ""
    words: list[list[tuple[str, float]]] = field(default_factory=list)
    follows: float | None = None
    unread: int = 0
    pieces: list[str] = field(default_factory=list)
    heads: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    joined: bool = False


class _Row(NamedTuple):
    ids: list[int]
    segments: list[int]
    unread: int


class Pretrainer:
    """Applies a pretrained model.

    ordered  whether it predicts in a random order, as XLNet does, or masked symbols
    pairs    whether it was trained to predict if one text follows another
    places   symbols that it can read at once; None: any number
    tokens   positions in a batch, padding included
    """

    def __init__(
        self,
        model: nn.Module,
        tokeniser: Hiding,
        device: torch.device,
        *,
        ordered: bool = False,
        pairs: bool = False,
        places: int | None = None,
        tokens: int = 8000,
    ) -> None:
        self.model: Any = model
        self.tokeniser = tokeniser
        self.symbols = symbols_of(tokeniser)
        self.numbers = numbers_of(tokeniser, device)
        self.device, self.tokens = device, tokens
        self.ordered, self.pairs, self.places = ordered, pairs, places
        self._plain = torch.from_numpy(self.symbols.plain).to(device)

    def documents(self, texts: Iterable[Sequence[str]]) -> Documents:
        """Documents of sentences as numbers, held in memory."""
        return Documents.of([i[:-1] for i in self.tokeniser.encode(text)] for text in texts)

    @torch.inference_mode()
    def read(self, batches: Iterable[Batch]) -> Iterator[Reading]:
        """The loss and accuracy at hidden symbols, batch by batch."""
        self.model.eval()
        for batch in batches:
            batch = batch.to(self.device)
            said = ask(self.model, batch.tokens, batch.lengths["text"], numbers=self.numbers)
            labels = batch.tokens["labels"]
            there = labels != PAD
            logits, right = self._known(_at(said.words, there)), labels[there]  # N V, N
            surprise = nn.functional.cross_entropy(logits, right, reduction="sum")
            targets = torch.bincount(right, minlength=len(self._plain)).cpu().numpy()
            found = int((logits.argmax(-1) == right).sum())
            reading = Reading(float(surprise), found, targets)
            yield reading if said.follows is None else _followed(reading, said.follows, batch)

    def fill(self, lines: Sequence[str], *, best: int = 5, look: bool = False) -> list[Filled]:
        """Each line with its masks replaced; a blank one stays blank.

        Two texts with a tab between them are a pair, if the model was trained on pairs; any other
        reads them as one text, and marks the answer as `joined`.

        best  how many words are listed for each mask
        look  keep the attention weights
        """
        found = [Filled(line) for line in lines]
        rows = {i: self._row(line) for i, line in enumerate(lines) if line.strip()}
        for batch in longest_first({i: len(row.ids) for i, row in rows.items()}, self.tokens):
            answers = self._fill([lines[i] for i in batch], [rows[i] for i in batch], best, look)
            for i, answer in zip(batch, answers, strict=True):
                found[i] = answer
        return found

    def sharpness(self, lines: Sequence[str]) -> dict[str, dict[str, float]]:
        """Mean entropy (nats) and largest share of each attention while lines are read."""
        sums: dict[str, list[tuple[float, float]]] = {}
        for line in self.fill(lines, look=True):
            for path, weight in line.heads.items():
                figures = statistics(torch.from_numpy(weight)[None])
                pair = (float(figures.entropy.mean()), float(figures.peak.mean()))
                sums.setdefault(path, []).append(pair)
        means = {path: np.mean(pairs, axis=0).tolist() for path, pairs in sums.items()}
        return {path: {"entropy": e, "sharpness": p} for path, (e, p) in means.items()}

    @torch.inference_mode()
    def _fill(
        self, lines: Sequence[str], rows: Sequence[_Row], best: int, look: bool
    ) -> list[Filled]:
        self.model.eval()
        tokens, lengths = self._tokens(rows)
        said = ask(self.model, tokens, lengths, "weight" if look else "context", self.numbers)
        logits = self._known(formed(said.words)).masked_fill(~self._plain, -torch.inf)
        shares, ids = logits.softmax(-1).topk(min(best, int(self._plain.sum())))  # B K n
        follows = None if said.follows is None else said.follows.float().softmax(-1)[:, 0].tolist()
        return [
            Filled(
                line,
                _replaced(line, [piece.strip() for piece in likeliest]),
                words,
                follows[n] if follows is not None and any(row.segments) else None,
                row.unread,
                labels(self.tokeniser, row.ids),
                _heads(said.seen, n, len(row.ids)) if look else {},
                not self.pairs and "\t" in line.strip(),
            )
            for n, (line, row) in enumerate(zip(lines, rows, strict=True))
            for words in [self._named(row, ids[n].tolist(), shares[n].tolist())]
            for likeliest in [self.tokeniser.spelt(ids[n, : len(words), 0].tolist())]
        ]

    def _known(self, logits: Tensor) -> Tensor:
        """The logits in the order of the tokeniser's numbers.    ... V -> ... V"""
        return logits.float() if self.numbers is None else logits[..., self.numbers].float()

    def _named(
        self, row: _Row, ids: list[list[int]], shares: list[list[float]]
    ) -> list[list[tuple[str, float]]]:
        """The labels of the most likely pieces for each mask of a row."""
        masks = range(row.ids.count(self.symbols.mask))
        names = [alternatives(self.tokeniser, ids[k]) for k in masks]
        return [list(zip(names[k], shares[k], strict=True)) for k in masks]

    def _tokens(self, rows: Sequence[_Row]) -> tuple[dict[str, Tensor], Tensor]:
        """The columns of a batch that predicts all masks of a row at once.    -> B T, B"""

        def padded(columns: Iterable[Sequence[int]], filler: int) -> Tensor:
            return pad_sequence([torch.tensor(c) for c in columns], True, filler).to(self.device)

        text = padded((row.ids for row in rows), PAD)
        hidden = text == self.symbols.mask
        most = max(1, int(hidden.sum(1).max()))
        # Masks in text order, then fillers, which are -1 for XLNet.
        places = (~hidden).to(torch.int8).argsort(dim=1, stable=True)[:, :most]
        if self.ordered:
            order = hidden.long()  # no mask sees another
            places = places.where(hidden.gather(1, places), -1)
            tokens = {"text": text, "order": order, "predicted": order, "places": places}
        else:
            segments = padded((row.segments for row in rows), 0)
            tokens = {"text": text, "segments": segments, "places": places}
        return tokens, torch.tensor([len(row.ids) for row in rows]).to(self.device)

    def _row(self, line: str) -> _Row:
        """A line as the model reads it, cut to the model's positions."""
        sides = line.split("\t", 1) if self.pairs else [line]
        coded = [self._coded(side) for side in sides if side.strip()]
        if self.ordered:
            most = len(coded[0]) if self.places is None else self.places - 2
            ids = [*coded[0][:most], EOS, BOS]
            return _Row(ids, [0] * len(ids), max(0, len(coded[0]) - most))
        ids, segments = [BOS], [0]
        for number, side in enumerate(coded):
            ids += [*side, EOS]
            segments += [number] * (len(side) + 1)
        unread = 0 if self.places is None else max(0, len(ids) - self.places)
        if unread:
            keep = len(ids) - unread - 1
            ids, segments = [*ids[:keep], EOS], segments[: keep + 1]
        return _Row(ids, segments, unread)

    def _coded(self, text: str) -> list[int]:
        """The numbers of a text with masks in it, without an end."""
        ids: list[int] = []
        for number, part in enumerate(MASKED.split(text)):
            if number:
                ids.append(self.symbols.mask)
            if number and unicodedata.category(part[:1] or " ")[0] in "PS":
                # Punctuation right after a mask has no space before it; at a text's start it has.
                before, with_it = self.tokeniser.encode(["x", f"x{part}"])
                ids += with_it[len(before) - 1 : -1]
            elif part.strip():
                ids += self.tokeniser.encode([part])[0][:-1]
        return ids


def numbers_of(tokeniser: Hiding, device: torch.device | None = None) -> Tensor | None:
    """The model's number for each number of its tokeniser; None: the same.    V"""
    if not isinstance(tokeniser, Renumbered):
        return None
    return torch.from_numpy(tokeniser.order).to(device)


def _at(words: Tensor | Unformed, there: Tensor) -> Tensor:
    """The logits of only some positions.    B K V, B K -> N V"""
    if isinstance(words, Tensor):
        return words[there]
    return words._replace(known=words.known[there]).form()


def _followed(reading: Reading, logits: Tensor, batch: Batch) -> Reading:
    labels = batch.tokens["follows"][:, 0] - 1  # below 0 where there is none
    real = labels >= 0
    logits, labels = logits[real].float(), labels[real]
    return Reading(
        reading.surprise,
        reading.right,
        reading.targets,
        float(nn.functional.cross_entropy(logits, labels, reduction="sum")),
        int((logits.argmax(-1) == labels).sum()),
        len(labels),
    )


def _replaced(line: str, words: Sequence[str]) -> str:
    """The line with words in place of its masks; what was not read stays as it is."""
    given = iter(words)
    return MASKED.sub(lambda mask: next(given, mask.group()), line)


def _heads(seen: Mapping[str, Attended], n: int, length: int) -> dict[str, NDArray[np.float32]]:
    """One text's weights in each attention with a query for every symbol.    B H T S -> H T S"""
    return {
        path: record.weight[n, :, :length, :length].float().cpu().numpy()
        for path, record in seen.items()
        if not path.endswith(".query")
    }
