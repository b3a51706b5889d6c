"""Measures: results by hand, and rollout compared with a sum over all paths."""

from itertools import pairwise, product
from math import exp, log, sqrt

import numpy as np
import pytest

from heed.errors import Refused, ShapeError
from heed.viewing import measure

EVEN = np.full((4, 4), 0.25)
SELF = np.eye(4)
FIRST = np.eye(4)[[0, 0, 0, 0]]
NOTHING = np.zeros((4, 4))


def test_shares_leave_an_empty_row_empty() -> None:
    given = measure.shares([[1.0, 3.0], [0.0, 0.0]])
    assert given.tolist() == [[0.25, 0.75], [0.0, 0.0]]


def test_entropy() -> None:
    assert measure.entropy(EVEN) == pytest.approx([log(4)] * 4)
    assert measure.entropy(SELF).tolist() == [0.0] * 4
    assert measure.entropy([[0.5, 0.5], [0.2, 0.2], [0, 0]]) == pytest.approx([log(2), log(2), 0])


def test_distance() -> None:
    assert measure.distance(SELF).tolist() == [0] * 4
    assert measure.distance(FIRST).tolist() == [0, 1, 2, 3]
    assert measure.distance(EVEN) == pytest.approx([6 / 4, 4 / 4, 4 / 4, 6 / 4])
    # One query, four keys: it is at the last.
    assert measure.distance([[1.0, 0, 0, 0]]).tolist() == [3]


def test_sharpness_and_sinks() -> None:
    assert measure.sharpness([[0.2, 0.6], [0.0, 0.0]]) == pytest.approx([0.75, 0])
    assert measure.sink_mass([[0.2, 0.6, 0.2]], 2) == pytest.approx([0.8])
    assert measure.sink_mass(FIRST).tolist() == [1] * 4


def test_diagonality() -> None:
    assert measure.diagonality(SELF) == pytest.approx(1)
    assert measure.diagonality(SELF[::-1]) == pytest.approx(-1)
    assert measure.diagonality(EVEN) == pytest.approx(0)
    assert measure.diagonality(FIRST) == 0
    assert measure.diagonality(NOTHING) == 0
    steep = np.kron(np.eye(3), [[0.5, 0.5]])  # three queries over six keys
    t, s = np.array([0, 0, 1, 1, 2, 2]), np.arange(6)
    assert measure.diagonality(steep) == pytest.approx(np.corrcoef(t, s)[0, 1])
    assert measure.diagonality(np.stack([SELF, FIRST])).tolist() == pytest.approx([1, 0])


def test_coverage() -> None:
    assert measure.coverage(SELF) == 1
    assert measure.coverage(FIRST) == 0.25  # four times the same key covers one key
    assert measure.coverage([[0.5, 0.0], [0.2, 0.0]]) == pytest.approx(0.35)


def test_agreement() -> None:
    same = measure.agreement(np.stack([SELF, SELF, SELF[::-1]]))
    assert same == pytest.approx(np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1.0]]))
    # (1, 0) against (½, ½): H(¾, ¼) − ½ H(½, ½), in bits.
    bits = -(0.75 * log(0.75) + 0.25 * log(0.25)) / log(2) - 0.5
    pair = measure.agreement([[[1.0, 0.0]], [[0.5, 0.5]]])
    assert pair[0, 1] == pytest.approx(1 - bits)
    # A row that one of them does not look in counts for neither: only the first is compared.
    blind = measure.agreement([[[1.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.5, 0.5]]])
    assert blind[0, 1] == pytest.approx(1.0)
    with pytest.raises(ShapeError, match="takes weights H T S; got 4 × 4"):
        measure.agreement(EVEN)


def paths(weights: np.ndarray, residual: float) -> np.ndarray:
    """By definition: over every path from an output through the layers to an input, the product of
    what each layer passes on along it."""
    L, _, T, _ = weights.shape
    out = np.zeros((T, T))
    for way in product(range(T), repeat=L + 1):
        along = 1.0
        for layer, (below, above) in enumerate(pairwise(way)):
            heads = weights[layer, :, above, below]
            share = sum(heads) / sum(weights[layer, :, above].sum(-1))
            along *= (1 - residual) * share + residual * (above == below)
        out[way[-1], way[0]] += along
    return out


