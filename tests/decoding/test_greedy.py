"""Greedy search against the text it wrote, read again."""

import pytest
import torch

from heed.decoding import greedy
from tests.decoding.toys import BEGIN, END, Table, Toy

WORDS = {"begin": BEGIN, "end": END, "forbid": (BEGIN,)}


def test_each_symbol_is_the_likeliest() -> None:
    toy = Toy(V=9, seed=1)
    limits = torch.tensor([6, 0, 9, 3])
    found = greedy(toy, toy.begin([0, 1, 2, 3]), 4, longest=limits, **WORDS)
    for b, (h, limit) in enumerate(zip(found, limits.tolist(), strict=True)):
        carry, written, symbol = toy.begin([b]), [], BEGIN
        while len(written) < limit:
            step = toy.step(carry, torch.tensor([symbol]))
            carry, logits = step.carry, step.logits[0].clone()
            logits[BEGIN] = -torch.inf
            if (symbol := int(logits.argmax())) == END:
                break
            written.append(symbol)
        assert h.symbols == written
        log_prob, weight = toy.rescore(b, h.symbols)
        assert h.log_prob == h.score == pytest.approx(log_prob, rel=1e-6)
        torch.testing.assert_close(h.weight, weight[:-1])


def test_rows_shrink_as_sentences_end() -> None:
    toy = Toy(V=9, seed=1)
    greedy(toy, toy.begin([0, 1, 2]), 3, longest=torch.tensor([0, 2, 1]), **WORDS)
    assert toy.rows[0] == 3
    assert len(toy.rows) <= 3
    assert sorted(toy.rows, reverse=True) == toy.rows


def test_no_sentence_and_no_symbol() -> None:
    toy = Toy()
    assert greedy(toy, toy.begin([]), 0, longest=3, **WORDS) == []
    (h,) = greedy(toy, toy.begin([0]), 1, longest=0, **WORDS)
    assert h.symbols == []
    assert h.weight is not None
    assert h.weight.shape == (0, toy.S)
    assert h.log_prob == pytest.approx(toy.rescore(0, [])[0])


def test_of_equals_the_lowest_id() -> None:
    flat = Table([0.0, -1.0, *[0.0] * 60])
    (h,) = greedy(flat, flat.begin(1), 1, longest=2, **WORDS)
    assert h.symbols == [2, 2]


def test_lengths_cut_the_weights() -> None:
    toy = Toy(S=6, seed=1)
    found = greedy(toy, toy.begin([0, 1]), 2, longest=4, lengths=torch.tensor([6, 2]), **WORDS)
    assert [h.weight.shape[1] for h in found if h.weight is not None] == [6, 2]
