"""Layers: weights, rows and pooled maps agree, and errors name the wrong part."""

from __future__ import annotations

import math

import numpy as np
import pytest

from heed.errors import Refused, ShapeError, UnknownName
from heed.viewing import measure
from heed.viewing.layers import Layer

WORDS = ["the", "cat", "sat"]


def weights(H: int = 2, T: int = 3, S: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(S), (H, T))


def test_a_layer_of_weights_is_measured() -> None:
    weight = weights()
    layer = Layer.of("layer 0", weight, WORDS)
    assert layer.kind == "self"
    assert layer.keys == layer.queries == ("the", "cat", "sat")
    found = layer.measured()
    assert found["entropy"] == pytest.approx(measure.entropy(weight).mean(-1))
    assert found["rank"] == pytest.approx(measure.effective_rank(weight))
    assert found["agreement"] == pytest.approx([measure.agreement(weight)[0, 1]] * 2)
    assert {"distance", "sharpness", "diagonality", "sink", "coverage"} <= set(found)


def test_one_query_is_not_measured_by_what_compares_several() -> None:
    lonely = Layer.of("pool", weights(T=1), ["the text"], WORDS, "static")
    assert set(lonely.measured()) == {"entropy", "sharpness", "sink", "agreement"}
    received = {"received": np.ones((2, 3)), "entropy": np.ones((2, 1))}
    pooled = Layer.of_map("pool", weights(T=1), ["the text"], WORDS, "static", received)
    assert set(pooled.measured()) == {"entropy", "sink"}


def test_kinds_of_attention_are_recognised() -> None:
    assert Layer.of("x", weights(S=2), WORDS, "ab").kind == "cross"
    assert Layer.of("x", weights(T=1), [""], WORDS, "static").kind == "static"
    with pytest.raises(UnknownName, match="no kind of attention is called 'crss'"):
        Layer.of("x", weights(), WORDS, kind="crss")  # type: ignore[arg-type]


def test_a_layer_of_rows_agrees() -> None:
    weight = weights(T=200, S=150)
    words = [[f"{n}" for n in range(count)] for count in (200, 150)]
    whole = Layer.of("x", weight, *words)
    rows = Layer.of_rows("x", lambda h, a, b: weight[h, a:b], 2, *words)
    got, want = rows.measured(), whole.measured()
    assert all(got[name] == pytest.approx(want[name]) for name in got)
    for a, b in zip(whole.heads, rows.heads, strict=True):
        for one, other in zip(a.levels, b.levels, strict=True):
            assert (one.scale == other.scale).all()


def test_a_layer_of_statistics_from_the_fast_path() -> None:
    weight = weights(T=8, S=8)
    words = list("abcdefgh")
    map = weight.reshape(2, 4, 2, 4, 2).sum(-1).mean(2)
    layer = Layer.of_map(
        "x",
        map,
        words,
        statistics={
            "entropy": measure.entropy(weight),
            "peak": measure.sharpness(weight),
            "received": weight.sum(1),
            "error": [0.1, 0.2],
        },
        rows={3: weight[:, 3]},
    )
    whole, found = Layer.of("x", weight, words).measured(), layer.measured()
    for name in ("entropy", "sharpness", "sink", "coverage"):
        assert found[name] == pytest.approx(whole[name])
    assert found["error"] == [0.1, 0.2]
    assert list(layer.heads[0].rows) == [3]


def test_further_numbers_can_be_added() -> None:
    layer = Layer.of("x", weights(), WORDS).knowing(probe=[1.0, math.nan])
    assert layer.measured()["probe"] == [1.0, None]
    with pytest.raises(ShapeError, match="'probe' of 'x' has 3 numbers for 2 heads"):
        layer.knowing(probe=[1, 2, 3])


def test_errors_name_the_wrong_part() -> None:
    with pytest.raises(
        ShapeError, match=r"'layer 0' takes one batch row, H T S; got 1 × 2 × 3 × 3"
    ):
        Layer.of("layer 0", weights()[None], WORDS)
    with pytest.raises(ShapeError, match=r"words of 'layer 0' disagree\n  weights: T=3 S=3\n.*T=2"):
        Layer.of("layer 0", weights(), WORDS[:2])
    with pytest.raises(Refused, match="'layer 0', head 1: the weight of row 0, column 0 is nan"):
        Layer.of("layer 0", np.stack([np.eye(3), np.full((3, 3), np.nan)]), WORDS)
    with pytest.raises(Refused, match="'x' has nothing to show"):
        Layer.of("x", np.zeros((0, 3, 3)), WORDS)
