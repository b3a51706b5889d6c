"""Each mechanism learns: every name of the catalogue, on a task that suits it, in seconds.

A name that TRIALS does not list must learn to look up a symbol.

A tiny model (embeddings, the mechanism, a linear read-out) is trained on fresh batches until it
answers a held-out batch correctly; then it is tested on others.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heed
from heed.attention.catalogue import CATALOGUE
from heed.training.reinforce import MovingAverage, reinforce

S, ANSWERS, NUMBERS, WIDTH = 8, 10, 20, 16


@dataclass
class Batch:
    """Symbols, each with an embedding; where there are several, their embeddings are added."""

    query: Tensor | None  # B T n
    key: Tensor  # B S n
    value: Tensor  # B S n
    place: Tensor  # B T, the position of the answer
    answer: Tensor  # B T


Task = Callable[[int], Batch]


def asked(query: Tensor | None, key: Tensor, place: Tensor, mark: Tensor | None = None) -> Batch:
    """Every position has a random answer (and a mark); the right one is at the right position."""
    held = torch.randint(ANSWERS, key.shape[:2])
    value = listed(held) if mark is None else torch.stack([held, mark], -1)
    return Batch(
        None if query is None else listed(query), listed(key), value, place, held.gather(1, place)
    )


def listed(x: Tensor) -> Tensor:
    return x if x.ndim == 3 else x[..., None]


def shuffled(B: int) -> Tensor:
    """Each of S symbols once.    B S"""
    return torch.rand(B, S).argsort(-1)


def repeating(B: int) -> Tensor:
    """Five symbols that repeat, although any three neighbours differ.    B S"""
    return torch.randint(1, 3, (B, S)).cumsum(-1) % 5


def blank(B: int) -> Tensor:
    return torch.zeros(B, S, dtype=torch.long)


def look_up(B: int) -> Batch:
    """Find the symbol that the query names."""
    key, place = shuffled(B), torch.randint(S, (B, 4))
    return asked(key.gather(1, place), key, place)


def look_up_by_value(B: int) -> Batch:
    """Keys come in pairs, and a mark in the value alone says which of the two is meant."""
    symbol, place = shuffled(B), torch.randint(S, (B, 4))
    wanted = symbol.gather(1, place)
    query = torch.stack([wanted // 2, ANSWERS + wanted % 2], -1)
    return asked(query, symbol // 2, place, mark=ANSWERS + symbol % 2)


def find_the_mark(B: int) -> Batch:
    """No query: one key is marked."""
    place = torch.randint(S, (B, 1))
    return asked(None, blank(B).scatter(1, place, 1), place)


def at_a_place(B: int) -> Batch:
    """The query names the position; keys are not informative."""
    place = torch.randint(S, (B, 4))
    return asked(place, blank(B), place)


def about_a_place(B: int) -> Batch:
    """The query names the position; each key has a twin half the length away."""
    place = torch.randint(S, (B, 4))
    return asked(place, torch.arange(S).expand(B, S) % (S // 2), place)


def by_name_or_place(B: int) -> Batch:
    """The query names a symbol or a position; the key is a symbol and one its twin has too."""
    batch, near = look_up(B), about_a_place(B)
    assert batch.query is not None
    batch.key = torch.cat([batch.key, S + near.key], -1)
    by_place = torch.rand(B, 4, 1) < 0.5
    batch.query = torch.where(by_place, S + batch.place[..., None], batch.query)
    return batch


def beside(B: int) -> Tensor:
    """Each of S consecutive queries asks for its own position or a neighbour.    B S"""
    here = torch.arange(S)
    there = here + torch.randint(-1, 2, (B, S))
    return torch.where((there >= 0) & (there < S), there, here)


def step_aside(B: int) -> Batch:
    """The query says: here, left, or right."""
    place = beside(B)
    return asked(place - torch.arange(S) + 1, blank(B), place)


def look_around(B: int) -> Batch:
    """Find the symbol nearby; it occurs again farther away."""
    key, place = repeating(B), beside(B)
    return asked(key.gather(1, place), key, place)


def look_up_nearby(B: int) -> Batch:
    """Find the symbol, which is nearby."""
    key, place = shuffled(B), beside(B)
    return asked(key.gather(1, place), key, place)


def walk(furthest: int) -> Task:
    """Stay or move on by a few positions, to the symbol asked for; it occurs elsewhere too."""

    def task(B: int) -> Batch:
        stride = torch.randint(furthest + 1, (B, 5))
        place = stride.cumsum(-1).clamp(max=S - 1)
        key = repeating(B)
        return asked(key.gather(1, place), key, place)

    return task


def stride(B: int) -> Batch:
    """The query says by how many positions to move on."""
    by = torch.randint(1, 3, (B, 3))
    return asked(by, blank(B), by.cumsum(-1) - 1)


def on_from_the_mark(B: int) -> Batch:
    """Start at the mark, then move on one by one; the queries after the first are all alike."""
    T = 4
    start = torch.randint(S - T + 1, (B, 1))
    query = (torch.arange(T) > 0).long().expand(B, T)
    return asked(query, blank(B).scatter(1, start, 1), start + torch.arange(T))


def in_turn(B: int, forward: bool = False) -> Batch:
    """Three positions are numbered: read them in turn; all queries are alike."""
    T = 3
    place = shuffled(B)[:, :T]
    place = place.sort(-1).values if forward else place
    key = blank(B).scatter(1, place, 1 + torch.arange(T).expand(B, T))
    return asked(blank(B)[:, :T], key, place)


def in_turn_forward(B: int) -> Batch:
    """The same, numbered from left to right."""
    return in_turn(B, forward=True)


class Model(nn.Module):
    """Embeddings, one attention, a linear read-out. A pointer's weights are its answer."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Embedding(NUMBERS, WIDTH) for _ in range(3))
        for table in (self.query, self.key):
            nn.init.normal_(table.weight, std=0.3)  # energies near zero: every position has weight
        self.attend = heed.Attention(name, query=WIDTH, **options)
        self.answer = nn.Linear(WIDTH, ANSWERS)
        self.baseline = MovingAverage()
        self.optimiser = torch.optim.Adam(self.parameters(), lr=0.02)

    @property
    def points(self) -> bool:
        return not self.attend.mechanism.claims.gives_context

    def forward(self, batch: Batch) -> tuple[Tensor, heed.Attended]:
        """Log-probabilities of the answers (of the positions, for a pointer), and the record."""
        memory = self.attend.remember(self.key(batch.key).sum(-2), self.value(batch.value).sum(-2))
        query = None if batch.query is None else self.query(batch.query).sum(-2)
        seen = self.attend(query, memory)
        if self.points:
            return seen.weight[:, 0].clamp(min=1e-20).log(), seen
        return self.answer(seen.context).log_softmax(-1), seen

    def loss(self, batch: Batch) -> Tensor:
        says, seen = self(batch)
        each = -says.gather(-1, self.target(batch)[..., None])[..., 0]  # B T
        loss = each.mean()
        if seen.log_prob is not None:
            reward = -each.detach()
            level = self.baseline.value
            drawn = reinforce(seen.log_prob, reward, level, entropy=seen.entropy, bonus=0.05)
            loss = loss + drawn / each.shape[1]
            self.baseline.update(reward)
        if seen.penalty is not None:
            loss = loss + seen.penalty.mean()
        return loss

    def target(self, batch: Batch) -> Tensor:
        return batch.place if self.points else batch.answer

    @torch.no_grad()
    def accuracy(self, batch: Batch) -> float:
        """In evaluation mode: `monotonic` is hard, and `sample` and `gumbel` take the largest."""
        self.eval()
        right = self(batch)[0].argmax(-1) == self.target(batch)
        self.train()
        return right.float().mean().item()


