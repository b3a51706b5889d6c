"""A model with few positions: what it sees of a long text, and that nothing else matters."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from heed.decoding import greedy, sample
from heed.decoding.sliding import Sliding, first_seen, padded

END = 1


class Said(NamedTuple):
    logits: Tensor
    carry: list[list[int]]
    weight: None = None


class Reader:
    """A model whose next symbol depends on all that it sees, at most `places` symbols."""

    def __init__(self, places: int, V: int = 11) -> None:
        self.places, self.V = places, V
        self.seen: list[tuple[int, ...]] = []
        self.begun = 0

    def begin(self, inputs: Tensor, *, first: Tensor | None = None) -> list[list[int]]:
        self.begun += 1
        rows, T = inputs.tolist(), inputs.shape[1]
        begins = [0] * len(rows) if first is None else first.tolist()
        assert self.places > T
        return [row[begin:] for row, begin in zip(rows, begins, strict=True)]

    def step(self, carry: list[list[int]], symbols: Tensor) -> Said:
        after = [[*row, x] for row, x in zip(carry, symbols.tolist(), strict=True)]
        assert max(map(len, after)) <= self.places
        self.seen += map(tuple, after)
        logits = torch.zeros(len(after), self.V)
        for row, logit in zip(after, logits, strict=True):
            value = sum((i + 1) * x for i, x in enumerate(row))
            logit[2 + value % (self.V - 2)] = 9.0
            logit[2 + value * 7 % (self.V - 2)] += 8.0
        return Said(logits, after)

    def select(self, carry: list[list[int]], rows: Tensor, same: bool = False) -> list[list[int]]:
        return [carry[row] for row in rows.tolist()]


def test_what_the_model_sees_of_a_text() -> None:
    assert [first_seen(n, 4) for n in range(1, 10)] == [0, 0, 0, 0, 2, 2, 4, 4, 6]
    assert [first_seen(n, 5) for n in (5, 6, 8, 9)] == [0, 3, 3, 6]
    assert all(1 <= n - first_seen(n, P) <= P for P in range(1, 9) for n in range(1, 40))


def test_padding_is_on_the_left() -> None:
    table, first = padded([[5, 6], [], [7]], "cpu")
    assert table.tolist() == [[5, 6], [0, 0], [0, 7]]
    assert first is not None
    assert first.tolist() == [0, 2, 1]
    assert padded([[5], [6]], "cpu")[1] is None


def written(places: int, prompts: list[list[int]], longest: int | Tensor, draw: bool) -> list:
    model = Sliding(Reader(places), places, "cpu")
    carry = model.begin([prompt[:-1] for prompt in prompts])
    first = torch.tensor([prompt[-1] for prompt in prompts])
    rules = {"begin": first, "end": END, "longest": longest, "cut": True, "device": "cpu"}
    if draw:
        found = sample(model, carry, len(prompts), seeds=[sum(p) for p in prompts], **rules)
    else:
        found = greedy(model, carry, len(prompts), **rules)
    return [each.symbols for each in found]


@pytest.mark.parametrize("draw", [False, True])
@pytest.mark.parametrize("places", [1, 2, 5, 8])
def test_a_batch_gives_the_same_as_single_texts(places: int, draw: bool) -> None:
    prompts = [[3], [4, 5, 6, 7, 8, 9, 2], [9, 9, 2], [5] * 12]
    limits = torch.tensor([13, 9, 20, 1])
    together = written(places, prompts, limits, draw)
    alone = [
        written(places, [prompt], int(limit), draw)[0]
        for prompt, limit in zip(prompts, limits, strict=True)
    ]
    assert together == alone
    if not draw:
        assert list(map(len, together)) == limits.tolist()


def test_the_end_of_the_prompt_does_not_matter() -> None:
    """Continuing a written text gives the same as writing on."""
    whole = written(6, [[3, 4]], 25, False)[0]
    for cut in (1, 4, 5, 11, 20):
        assert written(6, [[3, 4, *whole[:cut]]], 25 - cut, False)[0] == whole[cut:]


def test_reading_starts_again_only_when_the_positions_are_full() -> None:
    model = Reader(8)
    sliding = Sliding(model, 8, "cpu")
    greedy(sliding, sliding.begin([[]]), 1, begin=3, end=END, longest=8, cut=True, device="cpu")
    assert model.begun == 1
    greedy(sliding, sliding.begin([[]]), 1, begin=3, end=END, longest=9, cut=True, device="cpu")
    assert model.begun == 3
    assert len(model.seen[-1]) == 5


class Knowing(NamedTuple):
    """A step whose logits must not be formed."""

    said: Said
    weight: None = None

    @property
    def carry(self) -> list[list[int]]:
        return self.said.carry

    @property
    def logits(self) -> Tensor:
        raise AssertionError("all logits were formed")

    def likeliest(self, many: int, end: int, forbid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_prob = self.said.logits.log_softmax(-1)
        symbols = log_prob.argmax(-1, keepdim=True)
        return log_prob.gather(-1, symbols), symbols, log_prob[:, end]


def test_unneeded_logits_are_not_formed() -> None:
    class Knower(Reader):
        def step(self, carry: list[list[int]], symbols: Tensor) -> Knowing:  # type: ignore[override]
            return Knowing(super().step(carry, symbols))

    found = []
    for model in (Reader(5), Knower(5)):
        sliding = Sliding(model, 5, "cpu")
        begun, first = sliding.begin([[3], [4, 5, 6]]), torch.tensor([7, 2], device="cpu")
        found.append(greedy(sliding, begun, 2, begin=first, end=END, longest=9, device="cpu"))
    assert [each.symbols for each in found[0]] == [each.symbols for each in found[1]]
