"""Greedy search compared with rereading the text it wrote."""

import pytest
import torch

from heed.decoding import beam, greedy
from heed.errors import ShapeError
from tests.decoding.toys import BEGIN, END, Table, Toy

WORDS = {"begin": BEGIN, "end": END, "forbid": (BEGIN,)}


def test_each_symbol_is_the_most_likely() -> None:
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


def test_an_empty_batch_and_a_limit_of_zero() -> None:
    toy = Toy()
    assert greedy(toy, toy.begin([]), 0, longest=3, **WORDS) == []
    (h,) = greedy(toy, toy.begin([0]), 1, longest=0, **WORDS)
    assert h.symbols == []
    assert h.weight is not None
    assert h.weight.shape == (0, toy.S)
    assert h.log_prob == pytest.approx(toy.rescore(0, [])[0])


def test_among_equals_the_lowest_id_wins() -> None:
    flat = Table([0.0, -1.0, *[0.0] * 60])
    (h,) = greedy(flat, flat.begin(1), 1, longest=2, **WORDS)
    assert h.symbols == [2, 2]


def test_lengths_limit_the_weights() -> None:
    toy = Toy(S=6, seed=1)
    found = greedy(toy, toy.begin([0, 1]), 2, longest=4, lengths=torch.tensor([6, 2]), **WORDS)
    assert [h.weight.shape[1] for h in found if h.weight is not None] == [6, 2]


def test_each_sentence_begins_with_its_own_symbol() -> None:
    toy = Toy(V=9, seed=1)
    firsts = torch.tensor([2, 5, 3])
    found = greedy(toy, toy.begin([0, 1, 2]), 3, longest=6, **{**WORDS, "begin": firsts})
    for b, first in enumerate(firsts.tolist()):
        (alone,) = greedy(toy, toy.begin([b]), 1, longest=6, **{**WORDS, "begin": first})
        assert alone.symbols == found[b].symbols
        assert alone.log_prob == pytest.approx(found[b].log_prob)
    with pytest.raises(ShapeError, match="for 2 sentences"):
        greedy(toy, toy.begin([0, 1]), 2, longest=6, **{**WORDS, "begin": firsts})


@pytest.mark.parametrize("search", [greedy, beam])
def test_the_probability_of_a_text_that_is_cut_leaves_out_the_end(search) -> None:
    """It is the probability of the symbols that were written."""
    toy = Toy(V=9, seed=1)
    limits = torch.tensor([4, 0, 2, 30])
    how = {"longest": limits, "cut": True, **WORDS}
    found = search(toy, toy.begin([0, 1, 2, 3]), 4, **how)
    steps = len(toy.rows)
    found = [each[0] if isinstance(each, list) else each for each in found]
    for b, (h, limit) in enumerate(zip(found, limits.tolist(), strict=True)):
        whole, _ = toy.rescore(b, h.symbols)
        last = 0.0
        if len(h.symbols) == limit:
            carry = toy.begin([b])
            for symbol in [BEGIN, *h.symbols]:
                step = toy.step(carry, torch.tensor([symbol]))
                carry = step.carry
            last = float(step.logits.log_softmax(-1)[0, END])
        assert h.log_prob == pytest.approx(whole - last, rel=1e-5, abs=1e-6)
    if search is greedy:
        assert steps <= 31


def test_no_step_is_taken_after_all_texts_are_cut() -> None:
    table = Table([0.0, -90.0, 1.0], [0.0, -90.0, 1.0])
    counted = []
    step = table.step
    table.step = lambda *given: (counted.append(1), step(*given))[1]  # type: ignore[method-assign]
    for cut in (False, True):
        counted.clear()
        (found, _) = greedy(table, table.begin(2), 2, longest=5, cut=cut, **WORDS)
        assert len(found.symbols) == 5
        assert len(counted) == (5 if cut else 6)