def train(model: Model, task: Task, steps: int) -> None:
    for _ in range(steps):
        model.optimiser.zero_grad()
        model.loss(task(64)).backward()
        model.optimiser.step()


@dataclass
class Trial:
    """A task for a mechanism, and the settings of its training."""

    task: Task
    options: dict[str, Any] = field(default_factory=dict)
    steps: int = 1000
    reaches: float = 0.99


def learn(name: str, trial: Trial) -> Model:
    """Train until a held-out batch is answered, or the steps are used up."""
    model = Model(name, **trial.options)
    enough = 1 - (1 - trial.reaches) / 5
    held_out = trial.task(256)
    for _ in range(0, trial.steps, 25):
        train(model, trial.task, steps=25)
        if model.accuracy(held_out) >= enough:
            break
    return model


TRIALS = {
    "location": Trial(at_a_place, {"longest": S}),
    "key-value": Trial(look_up_by_value),
    "relative": Trial(step_aside),
    "coverage": Trial(in_turn),
    "location-aware": Trial(on_from_the_mark),
    "local-m": Trial(look_around, {"window": 1}),
    "local-p": Trial(about_a_place, {"window": 6}),
    "fixed-window": Trial(look_around, {"window": 1}),
    "expanded-window": Trial(look_up_nearby, {"window": 1, "block": 2}),
    "mixed": Trial(by_name_or_place, {"window": 6}),
    "static": Trial(find_the_mark),
    "sample": Trial(look_up, reaches=0.95),
    "forward": Trial(walk(1)),
    "forced-forward": Trial(in_turn_forward),
    "monotonic": Trial(walk(2)),
    "mixture-window": Trial(stride),
}

