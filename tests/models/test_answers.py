"""Heads: what each predicts, at which positions, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from heed.errors import HeedError, Refused, ShapeError
from heed.models.answers import Answerer, MaskedWords, Pooler, at
from heed.models.text_settings import BertSettings, build_bert

B, S, M, SYMBOLS = 2, 5, 8, 12
SAYS = {
    "none": {"pooled": (B, M)},
    "masked": {"words": (B, S, SYMBOLS)},
    "next": {"pooled": (B, M), "follows": (B, 2)},
    "pretraining": {"pooled": (B, M), "follows": (B, 2), "words": (B, S, SYMBOLS)},
    "classify": {"pooled": (B, M), "logits": (B, 3)},
    "label": {"logits": (B, S, 3)},
    "span": {"logits": (B, S, 2)},
}


def network(head: str) -> Answerer:
    sizes = {"layers": 1, "width": M, "feed": 9, "heads": 2, "symbols": SYMBOLS, "longest": S}
    return build_bert(BertSettings(**sizes, head=head, labels=3)).eval()


@pytest.mark.parametrize("head", SAYS)
def test_a_head_returns_its_task_and_nothing_else(head: str) -> None:
    said = network(head)(torch.randint(0, SYMBOLS, (B, S)))
    assert said.states.shape == (B, S, M)
    for field in ("pooled", "words", "follows", "logits"):
        found = getattr(said, field)
        if found is not None and field == "words":
            found = found.form()
        shape = None if found is None else tuple(found.shape)
        assert shape == SAYS[head].get(field), field


def test_words_by_hand() -> None:
    """norm(bend(W x + b)) E^T + c, with numbers that can be checked by hand."""
    head = MaskedWords(3, 2, "relu", 1e-12)
    with torch.no_grad():
        head.dense.weight.copy_(torch.eye(2))
        head.dense.bias.zero_()
        head.bias.copy_(torch.tensor([0.0, 10.0, 0.0]))
    table = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    logits = head(torch.tensor([[[3.0, -5.0]]]), table).form()
    # relu: (3, 0); normalised: (1, -1)
    torch.testing.assert_close(logits, torch.tensor([[[1.0, 9.0, 0.0]]]))


def test_the_first_symbol_represents_the_text() -> None:
    pool = Pooler(2)
    with torch.no_grad():
        pool.dense.weight.copy_(torch.eye(2))
        pool.dense.bias.copy_(torch.tensor([0.0, 1.0]))
    states = torch.tensor([[[0.5, 0.0], [9.0, 9.0]]])
    torch.testing.assert_close(pool(states), torch.tensor([[0.5, 1.0]]).tanh())


@torch.no_grad()
def test_words_are_predicted_where_asked_for() -> None:
    net, x = network("masked"), torch.randint(0, SYMBOLS, (B, S))
    asked = torch.tensor([[4, 0], [2, 2]])
    every, some = net(x).words.form(), net(x, asked=asked).words.form()
    torch.testing.assert_close(some[0], every[0, [4, 0]])
    torch.testing.assert_close(some[1], every[1, [2, 2]])
    assert at(every, None) is every


def test_the_output_is_tied_to_the_embedding() -> None:
    """A word that is never an input still learns, from where it is the output."""
    net = network("masked")
    net(torch.zeros(B, S, dtype=torch.long)).words.form()[..., 7].sum().backward()
    assert net.table.grad[7].abs().sum() > 0
    assert [n for n, p in net.named_parameters() if p.shape == (SYMBOLS, M)] == [
        "encoder.words.table.weight"
    ]


def test_impossible_heads_are_refused() -> None:
    net = network("classify")
    with pytest.raises(Refused, match="needs pooling"):
        Answerer(net.encoder, follows=nn.Linear(M, 2))
    with pytest.raises(ShapeError, match="a mask of existing symbols"):
        net(torch.zeros(B, S, dtype=torch.long), torch.ones(B, S + 1, dtype=torch.bool))
    with pytest.raises(Refused, match="positions end at 5"):
        net(torch.zeros(B, S + 1, dtype=torch.long))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"lengths": torch.tensor([S + 1, 2])}, "0 to 5 of the 5 symbols"),
        ({"lengths": torch.tensor([S, -1])}, "0 to 5 of the 5 symbols"),
        ({"lengths": torch.tensor([S])}, "one whole number for each of 2 texts"),
        ({"types": torch.zeros(1, S, dtype=torch.long)}, "a type for each symbol"),
        ({"types": torch.zeros(B, 1, dtype=torch.long)}, "a type for each symbol"),
        ({"types": torch.full((B, S), 2)}, "types are 0 to 1; got 2"),
        ({"types": torch.full((B, S), -1)}, "types are 0 to 1; got -1"),
        ({"asked": torch.full((B, 2), S)}, "asked are 0 to 4; got 5"),
        ({"asked": torch.full((B, 2), -1)}, "asked are 0 to 4; got -1"),
        ({"asked": torch.zeros(1, 2, dtype=torch.long)}, "positions of each row"),
        ({"asked": torch.zeros(B, dtype=torch.long)}, "positions of each row"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(told: dict[str, Any], words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        network("masked")(torch.zeros(B, S, dtype=torch.long), **told)


@pytest.mark.parametrize("head", ["classify", "masked"])
def test_the_mask_of_a_tokeniser_is_accepted(head: str) -> None:
    net = network(head)
    symbols = torch.randint(1, 7, (B, S))
    lengths = torch.tensor([S, 2])
    mask = torch.arange(S) < lengths[:, None]
    expected = net(symbols, lengths)
    for told in (mask, mask.long(), mask.int(), lengths.tolist(), tuple(lengths), mask.tolist()):
        said = net(symbols, told)
        torch.testing.assert_close(said.states[mask], expected.states[mask])
    assert not torch.allclose(net(symbols).states[mask], expected.states[mask])


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (torch.full((B, S), 2), "numbers of an attention mask are 0 to 1; got 2"),
        (torch.ones(B, S), r"has booleans, or 0 and 1, B S \(2, 5\); got torch.float32"),
        ([S, "2"], r"one whole number for each text, B, .*; got list \[5, '2'\]"),
        ([[1, 1], [1]], "one whole number for each text, B, or which"),
        ([2.0, 1.0], "one whole number for each of 2 texts"),
        ([2, 9], "0 to 5 of the 5 symbols"),
    ],
)
def test_an_invalid_mask_is_refused(told: Any, words: str) -> None:
    with pytest.raises(HeedError, match=words):
        network("masked")(torch.zeros(B, S, dtype=torch.long), told)


def test_an_empty_text_is_finite_or_refused() -> None:
    net, symbols = network("classify"), torch.zeros(B, S, dtype=torch.long)
    assert net(symbols, torch.tensor([0, 3])).logits.isfinite().all()
    with pytest.raises(ShapeError, match="at least one symbol"):
        net(symbols[:, :0])
