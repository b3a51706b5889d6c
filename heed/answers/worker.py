"""A trained model at work on inputs of any kind, for answers of any form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heed.answers.form import Answer, Example
from heed.attention.statistics import averages, statistics
from heed.data.kinds.kind import Kind
from heed.viewing import pieces


class Worker:
    """A trained model at work.

    inputs  the kind of each part of an input, by name
    form    the form of its answers
    tokens  positions in a batch, padding included
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Mapping[str, Kind[Any]],
        form: Any,
        device: torch.device,
        tokens: int | None = None,
    ) -> None:
        self.model: Any = model
        self.inputs, self.form, self.device = dict(inputs), form, device
        self.tokens = form.tokens if tokens is None else tokens
        self._coded: tuple[Any, Any] = (None, None)  # the examples that were read last, and as rows

    @property
    def kind(self) -> Kind[Any]:
        """The kind of the first part of an input."""
        return next(iter(self.inputs.values()))

    def rows(self, items: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """The rows of inputs, as far as the model reads them."""
        sides = zip(self.inputs.values(), zip(*items, strict=True), strict=True)
        return list(zip(*(kind.rows(side) for kind, side in sides), strict=True))

    def given(self, rows: Sequence[tuple[Any, ...]]) -> tuple[Tensor, ...]:
        """Rows as the network takes them: the values and the lengths of each part."""
        sides = zip(self.inputs.values(), zip(*rows, strict=True), strict=True)
        return tuple(x for kind, side in sides for x in kind.padded(side, self.device))

    def is_blank(self, item: tuple[Any, ...]) -> bool:
        """Whether nothing of an input can be read."""
        return all(
            kind.is_blank(part) for kind, part in zip(self.inputs.values(), item, strict=True)
        )

    def as_line(self, item: tuple[Any, ...]) -> str:
        """An input in a line, its parts parted by tabs."""
        return "\t".join(
            kind.as_line(part) for kind, part in zip(self.inputs.values(), item, strict=True)
        )

    def words(self, item: tuple[Any, ...], row: Any = None) -> list[str]:
        """A label for each position of the first part of an input that is read."""
        if row is None:
            ((row, *_),) = self.rows([item])
        return self.labels(self.kind, row, item[0])

    @staticmethod
    def labels(kind: Kind[Any], row: Any, item: Any) -> list[str]:
        """A label for each position of a row, for pictures."""
        spelt = kind.spelt(row, item)
        return pieces.labels(spelt) if kind.marked else list(map(pieces.sign, spelt))

    def answers(
        self, items: Sequence[tuple[Any, ...]], choice: Any = None, best: int = 1, first: int = 0
    ) -> list[list[Any]]:
        """The answers to each input, best first; a blank one has a blank answer.

        first  the number of the first input, where others went before: samples depend on it
        """
        found: dict[int, list[Answer]] = {}
        for done in self.stream(items, choice, best, first):
            found |= done
        return [
            found[i] if i in found else self.form.blank(self, item) for i, item in enumerate(items)
        ]

    @torch.inference_mode()
    def stream(
        self, items: Sequence[tuple[Any, ...]], choice: Any = None, best: int = 1, first: int = 0
    ) -> Iterator[dict[int, list[Any]]]:
        """The answers batch by batch, by the numbers of their inputs; blank ones are left out."""
        self.form.check(choice, best)
        self.model.eval()
        choice = self.form.settled(self, choice)
        busy = [i for i, item in enumerate(items) if not self.is_blank(item)]
        rows = dict(zip(busy, self.rows([items[i] for i in busy]), strict=True)) if busy else {}
        for batch in self.form.batches(self, rows, choice, best):
            some = [items[i] for i in batch], [rows[i] for i in batch]
            numbers = [first + i for i in batch]
            answers = self.form.answers(self, *some, choice, best, numbers)
            yield dict(zip(batch, answers, strict=True))

    @torch.inference_mode()
    def read(self, examples: Sequence[Example], **more: Any) -> list[Any]:
        """The surprise at right answers; `more` is for the form's `readings`."""
        self.model.eval()
        if self._coded[0] is not examples:  # a validation reads the same ones each time
            self._coded = examples, self.form.coded(self, examples)
        return list(self.form.read(self, examples, self._coded[1], **more))

    def loss(self, examples: Sequence[Example]) -> float:
        """Nats per unit of the right answers."""
        return float(self.form.loss(self.read(examples)))

    @torch.inference_mode()
    def sharpness(self, examples: Sequence[Example]) -> dict[str, dict[str, float]]:
        """The entropy and sharpness of each attention while right answers are read."""
        self.model.eval()
        rows = self.rows([each.inputs for each in examples])
        return {
            path: averages(statistics(record.weight), counts)
            for path, (record, counts) in self.form.seen(self, examples, rows).items()
        }
