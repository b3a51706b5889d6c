"""Permutation language modelling: spans, orders, and visibility, by hand and for random rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from heed.data.permutation import Permuting, permuted, sees
from heed.data.tokenise import BOS, EOS, SPECIALS

V = 50
PLAIN = np.arange(V) >= len(SPECIALS)


def test_visibility_by_hand():
    # Read, predicted second, read, predicted first, a special symbol third.
    order, predicted = np.array([[0, 2, 0, 1, 3]]), np.array([[0, 1, 0, 1, 0]])
    assert sees(order, predicted)[0].astype(int).tolist() == [
        [1, 0, 1, 0, 0],
        [1, 0, 1, 1, 0],
        [1, 0, 1, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 1, 1, 1],
    ]


def published(chosen, special, order, reuse):
    """The table of hidden symbols as in the authors' own preparation: the reused part and the rest
    have an order each; the first does not see the second, which sees all of the first."""
    L = len(order)
    hidden = np.zeros((L, L), bool)
    for low, high in ((0, reuse), (reuse, L)):
        part = slice(low, high)
        ordered = chosen[part] | special[part]
        rank = np.where(ordered, order[part], -1)
        own = np.where(chosen[part], rank, rank + 1)
        hidden[part, part] = (own[:, None] <= rank[None]) & ordered[None]
    hidden[:reuse, reuse:] = True
    return hidden


symbols = st.one_of(st.sampled_from([BOS, EOS]), st.integers(4, V - 1))
rows = st.lists(st.lists(symbols, min_size=1, max_size=30), min_size=1, max_size=5)


@settings(max_examples=120, deadline=None)
@given(rows, st.integers(1, 5), st.integers(2, 7), st.integers(0, 12), st.integers(0, 9))
def test_every_row_equals_the_published_preparation(rows, span, context, reuse, seed):
    L = max(map(len, rows))
    tokens = np.array([row + [0] * (L - len(row)) for row in rows])
    how = Permuting(span=span, context=context, reuse=reuse)
    found = permuted(tokens, np.arange(len(rows)), PLAIN, how, seed=seed, epoch=0)
    can, chosen = PLAIN[tokens], found.predicted == 1
    assert (chosen.any(1) == can.any(1)).all()
    assert can[chosen].all()
    assert found.places.shape == found.labels.shape == (len(rows), min(L, how.most(L)))
    for i, row in enumerate(rows):
        n, places = len(row), found.places[i][found.places[i] >= 0]
        assert places.tolist() == np.flatnonzero(chosen[i]).tolist()  # none is left out
        assert found.labels[i, : len(places)].tolist() == tokens[i, places].tolist()
        assert not found.labels[i, len(places) :].any()
        reused = min(reuse, L)
        special, order = ~can[i] & (tokens[i] != 0), found.order[i]
        table = ~sees(found.order, found.predicted)[i]
        expected = published(chosen[i], special, order, reused)
        assert (table[:n, :n] == expected[:n, :n]).all()
        assert table[:n, n:].all()  # padding is visible to none


def test_no_symbol_can_be_reached_from_its_own_prediction():
    """Through any number of layers: follow visibility in the content stream, where each position
    sees itself; the query of a predicted position must never reach the symbol there."""
    tokens = np.random.default_rng(0).integers(4, V, (40, 24))
    for reuse in (0, 8):
        how = Permuting(reuse=reuse)
        found = permuted(tokens, np.arange(40), PLAIN, how, seed=1, epoch=0)
        query = sees(found.order, found.predicted)
        content = query | np.eye(24, dtype=bool)
        reach = query.copy()
        for _ in range(24):
            reach = reach | ((reach[:, :, :, None] & content[:, None]).any(2))
        chosen = found.predicted == 1
        assert not np.einsum("bii->bi", reach)[chosen].any()


def test_one_in_six_is_predicted_in_spans_of_up_to_five_in_any_order():
    tokens = np.full((600, 120), 7)
    tokens[:, -2:] = (EOS, BOS)
    found = permuted(tokens, np.arange(600), PLAIN, Permuting(), seed=1, epoch=0)
    assert abs(found.predicted.mean() - 1 / 6) < 0.01
    edges = np.diff(np.pad(found.predicted, ((0, 0), (1, 1))), axis=1)
    lengths = np.where(edges == -1)[1] - np.where(edges == 1)[1]
    alone = np.bincount(lengths, minlength=11)
    assert alone[1:6].min() > 0.5 * alone[1:6].max()  # equally likely, except spans that touch
    assert alone[6:].sum() < 0.1 * alone.sum()
    first = np.where(found.predicted == 1, found.order, 999).argmin(1)
    quarters = np.histogram(first, 4, (0, 118))[0]
    assert quarters.min() > 0.7 * quarters.max()


def test_a_row_is_ordered_alike_in_any_batch():
    tokens = np.random.default_rng(0).integers(4, V, (5, 20))
    whole = permuted(tokens, np.arange(5), PLAIN, Permuting(), seed=2, epoch=7)
    alone = permuted(tokens[3:4], np.array([3]), PLAIN, Permuting(), seed=2, epoch=7)
    assert all((a[3] == b[0]).all() for a, b in zip(whole, alone, strict=True))
    other = permuted(tokens, np.arange(5), PLAIN, Permuting(), seed=2, epoch=8)
    assert (other.order != whole.order).any()


def test_settings_out_of_bounds_are_refused():
    for wrong in ({"span": 0}, {"context": 1}, {"reuse": -1}, {"span": 100, "context": 101}):
        with pytest.raises(ValidationError):
            Permuting(**wrong)
