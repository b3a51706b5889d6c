"""Batches: every row once per epoch, within the budget, the same everywhere and after resuming."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.data import plan
from heed.data.batches import FILLER, Batches
from heed.data.cache import Corpus, write
from heed.errors import Refused


def corpus(N=3000, seed=0, longest=60):
    """Lengths as in a corpus of captions: 13 on average, similar on both sides."""
    draw = np.random.default_rng(seed)
    source = np.clip(np.exp(draw.normal(2.6, 0.33, N)), 2, longest).astype(int)
    target = np.clip(source * np.exp(draw.normal(0.02, 0.18, N)), 2, longest).astype(int)
    columns = {"source": source, "target": target}
    return Corpus.of({k: [draw.integers(4, 99, n) for n in v] for k, v in columns.items()})


def seen(batches):
    rows = torch.cat([batch.rows for batch in batches])
    return sorted(rows[rows != FILLER].tolist())


def same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.rows, b.rows)
        assert all(torch.equal(a.tokens[k], b.tokens[k]) for k in a.tokens)
        assert all(torch.equal(a.lengths[k], b.lengths[k]) for k in a.lengths)


@pytest.fixture(params=[False, True], ids=["cut", "fixed"])
def fixed(request):
    return request.param


lengths = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=60)


@settings(max_examples=80, deadline=None)
@given(lengths, st.integers(1, 200), st.booleans(), st.booleans(), st.integers(1, 5))
def test_every_row_is_visited_once_and_within_the_budget(rows, tokens, fixed, shuffle, world):
    columns = {"a": [[7] * a for a, _ in rows], "b": [[8] * b for _, b in rows]}
    data = Corpus.of(columns)
    kept = {"tokens": tokens, "seed": 3, "shuffle": shuffle, "fixed": fixed}
    whole = Batches(data, **kept)
    parts = [list(Batches(data, **kept, shard=(r, world)).epoch(2)) for r in range(world)]
    batches = list(whole.epoch(2))
    assert seen(batches) == list(range(len(rows)))
    assert len(batches) == whole.count(2)
    for i, batch in enumerate(batches):
        widest = max(x.shape[1] for x in batch.tokens.values())
        assert len(batch.rows) * widest <= tokens or len(batch.rows) == 1
        for r, n in enumerate(batch.rows.tolist()):
            for column, x in batch.tokens.items():
                length = 1 if n == FILLER else len(columns[column][n])
                assert batch.lengths[column][r] == length
                row = [] if n == FILLER else columns[column][n]
                assert x[r].tolist() == row + [0] * (x.shape[1] - len(row))
        assert seen([part[i] for part in parts]) == seen([batch])  # the ranks share this batch
        assert all(len(part[i].rows) for part in parts)
        if fixed:
            assert len({part[i].tokens["a"].shape for part in parts}) == 1


def test_a_column_aside_comes_along_and_changes_no_plan(fixed):
    plain = corpus(400)
    draw = np.random.default_rng(5)
    more = [draw.integers(0, 9, n).tolist() for n in draw.integers(0, 300, 400)]
    columns = {name: [plain[i][name] for i in range(400)] for name in plain.tokens}
    both = Corpus.of({"more": more, **columns})
    kept = {"tokens": 300, "seed": 1, "fixed": fixed}
    expected = list(Batches(plain, **kept).epoch(3))
    found = list(Batches(both, aside=("more",), **kept).epoch(3))
    assert [batch.rows.tolist() for batch in found] == [batch.rows.tolist() for batch in expected]
    widths = set()
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(one.tokens[name], other.tokens[name]) for name in columns)
        widths.add(one.tokens["more"].shape[1])
        for r, n in enumerate(one.rows.tolist()):
            row = [] if n == FILLER else more[n]
            assert one.lengths["more"][r] == (1 if n == FILLER else len(row))
            assert one.tokens["more"][r].tolist() == row + [0] * (
                one.tokens["more"].shape[1] - len(row)
            )
    assert not fixed or all(width & (width - 1) == 0 for width in widths)  # few shapes


def test_the_order_depends_on_seed_and_epoch(fixed):
    data = corpus()
    first = Batches(data, tokens=500, seed=1, fixed=fixed)
    same(list(first.epoch(4)), list(Batches(data, tokens=500, seed=1, fixed=fixed).epoch(4)))
    orders = [torch.cat([b.rows for b in first.epoch(n)]).tolist() for n in (0, 1)]
    orders.append(torch.cat([b.rows for b in Batches(data, tokens=500, seed=2).epoch(0)]).tolist())
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_an_epoch_can_be_resumed_in_the_middle(fixed):
    data = corpus(500)
    batches = Batches(data, tokens=300, seed=1, fixed=fixed)
    whole = list(batches.epoch(7))
    for start in (0, 1, len(whole) // 2, len(whole)):
        same(list(Batches(data, tokens=300, seed=1, fixed=fixed).epoch(7, start)), whole[start:])


def test_batches_are_not_ordered_by_length():
    lengths = [
        float(b.lengths["source"].float().mean())
        for b in Batches(corpus(), tokens=400, seed=0).epoch(0)
    ]
    assert abs(np.corrcoef(lengths, range(len(lengths)))[0, 1]) < 0.3


def test_without_shuffling_the_order_is_always_the_same(fixed):
    data = corpus()
    kept = {"tokens": 400, "shuffle": False, "fixed": fixed}
    same(list(Batches(data, seed=0, **kept).epoch(0)), list(Batches(data, seed=5, **kept).epoch(9)))
    if not fixed:
        for batch in Batches(data, seed=0, **kept).epoch(0):
            pairs = list(zip(*(x.tolist() for x in batch.lengths.values()), strict=True))
            for one in set(pairs):
                rows = [r for r, p in zip(batch.rows.tolist(), pairs, strict=True) if p == one]
                assert rows == sorted(rows)


def test_rows_beyond_the_budget_get_batches_of_their_own():
    data = Corpus.of({"x": [[5] * n for n in (3, 50, 4, 60)]})
    sizes = sorted(tuple(b.tokens["x"].shape) for b in Batches(data, tokens=10, seed=0).epoch(0))
    assert sizes == [(1, 50), (1, 60), (2, 4)]


def test_each_pool_is_sorted(monkeypatch):
    monkeypatch.setattr(plan, "POOL", 100)
    data = corpus(950)
    batches = list(Batches(data, tokens=400, seed=0).epoch(0))
    assert seen(batches) == list(range(950))
    assert max(len(b.rows) * max(x.shape[1] for x in b.tokens.values()) for b in batches) <= 400


def places(batches):
    return sum(x.numel() for batch in batches for x in batch.tokens.values())


def test_there_is_little_padding_and_few_shapes():
    data = corpus(29_000)
    real = sum(int(n.sum()) for n in data.lengths.values())
    cut = list(Batches(data, tokens=4096, seed=0).epoch(0))
    fixed = list(Batches(data, tokens=4096, seed=0, fixed=True).epoch(0))
    assert 1 - real / places(cut) < 0.07
    assert 1 - real / places(fixed) < 0.15
    shapes = {tuple(x.shape for x in batch.tokens.values()) for batch in fixed}
    assert len(shapes) <= 25
    assert all(width % 4 == 0 for shape in shapes for _, width in shape)
    assert sum(bool((batch.rows == FILLER).any()) for batch in fixed) <= 1
    later = Batches(data, tokens=4096, seed=0, fixed=True).epoch(3)
    assert {tuple(x.shape for x in batch.tokens.values()) for batch in later} == shapes


def test_one_column_much_longer_than_the_other_wastes_nothing():
    draw = np.random.default_rng(0)
    data = Corpus.of(
        {"sound": [[5] * n for n in draw.integers(300, 1000, 2000)], "text": [[5] * 9] * 2000}
    )
    shapes = {
        tuple(x.shape[1] for x in b.tokens.values())
        for b in Batches(data, tokens=20_000, seed=0, fixed=True).epoch(0)
    }
    assert {text for _, text in shapes} == {12}


def test_lengths_are_rounded_to_a_grid():
    assert plan.grid(1).tolist() == [8]
    assert plan.grid(100).tolist() == [8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112]


def test_an_empty_corpus_gives_no_batch(fixed):
    batches = Batches(Corpus.of({"x": []}), tokens=10, seed=0, fixed=fixed)
    assert (batches.count(0), list(batches.epoch(0))) == (0, [])


@pytest.mark.parametrize(
    "wrong", [{"tokens": 0}, {"seed": -1}, {"shard": (2, 2)}, {"shard": (-1, 2)}]
)
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(Refused, match="a batch takes tokens"):
        Batches(corpus(5), **{"tokens": 10, "seed": 0, **wrong})


def test_a_batch_can_be_moved_to_a_device():
    batch = next(Batches(corpus(50), tokens=100, seed=0).epoch(0))
    away = batch.to("meta")
    assert {x.device.type for x in [*away.tokens.values(), *away.lengths.values(), away.rows]} == {
        "meta"
    }
    assert {x.dtype for x in [*batch.tokens.values(), *batch.lengths.values(), batch.rows]} == {
        torch.int64
    }
    same([batch.to("cpu")], [batch])


def test_the_order_never_changes_between_versions():
    """Another numpy must not change an interrupted run: only Philox's raw bits are used."""
    draw = np.random.Philox(np.random.SeedSequence([5, 1]))
    assert plan.permutation(draw, 5).tolist() == [2, 0, 1, 4, 3]
    data = Corpus.of({"x": [[5] * (7 * i % 11 + 1) for i in range(12)]})
    rows = [batch.rows.tolist() for batch in Batches(data, tokens=20, seed=5).epoch(1)]
    assert rows == [[0, 11, 8, 5, 2], [9, 6], [3], [4, 1], [10, 7]]


PROGRAM = """
import sys
from heed.data.batches import Batches
from heed.data.cache import Corpus
for rank in (0, 1):
    data = Batches(Corpus.open(sys.argv[1], "x"), tokens=300, seed=1, shard=(rank, 2))
    print(*[row for batch in data.epoch(3) for row in batch.rows.tolist()])
"""


def test_another_process_gets_the_same(tmp_path):
    data = corpus(400)
    columns = {k: [data[i][k].tolist() for i in range(400)] for k in data.tokens}
    stored = write(tmp_path, "x", columns, vocabulary=99)
    run = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    env = {**os.environ, "PYTHONHASHSEED": "3"}
    told = subprocess.run(run, env=env, capture_output=True, check=True, text=True).stdout
    for rank, line in enumerate(told.splitlines()):
        here = Batches(stored, tokens=300, seed=1, shard=(rank, 2)).epoch(3)
        assert [row for batch in here for row in batch.rows.tolist()] == list(
            map(int, line.split())
        )
    same(
        list(Batches(stored, tokens=300, seed=1).epoch(0)),
        list(Batches(data, tokens=300, seed=1).epoch(0)),
    )
