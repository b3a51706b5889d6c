"""A small model that labels symbols, to be trained: with dropout, draws, and tied weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heed.records import Attended
from heed.training.distributed import Distributed
from heed.training.fit import Moment, fit
from heed.training.objective import Loss, sequence_loss
from heed.training.optimise import build, schedule
from heed.training.progress import Progress, gather, restore
from heed.training.reinforce import MovingAverage
from heed.training.settings import Training

SYMBOLS = 11


@dataclass(frozen=True, slots=True)
class Batch:
    tokens: dict[str, Tensor]  # B L
    rows: Tensor  # B

    def to(self, device: torch.device) -> Batch:
        tokens = {name: x.to(device, non_blocking=True) for name, x in self.tokens.items()}
        return Batch(tokens, self.rows)

    def pin_memory(self) -> Batch:
        return Batch({name: x.pin_memory() for name, x in self.tokens.items()}, self.rows)


class Batches:
    """1 to 6 symbols a row, shuffled anew each epoch; processes share the rows of each batch."""

    def __init__(self, rows: int = 37, size: int = 4, shard: tuple[int, int] = (0, 1)) -> None:
        random = torch.Generator("cpu").manual_seed(5)
        self.source = torch.randint(1, SYMBOLS, (rows, 6), generator=random, device="cpu")
        lengths = torch.randint(1, 7, (rows, 1), generator=random, device="cpu")
        self.source[torch.arange(6, device="cpu") >= lengths] = 0
        self.size, self.shard = size, shard

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        random = torch.Generator("cpu").manual_seed(100 + number)
        order = torch.randperm(len(self.source), generator=random, device="cpu")
        rank, world = self.shard
        for rows in list(order.split(self.size) if len(order) else [])[start:]:
            mine = rows[rank::world]
            source = self.source[mine]
            target = torch.where(source > 0, SYMBOLS - source, 0)
            if not len(mine):  # an empty batch
                source = target = torch.zeros(1, 1, dtype=torch.int64, device="cpu")
                mine = torch.tensor([-1], device="cpu")
            yield Batch({"source": source, "target": target}, mine)

    def count(self, number: int) -> int:
        return sum(1 for _ in self.epoch(number))


@dataclass(frozen=True, slots=True)
class Said:
    logits: Tensor
    seen: dict[str, Attended]


class Network(nn.Module):
    """A model with randomness everywhere: dropout, and hard draws trained by REINFORCE."""

    def __init__(self, chance: bool = True, idle: bool = False) -> None:
        super().__init__()
        self.chance = chance
        self.embed = nn.Embedding(SYMBOLS, 8)
        self.hidden = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.drop = nn.Dropout(0.3 if chance else 0.0)
        self.score = nn.Linear(8, 2)
        self.say = nn.Linear(8, SYMBOLS, bias=False)
        self.say.weight = self.embed.weight
        self.idle = nn.Linear(3, 3) if idle else None

    def forward(self, source: Tensor) -> Said:
        x = self.drop(self.norm(self.hidden(self.embed(source))))
        if not self.chance:
            return Said(self.say(x + self.score(x).sum(-1, keepdim=True).tanh()), {})
        energy = self.score(x)  # B T 2
        choice = (energy - torch.empty_like(energy).exponential_().log()).argmax(-1, keepdim=True)
        log_prob = energy.log_softmax(-1).gather(-1, choice)[..., 0]
        return Said(self.say(x * choice), {"draw": Attended(log_prob=log_prob[:, None])})


class Goal(nn.Module):
    """The objective, which has a buffer of its own: the baseline."""

    def __init__(self) -> None:
        super().__init__()
        self.baseline = MovingAverage()

    def count(self, batch: Batch) -> int:
        return int((batch.tokens["target"] > 0).sum())

    def forward(self, model: nn.Module, batch: Batch) -> Loss:
        said = model(batch.tokens["source"])
        return sequence_loss(
            said.logits, batch.tokens["target"], said.seen, smoothing=0.1, baseline=self.baseline
        )


class Run:
    """Everything of a run, made from its settings."""

    def __init__(
        self,
        settings: Training,
        crew: Distributed | None = None,
        seed: int = 1,
        idle: bool = False,
        chance: bool = True,
    ) -> None:
        torch.manual_seed(seed)
        self.settings, self.crew = settings, crew or Distributed()
        self.model = Network(chance=chance, idle=idle)
        self.goal = Goal()
        self.optimiser = build(self.model, settings)
        self.schedule = schedule(settings)
        self.progress = Progress()
        self.batches = Batches(shard=(self.crew.rank, self.crew.world))

    def moments(self) -> Iterator[Moment]:
        return fit(
            self.model,
            self.batches,
            self.goal,
            self.optimiser,
            self.schedule,
            settings=self.settings,
            progress=self.progress,
            device=self.model.embed.weight.device,
            distributed=self.crew,
        )

    def go(self, until: int | None = None) -> list[Moment]:
        """Steps up to `until`, with validations."""
        moments = []
        for moment in self.moments():
            moments.append(moment)
            if moment.step % 2 == 0:  # never better: plateau lowers the rate and remembers
                self.schedule.judge(1.0 + moment.step)
                self.progress.judge(1.0 + moment.step)
            if moment.step == until:
                break
        return moments

    def parts(self) -> tuple[Any, ...]:
        return (
            self.progress,
            self.model,
            self.optimiser,
            self.schedule,
            self.goal,
            self.crew,
        )

    def save(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Copies, as a file would hold them."""
        tensors, facts = gather(*self.parts())
        return {g: {n: x.clone() for n, x in t.items()} for g, t in tensors.items()}, facts

    def load(self, tensors: dict[str, dict[str, Tensor]], facts: dict[str, Any]) -> None:
        restore(tensors, facts, *self.parts())


class Spoilt(Goal):
    """NaN at the given batches."""

    def __init__(self, at: set[int]) -> None:
        super().__init__()
        self.at, self.call = at, 0

    def forward(self, model: Any, batch: Any) -> Loss:
        loss = super().forward(model, batch)
        self.call += 1
        return Loss(loss.total * float("nan"), loss.parts) if self.call in self.at else loss


def same(one: dict[str, dict[str, Tensor]], two: dict[str, dict[str, Tensor]]) -> bool:
    assert one.keys() == two.keys()
    return all(
        one[g].keys() == two[g].keys() and all(torch.equal(x, two[g][n]) for n, x in one[g].items())
        for g in one
    )
