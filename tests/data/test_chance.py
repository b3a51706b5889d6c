"""Random numbers by position: the same in every version, uniform, and independent of each other."""

import numpy as np

from heed.data.chance import below, bits, uniform


def test_the_numbers_never_change_between_versions():
    # SplitMix64's first output from state 0 is the finaliser of its increment.
    assert int(bits(0)) == 0xE220A8397B1DCDAF
    assert int(bits(1, 2, 3)) == int(bits(1, 2, 3))
    assert int(bits(1, 2, 3)) != int(bits(1, 3, 2))
    assert int(bits(-1)) != int(bits(1))


def test_a_number_depends_only_on_its_position():
    rows, places = np.arange(5)[:, None], np.arange(7)
    table = uniform(3, 1, rows, places)
    assert table.shape == (5, 7)
    assert (uniform(3, 1, rows[2:3], places) == table[2]).all()
    assert uniform(3, 1, 2, 4) == table[2, 4]


def test_they_are_uniform_and_independent():
    table = uniform(9, 0, np.arange(300)[:, None], np.arange(300))
    assert table.min() >= 0
    assert table.max() < 1
    counts = np.histogram(table, 20, (0, 1))[0]
    assert ((counts - 4500) ** 2 / 4500).sum() < 45  # chi square, 19 degrees, p = 0.0007
    for other in (table[1:], table[:-1]):
        for shift in (1, 2):
            together = np.corrcoef(other[:, shift:].ravel(), other[:, :-shift].ravel())[0, 1]
            assert abs(together) < 0.02
    assert abs(np.corrcoef(table[1:].ravel(), table[:-1].ravel())[0, 1]) < 0.02
    faces = np.bincount(below(6, 1, np.arange(60_000)), minlength=6)
    assert len(faces) == 6
    assert ((faces - 10_000) ** 2 / 10_000).sum() < 25  # p = 0.0001
