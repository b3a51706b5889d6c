"""Series: scaled by the training data, given as JSON in a line, and kept as plain numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from heed.data.kinds.series import Series
from heed.data.scale import Scale
from heed.errors import Refused


def kind(**more: int) -> Series:
    return Series(Scale(np.array([1.0, 10.0]), np.array([2.0, 5.0])), **more)


def test_rows_are_scaled_cut_and_free_of_missing_values() -> None:
    item = np.array([[3, 10], [np.nan, 20], [1, 0]], np.float32)
    (row,) = kind().whole([item])
    np.testing.assert_allclose(row, [[1, 0], [0, 2], [0, -2]])
    (cut,) = kind(longest=2).rows([item])
    assert len(cut) == 2
    assert kind().spelt(row, item) == ["0", "1", "2"]
    table, lengths = kind().padded([row, row[:1]], torch.device("cpu"))
    assert table.shape == (2, 3, 2)
    assert table.dtype == torch.float32
    assert lengths.tolist() == [3, 1]
    assert not table[1, 1:].any()


def test_a_line_is_json() -> None:
    item = kind().of_line("[[1, 2], [3, 4.5]]")
    assert item.tolist() == [[1, 2], [3, 4.5]]
    assert kind().as_line(item) == "2 steps × 2 (1, 3, …)"
    one = Series(Scale(np.zeros(1), np.ones(1)))
    assert one.of_line("[1, 2]").shape == (2, 1)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("1 2 3", "given as JSON in a line"),
        ("[[1, 2], [3]]", "given as JSON in a line"),
        ("[[1, 2, 3]]", "steps of 2 channels; got 1 × 3 numbers"),
        ("[]", "steps of 2 channels"),
        ("[[1, Infinity]]", "not finite"),
        ('[["a", "b"]]', "given as JSON in a line"),
    ],
)
def test_other_lines_are_refused(line: str, says: str) -> None:
    with pytest.raises(Refused, match=says):
        kind().of_line(line)


def test_plain_data_comes_back() -> None:
    item = np.array([[3, np.nan], [1, 0]], np.float32)
    told = json.loads(json.dumps(kind().as_data(item)))
    np.testing.assert_array_equal(kind().of_data(told), item)
    for bad in ([[1]], [], [[1, 2], [3]], [["a", 1]], [[1, float("inf")]], 3):
        with pytest.raises(ValueError):  # noqa: PT011
            kind().of_data(bad)


def test_the_fingerprint_is_that_of_the_scale() -> None:
    other = Series(Scale(np.array([1.0, 10.0]), np.array([2.0, 5.1])))
    assert len({kind().fingerprint, kind(longest=2).fingerprint, other.fingerprint}) == 3
