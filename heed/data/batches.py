"""Batches by token count, rows of like length together, the same from the same seed everywhere.

Nothing is remembered between batches: an epoch's plan follows from (seed, epoch) alone, so a run
resumes in the middle of an epoch with `epoch(number, start)`, in any process.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NotRequired, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from heed.data.cache import Corpus
from heed.data.plan import BatchPlan, Ints, by_length, on_grid, permutation
from heed.errors import Refused

FILLER = -1
"""The row number of a filler: all padding, of length 1; nothing may be learnt from it."""


@dataclass(frozen=True)
class Batch:
    """Rows padded with 0.    tokens: B L or B L F for each column, lengths: B for each, rows: B

    `rows` says which rows of the corpus these are; FILLER marks fillers. Count symbols by
    `tokens != 0`, not by lengths, and fillers drop out by themselves.
    """

    tokens: dict[str, Tensor]
    lengths: dict[str, Tensor]
    rows: Tensor

    def to(self, device: torch.device | str) -> "Batch":
        """This batch on another device; from pinned memory without waiting."""

        def move(x: Tensor) -> Tensor:
            return x.to(device, non_blocking=x.device.type == "cpu")

        tokens = {name: move(x) for name, x in self.tokens.items()}
        lengths = {name: move(x) for name, x in self.lengths.items()}
        return Batch(tokens, lengths, move(self.rows))

    @property
    def shape(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its columns, equal for batches that can take each other's place."""
        return tuple(tuple(x.shape) for x in self.tokens.values())

    def clone(self) -> "Batch":
        """A copy in memory of its own."""
        tokens = {name: x.clone() for name, x in self.tokens.items()}
        return Batch(tokens, {n: x.clone() for n, x in self.lengths.items()}, self.rows.clone())

    def copy_(self, other: "Batch") -> "Batch":
        """Copy another batch of the same shape into this one."""
        for name, x in self.tokens.items():
            x.copy_(other.tokens[name], non_blocking=True)
            self.lengths[name].copy_(other.lengths[name], non_blocking=True)
        self.rows.copy_(other.rows, non_blocking=True)
        return self

    def pin_memory(self) -> "Batch":
        """A copy in page-locked memory, which a GPU reads while the host goes on."""
        tokens = {name: x.pin_memory() for name, x in self.tokens.items()}
        lengths = {name: x.pin_memory() for name, x in self.lengths.items()}
        return Batch(tokens, lengths, self.rows.pin_memory())


class Planning(TypedDict):
    """The arguments of `Planned`, by which rows become batches."""

    tokens: int
    seed: int
    shuffle: NotRequired[bool]
    shard: NotRequired[tuple[int, int]]
    fixed: NotRequired[bool]


