"""While a search takes a step, it says which; afterwards each answer knows its rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from heed.decoding import beam, greedy, sample
from heed.records import SEARCH

BEGIN, END, V, B = 1, 0, 7, 3


class Took(NamedTuple):
    """A step of the model below."""

    logits: Tensor
    carry: Tensor
    weight: None = None


class Random:
    """Draws logits, and notes which step of a search it is asked for, and what the rows read."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, list[int]]] = []

    def step(self, carry: Tensor, symbols: Tensor) -> Took:
        """Read one symbol per row; fail if the carry is negative."""
        search = SEARCH.get()
        assert search is not None
        assert search.symbols[-1].tolist() == symbols.tolist()
        assert len(search.parents[-1]) == len(symbols)
        self.heard.append((len(search.parents), symbols.tolist()))
        if bool((carry < 0).any()):
            raise ArithmeticError
        return Took(torch.randn(len(symbols), V), carry)

    def select(self, carry: Tensor, rows: Tensor, same: bool = False) -> Tensor:
        """The carry of the chosen rows."""
        return carry[rows]


def searched(name: str, model: Random, carry: Tensor) -> list[Any]:
    rules: dict[str, Any] = {"begin": BEGIN, "end": END, "longest": 6}
    if name == "beam":
        return [x for each in beam(model, carry, B, width=3, best=3, **rules) for x in each]
    search = greedy if name == "greedy" else sample
    return search(model, carry, B, **rules)  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize("name", ["beam", "greedy", "sample"])
def test_an_answer_stood_in_rows_that_read_its_symbols(name: str) -> None:
    torch.manual_seed(4)
    model = Random()
    found = searched(name, model, torch.arange(B))
    assert [step for step, _ in model.heard] == list(range(1, len(model.heard) + 1))
    for one in found:
        assert len(one.rows) == len(one.symbols)
        read = [model.heard[t][1][row] for t, row in enumerate(one.rows)]
        assert read == [BEGIN, *one.symbols][: len(read)]
    assert max(len(one.rows) for one in found) > 2
    assert SEARCH.get() is None


@pytest.mark.parametrize("name", ["beam", "greedy", "sample"])
def test_a_search_that_fails_is_over(name: str) -> None:
    with pytest.raises(ArithmeticError):
        searched(name, Random(), torch.full((B,), -1))
    assert SEARCH.get() is None