@pytest.mark.parametrize("residual", [0.5, 0.0, 0.8])
def test_rollout_sums_all_paths(residual: float) -> None:
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(4), (3, 2, 4))
    got = measure.rollout(weights, residual)
    for depth in (1, 2, 3):
        assert got[depth - 1] == pytest.approx(paths(weights[:depth], residual))
    assert got.sum(-1) == pytest.approx(np.ones((3, 4)))


def test_rollout_of_rows_that_see_nothing_is_the_residual_stream() -> None:
    assert measure.rollout(NOTHING[None, None])[0] == pytest.approx(SELF)
    with pytest.raises(ShapeError, match="L H T T; got 1 × 1 × 2 × 3"):
        measure.rollout(np.ones((1, 1, 2, 3)))


def test_value_weighted() -> None:
    weight = np.array([[[0.9, 0.1]]])
    value = np.array([[[0.3, 0.4], [3.0, 4.0]]])  # as long as ½ and 5
    assert measure.value_weighted(weight, value) == pytest.approx(np.array([[[0.45, 0.5]]]))
    out = np.array([[[2.0], [0.0]]])  # H R M: only the first channel, doubled
    assert measure.value_weighted(weight, value, out)[0, 0] == pytest.approx([0.54, 0.6])


def test_value_weighted_heads_may_cancel() -> None:
    weight = np.array([[[0.5]], [[0.25]]])
    value = np.array([[[1.0, 0.0]], [[-1.0, 1.0]]])
    # ½ (1, 0) + ¼ (-1, 1) = (¼, ¼)
    assert measure.value_weighted_jointly(weight, value) == pytest.approx(sqrt(2) / 4)
    assert measure.value_weighted(weight, value)[:, 0, 0] == pytest.approx([0.5, sqrt(2) / 4])


def test_alignment_error() -> None:
    weight = np.array([[0.9, 0.1, 0], [0.1, 0.2, 0.7], [0.5, 0.3, 0.2]])
    assert measure.alignment_error(weight, [(0, 0), (1, 2)]) == 0  # row 2 has no link
    assert measure.alignment_error(weight, [(0, 0), (1, 1)]) == pytest.approx(0.5)
    # A = {(0,0), (1,2)}, S = {(0,0)}, P adds (1,2): 1 − (1 + 2) / (2 + 1)
    assert measure.alignment_error(weight, [(0, 0)], [(1, 2)]) == 0
    # A = {(0,0), (1,2)}, S = {(0,0)}, P adds (1,0): 1 − (1 + 1) / (2 + 1)
    assert measure.alignment_error(weight, [(0, 0)], [(1, 0)]) == pytest.approx(1 / 3)
    assert measure.alignment_error(weight, []) == 0
    with pytest.raises(Refused, match="outside the weights, T=3 S=3"):
        measure.alignment_error(weight, [(3, 0)])


def test_effective_rank() -> None:
    assert measure.effective_rank(SELF) == pytest.approx(4)
    assert measure.effective_rank(EVEN) == pytest.approx(1)
    assert measure.effective_rank(NOTHING) == 0
    p = [0.75, 0.25]
    want = exp(-sum(x * log(x) for x in p))
    assert measure.effective_rank(np.diag([3.0, 1.0])) == pytest.approx(want)


@pytest.mark.parametrize("block", [1, 3, 7])
def test_a_tally_agrees_with_the_functions(block: int) -> None:
    rng = np.random.default_rng(1)
    weight = rng.dirichlet(np.ones(9) * 0.3, 7) * rng.uniform(0.3, 1, (7, 1))
    weight[:3, 0] = 0  # a block may see nothing of the first key
    tally = measure.Tally(7, 9)
    for start in range(0, 7, block):
        tally.add(start, weight[start : start + block])
    assert tally.result() == pytest.approx(
        {
            "entropy": measure.entropy(weight).mean(),
            "distance": measure.distance(weight).mean(),
            "sharpness": measure.sharpness(weight).mean(),
            "diagonality": float(measure.diagonality(weight)),
            "sink": measure.sink_mass(weight).mean(),
            "coverage": float(measure.coverage(weight)),
        }
    )


def test_rows_that_look_nowhere_are_not_counted() -> None:
    tally = measure.Tally(4, 4)
    tally.add(0, np.vstack([EVEN[:2], NOTHING[:2]]))
    assert tally.result()["entropy"] == pytest.approx(log(4))
    assert all(value == 0 for value in measure.Tally(0, 0).result().values())


def test_weights_have_two_axes() -> None:
    with pytest.raises(ShapeError, match="queries and keys, T S; got 1 axes"):
        measure.entropy([0.5, 0.5])
