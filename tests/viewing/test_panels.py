"""The record between a model and a picture."""

import numpy as np
import pytest
import torch

from heed.errors import Refused, ShapeError
from heed.viewing.panels import Panel, abreast, of_heads


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_weights_of_any_type_are_converted(make) -> None:
    panel = Panel.of("a", make([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]]), "xyz", ["我", "爱"])
    assert panel.weight.dtype == np.float64
    assert panel.weight.shape == (3, 2)
    assert (panel.rows, panel.columns) == (("x", "y", "z"), ("我", "爱"))


def test_labels_must_fit() -> None:
    with pytest.raises(ShapeError, match=r"weight: 2 × 2\n  labels: 2 rows, 3 columns"):
        Panel.of("a", [[1, 0], [0, 1]], "ab", "abc")


def test_an_invalid_weight_is_refused() -> None:
    with pytest.raises(Refused, match=r"'a' has a weight that is nan: row 1 \('b'\), column 0"):
        Panel.of("a", [[1, 0], [float("nan"), 1]], "ab", "xy")


def test_every_head_of_a_text_is_a_panel_of_its_own() -> None:
    weights = {"0.self": np.full((2, 2, 2), 0.5), "10.self": np.eye(2)[None]}
    found = of_heads(weights, "xy")
    titles = ["layer 0 · head 0", "layer 0 · head 1", "layer 10 · head 0"]
    assert [panel.title for panel in found] == titles
    assert found[2].weight.tolist() == [[1, 0], [0, 1]]
    assert found[2].rows == found[2].columns == ("x", "y")


def test_panels_are_arranged_by_attention_and_others_by_threes() -> None:
    def laid(*titles: str) -> list[str]:
        rows = abreast([Panel.of(title, [[1.0]], "a", "b") for title in titles])
        return [" ".join(panel.title[-1] for panel in row) for row in rows]

    heads = [f"{layer} · head {h}" for layer in ("layer 0", "layer 1") for h in range(4)]
    assert laid(*heads) == ["0 1 2 3", "0 1 2 3"]
    assert laid("a · head 0", "a · head 1", "a · head 0", "b · head 0") == ["0 1", "0", "0"]
    assert laid("a", "b", "c", "d", "x · head 0", "e") == ["a b c", "d", "0", "e"]
    assert [len(row.split()) for row in laid(*(f"a · head {h}" for h in range(20)))] == [16, 4]
