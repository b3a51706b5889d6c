"""Statistics of weights: hand-computed, and against naive loops."""

import math

import pytest
import torch
from torch import Tensor

import heed
from heed.attention.statistics import Statistics, entropy, pooled, received, statistics
from heed.errors import Refused

DOUBLE = torch.float64


def of(*rows: list[float]) -> Statistics:
    """The statistics of one head's rows."""
    return statistics(torch.tensor([[list(rows)]], dtype=DOUBLE))


def test_a_row_by_hand() -> None:
    seen = of([0.5, 0.25, 0.25, 0.0])
    assert seen.mass.item() == 1
    assert seen.entropy.item() == pytest.approx(1.5 * math.log(2))
    assert seen.peak.item() == 0.5
    assert seen.place.item() == 0
    assert seen.expected.item() == pytest.approx(0.75)
    assert seen.spread.item() == pytest.approx(math.sqrt(0.6875))
    assert seen.received.tolist() == [[[0.5, 0.25, 0.25, 0.0]]]


def test_a_uniform_row_has_the_entropy_of_its_length() -> None:
    seen = of([0.2] * 5)
    assert seen.entropy.item() == pytest.approx(math.log(5))
    assert seen.expected.item() == pytest.approx(2)
    assert seen.spread.item() == pytest.approx(math.sqrt(2))


def test_a_hard_row_is_sure_of_its_place() -> None:
    seen = of([0, 0, 0, 1])
    assert seen.entropy.item() == 0
    assert (seen.peak.item(), seen.place.item(), seen.expected.item()) == (1, 3, 3)
    assert seen.spread.item() == 0


def test_a_row_that_does_not_sum_to_one_is_normalised_and_its_mass_reported() -> None:
    part = of([0.1, 0.05, 0.05, 0.0])
    whole = of([0.5, 0.25, 0.25, 0.0])
    assert part.mass.item() == pytest.approx(0.2)
    for name in ("entropy", "peak", "place", "expected", "spread"):
        torch.testing.assert_close(getattr(part, name), getattr(whole, name))
    assert part.received.tolist() == [[[0.1, 0.05, 0.05, 0.0]]]


def test_a_row_of_more_than_one_is_normalised_too() -> None:
    seen = of([3.0, 1.0])
    assert seen.mass.item() == 4
    assert seen.peak.item() == 0.75
    assert seen.entropy.item() == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_row_that_looks_at_nothing_is_all_zero(dtype: torch.dtype) -> None:
    seen = statistics(torch.zeros(1, 1, 1, 5, dtype=dtype))
    for name in ("mass", "entropy", "peak", "place", "expected", "spread"):
        assert getattr(seen, name).item() == 0
    assert not seen.received.any()


def test_shapes() -> None:
    seen = statistics(torch.rand(2, 3, 4, 5))
    for name in ("mass", "entropy", "peak", "place", "expected", "spread"):
        assert getattr(seen, name).shape == (2, 3, 4)
    assert seen.received.shape == (2, 3, 5)


def test_against_loops() -> None:
    weight = torch.rand(2, 2, 3, 5, dtype=DOUBLE)
    seen = statistics(weight)
    for b, h, t in torch.cartesian_prod(*(torch.arange(n) for n in (2, 2, 3))).tolist():
        row = weight[b, h, t].tolist()
        mass = sum(row)
        share = [x / mass for x in row]
        mean = sum(s * x for s, x in enumerate(share))
        at = (b, h, t)
        assert seen.mass[at].item() == pytest.approx(mass)
        assert seen.entropy[at].item() == pytest.approx(-sum(x * math.log(x) for x in share))
        assert seen.place[at].item() == share.index(max(share))
        assert seen.expected[at].item() == pytest.approx(mean)
        spread = math.sqrt(sum((s - mean) ** 2 * x for s, x in enumerate(share)))
        assert seen.spread[at].item() == pytest.approx(spread)


def test_the_entropy_of_attention_is_that_of_its_record() -> None:
    weight = heed.Attention("sparsemax", query=4)(torch.randn(2, 3, 4), need="weight").weight
    assert (weight == 0).any()  # sparse rows: 0 log 0 counts nothing
    want = torch.special.entr(weight).sum(-1)
    torch.testing.assert_close(entropy(weight), want)
    assert torch.isfinite(statistics(weight).entropy).all()


def test_received_adds_over_queries() -> None:
    weight = torch.tensor([[[[0.5, 0.5], [0.25, 0.0]]]])
    assert received(weight).tolist() == [[[0.75, 0.5]]]


def naive_pool(weight: Tensor, rows: int, columns: int) -> Tensor:
    """Place n of N belongs to cell floor(n · cells / N)."""
    B, H, T, S = weight.shape
    out = torch.zeros(B, H, rows, columns, dtype=weight.dtype)
    for t in range(T):
        down = t * rows // T
        sharing = sum(u * rows // T == down for u in range(T))
        for s in range(S):
            out[:, :, down, s * columns // S] += weight[:, :, t, s] / sharing
    return out


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 3), (3, 2), (5, 7), (4, 1), (1, 5)])
def test_pooled_is_what_a_loop_says(rows: int, columns: int) -> None:
    weight = torch.rand(2, 2, 5, 7, dtype=DOUBLE)
    small = pooled(weight, rows, columns)
    torch.testing.assert_close(small, naive_pool(weight, rows, columns))


def test_a_pooled_map_of_full_size_is_the_weights() -> None:
    weight = torch.rand(1, 2, 3, 4, dtype=DOUBLE)
    torch.testing.assert_close(pooled(weight, 3, 4), weight)


def test_the_rows_of_a_pooled_map_keep_their_sums() -> None:
    weight = torch.rand(1, 2, 7, 9, dtype=DOUBLE).softmax(-1)
    torch.testing.assert_close(pooled(weight, 3, 4).sum(-1), torch.ones(1, 2, 3, dtype=DOUBLE))


@pytest.mark.parametrize(("rows", "columns"), [(4, 2), (2, 5)])
def test_a_map_larger_than_the_weights_is_refused(rows: int, columns: int) -> None:
    with pytest.raises(Refused, match=f"{rows} x {columns} is larger than the weights, T=3 S=4"):
        pooled(torch.rand(1, 1, 3, 4), rows, columns)
