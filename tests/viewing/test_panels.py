"""The record between a model and a picture."""

import numpy as np
import pytest
import torch

from heed.errors import Refused, ShapeError
from heed.viewing.panels import Panel


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_weights_of_any_kind_become_one(make) -> None:
    panel = Panel.of("a", make([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]]), "xyz", ["我", "爱"])
    assert panel.weight.dtype == np.float64
    assert panel.weight.shape == (3, 2)
    assert (panel.rows, panel.columns) == (("x", "y", "z"), ("我", "爱"))


def test_labels_must_fit() -> None:
    with pytest.raises(ShapeError, match=r"weight: 2 × 2\n  labels: 2 rows, 3 columns"):
        Panel.of("a", [[1, 0], [0, 1]], "ab", "abc")


def test_a_broken_weight_is_found() -> None:
    with pytest.raises(Refused, match=r"'a' has a weight that is nan: row 1 \('b'\), column 0"):
        Panel.of("a", [[1, 0], [float("nan"), 1]], "ab", "xy")
