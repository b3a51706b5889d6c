"""Next sentences: half of the pairs are real, half from another document, all short enough."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.data.documents import Documents
from heed.data.segment_pairs import FRAME, _Draws, laid_out, pair_segments
from heed.data.tokenise import BOS, EOS
from heed.errors import Refused


def numbered(shape):
    """Documents in which each sentence repeats a number of its own: 10, 11, 12, ..."""
    number, documents = 10, []
    for document in shape:
        documents.append([])
        for length in document:
            documents[-1].append([number] * length)
            number += 1
    return Documents.of(documents)


def test_the_rows_of_two_documents_by_hand():
    documents = numbered([[2, 1, 3], [2, 2]])  # 10 10 | 11 | 12 12 12 || 13 13 | 14 14
    owner = {10: 0, 11: 0, 12: 0, 13: 1, 14: 1}
    real = {"10 10 / 11 12 12 12", "10 10 11 / 12 12 12", "11 / 12 12 12", "13 13 / 14 14"}
    seen = set()
    for epoch in range(40):
        pairs = pair_segments(documents, longest=9, seed=1, epoch=epoch, short=0)
        text, segments = laid_out(documents, pairs, np.arange(len(pairs.follows)))
        for row, second, follows in zip(text, segments, pairs.follows, strict=True):
            assert row[0] == BOS
            ends = np.flatnonzero(row == EOS)
            assert len(ends) == 2
            a, b = row[1 : ends[0]], row[ends[0] + 1 : ends[1]]
            assert second.tolist() == [0] * (ends[0] + 1) + [1] * (ends[1] - ends[0]) + [0] * (
                len(row) - 1 - ends[1]
            )
            assert not row[ends[1] + 1 :].any()
            same = owner[int(a[0])] == owner[int(b[0])]
            assert same == bool(follows)
            if follows:
                seen.add(" / ".join(" ".join(map(str, side)) for side in (a, b)))
    assert seen == real


def test_rows_do_not_depend_on_how_many_are_drawn_ahead(monkeypatch):
    documents = numbered([[2] * 9] * 6)
    few = pair_segments(documents, longest=9, seed=1, epoch=0)
    monkeypatch.setattr(_Draws, "AHEAD", 3)
    assert len(few.follows) > 6
    for one, other in zip(few, pair_segments(documents, longest=9, seed=1, epoch=0), strict=True):
        assert one.tolist() == other.tolist()


def test_pairs_that_are_too_long_are_cut_around_the_border():
    documents = Documents.of([[list(range(10, 20)), list(range(20, 30))], [[40] * 3, [41] * 20]])
    cut = set()
    for epoch in range(20):
        pairs = pair_segments(documents, longest=9, seed=0, epoch=epoch, short=0)
        text, _ = laid_out(documents, pairs, np.arange(len(pairs.follows)))
        cut |= {tuple(row.tolist()) for row in text}
    assert (BOS, 17, 18, 19, EOS, 20, 21, 22, EOS) in cut
    assert (BOS, 40, 40, 40, EOS, 41, 41, 41, EOS) in cut
    assert all(len(row) == 9 for row in cut)


def test_half_are_real_and_random_ones_are_uniform():
    draw = np.random.default_rng(0)
    documents = numbered([draw.integers(1, 9, draw.integers(2, 9)).tolist() for _ in range(400)])
    pairs = pair_segments(documents, longest=32, seed=5, epoch=0)
    N = len(pairs.follows)
    assert abs(pairs.follows.mean() - 0.5) < 4 * 0.5 / N**0.5
    foreign = documents.stream[pairs.second[pairs.follows == 0]]
    halves = np.histogram(foreign, 4, (10, documents.stream.max()))[0]
    assert halves.min() > 0.7 * halves.max()
    assert pairs.lengths.max() <= 32
    assert (pairs.lengths < 20).mean() > 0.05  # some rows are short


def test_pairs_depend_on_seed_and_epoch():
    documents = numbered([[3, 2, 4, 1]] * 30)
    one, same = (pair_segments(documents, longest=16, seed=3, epoch=2) for _ in range(2))
    assert all((a == b).all() for a, b in zip(one, same, strict=True))
    other = pair_segments(documents, longest=16, seed=3, epoch=3)
    assert len(other.first) != len(one.first) or (other.second != one.second).any()


shapes = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=6), min_size=2, max_size=8)


@settings(max_examples=120, deadline=None)
@given(shapes, st.integers(5, 40), st.integers(0, 5))
def test_every_sentence_of_a_document_is_used_and_every_row_fits(shape, longest, seed):
    documents = numbered(shape)
    if max(map(len, shape)) < 2:
        with pytest.raises(Refused, match=r"no next sentences; .*next_sentence=false$"):
            pair_segments(documents, longest=longest, seed=seed, epoch=0)
        return
    pairs = pair_segments(documents, longest=longest, seed=seed, epoch=0)
    assert pairs.lengths.max() <= longest
    assert (pairs.first_end > pairs.first).all()
    assert (pairs.second_end > pairs.second).all()
    owner = np.searchsorted(documents.borders, [pairs.first, pairs.second], "right")
    assert ((owner[0] == owner[1]) == (pairs.follows == 1)).all()
    last = np.searchsorted(documents.borders, [pairs.first_end - 1, pairs.second_end - 1], "right")
    assert (owner == last).all()  # no segment crosses the end of a document
    real = pairs.follows == 1
    assert (pairs.first_end[real] == pairs.second[real]).all()
    # Each document of several sentences begins in some A, and its last sentence is used.
    for begin, end, sentences in zip(documents.borders, documents.borders[1:], shape, strict=False):
        firsts = (pairs.first_end > begin) & (pairs.first_end <= end)
        assert firsts.any() == (len(sentences) > 1)
        assert firsts.sum() <= len(sentences)  # the rest of a document is tried once


def test_documents_without_pairs_are_refused():
    with pytest.raises(Refused, match="two documents at least"):
        pair_segments(numbered([[3, 3]]), longest=10, seed=0, epoch=0)
    with pytest.raises(Refused, match="no room"):
        pair_segments(numbered([[3, 3], [1]]), longest=FRAME + 1, seed=0, epoch=0)
