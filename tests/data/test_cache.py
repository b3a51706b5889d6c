"""The cache: data is read as written, damage is noticed, and nothing is left incomplete."""

import json
import os
import tracemalloc

import numpy as np
import pytest
import torch

from heed.data import cache
from heed.data.batches import Batches
from heed.data.cache import Corpus, Writer, encode, write
from heed.errors import Refused

ROWS = {"source": [[4, 5, 3], [3], [65535, 3]], "target": [[9, 3], [], [7, 8, 9, 3]]}


def rows(corpus):
    return [{name: row.tolist() for name, row in corpus[i].items()} for i in range(len(corpus))]


def reuse(folder, name, fingerprint):
    try:
        return Corpus.open(folder, name, fingerprint)
    except Refused:
        return None


def expected(columns):
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize(
    ("vocabulary", "dtype"), [(1 << 16, "<u2"), ((1 << 16) + 1, "<u4"), (None, "<u4")]
)
def test_data_is_read_as_it_was_written(tmp_path, vocabulary, dtype):
    write(tmp_path / "new", "train", {n: iter(c) for n, c in ROWS.items()}, vocabulary=vocabulary)
    corpus = Corpus.open(tmp_path / "new", "train")
    assert len(corpus) == 3
    assert rows(corpus) == expected(ROWS) == rows(Corpus.of(ROWS))
    assert corpus.lengths["target"].tolist() == [2, 0, 4]
    assert corpus[-1]["source"].tolist() == [65535, 3]
    assert {x.dtype for x in corpus.tokens.values()} == {np.dtype(dtype)}
    assert not corpus.tokens["source"].flags.writeable
    with pytest.raises(IndexError):
        corpus[3]
    assert sorted(os.listdir(tmp_path / "new")) == [
        "train.json",
        "train.source.offsets",
        "train.source.tokens",
        "train.target.offsets",
        "train.target.tokens",
    ]


def test_chunks_are_joined(tmp_path):
    draw = np.random.default_rng(0)
    lengths = draw.integers(0, 5, 20_000)
    column = [draw.integers(0, 99, n).tolist() for n in lengths]
    corpus = write(tmp_path, "x", {"only": column}, vocabulary=99)
    assert corpus.lengths["only"].tolist() == lengths.tolist()
    assert all(corpus[i]["only"].tolist() == column[i] for i in range(0, 20_000, 37))


def test_columns_of_different_length_are_refused_and_leave_nothing(tmp_path):
    with pytest.raises(Refused, match="source has 2, target has 1"):
        write(tmp_path, "x", {"source": [[1], [2]], "target": [[1]]})
    with pytest.raises(Refused, match="differ in length"):
        Corpus.of({"source": [[1], [2]], "target": [[1]]})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [-1, 1 << 16])
def test_a_number_that_does_not_fit_is_refused(tmp_path, number):
    with pytest.raises(Refused, match="does not fit into uint16"):
        write(tmp_path, "x", {"source": [[number]]}, vocabulary=100)
    assert os.listdir(tmp_path) == []


def test_a_failure_leaves_the_old_cache(tmp_path):
    write(tmp_path, "x", ROWS)

    def broken():
        yield [1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, "x", {"source": broken(), "target": [[1]]})
    assert rows(Corpus.open(tmp_path, "x")) == expected(ROWS)
    assert len(os.listdir(tmp_path)) == 5


@pytest.mark.parametrize("moment", range(6))
def test_a_kill_between_two_renames_is_noticed(tmp_path, monkeypatch, moment):
    """New files beside an old header could pass for a cache: same sizes, other data."""
    write(tmp_path, "x", {"source": [[1, 2]], "target": [[3]]}, fingerprint="old")
    replace, calls = cache.Path.replace, []

    def dying(path, to):
        calls.append(to)
        if len(calls) > moment:
            raise KeyboardInterrupt
        return replace(path, to)

    monkeypatch.setattr(cache.Path, "replace", dying)
    new = {"source": [[5, 6]], "target": [[7]]}
    if moment < 5:
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, "x", new, fingerprint="new")
        assert reuse(tmp_path, "x", "old") is reuse(tmp_path, "x", "new") is None
    else:
        write(tmp_path, "x", new, fingerprint="new")
        assert rows(reuse(tmp_path, "x", "new")) == expected(new)
        assert calls[-1] == tmp_path / "x.json"


