"""Parts that all searches share: the protocol of a model that writes, and the trail it leaves.

A model is seen as two functions on rows; each row is a hypothesis, and at the start a sentence:

    step(carry, symbols)        read one symbol per row, give the logits of the next
    select(carry, rows, same)   go on with these rows, in this order

The carry belongs to the model: no search looks inside. B sentences, N rows, V symbols, S places of
the source, T symbols written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from heed.errors import HeedError, Refused, ShapeError
from heed.records import SEARCH, SearchRows

PARTS = 8  # of a vocabulary, normalised one after the other, so that little more memory is held

Carry = TypeVar("Carry")
Carried = TypeVar("Carried", covariant=True)


class Step(Protocol[Carried]):
    """Output of a model that read one symbol per row."""

    @property
    def logits(self) -> Tensor:
        """The logits of the next symbol.    N V"""

    @property
    def carry(self) -> Carried:
        """The carry for the next step."""

    @property
    def weight(self) -> Tensor | None:
        """The attention weights behind these logits.    N S"""


@runtime_checkable
class Choosy(Protocol):
    """A step that can give the best few symbols of each row without the logits of all."""

    def likeliest(self, many: int, end: int, forbid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities N K in the order of the symbols' ids, these N K, and the end's, N.

        Forbidden symbols are left out but still count in the softmax; of equal ones the lowest ids
        are in. K is `many`, or all there are; what cannot be written has -inf.
        """


class Choices(NamedTuple):
    """Continuations that each live hypothesis may have: any symbol, or the best few."""

    log_prob: Tensor  # B R V, or B R K in the order of their ids
    symbols: Tensor | None = None  # B R K; None: there are all of them


class Stepper(Protocol[Carry]):
    """A model that writes one symbol after the other."""

    def step(self, carry: Carry, symbols: Tensor) -> Step[Carry]:
        """Read one symbol per row.    N"""

    def select(self, carry: Carry, rows: Tensor, same: bool = False) -> Carry:
        """The carry of the chosen rows: fewer, more, or in another order.

        same=True promises that each row goes on with a hypothesis of the sentence that stood in
        its place before, so that what was kept of the source may stay as it is.
        """


class Hypothesis(NamedTuple):
    """One finished answer.

    symbols   what was written, without the symbols of beginning and end
    log_prob  under the model: of all the symbols and of the end
    score     what it was ranked by: `log_prob` after the penalties of a beam
    weight    where the model looked when it chose each symbol, the end left out.    T S
    rows      which row of the batch it stood in when each symbol was chosen
    """

    symbols: list[int]
    log_prob: float
    score: float
    weight: Tensor | None
    rows: list[int]


class Ending(NamedTuple):
    """The end of a hypothesis: it had written `step` symbols and stood in `row`."""

    step: int
    row: int
    log_prob: float
    score: float
    sentence: int


@contextmanager
def during(search: SearchRows | None) -> Iterator[None]:
    """Let whoever watches know whose step the calls of attention belong to; None: nobody's."""
    before = SEARCH.set(search)
    try:
        yield
    finally:
        SEARCH.reset(before)


class Trail:
    """Symbols written and places looked at, step by step, with pointers back to the row before.

    Nothing stored is ever reordered: the survivors are known at the end, and are then read
    backwards. Memory grows by one row of S weights per live hypothesis and step.

    first  the symbols that the sentences begin with    B
    """

    def __init__(self, first: Tensor) -> None:
        self.search = SearchRows([torch.arange(len(first), device=first.device)], [first])
        self.weights: list[Tensor] = []  # each N S, of the rows of a step

    def step(self, stepper: Stepper[Carry], carry: Carry, symbols: Tensor) -> Step[Carry]:
        """Take a step, and keep where the rows looked."""
        with during(self.search):
            step = stepper.step(carry, symbols)
        if step.weight is not None:
            self.weights.append(step.weight.detach())
        return step

    def write(self, symbols: Tensor, parents: Tensor) -> None:
        """Keep what the rows of the next step have written, and which rows they come from."""
        self.search.symbols.append(symbols)
        self.search.parents.append(parents)

    def read(self, endings: Sequence[Ending], lengths: list[int] | None) -> list[Hypothesis]:
        """The hypotheses that ended there, each with its own past."""
        parents, symbols = (_to_lists(steps[1:]) for steps in self.search)
        paths = [_path(ending, parents) for ending in endings]
        weights = self._gather(paths) if self.weights else [None] * len(paths)
        return [
            Hypothesis(
                [symbols[t][row] for t, row in enumerate(path[1:])],
                ending.log_prob,
                ending.score,
                weight
                if weight is None or lengths is None
                else weight[:, : lengths[ending.sentence]],
                path[:-1],
            )
            for ending, path, weight in zip(endings, paths, weights, strict=True)
        ]

    def _gather(self, paths: list[list[int]]) -> Sequence[Tensor | None]:
        """The weights along each path, all in one gather.    T S each"""
        starts = [0]
        for weight in self.weights:
            starts.append(starts[-1] + len(weight))
        places = [starts[t] + row for path in paths for t, row in enumerate(path[:-1])]
        every = torch.cat(self.weights)
        seen = every.index_select(0, torch.tensor(places, dtype=torch.long, device=every.device))
        return torch.split(seen, [len(path) - 1 for path in paths])


