"""The first demo: a tiny network learns to spell words backwards, with any attention, in seconds.

    attention  ->  noitnetta

A recurrent encoder reads the letters, a recurrent decoder writes them, and between them stands one
`heed.Attention`. Nothing tells it where to look; once it has learnt the task, its weights draw the
diagonal from the last letter to the first. An attention that never looks back cannot do that: it
copies the word instead.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

import heed
from heed.errors import Refused
from heed.training.reinforce import MovingAverage, reinforce
from heed.viewing.panels import Panel

STEPS = 400
BATCH = 128
WIDTH = 64

COPIES = {
    "monotonic": "never looks back",
    "forward": "only stays or moves on by one",
    "forced-forward": "only moves on",
    "mixture-window": "only moves forward",
    "local-m": "looks around its own step",
    "fixed-window": "sees only its neighbours",
}
"""Attentions that cannot run backwards over a word, and why."""

OPTIONS: dict[str, dict[str, Any]] = {
    "location": {"longest": 9},
    "local-m": {"window": 2},
    "local-p": {"window": 2},
    "mixed": {"window": 2},
    "fixed-window": {"window": 2},
    "expanded-window": {"window": 4, "block": 2},
    "sample": {"soft": 0.5},
}
"""Sizes to the measure of a word; and half of the rows read softly, as Xu 2015 §4.1 advises."""

# Words are letters drawn at random. Those whose letters (a = 0) sum to 9 modulo 10 are held out:
# training never meets them, and these are among them.
SAMPLES = ("look", "parts", "silver", "network", "tomorrow", "attention")
ALPHABET = "abcdefghijklmnopqrstuvwxyz_"
LETTERS = 26
BLANK = 26  # the last of them fills up short words, and comes before the first letter
SHORTEST, LONGEST = 4, 9


@dataclass(frozen=True, slots=True)
class Task:
    """What to do with a word: reverse it, or copy it because the attention cannot look back."""

    name: str
    why: str = ""

    def answer(self, word: str) -> str:
        """The right answer."""
        return word[::-1] if self.name == "reverse" else word


@dataclass(frozen=True, slots=True)
class Moment:
    """Where the training stands."""

    step: int
    steps: int
    loss: float  # nats per letter


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it."""

    mechanism: str
    task: Task
    steps: int
    seconds: float  # of training
    words: int  # held out
    right: int  # of these, written without a mistake
    samples: dict[str, str]  # word: what was written
    panel: Panel  # of the last sample

    @property
    def accuracy(self) -> float:
        """The share of held-out words written without a mistake."""
        return self.right / self.words


