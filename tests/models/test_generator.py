"""Generators: from a class or a vector to a text, at once and step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from heed.decoding import beam, greedy
from heed.errors import Refused
from heed.models.cells import CELLS
from heed.models.encoder_decoder import EncoderDecoder
from heed.models.generator import GeneratorSettings, build
from heed.models.reader import VectorReader
from heed.models.recurrent import Generator

B, T, V = 5, 6, 9
SMALL: dict[str, Any] = {"vector": 3, "embedding": 4, "hidden": 8, "dropout": 0.0}


@pytest.mark.parametrize("context", ["first", "every"])
@pytest.mark.parametrize("cell", list(CELLS))
@pytest.mark.parametrize("given", ["classes", "features"])
def test_steps_equal_the_whole_pass(given: str, cell: str, context: str) -> None:
    torch.manual_seed(0)
    settings = GeneratorSettings(cell=cell, context=context, layers=2, readout="maxout", **SMALL)  # type: ignore[arg-type]
    model = build(settings, **{given: 4}, symbols=V).double().eval()  # type: ignore[arg-type]
    told = torch.tensor([3, 0, 1, 1, 2]) if given == "classes" else torch.randn(B, 4).double()
    text = torch.randint(V, (B, T))
    whole, carry = model(told, None, text).logits, model.begin(told, None)
    for t in range(T):
        step = model.step(carry, text[:, t])
        torch.testing.assert_close(step.logits, whole[:, t])
        carry = step.carry
    rows = torch.tensor([4, 0])
    again = model.step(model.select(carry, rows), text[rows, 0]).logits
    torch.testing.assert_close(again, model.step(carry, text[:, 0]).logits[rows])
    other = model(told.roll(1, 0), None, text).logits
    assert not torch.allclose(other[0], whole[0])


def test_what_is_given_enters_at_every_step_or_once() -> None:
    """The first step's input is as wide as a symbol's vector, or as both together."""
    for context, width in (("first", 4), ("every", 7)):
        model = build(GeneratorSettings(context=context, **SMALL), classes=4, symbols=V)  # type: ignore[arg-type]
        assert model.decoder.stack.each[0].rnn.input_size == width


def test_inputs_and_outputs_may_be_numbers() -> None:
    torch.manual_seed(0)
    writer = Generator(nn.Linear(1, 4), inputs=4, vector=3, hidden=8, out=nn.Linear(8, 1))
    model = EncoderDecoder(VectorReader(nn.Identity(), 3), writer)
    assert model(torch.randn(B, 3), None, torch.randn(B, T, 1)).logits.shape == (B, T, 1)


def test_each_class_is_written_out_as_it_was_learnt() -> None:
    torch.manual_seed(0)
    model = build(GeneratorSettings(**SMALL | {"hidden": 24}), classes=3, symbols=V)
    text = torch.tensor([[5, 6, 7, 8, 1], [8, 8, 5, 6, 1], [6, 5, 6, 5, 1]])
    inputs = torch.cat([torch.full((3, 1), 2), text[:, :-1]], 1)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(60):
        logits = model(torch.arange(3), None, inputs).logits
        loss = nn.functional.cross_entropy(logits.mT, text)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    rules: dict[str, Any] = {"begin": 2, "end": 1, "longest": 9}
    found = greedy(model, model.begin(torch.arange(3), None), 3, **rules)
    assert [each.symbols for each in found] == text[:, :-1].tolist()
    several = beam(model, model.begin(torch.arange(3), None), 3, width=3, **rules)
    assert [each[0].symbols for each in several] == text[:, :-1].tolist()


def test_there_is_no_alignment_and_something_must_be_given() -> None:
    model = build(GeneratorSettings(**SMALL), classes=4, symbols=V)
    assert model.aligning is None
    with pytest.raises(Refused, match="no attention"):
        model.alignment({})
    with pytest.raises(Refused, match=r"classes=\.\.\., or features="):
        build(GeneratorSettings(**SMALL), symbols=V)
