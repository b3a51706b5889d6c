"""Rows of one length cut from a stream: every symbol once, with the next symbols as labels."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.data.batches import FILLER
from heed.data.packed_rows import PackedRows
from heed.errors import Refused

STREAM = np.arange(11, 20, dtype=np.uint16)  # nine symbols


def rows_of(packed, number=0, start=0):
    for batch in packed.epoch(number, start):
        yield from zip(batch.tokens["text"].tolist(), batch.tokens["labels"].tolist(), strict=True)


def test_rows_across_borders_by_hand():
    packed = PackedRows(STREAM, length=4, rows=1, seed=0, shuffle=False)
    assert packed.count(0) == 2
    assert list(rows_of(packed)) == [
        ([11, 12, 13, 14], [12, 13, 14, 15]),
        ([15, 16, 17, 18], [16, 17, 18, 19]),
    ]


def test_rows_within_documents_by_hand():
    borders = np.array([0, 5, 6, 6, 9])  # one document of one symbol, one empty
    packed = PackedRows(STREAM, length=3, rows=2, seed=0, borders=borders, shuffle=False)
    (first, second) = packed.epoch(0)
    assert first.tokens["text"].tolist() == [[11, 12, 13], [14, 0, 0]]
    assert first.tokens["labels"].tolist() == [[12, 13, 14], [15, 0, 0]]
    assert second.tokens["text"].tolist() == [[17, 18, 0]]
    assert second.tokens["labels"].tolist() == [[18, 19, 0]]
    assert first.lengths["text"].tolist() == [3, 1]
    assert first.rows.tolist() == [0, 3]


def test_consecutive_rows_by_hand():
    packed = PackedRows(STREAM, length=2, rows=2, seed=0, shuffle=False, onward=True)
    assert [batch.rows.tolist() for batch in packed.epoch(0)] == [[0, 4], [2, 6]]
    assert [batch.rows.tolist() for batch in packed.epoch(0, 1)] == [[2, 6]]
    few = PackedRows(STREAM, length=3, rows=5, seed=0, shuffle=False, onward=True)
    assert [batch.rows.tolist() for batch in few.epoch(0)] == [[0, 3]]
    for epoch in range(3):  # in each epoch another cut, and each process has its own lanes
        far = PackedRows(np.arange(100), length=7, rows=3, seed=1, onward=True, shard=(1, 2))
        (rows,) = torch.stack([batch.rows for batch in far.epoch(epoch)], 1)
        assert set(rows.diff().tolist()) == {7}
    with pytest.raises(Refused, match="cross the borders"):
        PackedRows(STREAM, length=2, rows=2, seed=0, borders=np.array([0, 9]), onward=True)


def test_each_epoch_and_seed_is_cut_differently():
    stream = np.arange(1000)
    packed = PackedRows(stream, length=7, rows=8, seed=5)
    starts = [{int(r) % 7 for b in packed.epoch(e) for r in b.rows} for e in range(30)]
    assert all(len(phase) == 1 for phase in starts)
    assert len(set.union(*starts)) == 7
    other = PackedRows(stream, length=7, rows=8, seed=6)
    assert list(rows_of(packed, 3)) != list(rows_of(other, 3))
    assert list(rows_of(packed, 3)) == list(
        rows_of(PackedRows(stream, length=7, rows=8, seed=5), 3)
    )


streams = st.lists(st.integers(0, 30), min_size=1, max_size=8)  # lengths of documents


@settings(max_examples=80, deadline=None)
@given(streams, st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_every_label_comes_once_within_documents(sizes, length, rows, world, fixed):
    stream = np.arange(1, sum(sizes) + 1)
    borders = np.cumsum([0, *sizes])
    kept = {"length": length, "rows": rows, "seed": 2, "borders": borders, "fixed": fixed}
    if max(sizes) < 2:
        with pytest.raises(Refused):
            PackedRows(stream, **kept)
        return
    whole = PackedRows(stream, **kept)
    batches = list(whole.epoch(1))
    assert len(batches) == whole.count(1)
    labels = torch.cat([b.tokens["labels"].flatten() for b in batches])
    texts = torch.cat([b.tokens["text"].flatten() for b in batches])
    firsts = set((borders[:-1][np.array(sizes) > 0] + 1).tolist())
    assert sorted(labels[labels > 0].tolist()) == [
        i for i in range(1, len(stream) + 1) if i not in firsts
    ]
    assert torch.equal(texts + (texts > 0), labels)  # the numbers of the stream are consecutive
    if fixed:
        assert {tuple(b.tokens["text"].shape) for b in batches} == {(rows, length)}
    shards = [list(PackedRows(stream, **kept, shard=(r, world)).epoch(1)) for r in range(world)]
    for i, batch in enumerate(batches):
        together = torch.cat([shard[i].rows for shard in shards])
        assert sorted(together[together != FILLER].tolist()) == sorted(
            batch.rows[batch.rows != FILLER].tolist()
        )


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 300), st.integers(1, 20), st.integers(1, 5), st.integers(0, 9))
def test_whole_rows_lose_less_than_a_row_and_resuming_gives_the_same(size, length, rows, start):
    stream = np.arange(1, size + 1)
    if size <= length:
        with pytest.raises(Refused, match="too few"):
            PackedRows(stream, length=length, rows=rows, seed=1)
        return
    packed = PackedRows(stream, length=length, rows=rows, seed=1)
    found = list(rows_of(packed, 4))
    texts = [symbol for text, _ in found for symbol in text]
    assert len(set(texts)) == len(texts) == len(found) * length
    assert size - 1 - len(texts) < 2 * length  # the rest before the phase, and after
    assert all(labels == [symbol + 1 for symbol in text] for text, labels in found)
    assert list(rows_of(packed, 4, start)) == found[start * rows :]


def test_a_filled_batch_has_rows_of_padding():
    packed = PackedRows(STREAM, length=4, rows=3, seed=0, fixed=True)
    (batch,) = packed.epoch(0)
    filler = batch.rows == FILLER
    assert int(filler.sum()) == 3 - len(list(rows_of(PackedRows(STREAM, length=4, rows=3, seed=0))))
    assert not batch.tokens["text"][filler].any()
    assert not batch.tokens["labels"][filler].any()
    assert (batch.lengths["text"][filler] == 1).all()


@pytest.mark.parametrize("wrong", [{"length": 0}, {"rows": 0}, {"seed": -1}, {"shard": (2, 2)}])
def test_impossible_batches_are_refused(wrong):
    with pytest.raises(Refused):
        PackedRows(STREAM, **{"length": 4, "rows": 1, "seed": 0, **wrong})


def test_a_memory_mapped_stream_is_not_copied(tmp_path):
    path = tmp_path / "stream"
    STREAM.tofile(path)
    mapped = np.memmap(path, np.uint16, "r")
    packed = PackedRows(mapped, length=4, rows=1, seed=0)
    assert np.shares_memory(packed.stream, mapped)
    assert next(rows_of(packed))[1]
