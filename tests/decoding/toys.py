"""Small models whose every answer can be enumerated."""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

BEGIN, END = 0, 1


class Prefixes(NamedTuple):
    """A carry that records the prefix it belongs to."""

    sentence: list[int]
    written: list[tuple[int, ...]]
    state: Tensor  # N D


class Toy:
    """Logits and weights by a small recurrent network in float64, whose carry records its own
    prefix.

    Every step compares its state with that of the recorded prefix: a `select` that was not applied
    to all parts of the carry is an error at once.
    """

    def __init__(self, V: int = 5, S: int = 4, seed: int = 0, sharp: float = 2.0) -> None:
        make = torch.Generator(torch.get_default_device()).manual_seed(seed)
        rand = lambda *shape: torch.randn(*shape, generator=make, dtype=torch.float64)  # noqa: E731
        self.V, self.S, D = V, S, 6
        self.start, self.words, self.turn = rand(50, D), rand(V, D), rand(D, D)
        self.out, self.look = sharp * rand(D, V), rand(D, S)
        self.rows: list[int] = []  # at each step
        self.same: list[bool] = []
        self.states: dict[tuple[int, tuple[int, ...]], Tensor] = {}

    def begin(self, sentences: list[int]) -> Prefixes:
        return Prefixes(list(sentences), [()] * len(sentences), self.start[sentences])

    def state(self, sentence: int, written: tuple[int, ...]) -> Tensor:
        """The state of the carry after this prefix.    D"""
        if not written:
            return self.start[sentence]
        if (sentence, written) not in self.states:
            before = self.state(sentence, written[:-1])
            after = (before @ self.turn + self.words[written[-1]]).tanh()
            self.states[sentence, written] = after
        return self.states[sentence, written]

    def step(self, carry: Prefixes, symbols: Tensor) -> "ToyStep":
        assert symbols.dtype == torch.int64
        assert len(symbols) == len(carry.written)
        self.rows.append(len(symbols))
        written = [(*p, s) for p, s in zip(carry.written, symbols.tolist(), strict=True)]
        assert all(END not in p and BEGIN not in p[1:] for p in written)  # nor written again
        state = (carry.state @ self.turn + self.words[symbols]).tanh()
        wanted = [self.state(b, p) for b, p in zip(carry.sentence, written, strict=True)]
        assert torch.allclose(state, torch.stack(wanted), rtol=1e-9)
        after = Prefixes(carry.sentence, written, state)
        return ToyStep(self.logits(after), after, (state @ self.look).softmax(-1))

    def logits(self, carry: Prefixes) -> Tensor:
        return carry.state @ self.out

    def select(self, carry: Prefixes, rows: Tensor, same: bool = False) -> Prefixes:
        assert rows.dtype == torch.int64
        places = rows.tolist()
        sentence = [carry.sentence[row] for row in places]
        assert not same or sentence == carry.sentence
        self.same.append(same)
        return Prefixes(sentence, [carry.written[row] for row in places], carry.state[rows])

    def rescore(self, sentence: int, symbols: list[int]) -> tuple[float, Tensor]:
        """The log-probability of a text with its end, and the weights of its symbols.    T S"""
        carry, total, weights = self.begin([sentence]), 0.0, []
        for read, write in itertools.pairwise([BEGIN, *symbols, END]):
            step = self.step(carry, torch.tensor([read]))
            total += step.logits.log_softmax(-1)[0, write].item()
            weights.append(step.weight[0])
            carry = step.carry
        return total, torch.stack(weights)

    def every(self, longest: int) -> Iterator[list[int]]:
        """Every text that can be written, BEGIN forbidden."""
        for T in range(longest + 1):
            yield from map(list, itertools.product(range(2, self.V), repeat=T))

    def exhaustive(
        self, sentence: int, longest: int, alpha: float, beta: float = 0.0
    ) -> list[tuple[float, float, list[int]]]:
        """Every text with its score and log-probability, best first."""
        found = []
        for symbols in self.every(longest):
            log_prob, weight = self.rescore(sentence, symbols)
            cover = sum(math.log(min(x, 1.0)) for x in weight.sum(0).tolist())
            score = log_prob / (len(symbols) + 1) ** alpha + beta * cover
            found.append((score, log_prob, symbols))
        return sorted(found, key=lambda one: -one[0])


class ToyStep(NamedTuple):
    logits: Tensor
    carry: Prefixes
    weight: Tensor | None


class Table:
    """Logits that depend on the position alone."""

    def __init__(self, *logits: list[float]) -> None:
        self.table = [torch.tensor(row) for row in logits]

    def begin(self, count: int) -> tuple[int, int]:
        return 0, count

    def step(self, carry: tuple[int, int], symbols: Tensor) -> "TableStep":
        t, N = carry[0], len(symbols)
        row = self.table[min(t, len(self.table) - 1)]
        return TableStep(row.expand(N, -1).clone(), (t + 1, N))

    def select(self, carry: tuple[int, int], rows: Tensor, same: bool = False) -> tuple[int, int]:
        return carry[0], len(rows)


class TableStep(NamedTuple):
    logits: Tensor
    carry: tuple[int, int]
    weight: Tensor | None = None
