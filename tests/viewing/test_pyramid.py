"""Pyramids: every level agrees with the weights, and bytes are accurate enough."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heed.attention.statistics import pooled
from heed.errors import Refused, ShapeError
from heed.viewing import pyramid
from heed.viewing.pyramid import Level, Pyramid


def weights(T: int, S: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(S, 0.1), T) * rng.uniform(0.01, 1, (T, 1))


def unpacked(level: Level) -> np.ndarray:
    """The numbers read from the bytes; NaN where there is no tile."""
    scale = level.scale.astype(np.float64)
    out = np.full(level.shape, np.nan)
    for tile in level.tiles:
        row, column = tile.row * pyramid.TILE, tile.column * pyramid.TILE
        rows, columns = tile.bytes.shape
        share = tile.bytes / np.iinfo(tile.bytes.dtype).max * scale[row : row + rows, None]
        out[row : row + rows, column : column + columns] = share
    return out


def close(level: Level, want: np.ndarray) -> None:
    """Within half a byte of each row's largest."""
    got = unpacked(level)
    assert got.shape == want.shape
    room = want.max(-1, keepdims=True) * (1 / 510)
    there = np.isfinite(got)
    assert (np.abs(got - want) <= room + 1e-12)[there].all()


@pytest.mark.parametrize(("T", "S"), [(5, 7), (64, 64), (130, 257), (1, 300), (300, 3)])
def test_every_level_pools_the_weights(T: int, S: int) -> None:
    weight = weights(T, S)
    head = pyramid.of_weights(weight)
    for level in head.levels:
        down, across = int(level.down), int(level.across)
        want = np.zeros(level.shape)
        for r in range(level.shape[0]):
            for c in range(level.shape[1]):
                cell = weight[r * down : (r + 1) * down, c * across : (c + 1) * across]
                want[r, c] = cell.sum() / len(cell)
        close(level, want)
    assert (head.levels[-1].down, head.levels[-1].across) == (1, 1)
    assert max(head.levels[0].shape) <= pyramid.LEAST


def test_levels_agree_with_the_statistics_of_the_fast_path() -> None:
    weight = weights(256, 128)
    for level in pyramid.of_weights(weight).levels:
        want = pooled(torch.from_numpy(weight)[None, None], *level.shape)[0, 0]
        close(level, want.numpy())


def test_a_side_that_is_short_is_not_pooled() -> None:
    assert pyramid.levels(3, 1000) == [(1, 1), (1, 2), (1, 4), (1, 8), (1, 16)]
    assert pyramid.levels(64, 64) == [(1, 1)]


def test_rows_in_blocks_give_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyramid, "WHOLE", 128)
    weight = weights(500, 300)
    asked: list[tuple[int, int]] = []

    def rows(start: int, stop: int) -> np.ndarray:
        asked.append((start, stop))
        return weight[start:stop].astype(np.float32)

    head = pyramid.of_rows(rows, 500, 300)
    assert asked == [(0, 128), (128, 256), (256, 384), (384, 500)]
    assert [level.shape for level in head.levels] == [(63, 38), (125, 75), (500, 300)]
    close(head.levels[-1], weight)
    assert np.isfinite(unpacked(head.levels[-1])).all()
    whole = pyramid.of_weights(weight)
    assert head.measured == pytest.approx({k: whole.measured[k] for k in head.measured}, rel=1e-5)


def test_of_too_many_tiles_the_heaviest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyramid, "WHOLE", 128)
    monkeypatch.setattr(pyramid, "KEPT", 3)
    weight = np.full((512, 512), 1e-4)
    for row, column, value in ((5, 5, 0.9), (140, 300, 0.8), (500, 500, 0.7), (300, 10, 0.2)):
        weight[row, column] = value
    level = pyramid.of_rows(lambda a, b: weight[a:b], 512, 512).levels[-1]
    assert {(tile.row, tile.column) for tile in level.tiles} == {(0, 0), (1, 2), (3, 3)}
    close(level, weight)


def test_a_map_of_the_fast_path() -> None:
    weight = weights(1000, 600)
    map = pooled(torch.from_numpy(weight)[None, None], 200, 150)[0, 0].numpy()
    head = pyramid.of_map(map, 1000, 600, {7: weight[7]}, {"entropy": 1.5})
    close(head.levels[-1], map)
    assert (head.levels[-1].down, head.levels[-1].across) == (5, 4)
    assert (head.levels[0].down, head.levels[0].across) == (20, 16)
    high, row = head.rows[7]
    assert np.abs(row / 255 * high - weight[7]).max() <= high / 500
    assert head.measured == {"entropy": 1.5}


def test_rows_of_zeros_and_tiny_rows() -> None:
    weight = np.zeros((3, 4))
    weight[1] = [1e-7, 2e-7, 0, 0]
    weight[2, 0] = 1
    close(pyramid.of_weights(weight).levels[0], weight)
    close(pyramid.of_weights(np.zeros((2, 2))).levels[0], np.zeros((2, 2)))


def test_the_largest_of_a_row_is_the_same_number_in_every_map() -> None:
    """Two maps of one page that share a weight must not round it to 0.95 and 0.96."""
    top = np.random.default_rng(0).uniform(1e-6, 1, 500).astype(np.float32)
    first, second = (np.stack([top, top / 3, 0 * top], 1) for _ in range(2))
    second[0, 2] = 7.0  # another global maximum
    shown = [pyramid.of_weights(weight).levels[-1].values() for weight in (first, second)]
    assert (shown[0][1:, 0] == shown[1][1:, 0]).all()
    assert (shown[0][:, 0].astype(np.float32) == top).all()


def test_a_small_map_has_the_shown_digits() -> None:
    weight = weights(40, 64)
    shown = pyramid.of_weights(weight).levels[-1].values()
    assert np.abs(shown - weight).max() < 1e-5


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([[0.1, np.nan]], "the weight of row 0, column 1 is nan"),
        ([[0.1, 0.2], [-0.5, 0.2]], "the weight of row 1, column 0 is below zero"),
    ],
)
def test_invalid_weights_are_refused(weight: list[list[float]], message: str) -> None:
    with pytest.raises(Refused, match=message):
        pyramid.of_weights(np.array(weight))


def test_sizes_must_agree() -> None:
    with pytest.raises(ShapeError, match="from row 0 on are 2 × 3, not n × S=4"):
        pyramid.of_rows(lambda a, b: np.zeros((2, 3)), 2, 4)
    with pytest.raises(ShapeError, match="a map of 4 × 4 does not fit weights of T=3 S=9"):
        pyramid.of_map(np.zeros((4, 4)), 3, 9)
    with pytest.raises(Refused, match="no row 9 to keep the weights of: T=3"):
        pyramid.of_map(np.zeros((1, 1)), 3, 2, {9: np.zeros(2)})
    assert isinstance(pyramid.of_map(np.zeros((1, 1)), 3, 2), Pyramid)
