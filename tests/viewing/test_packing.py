"""Packing: stored tiles can be found, coarse ones come before fine ones, the budget is kept."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import pytest

from heed.viewing import pyramid
from heed.viewing.packing import Store, packed


def weights(T: int, S: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(S, 0.1), T) * rng.uniform(0.01, 1, (T, 1))


def stored(store: Store, place: tuple[int, int]) -> bytes:
    text = store.text()[place[0] : place[0] + place[1]]
    return zlib.decompress(base64.b64decode(text), -15)


def tiles(data: list[dict[str, Any]], n: int) -> int:
    return sum(len(head["levels"][n]["tiles"]) for head in data)


def test_packed_tiles_can_be_found() -> None:
    heads = [pyramid.of_weights(weights(300, 200, seed)) for seed in range(2)]
    store = Store(10**9)
    for head, data in zip(heads, packed(heads, store), strict=True):
        for level, plain in zip(head.levels, data["levels"], strict=True):
            scale = np.frombuffer(stored(store, plain["scale"]), "<f4")
            assert (scale == level.scale).all()
            for tile in level.tiles:
                across = -(-level.shape[1] // pyramid.TILE)
                place = plain["tiles"][str(tile.row * across + tile.column)]
                assert stored(store, place) == tile.bytes.tobytes()
        assert data["levels"][0]["scale"][0] % 4 == 0


@pytest.mark.parametrize("budget", [0, 20_000, 60_000, 150_000])
def test_the_budget_is_kept_and_coarse_comes_first(budget: int) -> None:
    heads = [pyramid.of_weights(weights(256, 256, seed)) for seed in range(4)]
    store = Store(budget)
    data = packed(heads, store)
    assert tiles(data, 0) == 4  # always there
    least = Store(0)
    packed(heads, least)
    assert store.size <= max(budget, least.size)
    if tiles(data, 2):
        assert tiles(data, 1) == 4


def test_of_fine_tiles_the_heaviest_come_first() -> None:
    weight = np.full((256, 256), 1.0) + weights(256, 256)
    weight[128:, 128:] *= 50
    head = pyramid.of_weights(weight / weight.sum(-1, keepdims=True))
    whole = Store(10**9)
    packed([head], whole)
    store = Store(int(whole.size * 0.75))
    (data,) = packed([head], store)
    kept = set(data["levels"][-1]["tiles"])
    assert "3" in kept
    assert len(kept) < 4


def test_zeros_take_no_room() -> None:
    weight = np.eye(512)
    store = Store(10**9)
    (data,) = packed([pyramid.of_weights(weight)], store)
    assert data["levels"][-1]["tiles"]["1"] == (0, 0)
    assert data["levels"][-1]["tiles"]["0"][1] > 0
    assert store.size < 6000