COMPOSITIONS = {
    "local-p/general": Trial(about_a_place, {"window": 6}),
    "local-m/additive": Trial(look_around, {"window": 1}),
    "fixed-window/relative": Trial(look_around, {"window": 1}),
    "expanded-window/general": Trial(look_up_nearby, {"window": 1, "block": 2}),
    "mixed/general": Trial(by_name_or_place, {"window": 6, "gate": "query"}),
    "static/additive": Trial(find_the_mark),
    "coverage/additive": Trial(in_turn),
    "coverage/pointer": Trial(in_turn),
    "location-aware/additive": Trial(on_from_the_mark),
    "location-aware/general": Trial(on_from_the_mark),
    "forward/additive": Trial(walk(1), {"agent": True}),
    "monotonic/additive": Trial(walk(2)),
    "monotonic/pointer": Trial(walk(2)),
    "pointer/additive": Trial(look_up),
    "sample/additive": Trial(look_up, reaches=0.95),
    "sample/general": Trial(look_up, {"soft": 0.5}, reaches=0.95),
    "sample/local-m": Trial(look_around, {"window": 1}, reaches=0.95),
    "sparsemax/general": Trial(look_up),
    "entmax/additive": Trial(look_up),
    "argmax/concat": Trial(look_up),
    "gumbel/general": Trial(look_up),
}


def test_the_names_with_a_task_exist() -> None:
    assert set(TRIALS) <= set(CATALOGUE)


@pytest.mark.parametrize("name", [*CATALOGUE, *COMPOSITIONS])
def test_it_learns_its_task(name: str) -> None:
    trial = {**TRIALS, **COMPOSITIONS}.get(name, Trial(look_up))
    fresh = trial.task(512)
    assert Model(name, **trial.options).accuracy(fresh) < 0.6, "nothing was to be learned"
    assert learn(name, trial).accuracy(fresh) >= trial.reaches


@pytest.mark.parametrize(
    "task",
    [
        look_up_by_value,
        at_a_place,
        about_a_place,
        by_name_or_place,
        step_aside,
        look_around,
        walk(1),
        walk(2),
        stride,
        on_from_the_mark,
        in_turn,
        in_turn_forward,
    ],
    ids=lambda task: task.__qualname__.split(".")[0],
)
def test_a_task_needs_more_than_content(task: Task) -> None:
    """So that learning it says something about the mechanism: `scaled-dot` alone cannot."""
    model = Model("scaled-dot")
    train(model, task, steps=150)
    assert model.accuracy(task(512)) < 0.9


def test_sample_learns_only_by_reinforce(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the estimator, the energies get no gradient."""
    monkeypatch.setitem(globals(), "reinforce", lambda *_, **__: torch.zeros(()))
    model = Model("sample")
    train(model, look_up, steps=150)
    assert model.accuracy(look_up(512)) < 0.5


@pytest.mark.parametrize("seed", range(3))
def test_the_fixed_half_of_concat_slows_learning(seed: int) -> None:
    """Keys that hold more than is asked for, and cannot change: concat learns to ignore the rest,
    as additive does; with its half for the keys fixed to the identity it is slower."""

    def task(B: int) -> Batch:
        batch = look_up(B)
        others = torch.randint(S, NUMBERS, (B, S, 2))
        batch.key = torch.cat([batch.key, others], -1)
        return batch

    def after_fifty_steps(name: str) -> float:
        torch.manual_seed(seed)
        model = Model(name)
        nn.init.normal_(model.key.weight).requires_grad_(False)
        train(model, task, steps=50)
        return model.accuracy(task(512))

    additive, concat, identity = map(after_fifty_steps, ("additive", "concat", "concat-identity"))
    assert min(additive, concat) >= 0.99
    assert identity < 0.9
