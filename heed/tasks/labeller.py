"""A trained classifier at work: a text's label, how sure it is, and which words it looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from heed.data.labelled import Labelled
from heed.data.letters import Letters
from heed.data.plan import longest_first
from heed.data.tokenise import PAD, UNK
from heed.models.xlnet_reader import GATHERS
from heed.tasks.cutting import Words
from heed.tasks.looking import sharpness


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the model says of a text; empty for a blank one.

    looks   the weight of each piece in each look of a static attention, H S, where there is one
            and it was asked for
    heads   every other attention by its path, H S S, where they were asked for
    """

    text: str
    label: str = ""
    probability: float = 0.0
    shares: dict[str, float] = field(default_factory=dict)  # of every label, the likeliest first
    pieces: list[str] = field(default_factory=list)
    looks: NDArray[np.float32] | None = None
    heads: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    symbols: int = 0  # of the whole text; the model has read len(pieces)

    @property
    def weight(self) -> NDArray[np.float32] | None:
        """The weight of each piece, the mean over the looks."""
        return None if self.looks is None else np.asarray(self.looks.mean(0))

    @property
    def cut(self) -> bool:
        """Whether the text was too long to be read to its end."""
        return self.symbols > len(self.pieces)

    @property
    def remark(self) -> str:
        """What a reader should know of the answer."""
        read = f"only {len(self.pieces):,} of {self.symbols:,} symbols were read"
        return f"{self.text[:30]}…: {read}" if self.cut else ""


class Labeller:
    """A trained classifier at work.

    words   how texts are cut, and the labels
    gathers the number of the symbol that gathers a text at its end, which has a token type of its
            own; None: the model is given no types
    tokens  places in a batch, padding included
    """

    def __init__(
        self,
        model: nn.Module,
        words: Words,
        device: torch.device,
        *,
        gathers: int | None = None,
        tokens: int = 8000,
    ) -> None:
        self.model: Any = model
        self.words, self.device, self.gathers, self.tokens = words, device, gathers, tokens

    def label(self, texts: Sequence[str], *, look: bool = False) -> list[Judgement]:
        """The label of each text; a blank one gets none."""
        found = [Judgement(text) for text in texts]
        for done in self.stream(texts, look=look):
            for i, judgement in done.items():
                found[i] = judgement
        return found

    def stream(self, texts: Sequence[str], *, look: bool = False) -> Iterator[dict[int, Judgement]]:
        """The labels batch by batch, the longest texts first; blank ones are left out."""
        busy = [i for i, text in enumerate(texts) if text.strip()]
        whole = self.words.whole([texts[i] for i in busy])
        ids = dict(zip(busy, map(self.words.cut, whole), strict=True))
        symbols = {i: len(each) for i, each in zip(busy, whole, strict=True)}
        for rows in longest_first({i: len(each) for i, each in ids.items()}, self.tokens):
            said = self._said([ids[i] for i in rows], [texts[i] for i in rows], look)
            shares = said.logits.float().softmax(-1).cpu()
            looks = said.seen.items() if look else ()
            seen = {path: record.weight.float().cpu().numpy() for path, record in looks}
            yield {
                i: self._judged(texts[i], ids[i], symbols[i], shares[n], _row(seen, n, len(ids[i])))
                for n, i in enumerate(rows)
            }

    def _judged(
        self, text: str, ids: list[int], symbols: int, shares: Tensor, seen: dict[str, Any]
    ) -> Judgement:
        ranked = shares.argsort(descending=True, stable=True).tolist()
        named = {self.words.labels[c]: float(shares[c]) for c in ranked}
        label = self.words.labels[ranked[0]]
        pooled = seen.pop("pool", None)
        return Judgement(
            text,
            label,
            named[label],
            named,
            self.words.pieces(ids, text),
            None if pooled is None else pooled[:, 0],
            seen,
            symbols,
        )

    def surprise(self, examples: Sequence[Labelled]) -> float:
        """Nats per text: how little the model expected their labels."""
        numbers = {label: c for c, label in enumerate(self.words.labels)}
        texts = [each.text for each in examples]
        coded = self.words.encode(texts)
        total = 0.0
        for rows in longest_first({i: len(each) for i, each in enumerate(coded)}, self.tokens):
            given = [coded[i] for i in rows], [texts[i] for i in rows]
            logits = self._said(*given, look=False).logits.double()
            right = torch.tensor([numbers[examples[i].label] for i in rows], device=self.device)
            total += float(nn.functional.cross_entropy(logits, right, reduction="sum"))
        return total / max(1, len(examples))

    def sharpness(self, texts: Sequence[str]) -> dict[str, dict[str, float]]:
        """Mean entropy (nats) and largest share of each attention while texts are read."""
        ids = self.words.encode(texts)
        lengths = torch.tensor([len(each) for each in ids], device=self.device)
        once = torch.ones_like(lengths)  # a pool asks once of a whole text
        return {
            path: sharpness(record.weight, once if path == "pool" else lengths)
            for path, record in self._said(ids, texts, look=True).seen.items()
        }

    @torch.inference_mode()
    def _said(self, ids: list[list[int]], texts: Sequence[str], look: bool) -> Any:
        self.model.eval()
        lengths = torch.tensor([len(each) for each in ids])
        table = pad_sequence([torch.tensor(each) for each in ids], True, PAD)
        asked: dict[str, Any] = {"need": "weight" if look else "context"}
        if self.gathers is not None:
            last = torch.arange(table.shape[1]) == lengths[:, None] - 1
            asked["types"] = (GATHERS * (last & table.eq(self.gathers))).to(self.device)
        if self.words.letters is not None:
            asked["letters"] = self._letters(self.words.letters, table, texts).to(self.device)
        return self.model(table.to(self.device), lengths.to(self.device), **asked)

    def _letters(self, letters: Letters, table: Tensor, texts: Sequence[str]) -> Tensor:
        """The letters of each word; of an unknown one, as it stands in its text.  B S -> B S K"""
        found = letters.known[table]
        for row, ids, text in zip(found, table.tolist(), texts, strict=True):
            unknown = [place for place, i in enumerate(ids) if i == UNK]
            if unknown:
                spelt = self.words.tokeniser.spelt(ids, text)
                words = [spelt[place].strip() for place in unknown]
                row[unknown] = letters.rows(words).to(row.dtype)
        return found


def _row(seen: Mapping[str, NDArray[Any]], n: int, length: int) -> dict[str, Any]:
    """One text's weights in each attention, its padding left out.    B H T S -> H T S"""
    return {path: weight[n, :, :length, :length] for path, weight in seen.items()}
