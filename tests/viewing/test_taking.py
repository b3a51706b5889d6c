"""From records to layers: the fewer attentions, the longer the texts whose maps are exact."""

import numpy as np
import pytest
import torch

import heed
from heed import Attended, Summary
from heed.attention.statistics import statistics
from heed.viewing.taking import HEADS, ROOM, layers, short, summary

T5 = {
    "encoder.block.0.layer.0.SelfAttention": "encoder 0 self",
    "encoder.block.1.layer.0.SelfAttention": "encoder 1 self",
    "decoder.block.0.layer.0.SelfAttention": "decoder 0 self",
    "decoder.block.0.layer.1.EncDecAttention": "decoder 0 cross",
}
NAMES: list[dict[str, str]] = [
    T5,
    {"transformer.h.0.attn": "layer 0", "transformer.h.1.attn": "layer 1"},
    {f"blocks.{n}.{m}.attn": f"{n}.{m}" for n in "01" for m in "01"},  # both numbers count
    {"0.content": "layer 0 content", "0.query": "layer 0 query", "pool": "pool"},
    {"decoder.attention": "decoder.attention"},
    {"reader.attention": "reader", "writer.attention": "writer"},
    {"": "attention"},
]


@pytest.mark.parametrize("names", NAMES)
def test_names_are_short_and_distinct(names: dict[str, str]) -> None:
    assert short(names) == names


@pytest.mark.parametrize(("attentions", "cells"), [(0, 1024), (12, 1024), (24, 836), (99, 512)])
def test_fewer_attentions_have_finer_maps(attentions: int, cells: int) -> None:
    assert summary(attentions).map == (cells, cells)
    assert cells == 512 or 4 * HEADS * attentions * cells**2 <= ROOM


def test_a_query_that_looks_at_nothing_is_not_counted_in_a_map_either() -> None:
    weight = torch.rand(1, 2, 6, 6).softmax(-1)
    weight[0, 0, 4:] = 0
    said = statistics(weight, Summary(map=(3, 3)))
    words = list("abcdef")
    (whole,) = layers({"": Attended(weight=weight)}, lambda path: (words, None)).values()
    (pooled,) = layers({"": Attended(statistics=said)}, lambda path: (words, None)).values()
    for name in ("entropy", "sharpness", "sink", "coverage"):
        assert pooled.measured()[name] == pytest.approx(whole.measured()[name], rel=1e-5)


def test_places_without_a_word_have_the_numbers_that_a_page_counts_by() -> None:
    said = Attended(weight=torch.ones(1, 1, 4, 4))
    (layer,) = layers({"": said}, lambda path: ((), None)).values()
    assert layer.keys == ("1", "2", "3", "4")


@torch.no_grad()
def test_a_text_longer_than_the_minimum_has_exact_tiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("heed.viewing.taking.CELLS", (16, 64))
    torch.manual_seed(0)
    attend, x = heed.MultiHeadAttention(8, 2).eval(), torch.randn(1, 60, 8)
    with heed.watch(attend, statistics=summary(1)) as seen:
        attend(x)
    (layer,) = layers({"": seen[""][0]}, lambda path: (list(map(str, range(60))), None)).values()
    weight = attend(x, need="weight").weight[0].numpy()
    for head, want in zip(layer.heads, weight, strict=True):
        assert (head.levels[-1].down, head.levels[-1].across) == (1, 1)
        largest = want.max(-1, keepdims=True)
        assert (np.abs(head.levels[-1].values() - want) <= largest / 500).all()