@pytest.mark.parametrize("end", ["source.tokens", "target.offsets", "json"])
@pytest.mark.parametrize("how", ["short", "long", "gone", "empty"])
def test_a_broken_file_is_noticed(tmp_path, end, how):
    write(tmp_path, "x", ROWS, fingerprint="f")
    path = tmp_path / f"x.{end}"
    raw = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes({"short": raw[:-1], "long": raw + b"\0", "empty": b""}[how])
    assert reuse(tmp_path, "x", "f") is None
    with pytest.raises(Refused) as error:
        Corpus.open(tmp_path, "x")
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0},
        {"columns": {"source": [6, "object", 0], "target": [6, "uint16", 0]}},
        {"columns": {"source": [6, "uint16", 2], "target": [6, "uint16", 0]}},
        {"columns": {"source": [6, "float32", 10**9], "target": [6, "uint16", 0]}},
        {"rows": -1},
        {"rows": 10**15},
        {"rows": True},
        {"columns": {}},
        {"columns": {"../../etc/passwd": [3, "uint16", 0]}},
        {"columns": [1]},
        {"columns": {"source": "6", "target": 6}},
        {"fingerprint": None},
    ],
)
def test_a_hostile_header_is_refused(tmp_path, change):
    write(tmp_path, "x", ROWS)
    header = json.loads((tmp_path / "x.json").read_text())
    (tmp_path / "x.json").write_text(json.dumps({**header, **change}))
    with pytest.raises(Refused, match="cache"):
        Corpus.open(tmp_path, "x")


def test_offsets_that_decrease_are_refused(tmp_path):
    write(tmp_path, "x", ROWS)
    np.array([0, 9, 4, 6], "<i8").tofile(tmp_path / "x.source.offsets")
    with pytest.raises(Refused, match=r"offsets is broken"):
        Corpus.open(tmp_path, "x")


def test_a_cache_is_reused_only_for_the_same_data(tmp_path):
    write(tmp_path, "x", ROWS, fingerprint="one")
    assert rows(reuse(tmp_path, "x", "one")) == expected(ROWS)
    assert reuse(tmp_path, "x", "two") is None
    assert reuse(tmp_path, "y", "one") is None
    with pytest.raises(Refused, match="other data"):
        Corpus.open(tmp_path, "x", "two")


def test_texts_are_encoded_in_chunks(tmp_path):
    sizes = []

    def coder(texts):
        sizes.append(len(texts))
        return [[*map(int, text.split()), 3] for text in texts]

    pairs = [(f"{i}", f"{i} {i}") for i in range(10)]
    coders, keep = {"source": coder, "target": coder}, lambda row: row[1][0] != 7
    told = list(encode(tmp_path, "x", iter(pairs), coders, chunk=4, keep=keep))
    kept = [i for i in range(10) if i != 7]
    assert rows(Corpus.open(tmp_path, "x")) == [
        {"source": [i, 3], "target": [i, i, 3]} for i in kept
    ]
    assert told == [4, 8, 10]
    assert sizes == [4, 4, 4, 4, 2, 2]


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    def peak(n):
        tracemalloc.start()
        texts = (("a b c d e f g h", "x") for _ in range(n))
        coder = {"source": lambda ts: [[5] * 20] * len(ts), "target": lambda ts: [[5]] * len(ts)}
        for _ in encode(tmp_path, "x", texts, coder, chunk=500, vocabulary=9):
            pass
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(10)
    rise = peak(20_000) - peak(2_000)
    assert rise < 20_000 * 8 * 4 + 200_000  # the lengths are kept, not 20,000 × 20 numbers


def test_a_path_that_cannot_be_written_is_reported_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match="cannot write the cache"):
        write(tmp_path / "file", "x", ROWS)
    with (
        pytest.raises(Refused, match=r"cannot write the cache .*: No space left"),
        Writer(tmp_path, "x", ["a"]),
    ):
        raise OSError(28, "No space left on device")


def test_a_cache_that_cannot_be_started_leaves_nothing(tmp_path, monkeypatch):
    def full(self, end):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Writer, "_file", full)
    with pytest.raises(Refused, match=r"cannot write the cache .*: No space left"):
        write(tmp_path, "x", ROWS)
    assert not list(tmp_path.iterdir())


def test_real_numbers_are_kept_by_position_and_padded(tmp_path):
    series = [np.arange(6, dtype=np.float32).reshape(3, 2), np.full((1, 2), 7.5, np.float32)]
    encoders = {"series": lambda rows: rows, "label": lambda rows: [[n] for n in rows]}
    list(
        cache.encode(
            tmp_path, "x", zip(series, [1, 2], strict=True), encoders, widths={"series": 2}
        )
    )
    corpus = Corpus.open(tmp_path, "x")
    assert corpus.tokens["series"].shape == (4, 2)
    assert np.array_equal(corpus[0]["series"], series[0])
    (batch,) = Batches(corpus, tokens=100, seed=0, shuffle=False).epoch(0)
    assert batch.tokens["series"].dtype == torch.float32
    short, long = batch.lengths["series"].argsort().tolist()
    assert batch.tokens["series"][short].tolist() == [[7.5, 7.5], [0, 0], [0, 0]]
    assert batch.tokens["series"][long].tolist() == series[0].tolist()
    with pytest.raises(Refused, match="not N × 2"):
        list(cache.encode(tmp_path, "y", [(np.zeros((2, 3)), 1)], encoders, widths={"series": 2}))


def test_a_position_may_cost_several_symbols(tmp_path):
    corpus = Corpus.of({"series": [np.zeros((4, 2), np.float32)] * 6})
    plain, dear = (
        Batches(corpus, tokens=16, seed=0, costs=costs, shuffle=False)
        for costs in ({}, {"series": 4})
    )
    assert (plain.count(0), dear.count(0)) == (2, 6)