class Demo:
    """One run: iterate `learn`, then ask for the `report`.

    demo = Demo("additive")
    for moment in demo.learn():
        print(moment.step, moment.loss)
    print(demo.report().accuracy)
    """

    def __init__(self, mechanism: str = "additive", *, seed: int = 0, steps: int = STEPS) -> None:
        self.mechanism, self.steps, self.seconds = mechanism, steps, 0.0
        self.task = task_for(mechanism)
        torch.manual_seed(seed)
        self.network = Speller(mechanism)
        self.baseline = MovingAverage()

    def learn(self) -> Iterator[Moment]:
        """Train; after each step, say where it stands."""
        optimiser = torch.optim.Adam(self.network.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 8e-3, total_steps=self.steps)
        started = time.perf_counter()
        self.network.train()
        for step in range(1, self.steps + 1):
            surprise, loss = self.losses(draw(BATCH))
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            self.seconds = time.perf_counter() - started
            yield Moment(step, self.steps, surprise.item())

    def losses(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """How surprising the right letters are, alone and with what the attention asks for."""
        answer, there = self.answer(words), words != BLANK
        spelt = self.network(words, answer)
        each = cross_entropy(spelt.logits.mT, answer, reduction="none") * there  # B T
        surprise = loss = each.sum() / there.sum()
        if spelt.seen[0].penalty is not None:
            loss = loss + spelt.joined("penalty").mean()
        if spelt.seen[0].log_prob is not None:
            loss = loss + self._chance(spelt, there, -each.detach())
        return surprise, loss

    def _chance(self, spelt: Spelt, there: Tensor, reward: Tensor) -> Tensor:
        """REINFORCE, for an attention that draws: a look earns what its letter does."""
        log_prob = spelt.joined("log_prob") * there[:, None]
        loss = reinforce(log_prob, reward, self.baseline.value) * len(there) / there.sum()
        self.baseline.update(reward[there])
        return 4 * loss  # per letter, as the rest is, and louder: drawing teaches slowly

    def answer(self, words: Tensor) -> Tensor:
        """The right answers.    B S -> B S"""
        return backwards(words) if self.task.name == "reverse" else words

    @torch.no_grad()
    def report(self, words: int = 1000) -> Report:
        """Judge on words that training never met, and look at a few by name."""
        self.network.eval()
        asked = draw(words, held_out=True)
        written = self.network(asked).logits.argmax(-1)
        right = ((written == self.answer(asked)) | (asked == BLANK)).all(1).sum()
        panels = {word: self.look(word) for word in SAMPLES}
        return Report(
            mechanism=self.mechanism,
            task=self.task,
            steps=self.steps,
            seconds=self.seconds,
            words=words,
            right=int(right),
            samples={word: "".join(panel.rows) for word, panel in panels.items()},
            panel=panels[SAMPLES[-1]],
        )

    def look(self, word: str) -> Panel:
        """Where the network looked while it wrote one word."""
        n = len(word)
        spelt = self.network(numbers(word), need="weight")
        written = [ALPHABET[letter] for letter in spelt.logits[0, :n].argmax(-1).tolist()]
        weight = spelt.joined("weight")[0, 0, :n, :n]
        return Panel.of(f"{self.mechanism} · {word}", weight, written, word)


@dataclass(frozen=True, slots=True)
class Spelt:
    """What the network wrote, and what its attention saw at each letter."""

    logits: Tensor  # B T letters
    seen: list[heed.Attended]

    def joined(self, name: str) -> Tensor:
        """A field of the records, along T.    B H T ..."""
        return torch.cat([getattr(each, name) for each in self.seen], 2)


class Speller(nn.Module):
    """Reads letters with a GRU in both directions, writes them one at a time with another."""

    def __init__(self, mechanism: str) -> None:
        super().__init__()
        sizes = [OPTIONS[part] for part in mechanism.split("/") if part in OPTIONS]
        options = {name: value for each in sizes for name, value in each.items()}
        self.embed = nn.Embedding(len(ALPHABET), WIDTH // 2)
        self.encoder = nn.GRU(WIDTH // 2, WIDTH // 2, batch_first=True, bidirectional=True)
        self.begin = nn.Linear(WIDTH, WIDTH)
        self.cell = nn.GRUCell(WIDTH // 2 + WIDTH, WIDTH)
        self.attend = heed.Attention(mechanism, query=WIDTH, key=WIDTH, **options)
        gathers = self.attend.mechanism.claims.context
        self.write = Write() if gathers else Point()

    def forward(self, words: Tensor, answer: Tensor | None = None, need: Any = "context") -> Spelt:
        """Letters B S, and the right answer where it is known -> as many letters."""
        source, last = self.encoder(self.embed(words))
        memory = self.attend.remember(source, visible=words != BLANK)
        hidden = torch.tanh(self.begin(last.transpose(0, 1).flatten(1)))  # B WIDTH
        context, letter = torch.zeros_like(hidden), torch.full_like(words[:, 0], BLANK)
        state, logits, records = heed.State(), [], []
        for t in range(words.shape[1]):
            hidden = self.cell(torch.cat([self.embed(letter), context], -1), hidden)
            seen = self.attend(hidden[:, None], memory, state, need=need)
            state = seen.state
            scores, context = self.write(hidden, seen, words, source)
            letter = scores.argmax(-1) if answer is None else answer[:, t]
            logits.append(scores)
            records.append(seen)
        return Spelt(torch.stack(logits, 1), records)


class Write(nn.Module):
    """A letter from what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * WIDTH, len(ALPHABET))

    def forward(
        self, hidden: Tensor, seen: heed.Attended, words: Tensor, source: Tensor
    ) -> tuple[Tensor, Tensor]:
        """-> scores B letters, context B WIDTH"""
        context = seen.context[:, 0]
        return self.linear(torch.cat([hidden, context], -1)), context


class Point(nn.Module):
    """The letter that is pointed at, for an attention that gathers nothing."""

    def forward(
        self, hidden: Tensor, seen: heed.Attended, words: Tensor, source: Tensor
    ) -> tuple[Tensor, Tensor]:
        """-> scores B letters, context B WIDTH"""
        weight = seen.weight[:, 0]  # B 1 S
        chance = weight @ one_hot(words, len(ALPHABET)).to(weight.dtype)
        return chance[:, 0].clamp(min=1e-6).log(), (weight @ source)[:, 0]


def task_for(mechanism: str) -> Task:
    """Reverse, unless a part of the mechanism cannot."""
    parts = mechanism.split("/")
    if "static" in parts:
        raise Refused(
            "'static' asks one question of a whole text, and the demo writes letter by letter; "
            "try --attention additive"
        )
    for part in parts:
        if part in COPIES:
            return Task("copy", f"{part} {COPIES[part]}, so it copies")
    return Task("reverse")


def draw(count: int, *, held_out: bool = False) -> Tensor:
    """Words of random letters, filled up with blanks.    -> B LONGEST"""
    many = 20 * count + 200  # one in ten is held out, so there are enough of either kind
    lengths = torch.randint(SHORTEST, LONGEST + 1, (many, 1))
    words = torch.randint(LETTERS, (many, LONGEST))
    words = words.where(torch.arange(LONGEST) < lengths, BLANK)
    return words[is_held_out(words) == held_out][:count]


def is_held_out(words: Tensor) -> Tensor:
    """B S -> B"""
    return words.where(words != BLANK, 0).sum(1) % 10 == 9


def backwards(words: Tensor) -> Tensor:
    """The letters from the last to the first, blanks where they were.    B S -> B S"""
    there = words != BLANK
    place = (there.sum(1, keepdim=True) - 1 - torch.arange(words.shape[1])).clamp(min=0)
    return words.gather(1, place).where(there, BLANK)


def numbers(word: str) -> Tensor:
    """One word, filled up with blanks.    -> 1 LONGEST"""
    return torch.tensor([[ALPHABET.index(letter) for letter in word.ljust(LONGEST, "_")]])
