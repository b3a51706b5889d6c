"""From records to layers: maps that are exact for longer texts the fewer attentions there are."""

import numpy as np
import pytest
import torch

import heed
from heed.viewing.taking import HEADS, ROOM, layers, summary


@pytest.mark.parametrize(("attentions", "cells"), [(0, 1024), (12, 1024), (24, 836), (99, 512)])
def test_the_fewer_attentions_the_finer(attentions: int, cells: int) -> None:
    assert summary(attentions).map == (cells, cells)
    assert cells == 512 or 4 * HEADS * attentions * cells**2 <= ROOM


@torch.no_grad()
def test_a_text_of_more_symbols_than_the_least_has_exact_tiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("heed.viewing.taking.CELLS", (16, 64))
    torch.manual_seed(0)
    attend, x = heed.MultiHeadAttention(8, 2).eval(), torch.randn(1, 60, 8)
    with heed.watch(attend, statistics=summary(1)) as seen:
        attend(x)
    (layer,) = layers({"": seen[""][0]}, lambda path: (list(map(str, range(60))), None))
    weight = attend(x, need="weight").weight[0].numpy()
    for head, want in zip(layer.heads, weight, strict=True):
        assert (head.levels[-1].down, head.levels[-1].across) == (1, 1)
        largest = want.max(-1, keepdims=True)
        assert (np.abs(head.levels[-1].values() - want) <= largest / 500).all()
