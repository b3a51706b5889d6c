"""Motifs in noise: a filter that knows the shapes finds each of them where it is said to be."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from heed.data.motifs import BRIEFEST, NAMES, WIDEST, Placed, draw, shapes
from heed.errors import Refused, UnknownName


def found(values: np.ndarray) -> tuple[str, int, int]:
    """The name, the place and the channel of the motif that fits best: least squares over all."""
    best = (-np.inf, "", 0, 0)
    for width in range(BRIEFEST, WIDEST + 1):
        for name, shape in shapes(width).items():
            for channel in range(values.shape[1]):
                fits = np.correlate(values[:, channel], shape) - width / 2
                best = max(best, (fits.max(), name, int(fits.argmax()), channel))
    return best[1:]


def test_each_motif_can_be_found_in_its_place() -> None:
    drawn = list(draw(200, channels=3, seed=1))
    right = 0
    for values, label, start, stop, channel in drawn:
        name, place, where = found(values)
        right += (name, where) == (label, channel) and start - 5 <= place < stop - 5
    assert right >= 0.99 * len(drawn)


def test_without_noise_nothing_else_is_there() -> None:
    for values, label, start, stop, channel in draw(30, noise=0, channels=2):
        expected = np.zeros_like(values)
        expected[start:stop, channel] = shapes(stop - start)[label]
        np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("width", range(BRIEFEST, WIDEST + 1))
def test_no_motif_is_told_by_its_mean_or_its_size(width: int) -> None:
    drawn = np.stack(list(shapes(width).values()))
    np.testing.assert_allclose(drawn.mean(1), 0, atol=1e-12)
    np.testing.assert_allclose((drawn**2).mean(1), 1)
    alike = drawn @ drawn.T / width - np.eye(len(drawn))
    assert alike.max() < 0.5


def test_lengths_labels_places_and_channels_vary() -> None:
    drawn = list(draw(2000, channels=3, shortest=30, longest=60))
    assert {len(one.values) for one in drawn} == set(range(30, 61))
    assert {one.stop - one.start for one in drawn} == set(range(BRIEFEST, WIDEST + 1))
    for what in (Counter(one.label for one in drawn), Counter(one.channel for one in drawn)):
        assert max(what.values()) < 1.25 * min(what.values())
    assert min(one.start for one in drawn) == 0
    assert any(one.stop == len(one.values) for one in drawn)
    assert {one.label for one in drawn} == {*NAMES}


def test_the_noise_is_normal() -> None:
    noise = np.concatenate([one.values[:, 1 - one.channel] for one in draw(500, noise=0.5)]) / 0.5
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
    assert abs((noise**4).mean() - 3) < 0.15
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 0.02


def equal(a: Placed, b: Placed) -> bool:
    return a[1:] == b[1:] and np.array_equal(a.values, b.values)


def test_each_is_a_function_of_seed_part_and_number() -> None:
    first, again = list(draw(20, seed=3)), list(draw(30, seed=3))[:20]
    assert all(map(equal, first, again))
    for other in (draw(20, seed=4), draw(20, seed=3, part="valid"), draw(20, seed=3, part="test")):
        assert not any(map(equal, first, other))


def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(Refused, match="a motif needs 20"):
        draw(1, shortest=19)
    with pytest.raises(Refused, match="must not be shorter"):
        draw(1, shortest=50, longest=40)
    with pytest.raises(Refused, match="0 channels"):
        draw(1, channels=0)
    with pytest.raises(Refused, match=r"noise -0\.1"):
        draw(1, noise=-0.1)
    with pytest.raises(UnknownName, match="did you mean test"):
        draw(1, part="tests")  # type: ignore[arg-type]
