"""Batches of rows made anew in each epoch: repeatable, resumable, shared, of few shapes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.data.batches import FILLER
from heed.data.documents import Documents
from heed.data.masked_words import Masking, Symbols
from heed.data.permutation import Permuting
from heed.data.pretraining_batches import (
    MaskedPairs,
    MaskedStretches,
    PermutedStretches,
    Remade,
    stretches,
)
from heed.data.tokenise import BOS, EOS, SPECIALS
from heed.errors import Refused

V = 60
PLAIN = np.arange(V) >= len(SPECIALS)
PLAIN[V - 1] = False
KNOWN = Symbols(V - 1, PLAIN, np.ones(V, bool), np.zeros(V, bool))


def documents(N=60, seed=0):
    draw = np.random.default_rng(seed)
    return Documents.of(
        [draw.integers(4, V - 1, draw.integers(1, 12)) for _ in range(draw.integers(1, 7))]
        for _ in range(N)
    )


def makers(longest=24):
    held = documents()
    return {
        "pairs": MaskedPairs(held, KNOWN, Masking(), longest),
        "stretches": MaskedStretches(held, KNOWN, Masking(), longest),
        "permuted": PermutedStretches(held, KNOWN, Permuting(), longest),
    }


@pytest.fixture(params=list(makers()))
def make(request):
    return makers()[request.param]


def same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.rows, b.rows)
        assert a.tokens.keys() == b.tokens.keys()
        assert all(torch.equal(a.tokens[k], b.tokens[k]) for k in a.tokens)


@pytest.mark.parametrize("fixed", [False, True], ids=["cut", "fixed"])
def test_resuming_gives_the_same_and_every_row_comes_once(make, fixed):
    batches = Remade(make, tokens=200, seed=3, fixed=fixed)
    whole = list(batches.epoch(2))
    assert len(whole) == batches.count(2)
    same(list(Remade(make, tokens=200, seed=3, fixed=fixed).epoch(2, 3)), whole[3:])
    rows = torch.cat([b.rows for b in whole])
    assert sorted(rows[rows != FILLER].tolist()) == list(range(len(make(3, 2).lengths)))
    first = torch.cat([b.tokens["text"].flatten() for b in batches.epoch(1)])
    second = torch.cat([b.tokens["text"].flatten() for b in batches.epoch(2)])
    assert first.shape != second.shape or not torch.equal(first, second)


def test_two_processes_share_what_one_reads(make):
    one = list(Remade(make, tokens=200, seed=3, fixed=True).epoch(0))
    two = [
        list(Remade(make, tokens=200, seed=3, fixed=True, shard=(r, 2)).epoch(0)) for r in (0, 1)
    ]
    for whole, *parts in zip(one, *two, strict=True):
        found = {}
        for part in parts:
            for i, row in enumerate(part.rows.tolist()):
                assert row == FILLER or row not in found  # each process has its own rows
                found[row] = [part.tokens[k][i] for k in part.tokens]
        for i, row in enumerate(whole.rows.tolist()):
            if row != FILLER:
                for mine, k in zip(found[row], whole.tokens, strict=True):
                    assert torch.equal(mine, whole.tokens[k][i])


def test_there_are_few_shapes_if_asked(make):
    shapes = {b.shape for b in Remade(make, tokens=256, seed=3, fixed=True).epoch(0)}
    assert len(shapes) <= 6
    filled = [
        b for b in Remade(make, tokens=256, seed=3, fixed=True).epoch(0) if (b.rows < 0).any()
    ]
    for batch in filled:
        none = batch.rows == FILLER
        assert all(not x[none].any() for x in batch.tokens.values())


def test_without_shuffling_the_rows_of_the_first_epoch_are_repeated(make):
    batches = Remade(make, tokens=200, seed=3, shuffle=False)
    same(list(batches.epoch(0)), list(batches.epoch(5)))


def test_labels_restore_what_was_hidden(make):
    for batch in Remade(make, tokens=200, seed=3).epoch(0):
        text, places, labels = (batch.tokens[k] for k in ("text", "places", "labels"))
        there = labels != 0
        assert there.any(1).all()
        found = text.gather(1, places.clamp(min=0))[there]
        if "order" in batch.tokens:  # the order hides it, not the text
            assert torch.equal(found, labels[there])
        else:
            assert (found == V - 1).float().mean() > 0.5
            assert not torch.equal(found, labels[there])
        assert torch.from_numpy(PLAIN)[labels[there]].all()


@pytest.mark.parametrize("kind", ["pairs", "stretches"])
def test_everything_hidden_is_asked_for(kind):
    """Although a word may be longer than the fixed width has room for."""
    words = KNOWN._replace(begins=np.arange(V) % 4 == 1)
    maker = {"pairs": MaskedPairs, "stretches": MaskedStretches}[kind]
    rows, plain = (
        maker(documents(300), words, Masking(masked=1, replaced=0, whole_words=whole), 24)(3, 1)
        for whole in (True, False)
    )
    chosen = np.arange(len(rows.lengths))
    free = rows.columns(chosen, 0)
    assert free["places"].shape[1] > 5
    found = rows.columns(chosen, 24)
    assert found["places"].shape == (len(chosen), 5)  # 15 % of 24, and one more
    hidden = found["text"] == V - 1
    assert hidden.sum() == (found["labels"] != 0).sum()
    assert hidden.any(1).mean() > 0.8
    at = np.take_along_axis(found["text"], found["places"], 1)
    assert (at[found["labels"] != 0] == V - 1).all()
    fits = (free["labels"] != 0).sum(1) <= 5
    assert (found["text"][fits, : free["text"].shape[1]] == free["text"][fits]).all()
    assert (plain.columns(chosen, 0)["text"] == plain.columns(chosen, 24)["text"]).all()


def test_the_special_symbols_of_the_three_kinds():
    made = makers()
    for batch in Remade(made["pairs"], tokens=200, seed=3).epoch(0):
        text, lengths = batch.tokens["text"], batch.lengths["text"]
        assert (text[:, 0] == BOS).all()
        assert (text.gather(1, lengths[:, None] - 1) == EOS).all()
        assert set(batch.tokens["follows"].flatten().tolist()) <= {1, 2}
        assert ((text == EOS).sum(1) == 2).all()
    for batch in Remade(made["stretches"], tokens=200, seed=3).epoch(0):
        text, lengths = batch.tokens["text"], batch.lengths["text"]
        assert (text[:, 0] == BOS).all()
        assert (text.gather(1, lengths[:, None] - 1) == EOS).all()
        assert lengths.max() <= 24
    for batch in Remade(made["permuted"], tokens=200, seed=3).epoch(0):
        text, lengths = batch.tokens["text"], batch.lengths["text"]
        assert (text.gather(1, lengths[:, None] - 1) == BOS).all()
        assert (text.gather(1, lengths[:, None] - 2) == EOS).all()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(1, 12), st.integers(0, 5))
def test_stretches_have_every_symbol_once(sizes, room, epoch):
    held = Documents.of([[np.arange(n)] for n in sizes])
    if not sum(sizes):
        with pytest.raises(Refused, match="no symbols"):
            stretches(held, room, 1, epoch)
        return
    starts, lengths = stretches(held, room, 1, epoch)
    assert (lengths >= 1).all()
    assert (lengths <= room).all()
    covered = [int(i) for s, n in zip(starts, lengths, strict=True) for i in range(s, s + n)]
    assert covered == list(range(sum(sizes)))
    inside = np.searchsorted(held.borders, [starts, starts + lengths - 1], "right")
    assert (inside[0] == inside[1]).all()


def test_impossible_batches_are_refused(make):
    with pytest.raises(Refused):
        Remade(make, tokens=0, seed=1)
    with pytest.raises(Refused, match="no room"):
        stretches(documents(), 0, 1, 0)