class Planned(ABC):
    """Rows in batches of at most `tokens` places, padding counted, epoch after epoch.

    tokens   rows × the longest row of any column; a row longer than that is a batch of its own
    shuffle  False: the same batches every time, rows of one length in their own order
    shard    (rank, world): this process's part of each batch. The plan is the same for any world,
             so what two processes see together is what one sees alone; a rank for which a batch
             has no row left gets one filler row
    fixed    few shapes, for CUDA graphs: lengths on a grid, rows filled up with fillers
    """

    def __init__(
        self,
        *,
        tokens: int,
        seed: int,
        shuffle: bool = True,
        shard: tuple[int, int] = (0, 1),
        fixed: bool = False,
    ) -> None:
        if tokens < 1 or seed < 0 or not 0 <= shard[0] < shard[1]:
            raise Refused(
                f"a batch takes tokens >= 1, a seed >= 0 and a shard (rank, of how many); got "
                f"tokens={tokens}, seed={seed}, shard={shard}"
            )
        self.tokens, self.seed = tokens, seed
        self.shuffle, self.shard, self.fixed = shuffle, shard, fixed
        self._plan = lru_cache(maxsize=2)(self._planned)

    def count(self, number: int) -> int:
        """The number of batches of this epoch, the same on every rank."""
        return len(self._plan(number if self.shuffle else 0)[1])

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch `start` on. Every row comes exactly once."""
        rows, plan = self._plan(number if self.shuffle else 0)
        rank, world = self.shard
        for i in range(start, len(plan)):
            shape = None if plan.shapes is None else plan.shapes[i]
            chosen = plan.order[plan.starts[i] : plan.ends[i]][rank::world]
            size = 1 if shape is None else -(-int(shape[0]) // world)
            yield self._batch(rows, chosen, max(0, size - len(chosen)), shape)

    def _planned(self, number: int) -> tuple[Any, BatchPlan]:
        rows, lengths = self._rows(number)
        # Philox's stream is fixed for good, unlike what numpy's Generator draws from it (NEP 19).
        draw = np.random.Philox(np.random.SeedSequence([self.seed, number]))
        order = permutation(draw, len(lengths)) if self.shuffle else np.arange(len(lengths))
        plan = (on_grid if self.fixed else by_length)(order, lengths, self.tokens)
        return rows, plan.shuffled(draw) if self.shuffle else plan

    @abstractmethod
    def _rows(self, number: int) -> tuple[Any, Ints]:
        """The rows of an epoch, as `_batch` takes them, and the length of each column. N C"""

    @abstractmethod
    def _batch(self, rows: Any, chosen: Ints, fill: int, shape: Ints | None) -> Batch:
        """The chosen rows and so many fillers; `shape`: how many rows, and how wide the columns."""


class Batches(Planned):
    """A corpus cut into batches.

    aside  columns that come along: how long they are changes no plan
    costs  how many symbols a position of a column counts as, where that is not one
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        aside: Collection[str] = (),
        costs: Mapping[str, int] | None = None,
        **planning: Unpack[Planning],
    ) -> None:
        super().__init__(**planning)
        self.corpus, self.aside, self.costs = corpus, aside, dict(costs or {})
        counted = [
            each * self.costs.get(column, 1)
            for column, each in corpus.lengths.items()
            if column not in aside
        ]
        self._lengths = np.stack(counted, 1)  # N C

    def _rows(self, number: int) -> tuple[Corpus, Ints]:
        return self.corpus, self._lengths

    def _batch(self, rows: Corpus, chosen: Ints, fill: int, shape: Ints | None) -> Batch:
        chosen = np.concatenate([chosen, np.full(fill, FILLER)])
        tokens, lengths = {}, {}
        widths = iter(() if shape is None else shape[1:].tolist())
        for column in rows.tokens:
            width = 0 if column in self.aside else next(widths, 0) // self.costs.get(column, 1)
            if self.fixed and column in self.aside:  # few widths, since each makes a shape
                longest = int(rows.lengths[column][chosen[chosen != FILLER]].max(initial=1))
                width = 1 << (longest - 1).bit_length()
            tokens[column], lengths[column] = _padded(rows, column, chosen, width)
        return Batch(tokens, lengths, torch.from_numpy(chosen))


def _padded(corpus: Corpus, column: str, rows: Ints, width: int) -> tuple[Tensor, Tensor]:
    """The rows, padded to at least `width`, and how long each is.    B -> B L or B L F, B"""
    real = np.where(rows == FILLER, 0, corpus.lengths[column][rows])
    place = np.arange(max(width, 1, int(real.max(initial=0))))
    inside = place < real[:, None]
    flat = corpus.tokens[column]
    at = np.minimum(corpus.offsets[column][rows, None] + place, max(0, len(flat) - 1))
    dtype = np.float32 if flat.ndim > 1 else np.int64
    shape = (*at.shape, *flat.shape[1:])
    tokens = flat[at].astype(dtype) if len(flat) else np.zeros(shape, dtype)
    tokens *= inside if flat.ndim == 1 else inside[..., None]
    lengths = np.where(rows == FILLER, 1, real)
    return torch.from_numpy(tokens), torch.from_numpy(lengths)