def _to_lists(steps: list[Tensor]) -> list[list[int]]:
    """The rows of all steps as lists, by one transfer to the host."""
    if not steps:
        return []
    flat = torch.cat(steps).tolist()
    ends = [0]
    for step in steps:
        ends.append(ends[-1] + len(step))
    return [flat[start:end] for start, end in pairwise(ends)]


def _path(ending: Ending, parents: list[list[int]]) -> list[int]:
    """The rows a hypothesis stood in, from the first step to its last."""
    path = [ending.row]
    for t in range(ending.step - 1, -1, -1):
        path.append(parents[t][path[-1]])
    return path[::-1]


class Rules(NamedTuple):
    """The arguments that all searches share, checked: they mean the same everywhere."""

    begin: int | Tensor  # one for all, or each sentence's own, B
    end: int
    limits: list[int]  # how many symbols each sentence may have
    forbid: Tensor
    lengths: list[int] | None
    device: torch.device
    cut: bool = False  # at its limit a text is cut off, and no end is written

    @staticmethod
    def of(
        count: int,
        begin: int | Tensor,
        end: int,
        longest: int | Tensor,
        forbid: Iterable[int],
        lengths: Tensor | None,
        device: torch.device | str | None,
        cut: bool = False,
    ) -> Rules:
        forbidden = sorted(set(forbid))
        if end in forbidden:
            raise Refused(f"the symbol {end} ends a sentence: it cannot be forbidden")
        where = lengths.device if device is None and lengths is not None else device
        where = torch.get_default_device() if where is None else torch.device(where)
        own = None if lengths is None else _each("lengths", lengths, count)
        never = torch.tensor(forbidden, dtype=torch.long, device=where)
        if isinstance(begin, Tensor) and begin.shape != (count,):
            raise ShapeError(f"begin has the shape {tuple(begin.shape)} for {count} sentences")
        return Rules(begin, end, _each("longest", longest, count), never, own, where, cut)

    def first(self) -> Tensor:
        """The symbol that each sentence begins with.    B"""
        if isinstance(self.begin, Tensor):
            return self.begin.to(self.device)
        return torch.full((len(self.limits),), self.begin, dtype=torch.long, device=self.device)

    def log_prob(self, logits: Tensor) -> Tensor:
        """Log-probabilities of the next symbol; half precision is widened first.    N V

        Forbidden symbols get -inf but still count in the softmax: the rest stays as the model
        gave it, so that a score can be compared with that of a teacher-forced pass.
        """
        if logits.dtype in (torch.float32, torch.float64):
            log_prob = logits.log_softmax(-1)
        else:  # PyTorch would hold a widened table beside the result
            log_prob = logits.float()
            parts = [part.logsumexp(-1) for part in log_prob.chunk(PARTS, -1)]
            log_prob -= torch.stack(parts, -1).logsumexp(-1, keepdim=True)
        if len(self.forbid):
            log_prob.index_fill_(-1, self.forbid, float("-inf"))
        return log_prob

    def choices(self, step: Step[Any], R: int, stop: list[bool], many: int | None) -> Choices:
        """The choices of R hypotheses of each sentence; the end alone where it must `stop`.

        many  how many symbols of each are enough, if the model can choose them; None: all
        """
        rows = torch.tensor(stop, device=self.device).nonzero()[:, 0] if any(stop) else None
        if many is None or not isinstance(step, Choosy):
            log_prob = self.log_prob(step.logits).unflatten(0, (-1, R))
            if rows is not None:
                last = self.last(log_prob[rows, :, self.end])
                log_prob[rows] = -torch.inf
                log_prob[rows, :, self.end] = last
            return Choices(log_prob)
        told = step.likeliest(many, self.end, self.forbid)
        log_prob, symbols, ending = (x.view(-1, R, *x.shape[1:]) for x in told)
        if rows is not None:
            log_prob[rows] = -torch.inf
            log_prob[rows, :, 0], symbols[rows, :, 0] = self.last(ending[rows]), self.end
        return Choices(log_prob, symbols)

    def last(self, ending: Tensor) -> Tensor:
        """The end's log-probability at a limit: 0 where texts are cut; NaN stays NaN."""
        return torch.zeros_like(ending).where(~ending.isnan(), ending) if self.cut else ending


def _each(name: str, given: int | Tensor, count: int) -> list[int]:
    """One number per sentence, on the host."""
    numbers = given.tolist() if isinstance(given, Tensor) else given
    if isinstance(numbers, int):
        numbers = [numbers] * count
    if len(numbers) != count:
        raise ShapeError(f"{name} has {len(numbers)} numbers for {count} sentences")
    if min(numbers, default=0) < 0:
        raise Refused(f"{name} must be 0 or more symbols; got {min(numbers)}")
    return [int(n) for n in numbers]


def no_distribution(t: int) -> HeedError:
    """The error for logits that are NaN, or -inf throughout."""
    return HeedError(
        f"the model says nothing about symbol {t + 1}: its logits are NaN, or -inf throughout; "
        "has training diverged?"
    )
