"""The scale of channels: that of all steps together, in one pass and however they are cut."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.data.scale import Scale
from heed.errors import Refused

NAN = float("nan")


def some(*lengths: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    scale, shift = np.array([1, 1e-3, 1e4]), np.array([0, 5, -1e6])
    return [(rng.normal(size=(n, 3)) * scale + shift).astype(np.float32) for n in lengths]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(0, 99))
def test_one_pass_finds_what_numpy_finds_over_all(lengths: list[int], seed: int) -> None:
    series = some(max(lengths) + 2, *lengths, seed=seed)
    together = np.concatenate(series).astype(np.float64)
    scale = Scale.fit(iter(series))
    np.testing.assert_allclose(scale.mean, together.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(scale.deviation, together.std(0), rtol=1e-7)


def test_what_is_fitted_has_mean_0_and_deviation_1() -> None:
    series = some(50, 70)
    scale = Scale.fit(series)
    found = np.concatenate([scale.apply(values) for values in series]).astype(np.float64)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(found.std(0), 1, rtol=1e-4)
    assert scale.apply(series[0]).dtype == np.float32


def test_missing_values_do_not_count_and_stay_missing() -> None:
    series = [np.float32([[1, NAN], [3, 4]]), np.float32([[NAN, NAN]]), np.float32([[5, 8]])]
    scale = Scale.fit(series)
    np.testing.assert_allclose(scale.mean, [3, 6])
    np.testing.assert_allclose(scale.deviation, [np.sqrt(8 / 3), 2])
    np.testing.assert_array_equal(np.isnan(scale.apply(series[0])), np.isnan(series[0]))


@pytest.mark.parametrize("constant", [0, 0.1, -1e6, 3e38])
def test_a_constant_channel_is_not_stretched(constant: float) -> None:
    series = [np.full((n, 1), constant, np.float32) for n in (3, 7, 1, 50)]
    scale = Scale.fit(series)
    assert scale.deviation == 1
    assert np.abs(scale.apply(series[0])).max() <= abs(constant) * 1e-7


def test_a_channel_that_is_always_missing_stays_so() -> None:
    scale = Scale.fit([np.float32([[NAN, 1], [NAN, 2]])])
    assert (scale.mean[0], scale.deviation[0]) == (0, 1)
    assert np.isnan(scale.apply(np.float32([[NAN, 1]]))[0, 0])


def test_the_numbers_survive_json_to_the_last_bit() -> None:
    scale = Scale.fit(some(10, 20))
    again = Scale.from_data(json.loads(json.dumps(scale.as_data())))
    np.testing.assert_array_equal(again.mean, scale.mean)
    np.testing.assert_array_equal(again.deviation, scale.deviation)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({}, "has the numbers mean and deviation"),
        ({"mean": ["x"], "deviation": [1]}, "has the numbers"),
        ({"mean": [1], "deviation": [1, 2]}, "for each channel"),
        ({"mean": [], "deviation": []}, "for each channel"),
        ({"mean": 1, "deviation": 1}, "for each channel"),
        ({"mean": [0], "deviation": [0]}, "deviations above 0"),
        ({"mean": [0], "deviation": [NAN]}, "deviations above 0"),
        ({"mean": [NAN], "deviation": [1]}, "finite means"),
    ],
)
def test_other_numbers_are_refused(data: dict[str, object], told: str) -> None:
    with pytest.raises(Refused, match=told):
        Scale.from_data(data)


def test_other_channels_are_refused() -> None:
    one, two = np.ones((3, 1), np.float32), np.ones((3, 2), np.float32)
    with pytest.raises(Refused, match="2 channels, where 1 were before"):
        Scale.fit([one, two])
    with pytest.raises(Refused, match="1 channel, where the training data have 2"):
        Scale.fit([two]).apply(one)
    with pytest.raises(Refused, match="there are no series"):
        Scale.fit([])
