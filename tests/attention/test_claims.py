"""Claims are true, and no other code tells mechanisms apart.

Each claim by which other code takes a shorter way is compared with what the mechanism does.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import heed
from heed.attention.catalogue import CATALOGUE
from heed.attention.position import ALiBi, Rotary
from tests.attention.cases import ALONE, FIRST, INSIDE, Case, close, every, main, small

SINGLE = [case for case in ALONE if len(case.words) == 1]
DIFFERENT = 1e-6


def rows(case: Case, attend: Any, state: heed.State, memory: heed.Memory, query: Tensor) -> Tensor:
    """The answers to each query by itself; of the state, only the step goes on."""
    asked = []
    for t in range(query.shape[1]):
        here = state._replace(step=state.step + t)
        asked.append(main(attend(query[:, t : t + 1], memory, here)))
    return torch.cat(asked, 1 if case.claims.gives_context else 2)


def differ(one: Tensor, two: Tensor) -> bool:
    return bool((one - two).abs().max() > DIFFERENT)


@every(SINGLE, has_steps=True)
def test_is_row_wise(case: Case) -> None:
    attend = case.build()
    q, k, v = case.inputs()
    memory = attend.remember(k, v)
    whole, alone = main(attend(q, memory, FIRST)), rows(case, attend, FIRST, memory, q)
    assert differ(whole, alone) != case.claims.is_row_wise


@every(SINGLE, has_steps=True)
def test_ignores_place(case: Case) -> None:
    attend = case.build().eval()
    q, k, v = case.inputs(T=1)
    memory = attend.remember(k, v)
    here, there = (main(attend(q, memory, heed.State(step))) for step in (0, 4))
    assert differ(here, there) != case.claims.ignores_place


def shifted(attend: Any, x: Tensor, by: int) -> Tensor:
    """What a text attends to in itself, behind some padding.    B T M"""
    more = torch.randn(x.shape[0], by, x.shape[2], dtype=x.dtype)
    exists = torch.arange(by + x.shape[1]) >= by
    memory = attend.remember(torch.cat([more, x], 1), visible=exists.expand(len(x), -1))
    seen = attend(torch.cat([more, x], 1), memory, FIRST, visible=heed.causal())
    context: Tensor = seen.context
    return context[:, by:]


@pytest.mark.parametrize("position", [None, Rotary(), ALiBi(heads=4)], ids=repr)
@every([Case(case.name, 4, tied=True) for case in INSIDE if len(case.words) == 1])
def test_ignores_shifts(case: Case, position: Any) -> None:
    width = 16
    options = {**small(case.name), **({"longest": 20} if case.name == "location" else {})}
    attend = (
        heed.MultiHeadAttention(width, 4, mechanism=case.name, position=position, **options)
        .double()
        .eval()
    )
    for parameter in attend.parameters():
        torch.nn.init.uniform_(parameter, -0.9, 0.9)
    x = torch.randn(2, 6, width).double()
    if attend.ignores_shifts:
        close(shifted(attend, x, 3), attend(x, x, FIRST, visible=heed.causal()).context)


@every(SINGLE, has_steps=True, takes_several=True, gives_context=True)
def test_needs_length(case: Case) -> None:
    """Without, a text that is read up to a place is read as if it ended there."""
    case = Case(case.name, tied=True)
    attend = case.build().eval()
    x, _, _ = case.inputs(T=6)
    whole = attend(x, x, FIRST, visible=heed.causal()).context[:, :4]
    part = attend(x[:, :4], x[:, :4], FIRST, visible=heed.causal()).context
    assert differ(whole, part) == case.claims.needs_length


@pytest.mark.parametrize("name", [n for n, x in CATALOGUE.items() if x.slot == "reach"])
def test_sees_all(name: str) -> None:
    """Otherwise the weights are not those of a softmax over all keys."""
    case = Case(name)
    attend = case.build()
    q, k, v = case.inputs()
    weight = attend(q, attend.remember(k, v), case.first, need="weight").weight
    whole = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)[:, None]
    assert differ(weight, whole) != case.claims.sees_all


@every(SINGLE)
def test_draws(case: Case) -> None:
    attend = case.build().train()
    assert attend.mechanism.is_random == case.claims.draws
    q, k, v = case.inputs(B=8)
    memory = attend.remember(k, v)
    one, two = (main(attend(q, memory, case.first)) for _ in range(2))
    assert differ(one, two) == case.claims.draws
    assert not attend.eval().mechanism.is_random


def test_what_draws_only_with_noise_or_dropout() -> None:
    assert heed.Attention("monotonic", query=4).mechanism.is_random
    assert heed.Attention("dot", query=4, dropout=0.1).mechanism.is_random
    assert heed.Attention("mixed", query=4, dropout=0.1).mechanism.is_random
    assert not heed.Attention("mixed", query=4).mechanism.is_random
